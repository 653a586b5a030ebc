"""Write a FeatureSet's steps into a graph, and name those that cannot be written."""

from __future__ import annotations

import math
import sys
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from fastrec.errors import FastrecError
from fastrec.features.base import Feature, Fitted, Grouped, RowWise
from fastrec.features.columns import as_columns, as_list, name_of
from fastrec.serve.graph.builder import CONTRIBUTED, Graph, GraphTensor, N, NotInGraphError, registrar, value_of
from fastrec.serve.graph.columns import GraphColumn, GraphTable, as_graph_column, encode
from fastrec.table import Column

# Hash raw values in a graph, letter by letter, as ``hash_codes`` hashes their bytes.

_START, _PRIME = 0xCBF29CE484222325, 0x100000001B3  # FNV-1a of 64 bits
_DIGITS = "-0123456789"
_NO_LETTER = "\uffff"
_SIZE = 1 << 8 * 4  # a letter's bytes (at most 4 in UTF-8) are packed below, their number above


def hashed(column: GraphColumn, buckets: int, *, seed: int = 0) -> GraphTensor:
    """Write ``1 + hash_codes`` of each value, 0 if missing: int64 ``[rows]``.

    onnxruntime's operator ``Tokenizer`` splits text. Letters that Unicode does not have yet are ignored.

    Raises:
        NotInGraphError: a graph cannot write fractions and times as text.
    """
    return _bucket(_Letters.of(column), buckets, seed, column.is_missing())


def hashed_together(columns: Sequence[GraphColumn], buckets: int, *, seed: int = 0) -> GraphTensor:
    """Write the hash of several columns' values together, as ``Cross`` joins them; 0 if one is missing."""
    texts = [_Letters.of(c) for c in columns]
    graph = texts[0].graph
    colon, joined = graph.constant(np.array(":", dtype=object)), ""
    for text in texts:
        for part in (text.length(), text.value):
            joined = part if not joined else graph.op("StringConcat", graph.op("StringConcat", joined, colon), part)
    letters = list(dict.fromkeys([*(x for t in texts for x in t.letters), ":", *_DIGITS]))
    missing = columns[0].is_missing()
    for column in columns[1:]:
        missing = missing | column.is_missing()
    return _bucket(_Letters(graph, joined, letters), buckets, seed, missing)


class _Letters:
    """Values as text, and every letter that they may have."""

    def __init__(self, graph: Graph, value: str, letters: list[str]) -> None:
        self.graph, self.value, self.letters = graph, value, letters
        self.wide = max(len(c.encode()) for c in letters)
        # onnxruntime crashes if all texts are empty: each gets a sign that is no letter
        some = graph.op("StringConcat", value, graph.constant(np.array(_NO_LETTER, dtype=object)))
        apart = graph.op("Tokenizer", some, domain=CONTRIBUTED, mark=0, pad_value="", separators=[""], mincharnum=1)
        encoded = [letter.encode() for letter in letters]
        packed = [sum(b << 8 * i for i, b in enumerate(e)) + len(e) * _SIZE for e in encoded]
        keys = {"keys_tensor": np.array(letters, dtype=object), "values_tensor": np.array(packed, dtype=np.int64)}
        none = {"default_tensor": np.array([0], dtype=np.int64)}
        self.codes = graph.op("LabelEncoder", apart, domain="ai.onnx.ml", **keys, **none)

    @classmethod
    def of(cls, column: GraphColumn) -> _Letters:
        """Create from a column's values, see ``hashed``."""
        if column.text is not None:
            column.values.graph.hashed.add(column.text)
            return cls(column.values.graph, column.text, _letters())
        values = column.values
        if not isinstance(values, GraphTensor) or column.kind != "number" or values.is_floating_point():
            what = "times" if column.kind == "datetime" else "numbers that may have fractions"
            raise NotInGraphError(
                f"hashes of {what} have no form in a graph", column=column.name, remedy="Hash text or whole numbers"
            )
        graph = values.graph
        return cls(graph, graph.op("Cast", values.to(torch.int64).value, to=graph.type_of(object)), list(_DIGITS))

    def length(self) -> str:
        """Count the bytes of each value, as text."""
        count = self.graph.op("Div", self.codes, self.graph.constant(_SIZE, np.int64))
        total = self.graph.op("ReduceSum", count, self.graph.constant([1], np.int64), keepdims=0)
        return self.graph.op("Cast", total, to=self.graph.type_of(object))


