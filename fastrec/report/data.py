"""Read a run directory and summarise it for its report."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy.stats import rankdata

from fastrec._core.atomic import file_digest, now, read_json, recover, write_json
from fastrec._core.messages import refuse_absent
from fastrec.errors import DataError, DataWarning, FastrecError, MissingFileError, UnreadableFileError
from fastrec.metrics import Interval
from fastrec.metrics.intervals import cluster_means, conformal_bound, conformal_gaps, interval_of
from fastrec.metrics.registry import known_metric


@dataclass(frozen=True)
class Bin:
    """Rows of similar predictions: count, mean prediction, mean target, and the target's 10-90 % range."""

    rows: int
    predicted: float
    actual: float
    low: float = float("nan")
    high: float = float("nan")


@dataclass
class RowResults:
    """Summary of one model's out-of-fold predictions."""

    task: str
    outputs: list[str]  # names of classes or targets
    # output → bins by prediction (multiclass: of each row's likeliest class)
    bins: dict[str, list[Bin]] = field(default_factory=dict)
    # share of rows, from the highest prediction down → share of class 1; empty for other tasks
    lift: list[tuple[float, float]] = field(default_factory=list)
    # actual class → predicted class → rows; empty without classes, or with too many
    confusion: list[list[int]] = field(default_factory=list)
    # target → level, share of rows covered, and mean width (of classes: mean size of a set)
    intervals: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)
    # model → model → rank correlation of their predictions
    correlations: dict[str, dict[str, float]] = field(default_factory=dict)


def read_rows(run: Path, task: str, outputs: Sequence[str], best: str, models: Sequence[str]) -> RowResults | None:
    """Summarise a run's out-of-fold predictions, None if it wrote no rows.

    ``outputs`` are its classes or targets; predictions of ``best`` are summarised, those of ``models`` correlated.
    """
    predicted = {m: values for m in models if (values := read_predictions(run / "oof" / f"{m}.parquet")) is not None}
    results = RowResults(task, list(outputs), correlations=_correlations(predicted))
    if task == "ranking" and "stack" in predicted:
        stack = read_table(run / "oof" / "stack.parquet")
        if "chance" in stack.column_names:
            chance, label = stack["chance"].to_numpy(), stack[stack.column_names[-1]].to_numpy()
            known = np.isfinite(chance)
            results.bins["chances of the stack"] = _bins(chance[known], (label > 0)[known].astype(float), spread=False)
            return results
    if task == "ranking" or best not in predicted or not (run / "rows.parquet").exists():
        return results if results.correlations else None
    known = out_of_fold(run, best)
    if known is None:
        return results
    label, values, _ = known
    results.intervals = cross_coverage(out_of_fold(run, "stack"), task, results.outputs)
    if task == "multiclass":
        classes, likeliest = label[:, 0].astype(int), values.argmax(1)
        results.bins["the likeliest class"] = _bins(values.max(1), (likeliest == classes).astype(float), spread=False)
        if values.shape[1] <= 12:  # a larger table is not readable
            results.confusion = _confusion(classes, likeliest, values.shape[1])
        return results
    for i, name in enumerate(results.outputs[-1:] if task == "binary" else results.outputs):
        results.bins[name] = _bins(values[:, i], label[:, i], spread=task == "regression")
    if task == "binary":
        scores, actual = values[:, 0], label[:, 0]
        positives = np.concatenate([[0.0], np.cumsum(actual[np.argsort(-scores, kind="stable")])])
        if positives[-1]:
            places = np.unique(np.linspace(0, len(actual), 21).round().astype(int))
            results.lift = [(float(p / len(actual)), float(positives[p] / positives[-1])) for p in places]
        results.confusion = _confusion(actual.astype(int), (scores > 1 - scores).astype(int), 2)
    return results


