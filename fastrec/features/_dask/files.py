"""``Mapped``: learned states in a worker's unnamed file instead of its memory.

The system drops and reloads its pages as needed, and the file vanishes when the worker ends.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import uuid4

import cloudpickle
import dask
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fastrec._core import limits
from fastrec._core.atomic import working_folder
from fastrec._core.device import on_host
from fastrec.features._dask.blocks import task
from fastrec.table import Table


class Mapped:
    """A picklable value that is stored in a file on every process that receives it."""

    def __init__(self, value: Any) -> None:
        self._value, self._lock = value, Lock()
        self._sent: tuple[bytes, Sequence[Any]] | None = None

    @property
    def value(self) -> Any:
        """The value; in a receiving process its arrays are read-only."""
        with self._lock:
            if self._sent is not None:
                self._value, self._sent = _laid_out(*self._sent), None
            return self._value

    def __reduce__(self) -> tuple[Any, ...]:
        with self._lock:
            head, arrays = self._sent or _apart(self._value)
            return _arrived, (head, [pickle.PickleBuffer(a) for a in arrays])

    def __sizeof__(self) -> int:
        sent = self._sent  # another thread may load it meanwhile
        return 1_000 if sent is None else len(sent[0]) + sum(memoryview(a).nbytes for a in sent[1])


def _arrived(head: bytes, arrays: Sequence[Any]) -> Mapped:
    made = Mapped(None)
    made._sent = head, arrays
    return made


class _Pickler(cloudpickle.Pickler):
    """Dask's pickler with tensors as buffers: PyTorch's would copy them into the pickle."""

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is not torch.Tensor or not _is_plain(thing):
            return super().reducer_override(thing)
        flat = thing.reshape(-1).view(torch.uint8).numpy()
        return _as_tensor, (pickle.PickleBuffer(flat), thing.dtype, tuple(thing.shape))


def _is_plain(tensor: torch.Tensor) -> bool:
    dense = tensor.layout is torch.strided and tensor.is_contiguous() and not tensor.is_quantized
    return dense and on_host(tensor) and not tensor.requires_grad and tensor.numel() > 0


def _as_tensor(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(buffer, dtype=torch.uint8).view(dtype).view(shape)


def _apart(value: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    head, arrays = io.BytesIO(), []
    _Pickler(head, protocol=5, buffer_callback=arrays.append).dump(value)
    return head.getvalue(), arrays


def _laid_out(head: bytes, arrays: Sequence[Any]) -> Any:
    """Load the value with its arrays in a file, or in memory if they are small."""
    views = [memoryview(a).cast("B") for a in arrays]
    places, end = [], 0
    for view in views:
        places.append(end)
        # Multiples of 64 bytes suit a tensor of any type.
        end += -(-max(view.nbytes, 1) // 64) * 64
    # Small values stay in memory, as a file for each would cost more.
    if end < limits.MAPPED_BYTES:
        return pickle.loads(head, buffers=[bytearray(v) for v in views])
    with tempfile.TemporaryFile(dir=_folder()) as file:
        file.truncate(end)
        for place, view in zip(places, views, strict=True):
            file.seek(place)
            file.write(view)
        file.flush()
        # Copy-on-write: PyTorch warns about read-only memory, and nothing writes here.
        whole = memoryview(mmap.mmap(file.fileno(), end, access=mmap.ACCESS_COPY))
    return pickle.loads(head, buffers=[whole[p : p + v.nbytes] for p, v in zip(places, views, strict=True)])


def _folder() -> str | None:
    with suppress(ImportError, ValueError):
        from distributed import get_worker

        return get_worker().local_directory
    return None


class PartFiles:
    """A table in Parquet files, one per partition, with the part of a Dask frame's interface that a FeatureSet uses.

    Columns are read on demand and not cached. All rows of one value of a ``together`` column are in one file, and in
    the file of the same number of another table that names the column: such rows need no shuffle.
    """

    divisions = None

    def __init__(self, files: Sequence[Path], together: Sequence[str] = (), names: Sequence[str] | None = None) -> None:
        self.files, self.together = list(files), tuple(together)
        self.columns = pq.read_schema(self.files[0]).names if names is None else list(names)

    def __getitem__(self, names: Sequence[str]) -> PartFiles:
        return PartFiles(self.files, self.together, names)

    def to_delayed(self) -> list[Any]:
        return [task(_read, str(file), self.columns) for file in self.files]


def _read(file: str, names: list[str]) -> pa.Table:
    if not file.endswith(".arrow"):
        return pq.ParquetFile(file).read(columns=names)
    with pa.memory_map(file) as source:
        return pa.ipc.open_file(source).read_all().select(names)


class MadeParts:
    """Lazy result of a FeatureSet on ``PartFiles``: a task per partition that returns an Arrow table."""

    divisions = None

    def __init__(self, parts: Sequence[Any], columns: Sequence[str]) -> None:
        self._parts, self.columns = list(parts), list(columns)

    def __getitem__(self, names: Sequence[str]) -> MadeParts:
        return MadeParts([task(pa.Table.select, p, list(names)) for p in self._parts], names)

    def to_delayed(self) -> list[Any]:
        return list(self._parts)


# Tables that wait in files while others are processed, in one process with little memory.

_SETTING = "fastrec.spill"


@contextmanager
def spilled(beside: Path, *, made: Path | None = None) -> Iterator[Path]:
    """Run Dask in this thread, and move rows between partitions through files, within the context."""
    # The folder is created in beside and removed at the end, as are leftovers of killed processes.
    # made: the folder, if this process has created it before it restarted
    beside.mkdir(parents=True, exist_ok=True)
    with (
        working_folder(beside / "spilled", made=made) as folder,
        dask.config.set({"scheduler": "synchronous", _SETTING: str(folder)}),
    ):
        yield folder


def spill_folder() -> str | None:
    """Return the folder for waiting tables; None: they stay in memory."""
    return dask.config.get(_SETTING, None)


class Shelf:
    """Numbered table files in ``folder``, several per place, removed when no task can read them any more."""

    def __init__(self, folder: str, places: int) -> None:
        own = Path(folder) / uuid4().hex
        own.mkdir()
        self._files = [own / str(i) for i in range(places)]
        self._gone = weakref.finalize(self, shutil.rmtree, own, ignore_errors=True)

    def __len__(self) -> int:
        return len(self._files)

    def put(self, at: int, table: Table) -> None:
        with open(self._files[at], "ab") as file:
            pickle.dump(table, file, protocol=5)

    def tables(self, at: int) -> list[Table]:
        found, path = [], self._files[at]
        if not path.exists():
            return found
        with open(path, "rb") as file:
            end = os.fstat(file.fileno()).st_size
            while file.tell() < end:
                found.append(pickle.load(file))
        return found


class SplitTable(PartFiles):
    """A table as a Dask frame of ``partitions`` in files of ``folder``, written when they are first read."""

    def __init__(self, table: Table, folder: Path, partitions: int) -> None:
        self.table, self.together, self.columns = table, (), table.names
        self._folder, self._partitions = folder, partitions

    @cached_property
    def files(self) -> list[Path]:  # type: ignore[override]
        size, name, files = max(-(-len(self.table) // self._partitions), 1), uuid4().hex, []
        whole = self.table.to_arrow().combine_chunks()
        for start in range(0, max(len(whole), 1), size):
            files.append(self._folder / f"{name}-{len(files)}.arrow")
            with pa.OSFile(str(files[-1]), "wb") as sink, pa.ipc.new_file(sink, whole.schema) as writer:
                writer.write_table(whole.slice(start, size))
        return files


def splitter(folder: Path, partitions: int) -> Callable[[Table | None], Any]:
    """Return a function that splits tables into ``partitions``, each once, in a folder that the workers read."""
    known: dict[int, SplitTable] = {}

    def split(table: Table | None) -> Any:
        if table is None:
            return None
        if id(table) not in known:  # the table is stored too, so that its id is not reused
            known[id(table)] = SplitTable(table, folder, partitions)
            if len(known) > limits.SPLIT_TABLES:
                known.pop(next(iter(known)))
        return known[id(table)]

    return split
