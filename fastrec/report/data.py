"""What a run directory says, read and summed up for its report: no HTML here."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fastrec._core.leftovers import recover
from fastrec.errors import DataError, MissingColumnError, MissingFileError, UnreadableFileError
from fastrec.metrics import Interval
from fastrec.metrics.intervals import cluster_means, interval_of
from fastrec.report.row_data import RowResults, read_rows

Split = Literal["oof", "test"]
SPLITS: tuple[Split, Split] = ("test", "oof")

# 25 is the longest list of many sites, and the commonest: it stands alone.
_LENGTH_ENDS = (5, 10, 15, 20, 24, 25, 50, 100, 200)


@dataclass(frozen=True)
class Standing:
    """One model's place on one split: its score, and its difference to the best model where lists are known."""

    score: Interval
    to_best: Interval | None


@dataclass(frozen=True)
class Slice:
    """Mean score of every model over some of the lists."""

    label: str
    n_lists: int
    means: dict[str, float]


@dataclass
class RunResults:
    """Everything the report shows. Parts that the run did not write are None or empty.

    Attributes:
        name: name of the run's folder.
        metric: short name of the score, in capitals.
        models: model names in ascending order of their out-of-fold score (test score where there is none).
        best: the model that the others are compared with: the last of ``models``.
        scores: split → model → score, as the run reported them.
        standings: split → model → standing with intervals; models without known lists have none.
        n_lists: split → number of lists that the intervals rest on.
        oracle: expected score of the true click probabilities, if known.
        by_length: split → slices by list length.
        by_touched: split → slices by whether the clicked item was touched before.
        curves: model → one record per fold and epoch, or round of boosting.
        importance: model → feature → gain.
        seconds: stage → seconds, in the order the stages ran.
        transductive: features whose target-free statistics saw the test rows; None where the run did not say.
        rows: what was counted (rows, sessions …) → number.
        config: the run's settings.
        task: its task.
        of_rows: the best model's rows summed up, and models beside each other.
        permutation: feature → by how much the score is worse where its values are shuffled.
        also: other metric → model → its score, out of fold; of next items on the test.
        greater_is_better: the metric's direction.
    """

    name: str
    metric: str
    models: list[str]
    best: str | None
    scores: dict[Split, dict[str, float]]
    standings: dict[Split, dict[str, Standing]] = field(default_factory=dict)
    n_lists: dict[Split, int] = field(default_factory=dict)
    oracle: float | None = None
    by_length: dict[Split, list[Slice]] = field(default_factory=dict)
    by_touched: dict[Split, list[Slice]] = field(default_factory=dict)
    curves: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    importance: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    transductive: list[str] | None = None
    rows: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    task: str = "ranking"
    of_rows: RowResults | None = None
    permutation: dict[str, float] = field(default_factory=dict)
    also: dict[str, dict[str, float]] = field(default_factory=dict)
    greater_is_better: bool = True


def read_run(run: str | Path, *, repeats: int = 2000, seed: int = 0) -> RunResults:
    """Read a run directory and work out intervals and slices.

    Args:
        run: a run directory; ``scores.json`` must be there, the rest may be absent.
        repeats: bootstrap resamples of the sessions.
        seed: seed of the resampling.

    Returns:
        What the report shows.

    Raises:
        MissingFileError: no such directory, or no ``scores.json`` in it.
        UnreadableFileError: a file that is there cannot be read.
        MissingColumnError: ``lists.parquet`` lacks a column.
    """
    run = Path(run)
    recover(run)
    scores = _read_json(run / "scores.json")
    if scores is None:
        raise MissingFileError(
            "there is no scores.json", file=run, remedy="Give the directory of a finished run, as in fastrec run --out"
        )
    lists = _read_lists(run / "lists.parquet")
    curves, importance = (_read_json(run / f"{name}.json") or {} for name in ("curves", "importance"))
    figures = {"test": _figures(scores.get("models")), "oof": _figures(scores.get("oof"))}
    greater = scores.get("greater_is_better") is not False
    models = _ascending(figures, greater)
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
        also={str(n): found for n, m in (scores.get("also") or {}).items() if (found := _figures(m))},
        greater_is_better=greater,
    )
    if lists is not None:
        for split in SPLITS:
            _add_lists(results, split, lists, repeats=repeats, seed=seed)
    elif results.task != "ranking":
        _add_intervals(results, scores, greater)
    if models:
        outputs = list(results.config.get("outputs") or [])
        results.of_rows = read_rows(run, results.task, outputs, models[-1], models[::-1])
    return results