def out_of_fold(run: Path, model: str, *, whole: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Read targets ``[n, k]``, a model's predictions ``[n, m]`` and folds ``[n]`` of the rows that have them.

    Targets are on their original scale. ``whole``: of all training rows. None: the files are absent, or of different
    rows.
    """
    path, values = run / "rows.parquet", read_predictions(run / "oof" / f"{model}.parquet")
    if values is None or not path.exists():
        return None
    rows = read_table(path)
    rows = rows.filter(pc.equal(rows["split"], "oof"))
    label = np.column_stack([rows[n].to_numpy() for n in rows.column_names if n.startswith("label_")])
    if len(values) != len(label):
        return None
    # Folds in order of time leave the first rows without predictions.
    known = np.isfinite(values).all(1) & np.isfinite(label).all(1) | whole
    return label[known], values[known], rows["fold"].to_numpy()[known]


def cross_coverage(
    known: tuple[np.ndarray, np.ndarray, np.ndarray] | None, task: str, outputs: Sequence[str]
) -> dict[str, list[tuple[float, float, float]]]:
    """Return each level, its share of rows covered and the mean size, by the bounds of the other folds' rows."""
    if known is None or task == "multilabel":
        return {}
    label, values, folds = known
    amounts, found = task == "regression", {}
    gaps = conformal_gaps(label, values, classes=not amounts)
    wide = np.concatenate([1 - values, values], 1) if task == "binary" else values
    for i, name in enumerate(outputs if amounts else ["the classes"]):
        found[name] = []
        for level in (0.5, 0.8, 0.9, 0.95):
            inside, size = 0, 0.0
            for fold in np.unique(folds):
                here = folds == fold
                try:
                    bound = conformal_bound(gaps[~here, i], level)
                except DataError:  # too few rows
                    return {}
                inside += int((gaps[here, i] <= bound).sum())
                size += 2 * bound * here.sum() if amounts else np.maximum((1 - wide[here] <= bound).sum(1), 1).sum()
            found[name].append((level, inside / len(folds), float(size) / len(folds)))
    return found


def _bins(predicted: np.ndarray, actual: np.ndarray, *, spread: bool) -> list[Bin]:
    order = np.argsort(predicted, kind="stable")
    bins = []
    for rows in np.array_split(order, min(10, len(order))):
        ends = np.quantile(actual[rows], [0.1, 0.9]) if spread else (np.nan, np.nan)
        bins.append(Bin(len(rows), float(predicted[rows].mean()), float(actual[rows].mean()), *map(float, ends)))
    return bins


def _confusion(actual: np.ndarray, predicted: np.ndarray, classes: int) -> list[list[int]]:
    return np.bincount(actual * classes + predicted, minlength=classes**2).reshape(classes, classes).tolist()


def _correlations(predicted: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    ranks: dict[str, np.ndarray] = {}
    for name, values in predicted.items():
        # at most 200,000 rows, evenly spaced, to bound the time
        flat = values[np.linspace(0, len(values) - 1, min(len(values), 200_000)).astype(int)].reshape(-1)
        if len(flat) and np.nanmin(flat) < np.nanmax(flat):  # a constant has no correlation
            ranks[name] = rankdata(np.nan_to_num(flat, nan=np.nanmedian(flat)))
    names = [n for n in ranks if len(ranks[n]) == len(next(iter(ranks.values())))]
    if len(names) < 2:
        return {}
    matrix = np.corrcoef(np.stack([ranks[n] for n in names]))
    return {a: {b: float(matrix[i, j]) for j, b in enumerate(names)} for i, a in enumerate(names)}


def prediction_names(names: Iterable[str]) -> list[str]:
    """Select the names of prediction columns: ``score``, or ``prediction…``."""
    return [n for n in names if n == "score" or n.startswith("prediction")]


def read_predictions(path: Path) -> np.ndarray | None:
    """Read a file's predictions, float64 ``[n, k]``; None: no file, or none in it."""
    if not path.exists():
        return None
    table = read_table(path)
    names = prediction_names(table.column_names)
    return np.column_stack([table[n].to_numpy() for n in names]) if names else None


def read_table(path: Path) -> pa.Table:
    """Read a Parquet file of a run."""
    if not path.is_file():
        raise MissingFileError("there is no such file", file=path, remedy="Give a complete run directory")
    try:
        return pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        problem = f"is not a Parquet file that can be read ({error})"
        raise UnreadableFileError(problem, file=path, remedy="Run again") from error


Split = Literal["oof", "test"]
SPLITS: tuple[Split, Split] = ("test", "oof")


@dataclass(frozen=True)
class Standing:
    """A model's score on a split, and its difference to the best model if the lists are known."""

    score: Interval
    to_best: Interval | None


@dataclass(frozen=True)
class Slice:
    """Each model's mean score over some of the lists."""

    label: str
    n_lists: int
    means: dict[str, float]


@dataclass
class RunResults:
    """Content of the report. Parts that the run lacks are None or empty."""

    name: str
    metric: str  # short name, in capitals
    models: list[str]  # ascending by out-of-fold score (else test score); the last is ``best``
    best: str | None
    scores: dict[Split, dict[str, float]]  # split → model → score, as the run reported them
    # split → model → standing with intervals; models without known lists have none
    standings: dict[Split, dict[str, Standing]] = field(default_factory=dict)
    n_lists: dict[Split, int] = field(default_factory=dict)
    oracle: float | None = None  # expected score of the true click probabilities, if known
    # split → slices of its lists by length
    by_length: dict[Split, list[Slice]] = field(default_factory=dict)
    # by whether the clicked item was touched before the list
    by_touched: dict[Split, list[Slice]] = field(default_factory=dict)
    # by the first relevant item's place among the list's rows
    by_place: dict[Split, list[Slice]] = field(default_factory=dict)
    # split → figures of its lists: number, rows and relevant rows of each
    groups: dict[Split, dict[str, str]] = field(default_factory=dict)
    # model → one record per fold and epoch, or round of boosting
    curves: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    importance: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    transductive: list[str] | None = None  # features whose target-free statistics saw the test rows; None: unknown
    rows: dict[str, Any] = field(default_factory=dict)  # unit (rows, sessions …) → count
    config: dict[str, Any] = field(default_factory=dict)
    task: str = "ranking"
    of_rows: RowResults | None = None
    permutation: dict[str, float] = field(default_factory=dict)
    # of clicks with known places: click rate and examination by place, scores weighted by them
    position: dict[str, Any] = field(default_factory=dict)
    # contributions of columns to some rows' predictions, first of the lowest, middle and highest
    explanation: dict[str, Any] = field(default_factory=dict)
    # other metric → model → its score, out of fold; of next items on the test
    also: dict[str, dict[str, float]] = field(default_factory=dict)
    greater_is_better: bool = True

    @property
    def all_models(self) -> list[str]:
        """The models in display order: the best first, those without a reported score last."""
        extra = [name for split in SPLITS for name in self.standings.get(split, {}) if name not in self.models]
        return list(dict.fromkeys([*reversed(self.models), *extra]))

    @property
    def also_of(self) -> Split:
        """The split of other metrics."""
        return "test" if self.task == "next_item" else "oof"

    @property
    def total_seconds(self) -> float | None:
        """The run's seconds: as reported, or the sum of its stages."""
        stages = {stage: s for stage, s in self.seconds.items() if stage != "total"}
        return self.seconds.get("total", sum(stages.values())) if self.seconds else None

    @property
    def share_of_way(self) -> float | None:
        """The best model's score on a scale from display order (0) to the oracle (1); None if either is unknown."""
        scores, floor = self.scores["test"], self.scores["test"].get("display_order")
        if self.oracle is None or floor is None or self.best not in scores or self.oracle <= floor:
            return None
        return (scores[self.best] - floor) / (self.oracle - floor)

    def standing_of(self, split: Split, name: str) -> Standing | None:
        """Return a model's standing on a split, None if its lists are unknown."""
        return self.standings.get(split, {}).get(name)

    def score_of(self, split: Split, name: str) -> float | None:
        """Return a model's score on a split: the reported one, or the mean over its lists."""
        standing = self.standing_of(split, name)
        return self.scores[split].get(name, standing.score.mean if standing else None)


def read_run(run: str | Path, *, repeats: int = 2000) -> RunResults:
    """Read a run directory and compute intervals (by ``repeats`` resamples of the sessions) and slices.

    ``scores.json`` is needed, the rest may be absent.
    """
    run = Path(run)
    recover(run)
    scores = _read_json(run / "scores.json")
    if scores is None:
        remedy = "Give the directory of a finished run, as in fastrec run --out"
        raise MissingFileError("there is no scores.json", file=run, remedy=remedy)
    lists = read_table(run / "lists.parquet") if (run / "lists.parquet").exists() else None
    if lists is not None:
        about = {"problem": "the column is not there", "file": run / "lists.parquet", "remedy": "Run again"}
        refuse_absent(("split", "fold_key", "length", "touched"), lists.column_names, **about)
    with readable(run):
        curves, importance = (_read_json(run / f"{name}.json") or {} for name in ("curves", "importance"))
        figures = {"test": _figures(scores.get("models")), "oof": _figures(scores.get("oof"))}
        greater = scores.get("greater_is_better") is not False
        # among equal models the stack is last, as the best
        names, sign = dict.fromkeys([*figures["oof"], *figures["test"]]), 1 if greater else -1
        known = {n: sign * figures["oof"].get(n, figures["test"].get(n)) for n in names}
        models = sorted(names, key=lambda n: (n in figures["oof"], known[n], n == "stack"))
        results = RunResults(
            name=run.resolve().name,
            metric=str(scores.get("metric") or "score").upper(),
            models=models,
            best=models[-1] if models else None,
            scores=figures,
            oracle=_number(scores.get("oracle")),
            curves={m: [_figures(r) for r in records or []] for m, records in curves.items()},
            importance={m: _figures(gains) for m, gains in importance.items()},
            seconds=_figures(scores.get("seconds")),
            transductive=scores.get("transductive"),
            rows=dict(scores.get("rows") or {}),
            config=_read_json(run / "config.json") or {},
            task=str(scores.get("task") or "ranking"),
            permutation=_figures(_read_json(run / "permutation.json")),
            position=_read_json(run / "position.json") or {},
            explanation=_read_json(run / "explanation.json") or {},
            also={str(n): numbers for n, m in (scores.get("also") or {}).items() if (numbers := _figures(m))},
            greater_is_better=greater,
        )
        if lists is not None:
            for split in SPLITS:
                _add_lists(results, split, lists, repeats=repeats)
        if not results.standings and (lists is not None or results.task != "ranking"):
            # A run without scores of lists has stored the intervals of its stack and its best base model.
            gap, standings = scores.get("stack_over_best"), {}
            for name, ends in (scores.get("intervals") or {}).items():
                other = gap and name != results.best and results.best == "stack"
                if ends:
                    to_best = Interval(0.0 - gap[0], 0.0 - gap[2], 0.0 - gap[1]) if other else None  # not -0.0
                    standings[name] = Standing(Interval(*ends), to_best)
            results.standings |= {"oof": standings} if standings else {}
        if models:
            outputs = list(results.config.get("outputs") or [])
            results.of_rows = read_rows(run, results.task, outputs, models[-1], models[::-1])
    return results


def list_scores(lists: pa.Table) -> dict[str, np.ndarray]:
    """Return each model's score of every list: float64 ``[n]``, NaN if unknown."""
    scored = {n: n.partition("_")[2] for n in lists.column_names if n.startswith(("rr_", "score_"))}
    return {model: lists[n].to_numpy().astype(np.float64) for n, model in scored.items()}


def list_weights(lists: pa.Table, metric: str) -> np.ndarray | None:
    """Return the weight of each list in the mean of a metric; None: equal weights."""
    return lists["length"].to_numpy().astype(np.float64) if metric.lower() == "gauc" else None


def _add_lists(results: RunResults, split: Split, lists: pa.Table, *, repeats: int) -> None:
    rows = lists.filter(pc.equal(lists["split"], split))
    if len(rows) and "positives" in rows.column_names:
        found = results.groups[split] = {"lists": f"{len(rows):,}"}
        for name, column in {"rows": rows["length"], "relevant rows": rows["positives"]}.items():
            numbers = column.drop_null().to_numpy()
            if len(numbers):
                found[f"{name} of a list, mean"] = f"{numbers.mean():.2f}"
                found[f"{name}, least to most"] = f"{numbers.min():,} to {numbers.max():,}"
        if not rows["positives"].null_count:
            found["lists without a relevant row"] = f"{int((rows['positives'].to_numpy() == 0).sum()):,}"
    columns = {name: values for name, values in list_scores(rows).items() if np.isfinite(values).any()}
    if not columns:
        return
    names = [name for name in results.models if name in columns]
    names += [name for name in columns if name not in names]
    values = np.column_stack([columns[name] for name in names])
    known = np.isfinite(values).all(axis=1)  # models are compared on the same lists, or not at all
    if not known.any():
        return
    values, rows = values[known], rows.filter(pa.array(known))
    sessions = rows["fold_key"].combine_chunks().dictionary_encode().indices.to_numpy()
    weights = list_weights(rows, results.metric)
    # the same run gives the same page
    means, draws = cluster_means(values, sessions, weights=weights, repeats=repeats, seed=0)
    best = names.index(results.best) if results.best in names else None
    results.n_lists[split] = len(values)
    results.standings[split] = {
        name: Standing(
            interval_of(means[i], draws[:, i]),
            None if best in (None, i) else interval_of(means[i] - means[best], draws[:, i] - draws[:, best]),
        )
        for i, name in enumerate(names)
    }

    def add_slice(to: list[Slice], label: str, chosen: np.ndarray) -> None:
        if chosen.any():
            means = np.average(values[chosen], axis=0, weights=None if weights is None else weights[chosen]).tolist()
            to.append(Slice(label, int(chosen.sum()), dict(zip(names, means, strict=True))))

    def add_ranges(to: list[Slice], column: str, start: int, last: Sequence[float]) -> None:
        numbers = pc.fill_null(rows[column], 0).to_numpy()
        for end in (*last, np.inf):
            label = f"{start}+" if end == np.inf else str(start) if start == end else f"{start}\u2013{int(end)}"
            add_slice(to, label, (numbers >= start) & (numbers <= end))
            start = int(end) + 1 if end < np.inf else start

    results.by_length[split], results.by_place[split] = [], []
    # A list of one has nothing to rank. 25 is the longest and the most frequent length on many sites.
    add_ranges(results.by_length[split], "length", 2, (5, 10, 15, 20, 24, 25, 50, 100, 200))
    if "place" in rows.column_names:
        add_ranges(results.by_place[split], "place", 1, (1, 2, 3, 5, 10, 20, 50, 100))
    by_touched = results.by_touched[split] = []
    for label, wanted in (("touched before", True), ("not touched", False)):
        # null, unknown, is in neither slice
        add_slice(by_touched, label, pc.fill_null(pc.equal(rows["touched"], wanted), False).to_numpy())


def _read_json(path: Path) -> dict[str, Any] | None:
    return read_json(path, again="Run again") if path.exists() else None


@contextmanager
def readable(run: Path) -> Iterator[None]:
    """Name the run whose files have parts of another shape than its steps write."""
    try:
        yield
    except FastrecError:
        raise
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        problem = f"the run's files cannot be read ({error!r})"
        raise UnreadableFileError(problem, file=run, remedy="Run again") from error


def _number(value: Any) -> float | None:
    try:
        return float(value) if value is not None and math.isfinite(value) else None
    except OverflowError:  # an integer that no float holds
        return None


def _figures(content: Any) -> dict[str, float]:
    numbers = {str(name): _number(value) for name, value in (content or {}).items()}
    return {name: value for name, value in numbers.items() if value is not None}


_FILE = "leaderboard.json"


@dataclass(frozen=True)
class RunSummary:
    """A run in one line: its out-of-fold score with its interval, its seconds, and its leaderboard score."""

    name: str
    competition: str
    metric: str
    score: float
    interval: tuple[float, float] | None
    features: int
    seconds: float
    git_revision: str | None
    finished: str | None
    leaderboard: float | None = None


def run_summary(run: Path) -> RunSummary:
    """Summarise a run directory in one line; ``config.json`` is optional.

    Raises:
        UnreadableFileError: its files are damaged.
    """
    scores = read_json(run / "scores.json")
    config = read_json(run / "config.json") if (run / "config.json").is_file() else {}
    with readable(run):
        final, said = str(scores.get("final", "stack")), {n: v or {} for n, v in scores.items()}
        interval, score = said.get("intervals", {}).get(final), said.get("oof", {}).get(final)
        return RunSummary(
            run.name,
            str(config.get("competition") or ""),
            str(scores.get("metric") or ""),
            math.nan if score is None else float(score),
            None if interval is None else (float(interval[1]), float(interval[2])),
            int(said.get("rows", {}).get("features", 0)),
            float(sum(said.get("seconds", {}).values())),
            config.get("git_revision"),
            config.get("finished"),
            noted_score(run),
        )


def note_leaderboard(run: str | Path, score: float) -> Path:
    """Store the leaderboard's score of a run's submission in its run directory, and return the file.

    Args:
        run: the run directory.
        score: replaces an earlier one.

    Raises:
        MissingFileError: this is no run directory.
        DataError: the score is no finite number, or the metric is never so high.
        WriteError: the file system refused.
    """
    run = Path(run)
    if not (run / "scores.json").is_file():
        raise MissingFileError("there is no scores.json", file=run, remedy="Give the directory of a finished run")
    if not math.isfinite(score):
        raise DataError(f"{score} is no score", remedy="Give the number that the leaderboard shows")
    metric = known_metric(read_json(run / "scores.json").get("metric"))
    if score > 1 and metric is not None and metric.greater_is_better:  # all of these are 1 at most
        problem = f"{score:g} is no score of {metric.name}, which is at most 1"
        raise DataError(problem, remedy="Is it in percent, or of another metric?")
    submission = run / "submission.csv"
    digest = file_digest(submission) if submission.is_file() else None
    # in the run directory, so that the next run there removes it with its submission
    return write_json(run / _FILE, {"score": float(score), "noted": now(), "submission": digest})


def noted_score(run: str | Path) -> float | None:
    """Read a run's leaderboard score, if stored."""
    path = Path(run) / _FILE
    if not path.is_file():
        return None
    try:
        return float(json.loads(path.read_text(encoding="utf-8"))["score"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        remedy = "Note the score again: fastrec lb RUN SCORE"
        raise UnreadableFileError(f"the note cannot be read ({error!r})", file=path, remedy=remedy) from error


def noted_runs(run: str | Path) -> list[RunSummary]:
    """List the runs beside a run, of its competition and metric, with a leaderboard score, ascending by out-of-fold
    score.
    """
    run = Path(run).resolve()
    about, runs = run_summary(run), []
    for path in sorted(run.parent.glob(f"*/{_FILE}")):
        other = path.parent
        # a run being written is hidden, and its name not final
        if (other.name.startswith(".") and other != run) or not (other / "scores.json").is_file():
            continue
        try:
            found = run_summary(other)
        except UnreadableFileError as error:  # another run's damaged files must not prevent this one's report
            warnings.warn(str(error), DataWarning, stacklevel=2)
            continue
        same = (found.competition, found.metric) == (about.competition, about.metric)
        if same and not math.isnan(found.score) and found.leaderboard is not None:
            runs.append(found)
    return sorted(runs, key=lambda r: (r.score, r.name))
