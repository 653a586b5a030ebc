"""The store of events, in memory and, if asked, in a folder."""

from __future__ import annotations

import os
import struct
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from threading import Lock, RLock
from typing import BinaryIO, Literal

import numpy as np
import pyarrow as pa

from fastrec._core import limits
from fastrec._core.atomic import atomic_file
from fastrec.errors import DataError, DataWarning, UnreadableFileError, WriteError
from fastrec.features._engine.keyed import key_text
from fastrec.table import Table
from fastrec.table.keys import is_text

# A log survives a crash: synced records are there, and a torn end is cut off.

Sync = Literal["always", "never"]

_MAGIC = b"fastrec events 1\n"
_HEAD = struct.Struct("<II")  # length and CRC-32 of what follows


class EventLog:
    """Records in a file, one after the other, each with its length and checksum; ``sync`` as of ``MemoryStore``."""

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
        """Write a record; not by two threads at once. Return a number to ``commit`` to; a refused file is as it was."""
        record = _HEAD.pack(len(payload), zlib.crc32(payload)) + payload
        try:
            if self._file.write(record) != len(record):
                raise OSError("the disk took a part of it")
        except OSError as error:
            os.truncate(self.path, self.size)
            why = f"the events were not written ({error.strerror or error})"
            remedy = "Free disk space; what was observed before is untouched"
            raise WriteError(why, file=self.path, remedy=remedy) from error
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
    """Read a log's records that end after byte ``after``, the size that the file once had; cut off a torn end."""
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
        if good + _HEAD.size <= len(data):
            place = good + _HEAD.size + _HEAD.unpack_from(data, good)[0]
            if place + _HEAD.size <= len(data) and _record_at(data, place) is not None:
                remedy = "Restore a backup, or export the state again and observe the events since"
                why = f"the record at byte {good} is damaged and others follow it"
                raise UnreadableFileError(why, file=path, remedy=remedy)
        cut = f"the last {len(data) - good} bytes are a record that was cut short; it was never acknowledged"
        warnings.warn(f"{path}: {cut}, and is dropped", DataWarning, stacklevel=3)
        os.truncate(path, good)


def _record_at(data: bytes, place: int) -> bytes | None:
    length, checksum = _HEAD.unpack_from(data, place)
    payload = data[place + _HEAD.size : place + _HEAD.size + length]
    return payload if len(payload) == length and zlib.crc32(payload) == checksum else None


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


_PART = struct.Struct("<BII")  # the operation, the key's and the value's length
_APPEND, _SET, _COUNT, _REPLACE = range(4)
_LENGTH = struct.Struct("<I")  # of the beginning that is replaced


