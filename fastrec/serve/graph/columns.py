"""Symbolic columns and tables, which generators, procs and models read instead of a table's columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec.competition.reading import Reading
from fastrec.serve.graph import torch_ops  # noqa: F401 - its handlers
from fastrec.serve.graph.lookup import find, recode
from fastrec.serve.onnx_builder import Graph, GraphTensor, N, NotInGraphError
from fastrec.table import Coded, Column, Keys, Table, Vocab
from fastrec.table.keys import is_text

NO_INTEGER = np.iinfo(np.int64).min  # a missing whole number or time
NO_TEXT, OTHER_NO_TEXT = "", "\0"  # missing text; the second where "" is a value of its own


@dataclass(frozen=True, eq=False)
class GraphColumn(Column):
    """A column with symbolic values."""

    text: str | None = None  # the value's name of a column of text, whose ``values`` are none
    marked: bool = False  # a missing value is one that no other can be (NaN, an input's mark): looking it up fails
    no_text: str = NO_TEXT

    def __len__(self) -> int:
        return N

    def is_missing(self) -> Any:
        """Return bool ``[rows]``."""
        if self.text is not None:
            graph = self.values.graph
            made = graph.op("Equal", self.text, graph.constant(np.array(self.no_text, dtype=object)))
            return GraphTensor.of(graph, made, torch.bool)
        if self.missing is not None:
            return self.missing
        return self.values.isnan() if self.values.is_floating_point() else torch.zeros(N, dtype=torch.bool)

    def number(self, dtype: torch.dtype = torch.float64) -> Any:
        """See ``Column.number``."""
        if self.text is not None:
            raise NotInGraphError("holds text, and a number is wanted", column=self.name)
        return super().number(dtype)

    def plain(self) -> Column:
        """See ``Column.plain``."""
        return self

    def coded(self) -> Any:
        """See ``Column.coded``."""
        return GraphCoded([self])

    def take(self, rows: Any) -> Column:
        """Refuse: a graph has all rows."""
        raise NotInGraphError("rows of a column are chosen", column=self.name)

    def slice(self, start: int, stop: int) -> Column:
        """Return the column itself."""
        return self

    def to(self, device: Any) -> Column:
        """Return the column itself."""
        return self


class GraphCoded(Coded):
    """Columns as a key, which can be looked up in known keys."""

    def __init__(self, columns: Sequence[Any]) -> None:
        for name, value in (("columns", list(columns)), ("_cache", {}), ("is_sorted", False)):
            object.__setattr__(self, name, value)

    @property
    def codes(self) -> Any:  # type: ignore[override]
        """Refused: rows are unknown until the graph runs."""
        raise NotInGraphError("rows are coded among themselves")

    keys = codes  # type: ignore[assignment]

    def in_order(self) -> Coded:
        """Refuse, see ``codes``."""
        return self.codes

    def recode(self, known: Keys) -> Any:
        """See ``Coded.recode``."""
        columns = [as_graph_column(c) for c in self.columns]
        return recode(_graph_of(columns), columns, known)


class GraphTable(Table):
    """A table of symbolic columns; ``later``: name → function that creates the column when it is first read."""

    def __init__(self, columns: Mapping[str, Any], *, later: Mapping[str, Callable[[], Column]] | None = None) -> None:
        super().__init__({})
        self._columns = {
            n: c if isinstance(c, Column) else GraphColumn("vector" if c.ndim == 2 else "number", c, name=n)
            for n, c in columns.items()
        }
        self.later = dict(later or {})

    def __getitem__(self, name: str) -> Column:
        # inputs are created on first use: the graph takes only columns that are read
        if name not in self._columns and name in self.later:
            self._columns[name] = self.later[name]()
        return super().__getitem__(name)

    @property
    def names(self) -> list[str]:
        """The columns' names, including columns that are created later."""
        return list(dict.fromkeys([*self._columns, *self.later]))

    def __contains__(self, name: object) -> bool:
        return name in self._columns or name in self.later

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def __len__(self) -> int:
        return N

    def with_columns(self, columns: Mapping[str, Any]) -> Table:
        """See ``Table.with_columns``."""
        return GraphTable({**self._columns, **columns}, later=self.later)

    def slice(self, start: int, stop: int) -> Table:
        """Return the table itself."""
        return self

    def coded(self, names: str | Sequence[str]) -> Any:
        """See ``Table.coded``."""
        names = [names] if isinstance(names, str) else list(names)
        return GraphCoded([self[n] for n in names])

    def _like(self, columns: dict[str, Column]) -> Table:
        return GraphTable(columns)


