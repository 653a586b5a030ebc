"""What an export says about itself: ``serving.json``, read and checked."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fastrec._core.atomic import is_plain_name
from fastrec.errors import MissingFileError, UnreadableFileError

__all__ = ["FILE", "TYPES", "Input", "Output", "Spec", "read_spec"]

FILE = "serving.json"
TYPES = ("int64", "float64", "float32", "string", "bool")
_UNITS = ("s", "ms", "us", "ns")


@dataclass(frozen=True)
class Input:
    """A column that the graph takes, or that the features of an export's events take.

    Args:
        name: its name in the training files.
        type: ``int64``, ``float64``, ``float32``, ``string`` or ``bool``.
        missing: the value that stands for a missing string or integer; None: none may be missing. Floats: NaN.
        unit: for a time, the unit since 1970 that the integers count: ``s``, ``ms``, ``us`` or ``ns``.
        zone: for a time, its time zone; None: clock time without a zone.
        required: whether every request must hold it.
        made: whether the server makes it from events, so that no request may hold it.
        longest: bytes that a text may have; None: as many as the request.
        events: of a column of the events before a list, so many of the last of which are read: each row holds a list
            of them. None: it is a column of rows.
        text: how the run reads its text: ``date``: its format, ``number`` with ``comma``: of decimals, or ``clock``.
    """

    name: str
    type: str
    missing: str | int | None = None
    unit: str | None = None
    zone: str | None = None
    required: bool = True
    made: bool = False
    longest: int | None = None
    events: int | None = None
    text: dict[str, Any] | None = None

    @cached_property
    def is_float(self) -> bool:
        """Whether NaN is its missing value."""
        return self.type in ("float64", "float32")

    @cached_property
    def may_be_missing(self) -> bool:
        """Whether a row may be without a value."""
        return self.is_float or self.missing is not None


@dataclass(frozen=True)
class Output:
    """A tensor that the graph gives: ``[n]`` where ``width`` is 1, else ``[n, width]``."""

    name: str
    type: str
    width: int = 1


@dataclass(frozen=True)
class Spec:
    """All of ``serving.json`` that a server needs.

    Args:
        name: what the export is called.
        task: ``binary``, ``multiclass``, ``regression``, ``multilabel`` or ``ranking``.
        model: the graph's file.
        version: the SHA-256 of the graph's file.
        inputs: the columns, in the graph's order.
        outputs: the tensors that come out; the first is the score.
        classes: names of the classes, where the score has one column for each.
        list: the int64 input that tells lists apart, for rankings.
        item: the column with the ids of the candidates, which need not be an input.
        ids: the columns of a submission's ids, which a request may hold; nothing is made of them.
        events: what the export says of its events; None: it needs none.
        tables: the columns of each table of events.
        events_count: the graph's input that says how many events before its list each row has; None: it reads none.
    """

    name: str
    task: str
    model: Path
    version: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    classes: tuple[Any, ...] | None = None
    list: str | None = None
    item: str | None = None
    ids: tuple[str, ...] = ()
    events: dict[str, Any] | None = None
    tables: dict[str, tuple[Input, ...]] = field(default_factory=dict)
    events_count: str | None = None

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
        return frozenset(i.name for i in self.sent) | {n for n in (self.list, self.item, *self.ids) if n is not None}

    @cached_property
    def made(self) -> tuple[Input, ...]:
        """The inputs that the server makes from events."""
        return tuple(i for i in self.inputs if i.made)


def read_spec(folder: str | Path) -> Spec:
    """Read an export's ``serving.json`` and check that the graph beside it is the one that it was written for.

    Args:
        folder: what ``fastrec export`` wrote.

    Raises:
        MissingFileError: there is no such folder or file.
        UnreadableFileError: the file is not of this form, or the graph has another hash.
    """
    file = Path(folder) / FILE
    try:
        said = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        remedy = "Give a folder that `fastrec export` wrote"
        raise MissingFileError("there is no such file", file=file, remedy=remedy) from error
    except ValueError as error:
        raise UnreadableFileError(f"this is no JSON ({error})", file=file, remedy="Export the run anew") from error
    try:
        spec = _spec(said, Path(folder))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"its form is not that of an export ({type(error).__name__}: {error})"
        raise UnreadableFileError(why, file=file, remedy="Export the run anew") from error
    _check_hash(spec)
    return spec


def _spec(said: dict[str, Any], folder: Path) -> Spec:
    if said["format"] != 1:
        raise ValueError(f"format is {said['format']!r}, this fastrec reads 1")
    if not is_plain_name(said["model"]["file"]):
        raise ValueError(f"model.file {said['model']['file']!r} is no plain name")
    inputs = tuple(_input(i) for i in said["inputs"])
    names = [i.name for i in inputs]
    if len(set(names)) != len(names):
        raise ValueError("two inputs have one name")
    if any(i.events is not None for i in inputs) != isinstance(said.get("events_count"), str):
        raise ValueError("columns of events and the name of their number belong together")
    return Spec(
        name=said["name"],
        task=said["task"],
        model=folder / said["model"]["file"],
        version=said["model"]["sha256"],
        inputs=inputs,
        outputs=tuple(_output(o) for o in said["outputs"]),
        classes=None if said.get("classes") is None else tuple(said["classes"]),
        list=said.get("list"),
        item=said.get("item"),
        ids=tuple(said.get("ids", ())),
        events=said.get("events"),
        events_count=said.get("events_count"),
        tables={n: _event_columns(t["columns"]) for n, t in ((said.get("events") or {}).get("tables") or {}).items()},
    )


def _input(said: dict[str, Any]) -> Input:
    time = said.get("time")
    made = Input(
        name=said["name"],
        type=said["type"],
        missing=said.get("missing"),
        unit=None if time is None else time["unit"],
        zone=None if time is None else time.get("zone"),
        required=bool(said.get("required", True)),
        made=bool(said.get("made", False)),
        longest=None if said.get("longest") is None else int(said["longest"]),
        events=said.get("events"),
        text=said.get("text"),
    )
    if made.text is not None and not set(made.text) & {"date", "number", "clock"}:
        raise ValueError(f"input {made.name!r} has text of the form {made.text!r}")
    if made.events is not None and (type(made.events) is not int or made.events < 1):
        raise ValueError(f"input {made.name!r} reads {made.events!r} events")
    if made.type not in TYPES:
        raise ValueError(f"input {made.name!r} has type {made.type!r}")
    if time is not None and (made.unit not in _UNITS or made.type != "int64"):
        raise ValueError(f"input {made.name!r} is a time of type {made.type!r} and unit {made.unit!r}")
    wants = {"int64": int, "string": str}.get(made.type)
    if made.missing is not None and (wants is None or type(made.missing) is not wants):
        raise ValueError(f"input {made.name!r} of type {made.type!r} has the missing value {made.missing!r}")
    if not made.required and not made.may_be_missing:
        raise ValueError(f"input {made.name!r} may be left out, but has no missing value")
    return made


def _output(said: dict[str, Any]) -> Output:
    made = Output(said["name"], said["type"], int(said.get("width", 1)))
    if made.type not in TYPES or made.type == "string":
        raise ValueError(f"output {made.name!r} has type {made.type!r}")
    return made


def _event_columns(said: dict[str, Any]) -> tuple[Input, ...]:
    described = {name: {"type": c} if isinstance(c, str) else c for name, c in said.items()}
    return tuple(_input({**c, "name": name}) for name, c in described.items())


def _check_hash(spec: Spec) -> None:
    try:
        with spec.model.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise MissingFileError(f"the graph cannot be read ({error})", file=spec.model) from error
    if found != spec.version:
        raise UnreadableFileError(
            f"its SHA-256 is {found[:12]}…, {FILE} says {spec.version[:12]}…",
            file=spec.model,
            remedy="The two are not of one export: export the run anew",
        )