def _one_letter(wide: int, prefix: str) -> Any:
    """Build Scan's body: the hash so far and a letter's bytes → the hash with the letter."""
    inner = Graph()
    state, packed = inner.input("state", np.int64), inner.input("letter", np.int64)
    count = inner.op("Div", packed, inner.constant(_SIZE, np.int64))
    for i in range(wide):
        byte = inner.op("Div", packed, inner.constant(1 << 8 * i, np.int64)) if i else packed
        byte = inner.op("Mod", byte, inner.constant(256, np.int64))
        mixed = inner.op("Mul", inner.op("BitwiseXor", state, byte), inner.constant(_PRIME, np.int64))
        state = inner.op("Where", inner.op("Greater", count, inner.constant(i, np.int64)), mixed, state)
    inner.output("mixed", state, np.int64)
    body = inner.model(name="letter").graph
    for part in (*body.input, *body.output, *body.initializer):  # names must be unique inside of Scan, too
        part.name = prefix + part.name
    for node in body.node:
        node.input[:] = [prefix + n for n in node.input]
        node.output[:] = [prefix + n for n in node.output]
    return body


def _bucket(text: _Letters, buckets: int, seed: int, missing: Any) -> GraphTensor:
    graph = text.graph
    start = graph.constant(np.array([(_START ^ (seed % (1 << 64)))], dtype=np.uint64).astype(np.int64))
    state = graph.op("Expand", start, graph.op("Shape", text.value))
    scanned = {
        "body": _one_letter(text.wide, graph.fresh("letter") + "_"),
        "num_scan_inputs": 1,
        "scan_input_axes": [1],
    }
    # FNV-1a depends on the bytes' order: letters are mixed in one after the other
    state = graph.op("Scan", state, text.codes, shared=False, **scanned)

    def cast(value: str, dtype: Any) -> str:
        return graph.op("Cast", value, to=graph.type_of(dtype))

    def shifted(value: str, bits: int) -> str:
        return graph.op("BitShift", value, graph.constant(bits, np.uint64), direction="RIGHT")

    whole = cast(state, np.uint64)
    mixed = cast(graph.op("BitwiseXor", whole, shifted(whole, 32)), np.int64)
    mixed = graph.op("Mul", mixed, graph.constant(_PRIME, np.int64))
    place = graph.op("Mod", cast(shifted(cast(mixed, np.uint64), 1), np.int64), graph.constant(buckets, np.int64))
    code = graph.op("Add", place, graph.constant(1, np.int64))
    return torch.where(missing, 0, GraphTensor(graph, code, torch.empty(N, dtype=torch.int64, device="meta")))


@cache
def _letters() -> list[str]:
    """List the letters of Unicode, without surrogates, unassigned code points, and the last private planes."""
    # computed once in a process: 1.1 million code points take a while
    every = (chr(i) for i in range(sys.maxunicode + 1))
    return [c for c in every if unicodedata.category(c) not in ("Cn", "Cs") and not ord(c) >= 0xF0000]


# Sums, extremes and ranks within the lists of a graph's rows.

_MINUS_INFINITY = np.array([-math.inf])
_START_GROUPS = {"add": np.array([0.0]), "max": _MINUS_INFINITY, "min": -_MINUS_INFINITY}


