"""Digests: short text that two columns, parameters or functions share if they are equal."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import torch

from fastrec._core import limits
from fastrec._core.optional import library_of
from fastrec.errors import FastrecError
from fastrec.features._engine.code_digests import NoDigestError, Surroundings
from fastrec.features.base import Feature
from fastrec.features.selectors import Selector
from fastrec.table import Column, Keys, Table, as_column

__all__ = ["NoDigestError", "class_digest", "column_digest", "columns_digest", "digest", "generator_digest", "remember"]

_KNOWN: WeakKeyDictionary[Column, str] = WeakKeyDictionary()  # of one run's columns, for its steps


def digest(*parts: Any) -> str:
    """Return 32 hexadecimal digits for several values: text, numbers, tensors, columns, functions, generators, …"""
    return _guarded(lambda of: of.all(parts))


def column_digest(column: Column) -> str:
    """Digest a column's contents: values, missing, distinct values and their order, unit, zone."""
    about = (column.kind, column.ordered, column.unit, column.zone)
    return digest("column", *about, column.values, column.missing, column.distinct, column.elements)


def remember(column: Column, known: str) -> None:
    """Set a column's digest for this run: one of its origin instead of its contents."""
    _KNOWN[column] = known


def columns_digest(table: Table, names: Iterable[str]) -> str:
    """Digest columns of one run's table and their names; absent columns are left out.

    A column's digest is found once. Memory may be shared with what a user changes in place: a run's columns are its own
    objects, and those of the next run are looked at anew.
    """
    there = [n for n in names if n in table]
    for name in there:
        if table[name] not in _KNOWN:
            _KNOWN[table[name]] = column_digest(table[name])
    return digest(len(table), table.device.type, *(v for n in there for v in (n, _KNOWN[table[n]])))


def generator_digest(step: Feature) -> str:
    """Digest a generator's class and parameters, including the generators that it reads."""
    return _guarded(lambda of: of.generator(step))


def class_digest(cls: type) -> str:
    """Digest a class by its name and, unless it is fastrec's or a library's, by all that it holds."""
    return _guarded(lambda of: of.around.of_class(cls))


def _guarded(make: Any) -> str:
    try:
        return make(_Digests())
    except RecursionError as error:
        raise NoDigestError("a value that goes too deep has no digest") from error


class _Digests:
    """State of one digest: the values met so far."""

    def __init__(self) -> None:
        self.around = Surroundings(lambda *parts: self.all(parts))
        self.within: list[int] = []  # the containers around what is looked at

    def all(self, parts: Iterable[Any]) -> str:
        text = "\x1f".join(map(self.text, parts))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def text(self, value: Any) -> str:
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return f"{type(value).__name__}:{value!r}"
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided:
                raise NoDigestError(f"a {value.layout} tensor has no digest")
            flat = value.detach().cpu().contiguous().reshape(-1)
            if len(flat) == 1:  # one element counts as contiguous whatever its stride, but has no view as bytes then
                flat = flat.as_strided((1,), (1,))
            data = flat.view(torch.uint8).numpy() if len(flat) else np.zeros(0, np.uint8)
            return f"tensor:{value.dtype}:{tuple(value.shape)}:{_of_bytes(data)}"
        if isinstance(value, Column):
            return column_digest(value)
        if isinstance(value, Table):
            return f"table:{self.all(v for n in value.names for v in (n, value[n]))}:{value.device.type}"
        if isinstance(value, Keys):
            return f"keys:{self.all([*value.names, '|', *value.columns])}"
        if isinstance(value, pa.Array | pa.ChunkedArray):
            return f"array:{_of_arrow(value)}"
        if type(value) in (list, tuple, set, frozenset, dict, OrderedDict, MappingProxyType, Counter):
            return self._of_container(value)
        return self._of_thing(value)

    def _of_container(self, value: Any) -> str:
        if id(value) in self.within:
            return f"within:{self.within.index(id(value))}"
        self.within.append(id(value))
        try:
            if isinstance(value, list | tuple):
                return f"list:{len(value)}:{self.all(value)}"
            if isinstance(value, set | frozenset):
                return f"set:{len(value)}:{self.all(sorted(self.text(v) for v in value))}"
            return f"dict:{len(value)}:{self.all(v for item in value.items() for v in item)}"
        finally:
            self.within.pop()

    def _of_thing(self, value: Any) -> str:
        if isinstance(value, Feature):
            learned = vars(value) if self.around.depth else {}  # a function may use what it was fitted on
            return f"generator:{self.generator(value)}:{self.all(learned.items())}"
        if isinstance(value, Selector):
            return f"selector:{self.all([repr(value), value.names_])}"
        if isinstance(value, np.ndarray | np.generic):
            return f"numpy:{value.dtype}:{value.shape}:{self._of_numpy(value)}"
        if isinstance(value, torch.dtype | torch.device | pa.DataType):
            return f"{type(value).__name__}:{value}"
        if library_of(value) in ("pandas", "polars", "cudf", "pyarrow") and not isinstance(value, type):
            return f"frame:{self._of_frame(value)}"
        return self.around.of_thing(value)

    def generator(self, step: Feature) -> str:
        return self.all([self.around.of_class(type(step)), *(v for item in step.get_params().items() for v in item)])

    def _of_numpy(self, value: np.ndarray | np.generic) -> str:
        if np.ma.isMaskedArray(value):
            return self.all([np.ma.getdata(value), np.ma.getmaskarray(value), value.fill_value])
        if value.dtype.hasobject:
            return self.all([value.tolist()])
        return _of_bytes(np.ascontiguousarray(value).reshape(-1).view(np.uint8))

    def _of_frame(self, value: Any) -> str:
        kind = type(value).__name__
        if kind in ("Series", "DataFrame") and hasattr(value, "index"):
            if kind == "Series":
                return self.all([kind, value.name, value.index, self._of_series(value)])
            columns = [self._of_series(value.iloc[:, i]) for i in range(value.shape[1])]
            return self.all([kind, list(value.columns), value.index, *columns])
        if hasattr(value, "to_frame") and hasattr(value, "get_level_values"):
            levels = [self._of_series(value.get_level_values(i).to_series()) for i in range(value.nlevels)]
            return self.all([kind, list(value.names), *levels])
        try:
            return self.all([kind, as_column(value) if kind == "Series" else Table.read(value)])
        except FastrecError:
            return self.around.of_thing(value)

    def _of_series(self, series: Any) -> str:
        try:
            return self.all([str(series.dtype), as_column(series)])
        except FastrecError:  # objects of several kinds
            return self.all([str(series.dtype), series.tolist()])


def _of_arrow(array: pa.Array | pa.ChunkedArray) -> str:
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    written = pa.RecordBatch.from_arrays([array], names=["x"]).serialize()
    return digest(str(array.type), len(array), _of_bytes(np.frombuffer(written, dtype=np.uint8)))


def _of_bytes(data: np.ndarray) -> str:
    if len(data) <= limits.DIGEST_CHUNK:
        return hashlib.sha256(data.data).hexdigest()
    # In pieces, so that several threads hash large arrays.
    pieces = [data[i : i + limits.DIGEST_CHUNK] for i in range(0, len(data), limits.DIGEST_CHUNK)]
    with ThreadPoolExecutor(max(min(torch.get_num_threads(), os.cpu_count() or 1), 1)) as pool:
        found = list(pool.map(lambda piece: hashlib.sha256(piece.data).digest(), pieces))
    return hashlib.sha256(b"".join(found)).hexdigest()
