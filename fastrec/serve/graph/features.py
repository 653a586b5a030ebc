"""Write a FeatureSet's steps into a graph, and name those that cannot be written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fastrec.errors import FastrecError
from fastrec.features._inputs import as_columns, as_list, name_of
from fastrec.features.base import Feature, Fitted, Grouped, RowWise
from fastrec.serve.graph.columns import GraphTable, as_graph_column, encode
from fastrec.serve.graph.groups import GraphGroups
from fastrec.serve.graph.hashing import hashed, hashed_together
from fastrec.serve.graph.tensor import NotInGraphError, registrar
from fastrec.table import Column

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
