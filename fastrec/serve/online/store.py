"""What keeps the events: a few methods that memory and Redis share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Store(Protocol):
    """Byte strings by key, to which bytes are appended.

    What ``write`` and ``replace`` have returned from is kept; what they do is done whole or not at all.
    """

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """What is at each key, all as of one moment; None: nothing."""

    def write(self, appends: Mapping[bytes, bytes], sets: Mapping[bytes, bytes]) -> dict[bytes, int]:
        """Append to some keys' values and set others'.

        Returns:
            The new length of each value that was appended to.
        """

    def replace(self, key: bytes, old: bytes, new: bytes, sets: Mapping[bytes, bytes]) -> bool:
        """Put ``new`` for ``old``, with which the key's value begins, and set other keys.

        Returns:
            False: it begins with something else, and nothing was done.
        """

    def first(self, key: bytes, value: bytes) -> bytes:
        """Set a key that has no value yet.

        Returns:
            The value that it has now: the first one that anybody gave.
        """

    def count(self, name: bytes, n: int) -> int:
        """Add ``n`` to a counter, which is kept by the next ``write``, and return what it was before."""

    def snapshot(self) -> None:
        """Keep what there is in a form that is quickly read."""

    def close(self) -> None:
        """Give back files and connections."""
