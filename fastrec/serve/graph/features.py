"""Write a FeatureSet's steps into a graph, and name those that cannot be written."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from fastrec.errors import FastrecError
from fastrec.features._engine.chain import steps_behind
from fastrec.features.base import Feature, Grouped, RowWise
from fastrec.features.columns import as_columns, as_list, name_of
from fastrec.serve.graph.columns import GraphColumn, GraphTable, as_graph_column, encode
from fastrec.serve.onnx_builder import CONTRIBUTED, Graph, GraphTensor, NotInGraphError, registrar, value_of
from fastrec.table import Column

# Hash raw values in a graph, letter by letter, as ``hash_codes`` hashes their bytes.

_START, _PRIME = 0xCBF29CE484222325, 0x100000001B3  # FNV-1a of 64 bits
_DIGITS = "-0123456789"
_NO_LETTER = "\uffff"
_SIZE = 1 << 8 * 4  # a letter's bytes (at most 4 in UTF-8) are packed below, their number above


def hashed(column: GraphColumn, buckets: int, *, seed: int = 0) -> GraphTensor:
    """Write ``1 + hash_codes`` of each value, 0 if missing: int64 ``[rows]``.

    Letters that Unicode does not have yet are ignored. Fractions and times are refused: a graph cannot write them as
    text.
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


@cache
def _letters() -> list[str]:
    # without surrogates, unassigned code points, and the last private planes; once in a process: 1.1 million take long
    every = (chr(i) for i in range(sys.maxunicode + 1))
    return [c for c in every if unicodedata.category(c) not in ("Cn", "Cs") and not ord(c) >= 0xF0000]


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
        self.codes = graph.lookup(apart, np.array(letters, dtype=object), np.array(packed, dtype=np.int64))

    @classmethod
    def of(cls, column: GraphColumn) -> _Letters:
        if column.text is not None:
            column.values.graph.hashed.add(column.text)
            return cls(column.values.graph, column.text, _letters())
        values = column.values
        if not isinstance(values, GraphTensor) or column.kind != "number" or values.is_floating_point():
            what = "times" if column.kind == "datetime" else "numbers that may have fractions"
            why = f"hashes of {what} have no form in a graph"
            raise NotInGraphError(why, column=column.name, remedy="Hash text or whole numbers")
        graph = values.graph
        return cls(graph, graph.cast(values.to(torch.int64).value, object), list(_DIGITS))

    def length(self) -> str:
        count = self.graph.op("Div", self.codes, self.graph.constant(_SIZE, np.int64))
        total = self.graph.op("ReduceSum", count, self.graph.constant([1], np.int64), keepdims=0)
        return self.graph.cast(total, object)


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
    # FNV-1a depends on the bytes' order: letters are mixed in one after the other
    body = _one_letter(text.wide, graph.fresh("letter") + "_")
    state = graph.op("Scan", state, text.codes, shared=False, body=body, num_scan_inputs=1, scan_input_axes=[1])

    def shifted(value: str, bits: int) -> str:
        return graph.op("BitShift", value, graph.constant(bits, np.uint64), direction="RIGHT")

    whole = graph.cast(state, np.uint64)
    mixed = graph.cast(graph.op("BitwiseXor", whole, shifted(whole, 32)), np.int64)
    mixed = graph.op("Mul", mixed, graph.constant(_PRIME, np.int64))
    half = graph.cast(shifted(graph.cast(mixed, np.uint64), 1), np.int64)
    code = graph.op("Add", graph.op("Mod", half, graph.constant(buckets, np.int64)), graph.constant(1, np.int64))
    return torch.where(missing, 0, GraphTensor.of(graph, code, torch.int64))