class GraphGroups:
    """The lists of a graph's rows.

    Args:
        codes: int64 ``[rows]``, equal in the rows of one list; those of any two lists differ.
    """

    def __init__(self, codes: GraphTensor) -> None:
        self.graph: Graph = codes.graph
        distinct, _, inverse, _ = self.graph.op("Unique", codes.value, outputs=4, sorted=1)
        self._count, self._of_row = self.graph.op("Shape", distinct), inverse
        self._meta = codes.meta

    def reduce(self, values: GraphTensor, how: str) -> GraphTensor:
        """Compute the sum (``'add'``), maximum (``'max'``) or minimum (``'min'``) of each row's list: float64."""
        graph = self.graph
        value = value_of(graph, values, torch.float64)
        start = graph.op("ConstantOfShape", self._count, value=_START_GROUPS[how])
        each = graph.op("ScatterElements", start, self._of_row, value, reduction=how)
        return self._spread(each, torch.float64)

    def size(self) -> GraphTensor:
        """Count the rows of each row's list: float64."""
        graph = self.graph
        ones = graph.op("Cast", graph.op("Equal", self._of_row, self._of_row), to=graph.type_of(np.float64))
        return self.reduce(GraphTensor(graph, ones, torch.empty(N, dtype=torch.float64, device="meta")), "add")

    def order(self, keys: list[tuple[GraphTensor, bool]]) -> str:
        """Sort rows by list, then by the keys, then by position: int64 ``[rows]``.

        Args:
            keys: values without NaN and whether the largest comes first, the most important key first.
        """
        graph = self.graph
        rows = graph.op("Shape", self._of_row)
        order = None
        group = GraphTensor(graph, self._of_row, self._meta)
        for values, largest in [*reversed(keys), (group, False)]:
            value = values.value if order is None else graph.op("Gather", values.value, order, axis=0)
            _, places = graph.op("TopK", value, rows, outputs=2, largest=int(largest), sorted=1)  # ties: the first row
            order = places if order is None else graph.op("Gather", order, places, axis=0)
        assert order is not None
        return order

    def place(self, keys: list[tuple[GraphTensor, bool]]) -> GraphTensor:
        """Compute each row's place in its list by the keys, from 0: int64."""
        graph = self.graph
        order = self.order(keys)
        zero, one = (graph.constant(np.array(i, dtype=np.int64)) for i in (0, 1))
        rows = graph.op("Squeeze", graph.op("Shape", self._of_row))
        at = graph.op("Range", zero, rows, one)
        # each row's place in the order, less the first place of its list
        position = graph.op("ScatterElements", at, order, at)
        first = self.reduce(GraphTensor(graph, position, self._meta), "min")
        return GraphTensor(graph, position, self._meta) - first.long()

    def parted(self, values: GraphTensor) -> GraphGroups:
        """Group the rows of one list that have one value; no value is NaN."""
        graph = self.graph
        distinct, _, inverse, _ = graph.op("Unique", value_of(graph, values, torch.float64), outputs=4, sorted=1)
        width = graph.op("Shape", distinct)
        pair = graph.op("Add", graph.op("Mul", self._of_row, width), inverse)
        return GraphGroups(GraphTensor(graph, pair, self._meta))

    def dense(self, values: GraphTensor) -> GraphTensor:
        """Rank each row's value among the distinct values of its list, from 1: float64."""
        pairs = self.parted(values)  # numbered list by list, in each by value
        number = GraphTensor(self.graph, pairs._of_row, self._meta)
        return (number - self.reduce(number, "min").long() + 1).double()

    def shifted(self, values: GraphTensor, by: int) -> GraphTensor:
        """Take the value of the row ``by`` places before in its list, NaN if there is none: float64."""
        graph = self.graph
        order = self.order([])
        place = self.place([])
        zero, one = (graph.constant(np.array(i, dtype=np.int64)) for i in (0, 1))
        at = graph.op("Range", zero, graph.op("Squeeze", graph.op("Shape", self._of_row)), one)
        position = GraphTensor(graph, graph.op("ScatterElements", at, order, at), self._meta)
        found = (place - by >= 0) & ((place - by).double() < self.size())
        there = torch.where(found, position - by, 0)
        rows = graph.op("Gather", order, there.value, axis=0)
        value = graph.op("Gather", value_of(graph, values, torch.float64), rows, axis=0)
        made = GraphTensor(graph, value, torch.empty(N, dtype=torch.float64, device="meta"))
        return torch.where(found, made, torch.nan)

    def _spread(self, each: str, dtype: torch.dtype) -> GraphTensor:
        meta = torch.empty(N, dtype=dtype, device="meta")
        return GraphTensor(self.graph, self.graph.op("Gather", each, self._of_row, axis=0), meta)


_WRITERS: dict[str, Callable[..., dict[str, Column]]] = {}  # class of generators → function that writes it
writer = registrar(_WRITERS)


@dataclass
class ListScope:
    """The lists of a ranking, and the column that names them."""

    lists: GraphGroups | None = None
    list_column: str | None = None


@dataclass
class Served:
    """The steps of a FeatureSet that are in a graph, and for each output of the others why they are not."""

    inside: list[Feature] = field(default_factory=list)
    outside: dict[str, str] = field(default_factory=dict)


def write_step(step: Feature, table: GraphTable, places: ListScope) -> dict[str, Column]:
    """Write a step's columns.

    Raises:
        NotInGraphError: it has no form in a graph.
        FastrecError: it cannot be computed.
    """
    name = type(step).__name__
    try:
        if name in _WRITERS:
            columns = _WRITERS[name](step, table, places)
        elif isinstance(step, Grouped):
            raise NotInGraphError(f"{name} looks at other rows", remedy="Serve it from state")
        elif isinstance(step, RowWise):
            columns = step.compute(table)
        else:
            assert isinstance(step, Fitted)
            state, fit = step._learned()
            columns = step.wrap(step.apply(fit, step.prepare(state, table)))
        return {n: as_graph_column(c) for n, c in columns.items()}
    except (FastrecError, NotImplementedError):
        raise
    # a generator's code may fail in any way on symbolic tensors: then its columns become inputs
    except (AttributeError, TypeError, KeyError, ValueError, RuntimeError, StopIteration) as error:
        raise NotInGraphError(f"{name} has no form in a graph ({error})", remedy="Compute it outside") from error


