"""``serving.json``, an export's description of itself: read and checked."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from fastrec.serve.session import of_an_export, read_export

TYPES = ("int64", "float64", "float32", "string", "bool")


@dataclass(frozen=True)
class Input:
    """A column that the graph takes, or that the features of an export's events take."""

    name: str  # its name in the training files
    type: str  # ``int64``, ``float64``, ``float32``, ``string`` or ``bool``
    missing: str | int | None = None  # stands for a missing string or integer; None: none may be missing. Floats: NaN
    unit: str | None = None  # of a time, since 1970: ``s``, ``ms``, ``us`` or ``ns``
    zone: str | None = None  # of a time; None: clock time without a zone
    required: bool = True  # whether every request must hold it
    made: bool = False  # by the server, from events: no request may hold it
    longest: int | None = None  # bytes that a text may have; None: as many as the request
    events: int | None = None  # of a column of the events before a list: how many are read, as a list in each row
    text: dict[str, Any] | None = None  # how the run reads it: ``date``, ``number`` (``comma``), ``clock`` or ``bool``
    gaps: bool = True  # whether training had missing values; if not, every row must have the column

    @cached_property
    def is_float(self) -> bool:
        """Whether NaN is its missing value."""
        return self.type in ("float64", "float32")

    @cached_property
    def may_be_missing(self) -> bool:
        """Whether a row may be without a value."""
        return self.is_float or self.missing is not None

    @cached_property
    def nullable(self) -> bool:
        """Whether a row may lack the column. (A null is scored by ``fastrec predict``, too, which wants columns.)"""
        return self.may_be_missing and self.gaps


@dataclass(frozen=True)
class Output:
    """A tensor that the graph gives: ``[n]`` where ``width`` is 1, else ``[n, width]``."""

    name: str
    type: str
    width: int = 1


@dataclass(frozen=True)
class Spec:
    """All of ``serving.json`` that a server needs."""

    name: str  # the export's name
    task: str  # ``binary``, ``multiclass``, ``regression``, ``multilabel`` or ``ranking``
    model: Path  # the graph's file
    version: str  # the SHA-256 of the graph's file
    inputs: tuple[Input, ...]  # the columns, in the graph's order
    outputs: tuple[Output, ...]  # the tensors that come out; the first is the score
    classes: tuple[Any, ...] | None = None  # of a score with one column for each
    list: str | None = None  # the input that tells lists apart, for rankings: whole numbers or text
    item: str | None = None  # the column with the candidates' ids, which need not be an input
    ignored: dict[str, str | None] = field(default_factory=dict)  # columns that may be sent → type in a word
    of_list: tuple[str, ...] = ()  # inputs that are equal in the rows of a list
    events: dict[str, Any] | None = None  # the export's description of its events; None: it needs none
    tables: dict[str, tuple[Input, ...]] = field(default_factory=dict)  # each table's columns of events
    events_count: str | None = None  # the input that counts the events before a list; None: it reads none

    @cached_property
    def sent(self) -> tuple[Input, ...]:
        """The inputs that a request holds; the list's ids are the server's own."""
        return tuple(i for i in self.inputs if not i.made and i.name != self.list)

    @cached_property
    def event_columns(self) -> tuple[Input, ...]:
        """The columns of events that each row holds a list of."""
        return tuple(i for i in self.inputs if i.events is not None)

    @cached_property
    def required(self) -> frozenset[str]:
        """The columns that every request must hold."""
        return frozenset(i.name for i in self.sent if i.required)

    @cached_property
    def known(self) -> frozenset[str]:
        """The columns that a request may hold."""
        return frozenset(i.name for i in self.sent) | {
            n for n in (self.list, self.item, *self.ignored) if n is not None
        }

    @cached_property
    def made(self) -> tuple[Input, ...]:
        """The inputs that the server makes from events."""
        return tuple(i for i in self.inputs if i.made)


def read_spec(folder: str | Path) -> Spec:
    """Read an export's ``serving.json`` and check that the graph beside it is the one that it was written for."""
    about = read_export(folder)
    with of_an_export(folder):
        inputs = tuple(map(input_of, about["inputs"]))
        if len({i.name for i in inputs}) != len(inputs):
            raise ValueError("two inputs have one name")
        if any(i.events is not None for i in inputs) != isinstance(about.get("events_count"), str):
            raise ValueError("columns of events and the name of their number belong together")
        outputs = tuple(Output(o["name"], o["type"], int(o.get("width", 1))) for o in about["outputs"])
        odd = next((o for o in outputs if o.type not in TYPES or o.type == "string"), None)
        if odd is not None:
            raise ValueError(f"output {odd.name!r} has type {odd.type!r}")
        tables = {}
        for table, described in ((about.get("events") or {}).get("tables") or {}).items():
            columns = {n: {"type": c} if isinstance(c, str) else c for n, c in described["columns"].items()}
            tables[table] = tuple(input_of({**c, "name": n}) for n, c in columns.items())
        return Spec(
            name=about["name"],
            task=about["task"],
            model=Path(folder) / about["model"]["file"],
            version=about["model"]["sha256"],
            inputs=inputs,
            outputs=outputs,
            classes=None if about.get("classes") is None else tuple(about["classes"]),
            ignored={n: k for n, k in about.get("ignored", {}).items() if all(n != i.name for i in inputs)},
            of_list=tuple(about.get("of_list", ())),
            tables=tables,
            **{n: about.get(n) for n in ("list", "item", "events", "events_count")},
        )


def input_of(about: dict[str, Any]) -> Input:
    """Read an input's description in ``serving.json``."""
    time = about.get("time")
    known = {**about, **(time or {})}
    column = Input(**{f.name: known[f.name] for f in fields(Input) if f.name in known})
    wants = {"int64": int, "string": str}.get(column.type)
    faults = {
        f"has text of the form {column.text!r}": column.text is not None
        and not set(column.text) & {"date", "number", "clock", "bool"},
        f"reads {column.events!r} events": column.events is not None
        and (type(column.events) is not int or column.events < 1),
        f"has type {column.type!r}": column.type not in TYPES,
        f"is a time of type {column.type!r} and unit {column.unit!r}": time is not None
        and (column.unit not in ("s", "ms", "us", "ns") or column.type != "int64"),
        f"of type {column.type!r} has the missing value {column.missing!r}": column.missing is not None
        and (wants is None or type(column.missing) is not wants),
        "may be left out, but has no missing value": not column.required and not column.may_be_missing,
    }
    fault = next((f for f, holds in faults.items() if holds), None)
    if fault is not None:
        raise ValueError(f"input {column.name!r} {fault}")
    return column