class GraphGroups:
    """The lists of a graph's rows: ``codes`` ``[rows]`` are equal within a list; ``column`` names the lists' column."""

    def __init__(self, codes: GraphTensor, column: str | None = None) -> None:
        self.graph: Graph = codes.graph
        self.column = column
        distinct, _, inverse, _ = self.graph.op("Unique", codes.value, outputs=4, sorted=1)
        self._count, self._of_row = self.graph.op("Shape", distinct), inverse

    def reduce(self, values: GraphTensor, how: str) -> GraphTensor:
        """Compute the sum (``'add'``), maximum (``'max'``) or minimum (``'min'``) of each row's list: float64."""
        op = self.graph.op
        start = op("ConstantOfShape", self._count, value=np.array([{"add": 0.0, "max": -np.inf, "min": np.inf}[how]]))
        each = op("ScatterElements", start, self._of_row, value_of(self.graph, values, torch.float64), reduction=how)
        return GraphTensor.of(self.graph, op("Gather", each, self._of_row, axis=0), torch.float64)

    def size(self) -> GraphTensor:
        """Count the rows of each row's list: float64."""
        same = self.graph.op("Equal", self._of_row, self._of_row)
        return self.reduce(GraphTensor.of(self.graph, same, torch.bool).double(), "add")

    def order(self, keys: list[tuple[GraphTensor, bool]]) -> str:
        """Sort rows by list, then by ``keys`` (values without NaN, True: the largest first), then by position."""
        op = self.graph.op
        rows, order = op("Shape", self._of_row), ""
        for value, largest in [*((v.value, down) for v, down in reversed(keys)), (self._of_row, False)]:
            value = op("Gather", value, order, axis=0) if order else value
            _, places = op("TopK", value, rows, outputs=2, largest=int(largest), sorted=1)  # ties: the first row
            order = op("Gather", order, places, axis=0) if order else places
        return order

    def _position(self, order: str) -> GraphTensor:
        op = self.graph.op
        zero, one = (self.graph.constant(np.array(i, dtype=np.int64)) for i in (0, 1))
        at = op("Range", zero, op("Squeeze", op("Shape", self._of_row)), one)
        return GraphTensor.of(self.graph, op("ScatterElements", at, order, at), torch.int64)

    def place(self, keys: list[tuple[GraphTensor, bool]]) -> GraphTensor:
        """Compute each row's place in its list by the keys, from 0: int64."""
        position = self._position(self.order(keys))
        # the place in the order of all rows, less the first place of the row's list
        return position - self.reduce(position, "min").long()

    def parted(self, values: GraphTensor) -> GraphGroups:
        """Group the rows of one list that have one value; no value is NaN."""
        op = self.graph.op
        distinct, _, inverse, _ = op("Unique", value_of(self.graph, values, torch.float64), outputs=4, sorted=1)
        pair = op("Add", op("Mul", self._of_row, op("Shape", distinct)), inverse)
        return GraphGroups(GraphTensor.of(self.graph, pair, torch.int64))

    def dense(self, values: GraphTensor) -> GraphTensor:
        """Rank each row's value among the distinct values of its list, from 1: float64."""
        # numbered list by list, in each by value
        number = GraphTensor.of(self.graph, self.parted(values)._of_row, torch.int64)
        return (number - self.reduce(number, "min").long() + 1).double()

    def shifted(self, values: GraphTensor, by: int) -> GraphTensor:
        """Take the value of the row ``by`` places before in its list, NaN if there is none: float64."""
        op, order = self.graph.op, self.order([])
        earlier = self.place([]) - by
        inside = (earlier >= 0) & (earlier.double() < self.size())
        rows = op("Gather", order, torch.where(inside, self._position(order) - by, 0).value, axis=0)
        value = op("Gather", value_of(self.graph, values, torch.float64), rows, axis=0)
        return torch.where(inside, GraphTensor.of(self.graph, value, torch.float64), torch.nan)


_WRITERS: dict[str, Callable[..., dict[str, Column]]] = {}  # class of generators → function that writes it
writer = registrar(_WRITERS)


@dataclass
class Served:
    """The steps of a FeatureSet that are in a graph, and for each output of the others why they are not."""

    inside: list[Feature] = field(default_factory=list)
    outside: dict[str, str] = field(default_factory=dict)


def write_step(step: Feature, table: GraphTable, lists: GraphGroups | None) -> dict[str, Column]:
    """Write a step's columns; refuse one that has no form in a graph."""
    name = type(step).__name__
    try:
        if name in _WRITERS:
            columns = _WRITERS[name](step, table, lists)
        elif isinstance(step, Grouped):
            raise NotInGraphError(f"{name} looks at other rows", remedy="Serve it from state")
        elif isinstance(step, RowWise):
            columns = step.compute(table)
        else:
            columns = step.wrap(applied(step, table))
        return {n: as_graph_column(c) for n, c in columns.items()}
    except (FastrecError, NotImplementedError):
        raise
    # a generator's code may fail in any way on symbolic tensors: then its columns become inputs
    except (AttributeError, TypeError, KeyError, ValueError, RuntimeError, StopIteration) as error:
        raise NotInGraphError(f"{name} has no form in a graph ({error})") from error


