"""``blend_runs``: blend predictions of runs and of files from elsewhere by another stack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec._core import limits
from fastrec._core.atomic import alone_at, read_json
from fastrec._core.messages import refuse_absent
from fastrec._core.progress import Stages
from fastrec.competition.after_training import decide, fit_stack, score
from fastrec.competition.forms.lists import form_of_run
from fastrec.competition.forms.rows import RowKeys, SubmissionForm
from fastrec.competition.forms.values import names_in, read_text
from fastrec.competition.reading import CompetitionData
from fastrec.competition.recipe import Competition
from fastrec.competition.run import check_run_folder
from fastrec.competition.run_features import RunFeatures
from fastrec.competition.run_files import write_fitted, write_submission
from fastrec.competition.run_record import TableRun
from fastrec.competition.scoring import Scorer
from fastrec.errors import DataError, LeakageError, MissingFileError, SubmissionError, refuse_rows, warn
from fastrec.metrics.registry import known_metric
from fastrec.report.data import prediction_names, read_table
from fastrec.stacking import Stack
from fastrec.stacking.blends import in_list
from fastrec.stacking.stack import level_two_folds
from fastrec.table import Table
from fastrec.validate import Folds, Lists, Predictions, Rows, Target


def blend_runs(
    parts: Sequence[str | Path],
    out: str | Path,
    *,
    seed: int = 0,
    stages: Stages | None = None,
    command: str | None = None,
) -> Path:
    """Blend predictions of runs, and of files from elsewhere, and write a run directory of the blend.

    Its models are the parts. Its stack is chosen as in a run (see ``Stack``), by the metric and on the folds of the
    first run.

    A file (CSV or Parquet) has the run's ids and a prediction for each training and test row: one column, or one for
    each class or target, by name. Optional columns are ``fold``, and ``split`` (``oof`` or ``test``) if ids do not tell
    the two apart. A row that no fold scores may lack its prediction. Training predictions must be out of fold: a file
    is refused if its model must have seen the rows.

    Args:
        parts: run directories of one competition on the same folds, one at least, and files.
        out: the run directory to write.
        seed: of everything random.
        stages: progress; None: shown on standard error.
        command: the command to note in ``config.json``.

    Returns:
        The run directory, for ``fastrec runs``, ``compare``, ``report`` and ``score``; it cannot predict other rows.

    Raises:
        LeakageError: training predictions of a file are of a model that has seen these rows.
        DataError: runs differ in rows, folds or task, or a file does not fit the run's rows.
        FastrecError: a file cannot be read, or the run directory not be written.
    """
    paths, out = [Path(p) for p in parts], Path(out)
    check_run_folder(out)
    if (absent := next((p for p in paths if not p.exists()), None)) is not None:
        raise MissingFileError("there is no such run or file", file=absent, remedy="Give run directories and files")
    if any(p.resolve() == out.resolve() for p in paths):
        raise DataError("the blend would take the place of one of its parts", file=out, remedy="Choose another --out")
    names = [p.resolve().name if p.is_dir() else p.stem for p in paths]
    folders = [p for p in paths if p.is_dir()]
    if len(paths) < 2 or not folders:
        raise DataError("a blend needs two predictions or more, one of them a run's", remedy="Give a run and another")
    first, stages = _FirstRun(folders[0]), stages or Stages()
    run = first.record(out=out, seed=seed, stages=stages, command=command)
    taken = ["stack", *(b.name for b in Stack().blends([""], run.train, run.scorer.for_choosing()))]
    if (same := next((i for i, n in enumerate(names) if n in (*taken, *names[:i])), None)) is not None:
        problem = f"another part, or a way to blend them, has the name {names[same]!r}"
        raise DataError(problem, file=paths[same], remedy="Rename the folder or the file")
    with alone_at(out), run.context:
        with stages.stage("read", len(first.table)):
            found = {n: first.values_of_run(p) for n, p in zip(names, paths, strict=True) if p in folders}
            known = list(found.values())
            found |= {n: first.values_of_file(p, known) for n, p in zip(names, paths, strict=True) if p not in folders}
        run.blended, size = {n: str(p) for n, p in zip(names, paths, strict=True)}, len(run.train)
        digest, one = level_two_folds(run.folds, run.train).digest, run.train.n_scores == 1
        for name in names:
            values = found[name][:, 0] if one else found[name]
            run.predictions[name] = Predictions(name, values[:size], values[size:], folds=digest)
        for step in (fit_stack, decide, score, write_fitted, write_submission):
            step(run)
    return out


class _FirstRun:
    """The run that gives a blend's rows, folds, metric and form; ``table``: its training rows, then its test rows."""

    def __init__(self, path: Path) -> None:
        self.path, self.config = path, _config_of(path)
        self.task = self.config["task"]
        self.target = None if self.task == "ranking" else Target.load(path / "target")
        self.outputs = ["score"] if self.target is None else self.target.outputs
        self.folds = Folds.load(path / "folds.parquet")
        self.table, self.ids = _rows_of(path, self.config)
        self.size, self.label = self.folds.size, self._labels(self.table)
        self.scored = np.append(self.folds.scored.numpy(), np.ones(len(self.table) - self.size, dtype=bool))

    def _labels(self, table: pa.Table) -> torch.Tensor:
        """Return labels on the learned scale, float64 ``[n, targets]``; NaN if unknown."""
        names = [self.config["label"]] if self.target is None else [f"label_{n}" for n in self.target.names]
        if any(n not in table.column_names for n in names):
            raise DataError(f"a run does not have the target of {self.path.name}", remedy="Blend runs of one target")
        return self._learned([table[n].cast(pa.float64()).to_numpy() for n in names])

    def _learned(self, columns: Sequence[np.ndarray]) -> torch.Tensor:
        """Invert ``Target.restore``: float64 ``[n, k]``."""
        values, scale = torch.from_numpy(np.column_stack(columns)), None if self.target is None else self.target.scale
        return values if scale is None else values.log() if scale == "log" else values.log1p()

    def values_of_run(self, path: Path) -> torch.Tensor:
        """Return a run's predictions of these rows, float64 ``[n, k]`` on the learned scale."""
        config = _config_of(path)
        if config["task"] != self.task:
            problem = f"it is a run of a {config['task']} task, and {self.path.name} of a {self.task} task"
            raise DataError(problem, file=path, remedy="Blend runs of one competition")
        table, ids = _rows_of(path, config)
        keys, both = ("split", *ids), ((self.table, self.path), (table, path))
        ours, theirs = (RowKeys(t, (), p) for t, p in both)  # without ids, rows match by order
        if (
            ids
            and ids == self.ids
            and not len((named := RowKeys(_plain(self.table, keys), keys, self.path)).repeated())
        ):
            ours, theirs = named, RowKeys(_plain(table, keys), keys, path)
        table = table.take(pa.array(np.argsort(theirs.match(ours, role="no row"))))
        same = torch.isclose(self.label, self._labels(table), rtol=1e-9, atol=0.0, equal_nan=True).all(1)
        problem = f"its rows, or their targets, are others than those of {self.path.name}"
        refuse_rows(~same, problem, file=path, remedy="Blend runs on the same training and test rows")
        rows = np.flatnonzero(self.scored[: self.size])
        self._refuse_other_folds(path, table["fold"].to_numpy()[rows], rows, rows)
        names = prediction_names(table.column_names)
        if len(self.outputs) > 1 and names != (wanted := [f"prediction_{n}" for n in self.outputs]):
            problem = f"it predicts {', '.join(names)}, and {self.path.name} {', '.join(wanted)}"
            raise DataError(problem, file=path, remedy="Blend runs of the same classes")
        return self._learned([table[n].to_numpy() for n in names])

    def values_of_file(self, path: Path, known: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return a file's predictions of these rows; ``known`` are the runs' predictions, to detect leakage."""
        if not self.ids:
            remedy = "Write ids = (…) in its recipe, and run it again"
            raise DataError("its recipe names no ids, by which rows of a file are found", file=self.path, remedy=remedy)
        header = names_in(path, ",")
        ids = (*(["split"] if "split" in header else []), *self.ids)
        given = [n for n in header if n not in (*ids, "fold") and not n.startswith("__index_level_")]  # of pandas
        remedy = "Give its ids as columns; of a frame whose index they are, write df.reset_index()"
        refuse_absent(self.ids, header, f"it has {', '.join(header)}", file=path, remedy=remedy)
        bare = {n.removeprefix("prediction_"): n for n in given}
        several = len(self.outputs) > 1
        names = [bare[n] for n in self.outputs if n in bare] if several else given
        if not len(given) == len(names) == len(self.outputs):
            problem = f"it has {len(given)} columns of predictions ({', '.join(given)}), not {len(self.outputs)}"
            odd = next((n for n in given if n not in names), None) if several else None
            wanted = ", ".join(self.outputs) if several else "one column of predictions"
            remedy = f"Give {', '.join(self.ids)}, {wanted}, and fold where it is known"
            raise DataError(problem, file=path, column=odd, remedy=remedy)
        text = read_text(path, (*ids, *names, *(["fold"] if "fold" in header else [])))
        own = _plain(self.table, self.ids)
        for name in self.ids:
            if pc.all(pc.utf8_is_decimal(own[name])).as_py():  # in the file they may have become floats
                whole = pc.replace_substring_regex(text[name], r"^(\d+)\.0+$", r"\1")
                text = text.set_column(text.column_names.index(name), name, whole)
        form = SubmissionForm(ids=ids, values=names, probabilities=self.task in ("binary", "multiclass", "multilabel"))
        theirs, ours = (RowKeys(_plain(t, ids), ids, p) for t, p in ((text, path), (self.table, self.path)))
        theirs.refuse_repeated()
        if len(again := ours.repeated()):
            problem = f"{ours.named(again[0])} names two rows of {self.path.name}"
            remedy = "Add a column split with oof or test" if "split" not in ids else "Name more ids in the recipe"
            raise DataError(problem, file=path, column=", ".join(ids), remedy=remedy)
        rows = theirs.match(ours, role="no row", complete=False)
        columns = [form.numbers(text, n, path, empty=~self.scored[rows]) for n in names]
        learned = self._learned(columns)
        bad = ~learned.isfinite().all(1) & torch.from_numpy(~np.isnan(columns).any(0))
        problem = "the target has no such amounts"
        if self.task == "multiclass":
            bad, problem = (learned.sum(1) - 1).abs() > 0.01, "the probabilities do not sum to 1"
            learned = learned / learned.sum(1, keepdim=True)
        about = {"file": path, "column": ", ".join(names), "remedy": "Write what is predicted"}
        refuse_rows(bad, problem, SubmissionError, **about)
        values = torch.full((len(self.table), len(names)), torch.nan, dtype=torch.float64)
        values[rows] = learned
        left = np.flatnonzero(self.scored & values.isnan().any(1).numpy())
        if len(left):
            kind = "training" if left[0] < self.size else "test"
            problem = f"the {kind} row of {ours.named(left[0])} is not there ({len(left)} are left out in all)"
            remedy = f"Give a prediction for each training and test row of {self.path.name}"
            raise SubmissionError(problem, file=path, column=", ".join(ids), remedy=remedy)
        if "fold" in header:
            there = np.flatnonzero((rows < self.size) & self.scored[rows])
            folds = np.array(text["fold"].to_pylist(), dtype=object)[there]
            self._refuse_other_folds(path, folds, rows[there], there)
        self._doubt(path, values, known, claimed="fold" in header)
        return values

    def _refuse_other_folds(self, path: Path, folds: np.ndarray, rows: np.ndarray, places: np.ndarray) -> None:
        """Refuse folds that differ from ours, up to their names, on our ``rows``, at ``places`` in the file."""
        ours, theirs = pd.Series(self.table["fold"].to_numpy()[rows]), pd.Series(folds).fillna("none")
        usual = [a.groupby(b).transform(lambda part: part.mode()[0]) for a, b in ((theirs, ours), (ours, theirs))]
        problem = f"the row is not in a fold with the rows that it is with in {self.path.name}"
        where = "oof/stack.parquet" if self.target is None else "rows.parquet"
        remedy = f"Make all predictions on the same folds: those of {self.path.name} are in its {where}"
        refuse_rows(
            ((usual[0] != theirs) | (usual[1] != ours)).to_numpy(),
            lambda at: f"{problem}, {theirs[at]} here and {ours[at]} there",
            numbers=places,
            file=path,
            column="fold",
            remedy=remedy,
        )

    def _doubt(self, path: Path, values: torch.Tensor, known: Sequence[torch.Tensor], *, claimed: bool) -> None:
        """Warn of predictions that are reversed, and refuse those of a model that has seen the rows."""
        groups, label, (first, *others) = None, self.label, (values, *known)
        ordered = values, known[0]
        if self.task == "multiclass":
            label = torch.nn.functional.one_hot(label[:, 0].nan_to_num().long(), len(self.outputs)).double()
        if self.task == "ranking":  # scores have no common scale, their softmax in the list has
            names = RowKeys(self.table, ("split", self.ids[0]), path).text
            groups = torch.from_numpy(names.dictionary_encode().indices.to_numpy().astype(np.int64))
            found = [in_list(v[:, 0], groups) for v in (first, *others)]
            (first, *others), ordered = ([f[n][:, None] for f in found] for n in ("softmax", "rank"))
        rows = np.flatnonzero(self.scored[: self.size])
        alike = torch.corrcoef(torch.stack([v[rows].flatten() for v in (*ordered[:2], first, label)]))
        likeness = float(alike[0, 1])
        if likeness < -0.3 and alike[2, 3] < 0:  # honest models may contradict one another, but not the label
            problem = f"{path}: its predictions fall where those of the first run rise (correlation {likeness:.2f}). "
            problem += "Is a higher number better in it, too?"
            warn(problem)
        train, test = ([v[part].numpy() for v in (first, *others)] for part in (rows, slice(self.size, None)))
        share, ratio = seen_share(
            train, test, label[rows].numpy(), None if groups is None else len(groups[rows].unique())
        )
        if share > min(ratio**2, limits.SEEN_SHARE):
            raise LeakageError(
                "its training predictions are of a model that has seen these rows. There they explain "
                f"{share:.0%} of what the runs leave open, and on test rows they differ from the runs' by {ratio:.0%} "
                "of what they do there (variance)", file=path,
                remedy="Give out-of-fold predictions: each training row's of a model that was fitted without it",
            )  # fmt: skip
        if share > limits.UNPROVED_SHARE and not claimed:
            warn(
                f"{path}: its training predictions explain {share:.0%} of what the runs leave open. If they are not "
                "out of fold, the blend's score is too good; a column fold, with the run's folds, says that they are"
            )

    def record(self, **about: Any) -> TableRun:
        """Return the record of a run over these rows, without predictions."""
        config, recipe, size = self.config, Competition(), self.size
        kept = ("task", "metric", *(("list_column", "item", "label") if self.target is None else ()))
        for name, value in {**config.get("recipe", {}), "position": None, **{n: config[n] for n in kept}}.items():
            setattr(recipe, name, value)
        recipe.name, recipe.ids = config["competition"], tuple(config.get("ids", ()))
        run = TableRun(recipe=recipe, data=Path(config.get("data", ".")), device=torch.device("cpu"), **about)
        table, key, counted, groups = self.table.select(self.ids), recipe.fold_key, self.scored.copy(), None
        if recipe.counted:
            problem = "the run does not say which rows count"
            refuse_absent(["counted"], self.table.column_names, problem, file=self.path, remedy="Run its recipe again")
            counted[:size] &= self.table["counted"].to_numpy()[:size].astype(bool)
        if self.target is None:  # figures of the run's lists, in the order in which they appear
            lists, place = read_table(self.path / "lists.parquet"), np.zeros(len(table), dtype=np.int64)
            names = RowKeys(self.table.filter(pa.array(counted)), ("split", self.ids[0]), self.path).text
            place[counted] = names.dictionary_encode().indices.to_numpy()
            for name, of in ((key, "fold_key"), (recipe.touched, "touched")):
                if name and name not in self.ids:
                    table = table.append_column(name, lists[of].take(pa.array(place)))
        elif key and "fold_key" in self.table.column_names:
            table = table if key in self.ids else table.append_column(key, self.table["fold_key"])
            groups = torch.from_numpy(pd.factorize(self.table["fold_key"].to_pandas())[0].astype(np.int64))[:size]
        train, test = Table.read(table.slice(0, size)), Table.read(table.slice(size)) if len(table) > size else None
        label = self.label if self.task == "multilabel" or self.label.shape[1] > 1 else self.label[:, 0]
        label = label[:size].long() if self.task == "multiclass" else label[:size], label[size:]
        truth = None if test is None or bool(label[1].isnan().any()) else label[1].to(label[0])
        run.form, lines = form_of_run(self.path), None
        if test is not None and run.form.ids and (run.form.items or self.target is not None):
            lines = Table.read(run.form.read(self.path / "submission.csv").select(list(run.form.ids)))
        run.found = CompetitionData(train, test, targets=lines, truth=truth)
        run.target, run.folds, run.cats, run.conts = self.target, self.folds, [], []
        if known_metric(recipe.metric) is None:
            problem = f"its metric {recipe.metric!r} is of its recipe's own, which its files do not hold"
            raise DataError(problem, file=self.path, remedy="Run its recipe by one of fastrec's metrics")
        run.scorer = Scorer.of(recipe.metric, self.target)
        run.prepared = RunFeatures(recipe, run.found, self.folds, [], None)
        if self.target is None:
            run.train = Lists(train, train[self.ids[0]].group_numbers().cpu(), label=label[0])
            run.test = None if test is None else Lists(test, test[self.ids[0]].group_numbers().cpu())
        else:
            options = {"n_outputs": self.target.n_outputs}
            run.train = Rows(train, self.task, label=label[0], groups=groups, **options)
            run.test = None if test is None else Rows(test, self.task, **options)
        run.counted = torch.from_numpy(counted[:size])
        return run


def seen_share(
    train: Sequence[np.ndarray], test: Sequence[np.ndarray], label: np.ndarray, size: int | None = None
) -> tuple[float, float]:
    """Estimate whether a model has seen the training rows, from its and out-of-fold predictions of train and test.

    Regress the predictions on the out-of-fold ones. s is the squared correlation of the residuals with those of the
    target, r the ratio of the residuals' variances, test to train. If the model has not seen the training rows, s ≤ r
    (Cauchy and Schwarz); s ≤ r² held for all models tried (``limits.SEEN_SHARE``). A model that has memorised them has
    s near 1, and a smaller r.

    ``train`` and ``test`` are the predictions in question, then the out-of-fold ones, float64 ``[n, k]`` each; there
    are ``size`` independent rows (None: n). Returns a lower bound of s and an upper bound of r, at three standard
    errors (1 without ``test``).
    """

    def beyond(numbers: np.ndarray, honest: Sequence[np.ndarray]) -> np.ndarray:
        made = numbers.copy()
        for j in range(numbers.shape[1]):
            x = np.column_stack([np.ones(len(numbers)), *(h[:, j] for h in honest)])
            made[:, j] -= x @ np.linalg.lstsq(x, made[:, j], rcond=None)[0]
        return made

    size = len(label) if size is None else size
    own, left = (beyond(v, train[1:]) for v in (train[0], label))
    power = float((own**2).mean())
    if size < 10 or power <= 1e-12 * train[0].var():
        return 0.0, 1.0
    r = float((own * left).sum()) / max(math.sqrt(power * own.size * float((left**2).sum())), 1e-300)
    low = math.tanh(math.atanh(min(r, 1 - 1e-12)) - limits.SEEN_ERRORS / math.sqrt(size - 3))  # Fisher's transformation
    high = power
    if len(test[0]) > 1:
        squares = (beyond(test[0], test[1:]) ** 2).mean(1)
        high = float(squares.mean() + limits.SEEN_ERRORS * squares.std() / math.sqrt(len(squares)))
    return max(low, 0.0) ** 2, min(high / power, 1.0)


def _config_of(run: Path) -> dict[str, Any]:
    config = read_json(run / "config.json")
    if not (run / "folds.parquet").is_file():
        problem = "it is no run over a table, and such runs alone can be blended"
        raise DataError(problem, file=run, remedy="Give a run of a recipe whose rows are read into memory")
    return config


def _rows_of(run: Path, config: dict[str, Any]) -> tuple[pa.Table, list[str]]:
    """Return a run's training and test rows (split, ids, fold, labels, predictions), and the ids' names."""
    parts = {"oof": read_table(run / "oof" / "stack.parquet")}
    if (run / "test" / "stack.parquet").is_file():
        parts["test"] = read_table(run / "test" / "stack.parquet")
    said = pa.concat_tables(parts.values(), promote_options="default")
    if config["task"] == "ranking":
        split = pa.array([s for s, t in parts.items() for _ in range(len(t))])
        folds = pc.fill_null(said["fold"], -1)
        said = said.set_column(said.column_names.index("fold"), "fold", folds).append_column("split", split)
        return said, [config["list_column"], config["item"]]
    rows = read_table(run / "rows.parquet")
    for name in (n for n in said.column_names if n.startswith("prediction") or n == "counted"):
        rows = rows.append_column(name, said[name])
    return rows, [n for n in config.get("ids", ()) if n in rows.column_names]


def _plain(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    text = {n: pc.replace_substring_regex(table[n].cast(pa.large_string()), r" 00:00:00(\.0+)?$", "") for n in keys}
    if "split" in text:
        text["split"] = pc.replace_substring_regex(text["split"], "^train$", "oof")
    return pa.table(text)