@writer("Log1p")
def _log1p(step: Any, table: GraphTable, places: ListScope) -> dict[str, Column]:
    # a value without a logarithm is an error in training; in a graph it becomes missing
    return as_columns(step.apply({c: table[c].number() for c in step.columns}))


@writer("RowFunction")
def _function(step: Any, table: GraphTable, places: ListScope) -> dict[str, Column]:
    return as_columns(step.apply(step.prepare(table)))


@writer("NaNPattern")
def _pattern(step: Any, table: GraphTable, places: ListScope) -> dict[str, Column]:
    code: Any = 0
    for i, name in enumerate(step.columns):
        code = as_graph_column(table[name]).is_missing().to(torch.int64) * (1 << i) + code
    return as_columns({step.name: code})


@writer("DatePart")
def _date_part(step: Any, table: GraphTable, places: ListScope) -> dict[str, Column]:
    made = dict(step.apply(step.prepare(table)))
    missing = made.pop("missing")
    columns: dict[str, Column] = {}
    for part, (name, values) in zip(step._parts, made.items(), strict=True):
        values = values.to(torch.bool if part.startswith("is_") else torch.int64)
        columns[name] = Column("number", values, name=name, missing=missing)
    return columns


@writer("Categorify")
def _categorify(step: Any, table: GraphTable, places: ListScope) -> dict[str, Column]:
    vocabs, made = step.vocabs, {}
    for n in step.columns:
        codes = encode(vocabs[n if n in vocabs else next(iter(vocabs))], table[n])
        if step.buckets is not None:  # what has no code of its own has that of its hash
            codes = torch.where(codes == 0, hashed(as_graph_column(table[n]), step.buckets), codes)
        made[f"{step.name}_{n}"] = codes
    return as_columns(made)


@writer("HashEncode")
def _hash(step: Any, table: GraphTable, places: ListScope) -> dict[str, Column]:
    columns = [as_graph_column(table[name_of(c)]) for c in as_list(step.cols)]
    codes = [hashed(c, step.buckets, seed=step.seed) for c in columns]
    return as_columns(dict(zip(step.outputs, codes, strict=True)))


@writer("Cross")
def _cross(step: Any, table: GraphTable, places: ListScope) -> dict[str, Column]:
    if step.buckets is not None:
        columns = [as_graph_column(table[n]) for n in step.columns]
        return step.wrap({step.outputs[0]: hashed_together(columns, step.buckets, seed=step.seed)})
    state, fit = step._learned()
    return step.wrap(step.apply(fit, step.prepare(state, table)))


@writer("VectorColumns")
def _vectors(step: Any, table: GraphTable, places: ListScope) -> dict[str, Column]:
    _, fit = step._learned()
    names = step.columns
    # requests have no columns of lists or vectors
    if not all(table[n].kind == "number" for n in names):
        raise NotInGraphError("lists and vectors are no inputs of a graph", remedy="Serve the run itself")
    vector = torch.stack([table[n].number() for n in names], 1)
    return step.wrap(step.apply(fit, {"vector": vector}))


def in_lists(step: Feature, places: ListScope) -> bool:
    """Check if a step reads only rows of the request's list."""
    within = step.within
    return places.lists is not None and within is not None and list(within) == [places.list_column]


def lists_of(step: Feature, places: ListScope) -> GraphGroups:
    """Return the lists that a step reads.

    Raises:
        NotInGraphError: it looks at other groups.
    """
    if not in_lists(step, places):
        raise NotInGraphError(f"{type(step).__name__} looks at groups other than a request's list", remedy="")
    assert places.lists is not None
    return places.lists


def written(
    steps: Sequence[Feature], table: GraphTable, places: ListScope, wanted: Sequence[str]
) -> tuple[GraphTable, Served]:
    """Write all steps that can be written, in order; the other steps' columns become inputs.

    Args:
        steps: steps after those that they read.
        table: the existing columns.
        places: see ``ListScope``.
        wanted: the columns that models read.
    """
    served = Served()
    needed = set(wanted)  # steps that no model reads are not written
    for step in reversed(steps):
        if needed & set(step.outputs):
            needed |= set(step.inputs)
    for step in steps:
        outputs = [n for n in step.outputs if n in needed]
        if not outputs:
            continue
        try:
            columns = write_step(step, table, places)
            served.inside.append(step)
        except FastrecError as error:
            served.outside |= {n: f"{type(step).__name__}: {error.problem}" for n in outputs}
            continue
        table = table.with_columns(columns)  # type: ignore[assignment]
    return table, served