class MemoryStore:
    """Byte strings by key that can be appended to; in a folder they survive a crash of the process.

    Each change is atomic: one record of an append-only log, stored when ``write`` or ``replace`` returns. A snapshot
    (an Arrow file) replaces the log before it; one is written whenever the log has outgrown the last snapshot.

    Args:
        folder: the folder of log and snapshots, for one process at a time; None: memory only.
        sync: ``'always'``: a change is on disk when the call returns; waiting threads share one ``fsync``. ``'never'``:
            a power cut may lose the last seconds, a crash of the process nothing.

    Raises:
        DataError: another process has the folder open.
        UnreadableFileError: a file is damaged, not merely cut short.
    """

    def __init__(self, folder: str | Path | None = None, *, sync: Sync = "always") -> None:
        self.folder, self.sync = None if folder is None else Path(folder), sync
        if sync not in ("always", "never"):
            raise DataError(f"MemoryStore cannot sync {sync!r}", remedy="Use 'always' or 'never'")
        self._data: dict[bytes, bytearray] = {}
        self._counts: dict[bytes, int] = {}
        self._changed: set[bytes] = set()
        self._lock, self._maintenance = RLock(), Lock()
        self._log: EventLog | None = None
        self._snapshot_size = 0
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._hold = _hold(self.folder)
            try:
                self._open()
            except BaseException:
                self._hold.close()
                raise

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, all as of one moment; None if there is none."""
        with self._lock:
            return [bytes(self._data[key]) if key in self._data else None for key in keys]

    def write(self, appends: Mapping[bytes, bytes], sets: Mapping[bytes, bytes]) -> dict[bytes, int]:
        """Append to some keys' values and set others'; return the new length of each that was appended to."""
        with self._lock:
            parts = [(_COUNT, name, self._counts[name].to_bytes(8, "little")) for name in self._changed]
            parts += [(_SET, key, value) for key, value in sets.items()]
            parts += [(_APPEND, key, value) for key, value in appends.items()]
            number = self._keep(parts)
            self._changed.clear()
            lengths = {key: len(self._data[key]) for key in appends}
        self._commit(number)
        return lengths

    def replace(self, key: bytes, old: bytes, new: bytes, sets: Mapping[bytes, bytes]) -> None:
        """Replace ``old``, the beginning of the key's value, by ``new``, and set the keys of ``sets``.

        Nothing is done if the value begins with something else, because it was replaced meanwhile.
        """
        with self._lock:
            if not self._data.get(key, b"").startswith(old):
                return
            parts = [(_SET, k, v) for k, v in sets.items()]
            number = self._keep([*parts, (_REPLACE, key, _LENGTH.pack(len(old)) + new)])
        self._commit(number)

    def first(self, key: bytes, value: bytes) -> bytes:
        """Set a key that has no value yet; return its value now: the first one that anybody gave."""
        with self._lock:
            if key not in self._data:
                self.write({}, {key: value})
            return bytes(self._data[key])

    def count(self, name: bytes, n: int) -> int:
        """Add ``n`` to a counter, which the next ``write`` stores, and return its value before."""
        with self._lock:
            before = self._counts.get(name, 0)
            if n:
                self._counts[name] = before + n
                self._changed.add(name)
            return before

    def snapshot(self) -> None:
        """Write everything in a form that loads quickly."""
        if self.folder is None:
            return
        with self._maintenance, self._lock:
            old = self._log
            number = _number(old.path) + 1
            path = self.folder / f"snapshot-{number:012d}.arrow"
            self._log = EventLog(self.folder / f"events-{number:012d}.log", sync=self.sync)
            old.close()
            schema = pa.schema([("what", pa.uint8()), ("key", pa.binary()), ("value", pa.large_binary())])
            rows = [(_COUNT, k, v.to_bytes(8, "little")) for k, v in self._counts.items()]
            rows += [(_SET, k, v) for k, v in self._data.items()]
            with atomic_file(path) as part:
                with pa.OSFile(str(part), "wb") as file, pa.ipc.new_file(file, schema) as writer:
                    for start in range(0, len(rows), 100_000):
                        columns = zip(*rows[start : start + 100_000])
                        arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
                        writer.write_batch(pa.record_batch(arrays, schema=schema))
                with part.open("rb") as file:
                    os.fsync(file.fileno())
            sync_folder(self.folder)
            self._snapshot_size = path.stat().st_size
            for file in (*self.folder.glob("events-*.log"), *self.folder.glob("snapshot-*.arrow")):
                if _number(file) < number:
                    file.unlink()

    def close(self) -> None:
        """Release the files."""
        if self._log is not None:
            self._log.close()
            self._hold.close()
            self._log = None

    def nbytes(self) -> int:
        """Count the bytes of keys and values, without Python's overhead."""
        with self._lock:
            return sum(len(k) + len(v) for k, v in self._data.items())

    def __len__(self) -> int:
        return len(self._data)

    def _keep(self, parts: list[tuple[int, bytes, bytes]]) -> int:
        number = 0
        if self._log is not None:
            number = self._log.append(b"".join(_PART.pack(what, len(k), len(v)) + k + v for what, k, v in parts))
        elif self.folder is not None:
            raise DataError("the store is closed", remedy="Open it again")
        for part in parts:
            self._do(*part)
        return number

    def _commit(self, number: int) -> None:
        log = self._log
        if log is None:
            return
        log.commit(number)
        if log.size > max(limits.SHORT_LOG, 2 * self._snapshot_size):
            self.snapshot()

    def _do(self, what: int, key: bytes, value: bytes) -> None:
        if what == _APPEND and key in self._data:
            self._data[key] += value
        elif what in (_APPEND, _SET):
            self._data[key] = bytearray(value)
        elif what == _COUNT:
            self._counts[key] = int.from_bytes(value, "little")
        else:
            self._data[key][: _LENGTH.unpack_from(value)[0]] = value[_LENGTH.size :]

    def _open(self) -> None:
        snapshots = sorted(self.folder.glob("snapshot-*.arrow"), key=_number)
        first = _number(snapshots[-1]) if snapshots else 0
        if snapshots:
            try:
                with pa.memory_map(str(snapshots[-1])) as file:
                    reader = pa.ipc.open_file(file)
                    for i in range(reader.num_record_batches):
                        columns = [c.to_pylist() for c in reader.get_batch(i).columns]
                        for what, key, value in zip(*columns, strict=True):
                            self._do(what if what == _COUNT else _SET, key, value)
            except (pa.ArrowInvalid, OSError, TypeError) as error:
                remedy = "Restore a backup, or export the state again"
                problem = f"the snapshot cannot be read ({error})"
                raise UnreadableFileError(problem, file=snapshots[-1], remedy=remedy) from error
            self._snapshot_size = snapshots[-1].stat().st_size
        logs = [p for p in sorted(self.folder.glob("events-*.log"), key=_number) if _number(p) >= first]
        for path in logs:
            for payload in read_log(path):
                for part in _unpack(payload, path):
                    self._do(*part)
        self._log = EventLog(self.folder / f"events-{max([first, *map(_number, logs)]):012d}.log", sync=self.sync)


