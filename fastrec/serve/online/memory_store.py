"""``MemoryStore``: events in the memory of this process, kept by a log and snapshots in a folder."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock, RLock
from typing import BinaryIO

import pyarrow as pa

from fastrec._core import limits
from fastrec._core.atomic import atomic_file
from fastrec.errors import DataError, UnreadableFileError
from fastrec.serve.online.event_log import EventLog, Sync, read_log, sync_folder
from fastrec.serve.online.store import EventStore

_PART = struct.Struct("<BII")  # what is done, the key's and the value's length
_APPEND, _SET, _COUNT, _REPLACE = range(4)
_LENGTH = struct.Struct("<I")


class MemoryStore:
    """Events in memory; with a folder they outlive the process, kill -9 included.

    Every change is one record of an append-only log. A snapshot (an Arrow file, put in place in one step) holds all
    that there is, and the log before it is dropped; one is made by itself when the log has outgrown the last one.

    Args:
        folder: where log and snapshots are, used by one process at a time; None: nothing outlives the process.
        sync: ``'always'``: what was observed is on the disk when ``observe`` returns; threads that wait share one
            ``fsync``. ``'never'``: a crash of the process loses nothing, a power cut may lose the last seconds.

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

    # The methods of a store ------------------------------------------------------------------------------------------

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See ``EventStore``."""
        with self._lock:
            found = [self._data.get(key) for key in keys]
            return [None if value is None else bytes(value) for value in found]

    def write(self, appends: Mapping[bytes, bytes], sets: Mapping[bytes, bytes]) -> dict[bytes, int]:
        """See ``EventStore``."""
        with self._lock:
            parts = [(_COUNT, name, _long(self._counts[name])) for name in self._changed]
            parts += [(_SET, key, value) for key, value in sets.items()]
            parts += [(_APPEND, key, value) for key, value in appends.items()]
            number = self._keep(parts)
            self._changed.clear()
            lengths = {key: len(self._data[key]) for key in appends}
        self._commit(number)
        return lengths

    def replace(self, key: bytes, old: bytes, new: bytes, sets: Mapping[bytes, bytes]) -> bool:
        """See ``EventStore``."""
        with self._lock:
            if not self._data.get(key, b"").startswith(old):
                return False
            parts = [(_SET, k, v) for k, v in sets.items()]
            number = self._keep([*parts, (_REPLACE, key, _LENGTH.pack(len(old)) + new)])
        self._commit(number)
        return True

    def first(self, key: bytes, value: bytes) -> bytes:
        """See ``EventStore``."""
        with self._lock:
            if key not in self._data:
                self.write({}, {key: value})
            return bytes(self._data[key])

    def count(self, name: bytes, n: int) -> int:
        """See ``EventStore``."""
        with self._lock:
            before = self._counts.get(name, 0)
            if n:
                self._counts[name] = before + n
                self._changed.add(name)
            return before

    def snapshot(self) -> None:
        """See ``EventStore``."""
        if self.folder is None:
            return
        with self._maintenance, self._lock:
            assert self._log is not None
            old = self._log
            number = _number(old.path) + 1
            path = self.folder / f"snapshot-{number:012d}.arrow"
            self._log = EventLog(self.folder / f"events-{number:012d}.log", sync=self.sync)
            old.close()
            _write_snapshot(path, self._data, self._counts)
            self._snapshot_size = path.stat().st_size
            for file in (*self.folder.glob("events-*.log"), *self.folder.glob("snapshot-*.arrow")):
                if _number(file) < number:
                    file.unlink()

    def close(self) -> None:
        """See ``EventStore``."""
        if self._log is not None:
            self._log.close()
            self._hold.close()
            self._log = None

    # ------------------------------------------------------------------------------------------------------------------

    def copy_to(self, store: EventStore) -> None:
        """Copy everything into another store."""
        with self._lock:
            keys = list(self._data)
            for start in range(0, len(keys), 10_000):
                store.write({}, {k: bytes(self._data[k]) for k in keys[start : start + 10_000]})
            for name, number in self._counts.items():
                store.count(name, number)
            store.write({}, {})

    def nbytes(self) -> int:
        """Count the bytes of keys and values, without Python's overhead."""
        with self._lock:
            return sum(len(k) + len(v) for k, v in self._data.items())

    def __len__(self) -> int:
        return len(self._data)

    def _keep(self, parts: list[tuple[int, bytes, bytes]]) -> int:
        if self._log is None:
            if self.folder is not None:
                raise DataError("the store is closed", remedy="Open it again")
            number = 0
        else:
            number = self._log.append(b"".join(_pack(parts)))
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
        if what == _APPEND:
            held = self._data.get(key)
            if held is None:
                self._data[key] = bytearray(value)
            else:
                held += value
        elif what == _SET:
            self._data[key] = bytearray(value)
        elif what == _COUNT:
            self._counts[key] = int.from_bytes(value, "little")
        else:
            self._data[key][: _LENGTH.unpack_from(value)[0]] = value[_LENGTH.size :]

    def _open(self) -> None:
        assert self.folder is not None
        snapshots = sorted(self.folder.glob("snapshot-*.arrow"), key=_number)
        first = _number(snapshots[-1]) if snapshots else 0
        if snapshots:
            self._data, self._counts = _read_snapshot(snapshots[-1])
            self._snapshot_size = snapshots[-1].stat().st_size
        logs = [p for p in sorted(self.folder.glob("events-*.log"), key=_number) if _number(p) >= first]
        for path in logs:
            for payload in read_log(path):
                for part in _unpack(payload, path):
                    self._do(*part)
        number = max([first, *map(_number, logs)])
        self._log = EventLog(self.folder / f"events-{number:012d}.log", sync=self.sync)