def as_graph_column(column: Column) -> GraphColumn:
    """Convert a generator's column to a ``GraphColumn``."""
    if isinstance(column, GraphColumn):
        return column
    if column.kind not in ("number", "datetime", "vector"):
        raise NotInGraphError(f"is a {column.kind}", column=column.name)
    about = {"name": column.name, "missing": column.missing, "unit": column.unit, "zone": column.zone}
    return GraphColumn(column.kind, column.values, **about)


def _graph_of(columns: Sequence[GraphColumn]) -> Graph:
    for column in columns:
        if isinstance(column.values, GraphTensor):
            return column.values.graph
    raise NotInGraphError("a column is the same in every row", remedy="Leave it out")


def input_column(graph: Graph, name: str, column: Column, *, no_text: str = NO_TEXT) -> GraphColumn:
    """Add an input of the graph for a column of this kind and dtype; ``no_text`` marks missing text."""
    return column_of(graph, graph.input(name, input_type(column)), name, column, no_text=no_text)


def column_of(graph: Graph, value: str, name: str, column: Column, *, no_text: str = NO_TEXT) -> GraphColumn:
    """Wrap a value of the graph as a column of this kind and dtype; see ``input_column``."""
    kind = input_type(column)
    dtype = {np.float32: torch.float32, np.float64: torch.float64}.get(kind, torch.int64)
    tensor = GraphTensor.of(graph, value, dtype)
    if kind is object:  # the tensor only holds a place
        empty = pa.array([], column.distinct.type)
        return GraphColumn("category", tensor, name=name, distinct=empty, text=value, no_text=no_text, marked=True)
    column = column.plain()
    if kind is not np.int64:
        return GraphColumn("number", tensor, name=name)
    about = {"missing": tensor == int(NO_INTEGER), "unit": column.unit, "zone": column.zone, "marked": True}
    return GraphColumn(column.kind, tensor, name=name, **about)


def input_type(column: Column) -> Any:
    """Return the numpy type of an input for such a column (``object``: text); refuse lists and opaque columns."""
    if column.kind == "category" and is_text(column.distinct.type):
        return object
    column = column.plain()
    if column.kind not in ("datetime", "number"):
        raise NotInGraphError(f"is a {column.kind}, which no graph takes", column=column.name)
    dtype = column.values.dtype
    if column.kind == "datetime" or not (dtype.is_floating_point or dtype == torch.bool):
        return np.int64
    # of a bool, too, NaN marks a missing one
    return np.float32 if dtype in (torch.float32, torch.float16, torch.bfloat16) else np.float64


def no_text_of(column: Column) -> str:
    """Return the mark of missing text: ``""``, or another if ``""`` is a value of the column."""
    if column.kind != "category" or not is_text(column.distinct.type):
        return NO_TEXT
    return OTHER_NO_TEXT if pc.any(pc.equal(column.distinct, "")).as_py() else NO_TEXT


def described(name: str, column: Column, *, made: bool = False, reading: Reading | None = None) -> dict[str, Any]:
    """Describe a column as an input, for ``serving.json``.

    ``made``: a server computes it from events. ``reading``: how the run reads its text, and what training lacked.
    """
    numpy_type = input_type(column)
    kind = "string" if numpy_type is object else np.dtype(numpy_type).name
    missing = {"string": no_text_of(column), "int64": int(NO_INTEGER)}.get(kind)
    time = {"unit": column.unit, "zone": column.zone} if column.kind == "datetime" else None
    about = {"name": name, "type": kind, "missing": missing, "time": time, "required": True, "made": made}
    text = None if reading is None else reading.written(name)
    about |= {} if text is None else {"text": text}
    known = reading is not None and reading.gaps is not None and not made
    return {**about, "gaps": name in reading.gaps} if known else about


def encode(vocab: Vocab, column: Column) -> Any:
    """Encode a column by a vocabulary, as ``Vocab.encode`` does: int64 ``[rows]``."""
    column, known = as_graph_column(column), vocab.lookup
    if not len(known.values):
        return torch.zeros(N, dtype=torch.int64)
    return find(_graph_of([column]), column, known.values, known.codes, missing=0, absent=known.absent)