def _hold(folder: Path) -> BinaryIO:
    handle = (folder / "lock").open("ab")
    try:
        import fcntl  # where there is none, nothing keeps a second process out

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        return handle
    except OSError as error:
        handle.close()
        raise DataError(f"another process keeps its events in {str(folder)!r}", remedy="Stop it") from error
    return handle


def _unpack(payload: bytes, path: Path) -> Iterator[tuple[int, bytes, bytes]]:
    place = 0
    while place < len(payload):
        what, key, value = _PART.unpack_from(payload, place)
        place += _PART.size
        if what > _REPLACE or place + key + value > len(payload):
            raise UnreadableFileError("it was written by another version", file=path, remedy="Export the state again")
        yield what, payload[place : place + key], payload[place + key : place + key + value]
        place += key + value


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[2])


# Keys of rows as bytes: the same for equal values, whatever type a frame gave them.


def row_keys(
    table: Table, names: Sequence[str], prefix: bytes, memory: dict[str, list[bytes | None]] | None = None
) -> list[bytes | None]:
    """Build each row's key: the prefix and 16 bytes of a digest of each column's value; None if a part is missing.

    Among 8·10¹⁴ values, two have the same digest with a chance of one in a billion. ``memory`` keeps the columns'
    digests for the next call.
    """
    if not names:
        return [prefix] * len(table)
    digests = {} if memory is None else memory
    digests |= {name: _digests(table, name) for name in names if name not in digests}
    return [None if None in row else prefix + b"".join(row) for row in zip(*(digests[name] for name in names))]


def _digests(table: Table, name: str) -> list[bytes | None]:
    coded = table[name].coded()
    codes = coded.codes.tolist()
    used = sorted(set(codes) - {0})
    values = coded.keys.columns[0].take(pa.array([c - 1 for c in used], pa.int64()))
    texts = (
        t.encode("utf-8", "surrogatepass") for t in (values if is_text(values.type) else key_text(values)).to_pylist()
    )
    made = {c: blake2b(t, digest_size=16).digest() for c, t in zip(used, texts, strict=True)}
    return [made.get(c) for c in codes]


def by_key(keys: Sequence[bytes | None], records: np.ndarray) -> dict[bytes, bytes]:
    """Group records by key, as bytes."""
    size = records.dtype.itemsize
    if len(keys) == 1:
        return {} if keys[0] is None else {keys[0]: records.tobytes()}
    places: dict[bytes, int] = {}
    codes = np.array([-1 if k is None else places.setdefault(k, len(places)) for k in keys])
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes + 1, minlength=len(places) + 1))
    data = records[order].tobytes()
    return {k: data[ends[i] * size : ends[i + 1] * size] for k, i in places.items()}