def share_of_way(results: RunResults, split: Split = "test") -> float | None:
    """How far the best model gets from display order (0) to the oracle (1); None where either is unknown."""
    scores, floor = results.scores[split], results.scores[split].get("display_order")
    if results.oracle is None or floor is None or results.best not in scores or results.oracle <= floor:
        return None
    return (scores[results.best] - floor) / (results.oracle - floor)


def _ascending(figures: dict[Split, dict[str, float]], greater: bool) -> list[str]:
    """Models from the worst to the best; of equal ones the stack last."""
    names, sign = dict.fromkeys([*figures["oof"], *figures["test"]]), 1 if greater else -1
    return sorted(
        names,
        key=lambda n: (n in figures["oof"], sign * figures["oof"].get(n, figures["test"].get(n)), n == "stack"),
    )


def _add_intervals(results: RunResults, scores: dict[str, Any], greater: bool) -> None:
    """The stack's interval and the best base model's, which a run without lists says itself."""
    found = {n: Interval(*v) for n, v in (scores.get("intervals") or {}).items() if v}
    if not found:
        return
    gap = scores.get("stack_over_best")
    standings = {}
    for name, interval in found.items():
        other = gap and name != results.best
        to_best = Interval(0.0 - gap[0], 0.0 - gap[2], 0.0 - gap[1]) if other and results.best == "stack" else None
        standings[name] = Standing(interval, to_best)
    results.standings["oof"] = standings


def _add_lists(results: RunResults, split: Split, lists: pa.Table, *, repeats: int, seed: int) -> None:
    rows = lists.filter(pc.equal(lists["split"], split))
    columns = {name: rows[f"rr_{name}"].to_numpy().astype(np.float64) for name in _rr_models(lists)}
    columns = {name: values for name, values in columns.items() if np.isfinite(values).any()}
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
    means, draws = cluster_means(values, sessions, repeats=repeats, seed=seed)
    best = names.index(results.best) if results.best in names else None
    results.n_lists[split] = len(values)
    results.standings[split] = {
        name: Standing(
            interval_of(means[i], draws[:, i]),
            None if best in (None, i) else interval_of(means[i] - means[best], draws[:, i] - draws[:, best]),
        )
        for i, name in enumerate(names)
    }
    results.by_length[split] = _by_length(rows["length"].to_numpy(), values, names)
    results.by_touched[split] = _by_touched(rows["touched"], values, names)


def _by_length(length: np.ndarray, values: np.ndarray, names: list[str]) -> list[Slice]:
    ends = [*_LENGTH_ENDS, np.inf]
    slices, start = [], 2  # a list of one has nothing to rank
    for end in ends:
        chosen = (length >= start) & (length <= end)
        if chosen.any():
            label = f"{start}+" if end == np.inf else str(start) if start == end else f"{start}\u2013{end}"
            slices.append(_slice(label, values[chosen], names))
        start = end + 1
    return slices


def _by_touched(touched: pa.ChunkedArray, values: np.ndarray, names: list[str]) -> list[Slice]:
    slices = []
    for label, wanted in (("touched before", True), ("not touched", False)):
        chosen = pc.fill_null(pc.equal(touched, wanted), False).to_numpy()  # where it is not known, in neither
        if chosen.any():
            slices.append(_slice(label, values[chosen], names))
    return slices


