"""A file that grows by records and is whole after a crash: what was synced is there, a torn end is cut off."""

from __future__ import annotations

import os
import struct
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Literal

from fastrec.errors import DataWarning, UnreadableFileError, WriteError

Sync = Literal["always", "never"]

_MAGIC = b"fastrec events 1\n"
_HEAD = struct.Struct("<II")  # length and CRC-32 of what follows


class EventLog:
    """Records one after the other, each with its length and checksum.

    Args:
        path: the file; made where it is not there.
        sync: ``'always'``: ``commit`` returns when the disk has the record, one wait serving all threads that wait;
            ``'never'``: the system writes when it likes, and a power cut (not a crash of the process) may lose records.
    """

    def __init__(self, path: Path, *, sync: Sync = "always") -> None:
        self.path, self.sync = path, sync
        is_new = not path.exists() or path.stat().st_size == 0
        self._file = path.open("ab", buffering=0)
        self._turn = Lock()
        self._written = self._synced = 0
        if is_new:
            self._file.write(_MAGIC)
            sync_folder(path.parent)
        self.size = path.stat().st_size

    def append(self, payload: bytes) -> int:
        """Write a record; not by two threads at once.

        Returns:
            A number to ``commit`` to.

        Raises:
            WriteError: the disk refused; the file is as it was.
        """
        record = _HEAD.pack(len(payload), zlib.crc32(payload)) + payload
        try:
            if self._file.write(record) != len(record):
                raise OSError("the disk took a part of it")
        except OSError as error:
            os.truncate(self.path, self.size)
            raise WriteError(
                f"the events were not written ({error.strerror or error})",
                file=self.path,
                remedy="Free disk space; what was observed before is untouched",
            ) from error
        self.size += len(record)
        self._written += 1
        return self._written

    def commit(self, number: int) -> None:
        """Wait until the record of that number is on the disk."""
        if self.sync == "never":
            return
        with self._turn:  # whoever comes first syncs for all that were written by then
            if self._synced < number and not self._file.closed:
                upto = self._written
                os.fsync(self._file.fileno())
                self._synced = upto

    def close(self) -> None:
        """Sync and close."""
        self.commit(self._written)
        with self._turn:
            self._file.close()


def read_log(path: Path, *, after: int = 0) -> Iterator[bytes]:
    """Read the records of a log; a torn end is cut off the file.

    Args:
        path: the file.
        after: those that end at this byte or before are passed over: the size that the file once had.

    Raises:
        UnreadableFileError: it is no log, or is damaged before its end.
    """
    data = path.read_bytes()
    if not data.startswith(_MAGIC[: len(data)]):
        raise UnreadableFileError("it is no log of events", file=path, remedy="Give the folder of a store")
    if len(data) < len(_MAGIC):  # the process died as it made the file
        os.truncate(path, 0)
        return
    place = good = len(_MAGIC)
    while place + _HEAD.size <= len(data):
        payload = _record_at(data, place)
        if payload is None:
            break
        place = good = place + _HEAD.size + len(payload)
        if place > after:
            yield payload
    if good < len(data):
        _check_torn(data, good, path)
        os.truncate(path, good)


def _record_at(data: bytes, place: int) -> bytes | None:
    length, checksum = _HEAD.unpack_from(data, place)
    payload = data[place + _HEAD.size : place + _HEAD.size + length]
    return payload if len(payload) == length and zlib.crc32(payload) == checksum else None


def _check_torn(data: bytes, good: int, path: Path) -> None:
    if good + _HEAD.size <= len(data):
        place = good + _HEAD.size + _HEAD.unpack_from(data, good)[0]
        if place + _HEAD.size <= len(data) and _record_at(data, place) is not None:
            raise UnreadableFileError(
                f"the record at byte {good} is damaged and others follow it",
                file=path,
                remedy="Restore a backup, or export the state again and observe the events since",
            )
    warnings.warn(
        f"{path}: the last {len(data) - good} bytes are a record that was cut short; it was never acknowledged, "
        "and is dropped",
        DataWarning,
        stacklevel=4,
    )


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
