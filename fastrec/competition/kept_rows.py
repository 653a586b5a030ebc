"""A run's rows cached among its parts, for ``fastrec try``, ``select`` and ``tune``.

The cache has the labelled training rows, the test rows, the other tables, and the names of the parts with the features
of all rows and of each fold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

import pyarrow.parquet as pq
import torch

from fastrec._core import limits
from fastrec._core.atomic import read_json
from fastrec.competition.recipe import EventsBefore
from fastrec.competition.resumable import Parts
from fastrec.competition.run_features import SIDES, Pair
from fastrec.competition.run_record import TableRun
from fastrec.errors import DataError, FastrecError, MissingFileError
from fastrec.features._engine.digests import digest
from fastrec.table import Table, load_state
from fastrec.validate import Folds, ListEvents, Lists, Rows

_AGAIN = "Run the recipe again with fastrec run (without --no-resume)"


def data_mark(data: Path) -> str:
    """Return a digest of files: names, sizes, first and last bytes, as many GiB would take long to read."""
    if not data.exists():
        raise MissingFileError("there is no such folder", file=data, remedy="Give the folder of the competition's data")
    made = hashlib.sha256()
    for path in [data] if data.is_file() else sorted(p for p in data.rglob("*") if p.is_file()):
        size = path.stat().st_size
        made.update(json.dumps([path.relative_to(data).as_posix(), size]).encode())
        with path.open("rb") as file:
            made.update(file.read(limits.MARKED_BYTES))
            file.seek(max(size - limits.MARKED_BYTES, 0))
            made.update(file.read(limits.MARKED_BYTES))
    return made.hexdigest()[:20]


def keep_rows(run: TableRun) -> str | None:
    """Cache a run's rows among its parts; return the part's name, None if the run has no parts or its features no
    digest.
    """
    prepared, recipe, found = run.prepared, run.recipe, run.found
    if run.parts is None or prepared.parts is None:
        return None
    mark = data_mark(run.data)
    key = recipe.fold_key if prepared.features is None or prepared.features.key is None else prepared.features.key
    tensors = {n: v.clone() for n in ("label", "weight", "groups", "order") if (v := getattr(run.train, n)) is not None}
    if run.train.task == "ranking":
        tensors["clusters"] = run.train.table[recipe.fold_key or recipe.list_column].coded().codes.cpu().long()
    elif run.train.groups is not None:
        tensors["clusters"] = run.train.groups.clone()
    tensors = {n: v.contiguous() for n, v in (tensors | {"counted": run.counted}).items()}
    content = [v for n in sorted(tensors) for v in (n, tensors[n])]
    events = [] if recipe.events is None else [recipe.events]
    key_of_all = digest(prepared.digest, run.cats, run.conts, mark, run.seed, *events, *content)[:20]
    place = run.parts.folder_of("rows", key_of_all)
    with suppress(FastrecError):  # a complete part is not rewritten
        load_state(place / "state")
        return place.name
    tables = {"train": found.train, "test": found.test, **{f"table-{n}": t for n, t in found.tables.items()}}
    keys = [] if key is None else [key] if isinstance(key, str) else list(key)
    events = None if recipe.events is None else asdict(recipe.events)
    conts = [n for n in run.conts if n not in run.place_of_scores]  # rows to score have no known place
    about = {"task": run.train.task, "n_outputs": run.train.n_outputs, "cats": run.cats, "conts": conts}
    about |= {"targets": prepared.targets, "key": keys, "time": recipe.time, "history": bool(recipe.history)}
    about |= {"lists": recipe.list_column, "events": events, "tables": list(found.tables), "outputs": prepared.outputs}
    about |= {"from_targets": prepared.from_targets, "parts": prepared.part_names, "data": mark, "seed": run.seed}
    run.parts.keep("rows", key_of_all, **tables, state={"about": about, "tensors": tensors})
    return place.name


class KeptRows:
    """The cached rows of a run over a table."""

    def __init__(self, run: str | Path) -> None:
        self.run, self.parts = Path(run), Parts.beside(Path(run))
        self.config = read_json(self.run / "config.json", again=_AGAIN)
        if "blend" in self.config:
            problem = "a blend of runs holds predictions and no models: there is nothing to try, select or tune"
            raise DataError(problem, file=self.run, remedy="Give one of the runs that it is made of")
        if "folds" not in self.config:  # of sessions, or of files larger than memory
            problem = "it is no run over a table, and such runs alone can be tried on, selected from and tuned"
            raise DataError(problem, file=self.run, remedy="Give a run of a recipe whose rows are read into memory")
        self.name = str(self.config.get("kept_rows"))
        self.place = self.parts.folder / self.name
        if "kept_rows" not in self.config or not self.place.is_dir():
            problem = "the run keeps no rows to try anything on: its parts are not there"
            raise MissingFileError(problem, file=self.parts.folder, remedy=_AGAIN)
        try:
            state = load_state(self.place / "state")
        except FastrecError as error:
            raise type(error)(error.problem, file=error.file, remedy=_AGAIN) from error
        about, self.tensors = state["about"], state["tensors"]
        self.task, self.cats, self.conts = about["task"], list(about["cats"]), list(about["conts"])
        self.targets, self.key, self.time = list(about["targets"]), list(about["key"]), about["time"]
        self.history, self.seed, self.mark = bool(about["history"]), int(about["seed"]), about["data"]
        self.outputs, self.from_targets = list(about["outputs"]), list(about["from_targets"])
        self.table_names, self.n_outputs = list(about["tables"]), int(about["n_outputs"])
        self._parts = about["parts"]
        self._lists, self.events = about["lists"], None if about["events"] is None else EventsBefore(**about["events"])
        self.folds = Folds.load(self.run / "folds.parquet")
        self.columns = pq.read_schema(self._file("train")).names
        self._once: dict[Path, Table] = {}  # columns of all training rows read so far, shared by ideas and models
        if self.folds.size != len(self):
            problem = f"the folds are of {self.folds.size} rows, what was kept has {len(self)}"
            raise DataError(problem, file=self.run, remedy=_AGAIN)

    def __len__(self) -> int:
        return len(self.tensors["counted"])

    @cached_property
    def nested(self) -> bool:
        """Whether every fold trains on all rows that it does not score, in no order of time."""
        return self.folds.is_partition and self.time is None

    @property
    def scored(self) -> torch.Tensor:
        """Bool ``[n]``: the rows that are scored."""
        return self.tensors["counted"] & self.folds.scored

    def check_data(self, data: str | Path) -> None:
        """Refuse a folder whose files differ from those that the run has read, by their digest."""
        mark = data_mark(Path(data))
        if mark != self.mark:
            problem = f"these are other files than those of the run (digest {mark}, the run's is {self.mark})"
            raise DataError(problem, file=data, remedy="Give the run's own data, or run the recipe on these")

    def rows(self, table: Table, at: torch.Tensor | None = None, *, added: Sequence[str] = ()) -> Rows:
        """Return rows ``[m]`` as estimators take them; ``at``: their numbers among the training rows, int64 ``[m]``
        (None: all).

        ``added`` are features besides the run's.
        """
        own = [n for n in added if table[n].plain().kind == "category"]
        cats, conts = [*self.cats, *own], [*self.conts, *(n for n in added if n not in own)]
        some = {n: v if at is None else v[at] for n, v in self.tensors.items() if n not in ("clusters", "counted")}
        if self.task == "ranking" and self.events is not None:
            some |= {"events": self._list_events}
            if self.events.item not in table:
                items = self._items if at is None else self._items.take(at)
                table = table.with_columns({n: items[n] for n in items.names})
        if self.task == "ranking":
            return Lists(table, some.pop("groups"), cats=cats, conts=conts, **some)
        return Rows(table, self.task, cats=cats, conts=conts, n_outputs=self.n_outputs, **some)

    @cached_property
    def _items(self) -> Table:
        return self.train([self.events.item])

    @cached_property
    def _list_events(self) -> ListEvents:
        candidates = self.train([*self.events.columns, self._lists])
        return self.events.of(candidates, self._lists, self.tables([self.events.table]))

    def train(self, names: Sequence[str] | None = None) -> Table:
        """Read columns of the training rows in the recipe's order; None: all."""
        return self._read_once(self._file("train"), self.columns if names is None else names)

    def test(self) -> Table | None:
        """Read the test rows in the recipe's order."""
        return self._read("test", None) if self._file("test").is_file() else None

    def tables(self, names: Sequence[str]) -> dict[str, Table]:
        """Read some of the other tables."""
        return {n: self._read(f"table-{n}", None) for n in names if n in self.table_names}

    def made(self, names: Sequence[str]) -> Table:
        """Read features of all training rows: no row's value depends on its own target."""
        return self._read_once(self._part(self._parts["whole"], "train.parquet"), names) if names else Table({})

    def made_of_fold(self, k: int, names: Sequence[str]) -> Pair:
        """Read features of fold ``k``'s training and scored rows, without the scored rows' targets."""
        paths = [self._part(self._parts["folds"][k], f"{side}.parquet") for side in SIDES]
        return tuple(Table.read(path, list(names)) for path in paths)  # type: ignore[return-value]

    def _file(self, name: str) -> Path:
        return self.place / f"{name}.parquet"

    def _read(self, name: str, names: Sequence[str] | None) -> Table:
        return Table.read(self._file(name), None if names is None else list(names))

    def _read_once(self, path: Path, names: Sequence[str]) -> Table:
        known = self._once.get(path, Table({}))
        new = [n for n in names if n not in known]
        if new:
            read = Table.read(path, new)
            known = known.with_columns({n: read[n] for n in new})
            self._once[path] = known
        return known.select(list(names))

    def _part(self, part: str, file: str) -> Path:
        path = self.parts.folder / part / file
        if not path.is_file():
            raise MissingFileError("a part of the run is not there any more", file=path, remedy=_AGAIN)
        return path
