"""``predict_run``: predict new rows from a run directory, without the recipe's code."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fastrec._core import limits
from fastrec._core.atomic import atomic_folder, read_json
from fastrec._core.device import DeviceLike, resolve_device
from fastrec._core.messages import nearest, refuse_absent
from fastrec._core.progress import Stages
from fastrec.competition.explain import BACKGROUND, contributions, of_both_classes
from fastrec.competition.forms.lists import form_of_run
from fastrec.competition.next_items import (
    NextItemCompetition,
    SavedNextItems,
    is_next_item_run,
    lists_of,
    trust_modules,
)
from fastrec.competition.reading import CompetitionData, Reading, files_of, in_one_unit, with_row_numbers
from fastrec.competition.recipe import Competition, EventsBefore
from fastrec.competition.run_features import transform_unknown
from fastrec.competition.run_record import shown_first
from fastrec.competition.scoring import Decision, Scorer
from fastrec.competition.submit import line_keys, write_submission_of
from fastrec.errors import DataError, FastrecError, MissingColumnError, MissingFileError, UnreadableFileError, warn
from fastrec.estimators import Estimator
from fastrec.features import FeatureSet
from fastrec.features._engine.chain import step_by_step
from fastrec.metrics import Metric
from fastrec.metrics.intervals import conformal_bound, conformal_gaps
from fastrec.report.data import out_of_fold
from fastrec.stacking import Stack, StackModel
from fastrec.table import Table, concat
from fastrec.table.convert import column_names
from fastrec.table.frames import select_columns
from fastrec.table.read import other_separator
from fastrec.validate import Folds, Lists, Rows, Target


class SavedRun:
    """A run directory, loaded to predict.

    Args:
        folder: the run directory.
        trust: modules of custom generators and estimators that may be imported; importing runs their code.

    Raises:
        MissingFileError, UnreadableFileError: it is no run directory, or a damaged one.
    """

    def __init__(self, folder: str | Path, *, trust: Sequence[str] = ()) -> None:
        self.folder = Path(folder)
        trust_modules(trust)
        path = self.folder / "config.json"
        self.config = read_json(path)
        try:
            if self.config["task"] == "objectives":
                remedy = "Load models/ranker with fastrec.retrieval.ObjectiveRanker, or run the recipe again"
                raise DataError("a run of several goals predicts its own test sessions only", file=path, remedy=remedy)
            if self.config["task"] == "next_item":
                remedy = "fastrec predict and fastrec serve take it; to learn of new sessions, run the recipe again"
                raise DataError("a run that predicts the next item has sessions, not rows", file=path, remedy=remedy)
            if "blend" in self.config:
                problem = "a blend of runs holds predictions and no models: it predicts its own test rows only"
                raise DataError(problem, file=path, remedy="Predict other rows by the runs that it is made of")
            self.decision = Decision(**read_json(self.folder / "decision.json"))
            self.names = list(self.config["models"])
            self.cats = list(self.config["categories"])
            self.conts = [n for n in self.config["features"] if n not in set(self.cats)]
            self.task = self.config["task"]
            self.reading = Reading(**self.config.get("reading", {}))
            self.events = EventsBefore(**self.config["events"]) if self.config.get("events") is not None else None
            self.place: dict[str, float] = self.config.get("place_of_scores", {})
        except DataError:
            raise
        except (OSError, ValueError, TypeError, KeyError) as error:
            problem = f"the run's settings cannot be read ({error!r})"
            raise UnreadableFileError(problem, file=path, remedy="Run the recipe again") from error
        self.form = form_of_run(self.folder)
        self.target = None if self.task == "ranking" else Target.load(self.folder / "target")
        state = self.folder / "features"
        self.features = FeatureSet.load(state, trust=trust) if state.is_dir() else None
        self.stack = StackModel.load(self.folder / "stack")
        self._folders = {
            n: sorted((self.folder / "models" / n).glob("fold*"), key=lambda p: int(p.name.removeprefix("fold")))
            for n in self.names
        }
        self._models: dict[Path, Estimator] = {}  # loaded at first use

    @property
    def inputs(self) -> list[str]:
        """The required columns of rows to predict."""
        made = set() if self.features is None else set(self.features.outputs)
        read = [] if self.features is None else self.features.inputs
        own = [n for n in (*self.cats, *self.conts) if n not in {*made, *self.place}]
        ids = [self.config["list_column"], self.config["item"]] if self.target is None else []
        ids += [] if self.events is None else self.events.columns
        hidden = set() if self.target is None else set(self.target.names)
        return [n for n in dict.fromkeys([*ids, *own, *read]) if n not in hidden]

    def read(self, source: Any, table: str = "test", *, device: DeviceLike = None) -> Table:
        """Read a file or a frame, and convert its columns to the types that the run has learned.

        Args:
            source: a file, or a frame of any library.
            table: its role: ``test``, ``train``, ``history`` or another table of the run. For ``test``, only columns
                that the run reads are converted.
            device: where the table goes.

        Raises:
            DataError: a value does not have its column's type, naming column and row.
        """
        ids = (*self.form.ids, *self.config.get("ids", ()))
        names = list(dict.fromkeys([*self.inputs, *ids])) if table == "test" else None
        if isinstance(source, str | Path):
            made = Table.read(self.reading.read(source, table, names), device=device)
        else:
            there = {str(n): n for n in column_names(source)}
            if names is not None and self.inputs and there.keys() >= set(self.inputs):  # else the message names all
                source = select_columns(source, [n for s, n in there.items() if s in names])
            made = self.reading.frame(source, table, names)
        return with_row_numbers(made, self.config["item"]) if self.target is None and table == "test" else made

    def rows(self, table: Table, tables: dict[str, Table] | None = None, history: Table | None = None) -> Rows:
        """Return rows with their features, as the models take them.

        Args:
            table: the rows; columns in any order.
            tables: the other tables that features read, by name.
            history: earlier rows with their target, for features that look back.

        Raises:
            MissingColumnError: a column is absent.
        """
        self._refuse_absent(table)
        if tables:
            table, *others = in_one_unit([table, *tables.values()])
            tables = dict(zip(tables, others, strict=True))
        full = table if self.features is None else self._with_features(table, tables or {}, history)
        full = shown_first(full, self.place)
        if self.target is None:
            groups = full[self.config["list_column"]].group_numbers().cpu()
            events = None if self.events is None else self.events.of(full, self.config["list_column"], tables or {})
            return Lists(full, groups, cats=self.cats, conts=self.conts, events=events)
        return Rows(full, self.target.task, cats=self.cats, conts=self.conts, n_outputs=self.target.n_outputs)

    def _refuse_absent(self, table: Table) -> None:
        if (absent := next((n for n in self.inputs if n not in table), None)) is not None:
            near = nearest(absent, set(table.names) - set(self.inputs))
            remedy = f"Is {near!r} meant? Rename it" if near else "Add the column"
            remedy += f"; they have {', '.join(table.names)}"
            other = other_separator(table.names)
            if other is not None:
                remedy = f"The file looks separated by {other!r}: separate it as the training files are"
            raise MissingColumnError("the rows to predict lack it", column=absent, remedy=remedy)

    def _with_features(self, table: Table, tables: dict[str, Table], history: Table | None) -> Table:
        if not self.config["history"]:
            return self.features.transform(table, tables=tables)
        if history is None:
            remedy = "Put them beside the rows to predict, as history.csv or train.csv"
            raise DataError("the run's features look back to earlier rows, which are not given", remedy=remedy)
        names = self.target.names if self.target is not None else [self.config["label"]]
        return transform_unknown(self.features, table, names, tables=tables, history=history)

    def predict_rows(self, rows: Rows, stages: Stages | None = None, *, fold: int | None = None) -> torch.Tensor:
        """Predict rows with their features by the stack on the learned scale: float64 ``[n]`` or ``[n, k]``.

        ``fold``: by its models only; None: the mean of all.
        """
        saved = {n: folders if fold is None else folders[fold : fold + 1] for n, folders in self._folders.items()}
        base: dict[str, torch.Tensor] = {}
        total = len(rows) * sum(map(len, saved.values()))
        with (stages or Stages(quiet=True)).stage("models", total) as advance:
            for name, folders in saved.items():
                if not folders:
                    path = self.folder / "models" / name
                    raise MissingFileError("the model is not there", file=path, remedy="Give a complete run directory")
                for folder in folders:
                    if folder not in self._models:
                        self._models[folder] = Estimator.load(folder)
                    said = self._models[folder].predict(rows)
                    base[name] = base[name] + said if name in base else said
                    advance(len(rows))
                base[name] = base[name] / len(folders)
        return self.stack.predict(base, rows)

    def predict(self, df: Any, *, tables: dict[str, Any] | None = None, history: Any = None) -> torch.Tensor:
        """Predict a frame's rows on the target's original scale: float64 ``[n]`` or ``[n, k]``.

        Args:
            df: a table of any library.
            tables: the other tables that features read, by name.
            history: earlier rows with their target, for features that look back.
        """
        given = {n: self.read(t, n) for n, t in (tables or {}).items()}
        table = self.read(df)
        by_list = self._by_list(table)
        table = table if by_list is None else table.take(by_list)
        made = self.predict_rows(self.rows(table, given, None if history is None else self.read(history, "history")))
        if self.target is not None:
            return self.target.restore(made)
        return self.decision.chances(torch.empty_like(made).index_copy_(0, by_list.to(made.device), made))

    def explain(
        self, df: Any, *, of: Any = None, background: Any = None, tables: Any = None, fold: int | None = None
    ) -> pd.DataFrame:
        """Explain predictions by contributions of the raw columns: Shapley values of the run as a whole.

        A column's contribution is the change of the prediction by its value, instead of the background rows' values, on
        average over the orders in which a row's columns are set (interventional Shapley values, Lundberg and Lee 2017).
        Features, encodings, models and blend are part of the explained function.

        Args:
            df: rows of any library.
            of: the class or target to explain. None: the only one; of two classes the second; of more each row's
                likeliest, given in the column ``class``.
            background: rows to compare with, or how many of the run's; None: 64, of very wide rows fewer.
            tables: the other tables that features read.
            fold: explain this fold's models only; None: the mean of all.

        Returns:
            A DataFrame with the index of a pandas frame: a column for each raw column that the run reads, ``base`` (the
            background's mean prediction) and ``prediction``, the sum of contributions and base; ``base_`` and so on if
            a raw column has such a name.

        Raises:
            DataError: the run ranks lists, its features look at other rows, or there is no such class or target.
            MissingColumnError: the rows lack a column.
            MissingFileError: the run has no background rows, and none are given.
        """
        target, read = self.target, "Read the permutation importance in the report"
        if target is None:
            problem = "a ranking orders rows within groups, and no row has a score of its own to explain"
            raise DataError(problem, remedy=f"{read}, or fit with task='binary'")
        steps = [] if self.features is None else self.features.steps
        if looking := [n for s in steps if s.online == "history" for n in s.outputs]:
            problem = f"features look at other rows than a row alone ({', '.join(looking[:3])})"
            raise DataError(problem, remedy=f"{read}, or leave such features out")
        table = self.read(df)
        self._refuse_absent(table)
        # sorted: random orders of columns must not depend on the frame's
        names = sorted(n for n in table.names if n in set(self.inputs))
        given = {n: self.read(t, n) for n, t in (tables or {}).items()}
        known: list[Any] = target.names if target.classes is None else target.classes.values.to_pylist()
        likeliest = of is None and target.task == "multiclass"
        if of is None and (target.task == "binary" or len(known) == 1):
            of = known[-1]
        if not likeliest and of not in known:
            problem = f"there are {len(known)} targets" if of is None else f"{of!r} is not predicted"
            raise DataError(problem, remedy=f"Give of=, one of {', '.join(map(str, known[:10]))}")

        def predict(mixed: Table) -> torch.Tensor:
            return target.restore(self.predict_rows(self.rows(mixed, given), fold=fold))

        values = contributions(predict, table, self.background(background), names)
        if target.task == "binary" and target.classes is not None:
            values = of_both_classes(values)
        chosen = values[:, -1].argmax(1) if likeliest else np.full(len(table), known.index(of))
        values = values[np.arange(len(table)), :, chosen]
        ends = ["base", "prediction", "class"]
        while set(ends) & set(names):
            ends = [f"{e}_" for e in ends]
        made = pd.DataFrame(values, df.index if isinstance(df, pd.DataFrame) else None, [*names, *ends[:2]])
        made = made[[*(n for n in table.names if n in names), *ends[:2]]]
        return made.assign(**{ends[2]: [known[c] for c in chosen]}) if likeliest else made

    def predict_interval(self, df: Any, level: float = 0.9) -> pd.DataFrame:
        """Predict amounts with intervals that contain the true amount with probability ``level`` (split conformal).

        All intervals have one width, a quantile of the stack's out-of-fold errors on the training rows.

        Returns:
            A DataFrame with the index of a pandas frame: ``low``, ``prediction`` and ``high``; of several targets with
            the target's name as prefix, as in ``price_low``.

        Raises:
            DataError: the run predicts no amounts, or the level is out of range.
        """
        gaps = self._gaps("regression")
        predicted = self.predict(df).reshape(-1, gaps.shape[1]).cpu().numpy()
        columns = {}
        for i, name in enumerate(self.target.names):
            bound, p = conformal_bound(gaps[:, i], level), predicted[:, i]
            named = f"{name}_" if len(self.target.names) > 1 else ""
            columns |= {f"{named}low": p - bound, f"{named}prediction": p, f"{named}high": p + bound}
        return pd.DataFrame(columns, df.index if isinstance(df, pd.DataFrame) else None)

    def predict_set(self, df: Any, level: float = 0.9) -> pd.DataFrame:
        """Predict sets of classes that contain the true class with probability ``level`` (Sadinle et al. 2019).

        Returns:
            A DataFrame of bools ``[n, classes]``, with the index of a pandas frame: whether a class is in a row's set.
            The likeliest class always is.

        Raises:
            DataError: the run predicts no class, or the level is out of range.
        """
        bound = conformal_bound(self._gaps("binary", "multiclass")[:, 0], level)
        predicted = self.predict(df).cpu().numpy()
        wide = np.stack([1 - predicted, predicted], 1) if predicted.ndim == 1 else predicted
        inside = (1 - wide <= bound) | (wide == wide.max(1, keepdims=True))
        index = df.index if isinstance(df, pd.DataFrame) else None
        return pd.DataFrame(inside, index, self.target.classes.values.to_pylist())

    def _gaps(self, *tasks: str) -> np.ndarray:
        """Return the stack's out-of-fold errors, ``[n, k]``; refuse other tasks."""
        if self.task not in tasks:
            other = {"regression": "predict_interval", "ranking": "predict", "multilabel": "predict_proba"}
            what = "intervals" if "regression" in tasks else "sets of classes"
            raise DataError(f"a {self.task} task has no {what}", remedy=f"Call {other.get(self.task, 'predict_set')}")
        known = out_of_fold(self.folder, "stack")
        if known is None:
            problem = "the run holds no out-of-fold predictions of its rows"
            raise MissingFileError(problem, file=self.folder / "oof", remedy="Run the recipe again")
        return conformal_gaps(*known[:2], classes="regression" not in tasks)

    def background(self, given: Any = None) -> Table:
        """Return rows to compare with: those given, or evenly spaced ones of the run."""
        path, columns = self.folder / BACKGROUND, len(self.inputs)
        if given is not None and not isinstance(given, int | np.integer):
            own = self.read(given)
            most = len(own)
        elif path.is_file():
            own = Table.read(path)
            # A wide table has many mixtures, and each is wide.
            most = max(limits.MIXED_CELLS // (2 * columns * (columns + 1)), 1) if given is None else given
        else:
            raise MissingFileError("there are no rows to compare with", file=path, remedy="Give them as background=")
        if most < 1:
            raise DataError(f"{most} rows to compare with", remedy="Give background=1 or more")
        count = min(most, len(own))
        return own.take(((torch.arange(count) + 0.5) * len(own) / count).long())

    def _by_list(self, table: Table) -> torch.Tensor | None:
        """Row numbers sorted by list, as the models take them; None: the run ranks no lists."""
        self._refuse_absent(table)
        if self.target is not None:
            return None
        refuse_copies(table, self.config["list_column"], self.config["item"])
        return torch.argsort(table[self.config["list_column"]].group_numbers(), stable=True)


def refuse_copies(table: Table, lists: str, item: str) -> None:
    """Refuse an item that is in a list twice; ``lists`` and ``item`` are columns."""
    codes = table.coded([lists, item]).codes.cpu().numpy()
    again = np.flatnonzero(pd.Series(codes).duplicated() & (codes > 0))
    if len(again):
        row = int(again[0])
        which, group = (table[n].slice(row, row + 1).to_arrow()[0].as_py() for n in (item, lists))
        problem = f"the item {which!r} stands in the list {group!r} twice"
        raise DataError(problem, column=item, row=row, remedy="Keep one candidate per item and list")


def predict_run(
    run: str | Path,
    data: str | Path,
    out: str | Path,
    *,
    device: DeviceLike = "auto",
    trust: Sequence[str] = (),
    stages: Stages | None = None,
) -> Path:
    """Predict rows by a run directory, write them in the form of its submission, and return the file.

    Args:
        run: the run directory.
        data: a file of rows, or a folder: ``test`` holds the rows, other files the tables that features read, by name;
            ``history`` or ``train`` the earlier rows that some features look back to.
        out: the file to write.
        device: where to compute.
        trust: modules of custom generators and estimators that may be imported.
        stages: progress; None: not shown.

    Raises:
        FastrecError: the run or the data cannot be used; nothing is written.
    """
    if is_next_item_run(run):
        return SavedNextItems(run, trust=trust, device=device).write(data, out, stages)
    saved, stages = SavedRun(run, trust=trust), stages or Stages(quiet=True)
    table, rows = read_rows(saved, data, device=device, stages=stages)
    # Before the models: fail early on a missing id.
    keys = line_keys(saved.form, table, rows.groups)
    refuse_absent(saved.form.ids, keys.names, "the rows lack an id of the submission", file=data, remedy="Add it")
    item = saved.config["item"] if saved.target is None else None
    prediction = saved.predict_rows(rows, stages)
    options = {"form": saved.form, "target": saved.target, "decision": saved.decision, "keys": keys, "item": item}
    write_submission_of(out, rows, prediction, **options)
    return Path(out)


def read_rows(
    saved: SavedRun, data: str | Path, *, device: DeviceLike = "auto", stages: Stages | None = None
) -> tuple[Table, Rows]:
    """Read rows to predict (``data``: see ``predict_run``), and compute their features."""
    stages = stages or Stages(quiet=True)
    where, files = resolve_device(device), rows_files(Path(data), saved.reading)
    with stages.stage("read") as advance:
        read = {n: saved.read(p, n, device=where) for n, p in files.items()}
        table = read.pop("test")
        try:
            by_list = saved._by_list(table)
        except FastrecError as error:
            raise error.of_file(files["test"]) from None
        table = table if by_list is None else table.take(by_list)
        advance(len(table))
    history = read.get("history", read.get("train"))
    used = {t for s in (saved.features.steps if saved.features else []) for t in s.table_inputs}
    used |= set() if saved.events is None else {saved.events.table}
    absent = next((n for n in saved.config["tables"] if n not in read and n in used), None)
    if absent is not None:
        remedy = f"Put {absent}.csv or {absent}.parquet beside the rows (fastrec layout writes such files)"
        raise MissingFileError(f"the run reads a table {absent!r}, which is not there", file=data, remedy=remedy)
    steps = 0 if saved.features is None else len(saved.features.steps)
    with stages.stage("features", len(table)) as advance, step_by_step(advance, len(table), steps):
        rows = saved.rows(table, read, history)
    if not len(rows):
        warn(f"{files['test']}: it has no rows, and nothing is predicted")
    return table, rows


def rows_files(data: Path, reading: Reading) -> dict[str, Path]:
    """Map the tables of a folder of rows to predict by name; a single file is ``test``."""
    remedy = "Give the rows to predict: their file, or a folder with test.csv or .parquet (fastrec layout writes one)"
    return files_of(data, "test", remedy, reading.files)


def write_layout(recipe: Competition, data: str | Path, out: str | Path) -> list[Path]:
    """Write a recipe's tables as ``predict_run`` reads them, and return their paths.

    They are ``test.parquet``, a file for every other table and, if features look back to training rows,
    ``history.parquet``. ``out`` is a new folder, or an earlier layout, which is replaced.
    """
    data, out = Path(data), Path(out)
    if isinstance(recipe, NextItemCompetition):  # the test sessions as lists, in any form of the files
        _, test = recipe.read(data, None)
        columns = {} if test.sessions is None else {str(recipe.session): test.sessions.to_arrow()}
        columns[recipe.items] = lists_of(test)
        if test.target is not None:
            columns[recipe.target] = test.decode(test.target)
        tables = {"test.parquet": pa.table(columns)}
    else:
        found = recipe.load(data, rows=None, device=torch.device("cpu"))
        made = {"test": found.test, **found.tables, **({"history": found.train} if recipe.history else {})}
        tables = {f"{n}.parquet": t.to_arrow() for n, t in made.items() if t is not None}
    # Replace only an earlier layout: a folder of these files.
    other = out.is_dir() and any(p.name not in tables for p in out.iterdir())
    if out.is_file() or other or out.resolve() == data.resolve():
        raise DataError("the folder would be replaced whole", file=out, remedy="Choose a new or empty folder")
    with atomic_folder(out) as part:
        for name, table in tables.items():
            pq.write_table(table, part / name)
    return [out / n for n in tables]


class SameBlend(Stack):
    """A stack with the blend of a ``chosen`` one if the base models are the same; else it chooses again."""

    def __init__(self, chosen: StackModel) -> None:
        super().__init__(extra=chosen.extra)
        self.chosen = chosen

    def blends(self, models: Sequence[str], data: Rows, metric: Metric) -> list[Estimator]:
        """Return only that blend, unfitted."""
        blend = self.chosen.blends[0].fresh()
        asked, had = set(models), set(self.chosen.models)
        constant = had - asked if data.task != "ranking" else set()  # it joins the models if it helps
        same = asked | constant == had and len(constant) < 2 and blend.name not in constant
        return [blend] if same else super().blends(models, data, metric)


class SavedRecipe(Competition):
    """A recipe from a run directory: its features, models and columns, without the recipe's code.

    The stack is the run's chosen blend, fitted again.

    Args:
        saved: the run.
        found: the rows.
        folds: the rows' folds.
        trust: modules of custom generators that may be imported.
        warm: let models that can do so continue training from the run's models.
        cold_folds: folds whose rows the run was trained on. Their models start from scratch, so that memorised rows do
            not mislead the stack.
        recipe: the recipe, if its code is available; its features, models and stack replace the run's.
    """

    refit = True

    def __init__(
        self,
        saved: SavedRun,
        found: CompetitionData,
        folds: Folds,
        *,
        trust: Sequence[str] = (),
        warm: bool = False,
        cold_folds: Collection[int] = (),
        recipe: Competition | None = None,
    ) -> None:
        self.saved, self.found, self._folds = saved, found, folds
        self._trust, self._warm, self._recipe = tuple(trust), warm, recipe
        self.cold_folds = tuple(cold_folds)
        self.asked: list[str] = []  # trained models
        self.warmed: list[str] = []  # models that can continue from the run's
        config = saved.config
        self.name, self.task, self.metric = config["competition"], saved.task, config["metric"]
        self.ids, self.history = tuple(config.get("ids", ())), bool(config["history"])
        self.reading, self.events = saved.reading, saved.events
        self.submission = saved.form
        for name, value in config.get("recipe", {}).items():
            setattr(self, name, value)
        if saved.target is None:
            self.list_column, self.item, self.label = (config[n] for n in ("list_column", "item", "label"))
        if recipe is not None:
            self.metric = recipe.metric or self.metric

    def load(self, data: Path, *, rows: int | None, device: torch.device) -> CompetitionData:
        """Return the given rows."""
        return self.found

    def find_target(self, train: Table) -> Target | None:
        """Return the run's target; a multiclass one with the known classes and new ones."""
        known = self.saved.target
        if known is None:
            return None
        positive = known.classes.values[1].as_py() if known.task == "binary" and known.classes is not None else None
        if known.task == "multiclass" and known.classes is not None:  # a window may lack a class
            own = Table({known.names[0]: known.classes.values.to_pylist()}).to(train.device)
            train = concat([train.select(known.names), own])
        found = Target.fit(train, known.names, known.task, positive=positive, scale=known.scale)
        self._grow_form(known, found)
        return found

    def _grow_form(self, known: Target, found: Target) -> None:
        form = self.submission
        joined = [n for n in found.outputs if n not in known.outputs]
        if not joined or len(form.values) < 2:
            return
        if list(form.values) != known.outputs:
            raise DataError(
                f"the new rows have classes that the run did not know ({', '.join(joined)}), and the columns of its "
                f"submission ({', '.join(form.values)}) have names of their own", column=found.names[0],
                remedy="Leave these rows out, or run the recipe with a form of its own for all classes",
            )  # fmt: skip
        self.submission = replace(form, values=tuple(found.outputs))

    def features(self) -> FeatureSet | None:
        """Return the run's features, unfitted."""
        if self._recipe is not None:
            return self._recipe.features()
        state = self.saved.folder / "features"
        return FeatureSet.load(state, trust=self._trust) if state.is_dir() else None

    @property
    def categories(self) -> Sequence[str]:
        """The categorical columns of the run's models."""
        return self.saved.cats if self._recipe is None else self._recipe.categories

    @property
    def plain(self) -> Sequence[str]:
        """The numerical columns of the files that they use."""
        if self._recipe is not None:
            return self._recipe.plain
        made = set() if self.saved.features is None else set(self.saved.features.outputs)
        return [n for n in self.saved.conts if n not in made]

    def folds(self, found: CompetitionData, target: Target | None) -> Folds:
        """Return the given folds."""
        return self._folds

    def baselines(self) -> Sequence[Estimator]:
        """Return the run's rules."""
        return [m.fresh() for m in self._trained if not m.learns] if self._recipe is None else self._recipe.baselines()

    def models(self, *, bs: int | None) -> Sequence[Estimator]:
        """Return the run's models, untrained; warm ones continue from the run's."""
        known = {m.name: m for m in self._trained if m.learns}
        asked = [m.fresh() for m in known.values()] if self._recipe is None else list(self._recipe.models(bs=bs))
        self.asked = [m.name for m in asked]
        Scorer.of(self.metric, self.saved.target).suit(asked)
        if self._warm:
            self.warmed = [m.name for m in asked if m.name in known and m.start_from(known[m.name])]
        return asked

    def stack(self) -> Stack:
        """Return a stack with the kind of blend that the run has chosen."""
        return SameBlend(self.saved.stack) if self._recipe is None else self._recipe.stack()

    @cached_property
    def _trained(self) -> list[Estimator]:
        """The run's models of all rows, or of its first fold."""
        made = []
        for name in self.saved.names:
            folder = self.saved.folder / "models" / name / "fold0"
            if not folder.is_dir():
                raise MissingFileError("the model is not there", file=folder, remedy="Give a complete run directory")
            made.append(Estimator.load(folder))
        return made