def _slice(label: str, values: np.ndarray, names: list[str]) -> Slice:
    return Slice(label, len(values), dict(zip(names, values.mean(axis=0).tolist(), strict=True)))


def _rr_models(lists: pa.Table) -> list[str]:
    return [name.removeprefix("rr_") for name in lists.column_names if name.startswith("rr_")]


def _read_lists(path: Path) -> pa.Table | None:
    if not path.exists():
        return None
    try:
        lists = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise UnreadableFileError(f"is not a Parquet file that can be read ({error})", file=path) from error
    for column in ("split", "fold_key", "length", "touched"):
        if column not in lists.column_names:
            raise MissingColumnError("the column is not there", file=path, column=column, remedy="Run again")
    return lists


def _read_json(path: Path) -> dict[str, Any] | None:
    """What a JSON file of a run holds, its parts of the kinds that ``_SHAPES`` says."""
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise UnreadableFileError(f"is not JSON that can be read ({error})", file=path, remedy="Run again") from error
    if not isinstance(content, dict):
        raise DataError("holds no JSON object", file=path, remedy="Run again")
    _check_shape(content, _SHAPES[path.name], [], path)
    return content


_FIGURES = {"*": "a number"}
_SHAPES: dict[str, Any] = {  # "*": every name; a list: of such things; text: a kind of ``_KINDS``; null stands anywhere
    "scores.json": {
        "metric": "text",
        "models": _FIGURES,
        "oof": _FIGURES,
        "also": {"*": _FIGURES},
        "oracle": "a number",
        "seconds": _FIGURES,
        "transductive": ["anything"],
        "rows": {"*": "anything"},
        "task": "text",
        "intervals": {"*": ["a number"]},
        "stack_over_best": ["a number"],
    },
    "curves.json": {"*": [_FIGURES]},
    "importance.json": {"*": _FIGURES},
    "permutation.json": _FIGURES,
    "config.json": {"*": "anything"},
}
_KINDS: dict[str, tuple[type, ...]] = {"a number": (int, float), "text": (str,), "anything": (object,)}
_DEEPEST = 50


def _check_shape(value: Any, shape: Any, place: list[str], path: Path) -> None:
    """Refuse JSON of another shape than a run writes, and what is nested deeper than a page can show."""
    if len(place) > _DEEPEST:
        problem = f"is nested more than {_DEEPEST} deep"
        raise UnreadableFileError(f"{'.'.join(place[:3])} {problem}", file=path, remedy="Run again")
    kinds = _KINDS[shape] if isinstance(shape, str) else type(shape)
    if value is not None and (not isinstance(value, kinds) or (shape == "a number" and isinstance(value, bool))):
        wanted = shape if isinstance(shape, str) else "an object" if isinstance(shape, dict) else "a list"
        problem = f"{'.'.join(place)!r} holds {json.dumps(value, default=str)[:60]} instead of {wanted}"
        raise UnreadableFileError(problem, file=path, remedy="Run again")
    inner = shape if isinstance(shape, dict | list) else {"*": "anything"}
    if isinstance(value, dict) and isinstance(inner, dict):
        for name, held in value.items():
            _check_shape(held, inner.get(name, inner.get("*", "anything")), [*place, name], path)
    elif isinstance(value, list):
        for i, held in enumerate(value):
            _check_shape(held, inner[0] if isinstance(inner, list) else "anything", [*place, str(i)], path)


def _number(value: Any) -> float | None:
    try:
        return float(value) if value is not None and math.isfinite(value) else None
    except OverflowError:  # an integer that no float holds
        return None


def _figures(content: Any) -> dict[str, float]:
    numbers = {str(name): _number(value) for name, value in (content or {}).items()}
    return {name: value for name, value in numbers.items() if value is not None}