def _hold(folder: Path) -> BinaryIO:
    handle = (folder / "lock").open("ab")
    try:
        import fcntl  # where there is none, nothing keeps a second process out

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        return handle
    except OSError as error:
        handle.close()
        raise DataError(
            f"another process keeps its events in {str(folder)!r}", remedy="Stop it, or use a store for several (Redis)"
        ) from error
    return handle


def _pack(parts: list[tuple[int, bytes, bytes]]) -> Iterator[bytes]:
    for what, key, value in parts:
        yield _PART.pack(what, len(key), len(value))
        yield key
        yield value


def _unpack(payload: bytes, path: Path) -> Iterator[tuple[int, bytes, bytes]]:
    place = 0
    while place < len(payload):
        what, key, value = _PART.unpack_from(payload, place)
        place += _PART.size
        if what > _REPLACE or place + key + value > len(payload):
            raise UnreadableFileError("it was written by another version", file=path, remedy="Export the state again")
        yield what, payload[place : place + key], payload[place + key : place + key + value]
        place += key + value


def _long(number: int) -> bytes:
    return number.to_bytes(8, "little")


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def _write_snapshot(path: Path, data: Mapping[bytes, bytearray], counts: Mapping[bytes, int]) -> None:
    schema = pa.schema([("what", pa.uint8()), ("key", pa.binary()), ("value", pa.large_binary())])
    with atomic_file(path) as part:
        with pa.OSFile(str(part), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            rows = [(_COUNT, k, _long(v)) for k, v in counts.items()]
            rows += [(_SET, k, v) for k, v in data.items()]
            for start in range(0, len(rows), 100_000):
                block = rows[start : start + 100_000]
                columns = [pa.array(c, f.type) for c, f in zip(zip(*block), schema, strict=True)]
                writer.write_batch(pa.record_batch(columns, schema=schema))
        with part.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(path.parent)


def _read_snapshot(path: Path) -> tuple[dict[bytes, bytearray], dict[bytes, int]]:
    data: dict[bytes, bytearray] = {}
    counts: dict[bytes, int] = {}
    try:
        with pa.memory_map(str(path)) as file:
            for batch in _batches(pa.ipc.open_file(file)):
                for what, key, value in zip(*(batch.column(i).to_pylist() for i in range(3)), strict=True):
                    if what == _COUNT:
                        counts[key] = int.from_bytes(value, "little")
                    else:
                        data[key] = bytearray(value)
    except (pa.ArrowInvalid, OSError, TypeError) as error:
        raise UnreadableFileError(
            f"the snapshot cannot be read ({error})", file=path, remedy="Restore a backup, or export the state again"
        ) from error
    return data, counts


def _batches(reader: pa.ipc.RecordBatchFileReader) -> Iterator[pa.RecordBatch]:
    for i in range(reader.num_record_batches):
        yield reader.get_batch(i)
