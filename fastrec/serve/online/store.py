"""What keeps the events: a few methods that memory and Redis share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class EventStore(Protocol):
    """Byte strings by key, to which bytes are appended.

    What ``write`` and ``replace`` have returned from is kept; what they do is done whole or not at all.
    """

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, all as of one moment; None if there is none."""

    def write(self, appends: Mapping[bytes, bytes], sets: Mapping[bytes, bytes]) -> dict[bytes, int]:
        """Append to some keys' values and set others'.

        Returns:
            The new length of each value that was appended to.
        """

    def replace(self, key: bytes, old: bytes, new: bytes, sets: Mapping[bytes, bytes]) -> bool:
        """Replace ``old``, the beginning of the key's value, by ``new``, and set other keys.

        Returns:
            False: it begins with something else, and nothing was done.
        """

    def first(self, key: bytes, value: bytes) -> bytes:
        """Set a key that has no value yet.

        Returns:
            The value that it has now: the first one that anybody gave.
        """

    def count(self, name: bytes, n: int) -> int:
        """Add ``n`` to a counter, which the next ``write`` stores, and return its value before."""

    def snapshot(self) -> None:
        """Write everything in a form that loads quickly."""

    def close(self) -> None:
        """Release files and connections."""