def applied(step: Any, table: GraphTable) -> Any:
    """Write a fitted step by the code that transforms rows."""
    state, fit = step._learned()
    return step.apply(fit, step.prepare(state, table))


@writer("Log1p")
def _log1p(step: Any, table: GraphTable, lists: GraphGroups | None) -> dict[str, Column]:
    # a value without a logarithm is an error in training; in a graph it becomes missing
    return as_columns(step.apply({c: table[c].number() for c in step.columns}))


@writer("RowFunction")
def _function(step: Any, table: GraphTable, lists: GraphGroups | None) -> dict[str, Column]:
    return as_columns(step.apply(step.prepare(table)))


@writer("NaNPattern")
def _pattern(step: Any, table: GraphTable, lists: GraphGroups | None) -> dict[str, Column]:
    code: Any = 0
    for i, name in enumerate(step.columns):
        code = as_graph_column(table[name]).is_missing().to(torch.int64) * (1 << i) + code
    return as_columns({step.name: code})


@writer("DatePart")
def _date_part(step: Any, table: GraphTable, lists: GraphGroups | None) -> dict[str, Column]:
    made = dict(step.apply(step.prepare(table)))
    missing = made.pop("missing")
    columns: dict[str, Column] = {}
    for part, (name, values) in zip(step._parts, made.items(), strict=True):
        values = values.to(torch.bool if part.startswith("is_") else torch.int64)
        columns[name] = Column("number", values, name=name, missing=missing)
    return columns


@writer("Categorify")
def _categorify(step: Any, table: GraphTable, lists: GraphGroups | None) -> dict[str, Column]:
    vocabs, made = step.vocabs, {}
    for n in step.columns:
        codes = encode(vocabs[n if n in vocabs else next(iter(vocabs))], table[n])
        if step.buckets is not None:  # a value without a code gets that of its hash
            codes = torch.where(codes == 0, hashed(as_graph_column(table[n]), step.buckets), codes)
        made[f"{step.name}_{n}"] = codes
    return as_columns(made)


@writer("HashEncode")
def _hash(step: Any, table: GraphTable, lists: GraphGroups | None) -> dict[str, Column]:
    columns = [as_graph_column(table[name_of(c)]) for c in as_list(step.cols)]
    return as_columns(dict(zip(step.outputs, [hashed(c, step.buckets, seed=step.seed) for c in columns], strict=True)))


@writer("Cross")
def _cross(step: Any, table: GraphTable, lists: GraphGroups | None) -> dict[str, Column]:
    if step.buckets is not None:
        columns = [as_graph_column(table[n]) for n in step.columns]
        return step.wrap({step.outputs[0]: hashed_together(columns, step.buckets, seed=step.seed)})
    return step.wrap(applied(step, table))


@writer("VectorColumns")
def _vectors(step: Any, table: GraphTable, lists: GraphGroups | None) -> dict[str, Column]:
    _, fit = step._learned()
    names = step.columns
    # requests have no columns of lists or vectors
    if not all(table[n].kind == "number" for n in names):
        raise NotInGraphError("lists and vectors are no inputs of a graph", remedy="Serve the run itself")
    return step.wrap(step.apply(fit, {"vector": torch.stack([table[n].number() for n in names], 1)}))


def lists_of(step: Feature, lists: GraphGroups | None) -> GraphGroups:
    """Return the lists that a step reads; refuse one that looks at other groups than a request's list."""
    if lists is None or step.within is None or list(step.within) != [lists.column]:
        raise NotInGraphError(f"{type(step).__name__} looks at groups other than a request's list", remedy="")
    return lists


def written(
    steps: Sequence[Feature], table: GraphTable, lists: GraphGroups | None, wanted: Sequence[str]
) -> tuple[GraphTable, Served]:
    """Write the steps that make the columns ``wanted``; outputs of steps that a graph cannot compute become inputs."""
    served = Served()
    behind = steps_behind(wanted, steps)  # steps that no model reads are not written
    needed = {*wanted, *(n for step in behind for n in step.inputs)}
    for step in behind:
        outputs = [n for n in step.outputs if n in needed]
        try:
            columns = write_step(step, table, lists)
            served.inside.append(step)
        except FastrecError as error:
            served.outside |= {n: f"{type(step).__name__}: {error.problem}" for n in outputs}
            continue
        table = table.with_columns(columns)  # type: ignore[assignment]
    return table, served
