"""``monitor``: compare new rows with those that a model learned from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from fastrec._core import limits
from fastrec._core.atomic import atomic_file
from fastrec.errors import DataError
from fastrec.monitor.compare_columns import Compared, compare_columns
from fastrec.monitor.comparison import Drift, Finding
from fastrec.monitor.sides import Sides, read_sides
from fastrec.monitor.statistics import benjamini_hochberg, holm
from fastrec.monitor.thresholds import Thresholds
from fastrec.table import Table
from fastrec.validate import adversarial_validation

__all__ = ["Finding", "Monitored", "monitor"]


class Monitored(Drift):
    """A comparison that writes itself as JSON, text or a page, see ``Drift`` for its attributes."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        trees = self.adversarial
        return {
            "ok": self.ok,
            "findings": [asdict(f) for f in self.findings],
            "rows": list(self.rows),
            "names": list(self.names),
            "columns": json.loads(self.columns.to_json(orient="records")),
            "adversarial": None
            if trees is None
            else {"auc": list(trees.auc), "columns": [c._asdict() for c in trees.columns]},
            "over_time": None if self.over_time is None else json.loads(self.over_time.to_json(orient="records")),
            "reference_metric": self.reference_metric,
            "new_columns": self.new_columns,
            "left_out": self.left_out,
            "thresholds": asdict(self.thresholds),
        }

    def save_json(self, path: str | Path) -> Path:
        """Write ``to_dict`` as JSON."""
        with atomic_file(path) as part:
            part.write_text(json.dumps(self.to_dict(), indent=1, ensure_ascii=False), encoding="utf-8")
        return Path(path)

    def save_html(self, path: str | Path) -> Path:
        """Write a page for people: it holds its style and pictures, fetches nothing and runs no script."""
        from fastrec.monitor.page import page

        with atomic_file(path) as part:
            part.write_text(page(self), encoding="utf-8")
        return Path(path)

    def __str__(self) -> str:
        head = f"{self.rows[1]:,} rows beside {self.rows[0]:,}, {len(self.columns)} columns: "
        if self.ok:
            return f"{head}nothing found"
        return "\n".join([f"{head}{len(self.findings)} found", *(f"  {f.about}: {f.says}" for f in self.findings)])


def monitor(
    reference: Any,
    new: Any,
    *,
    drop: Sequence[str] = (),
    scores: Any = None,
    over_time: pd.DataFrame | None = None,
    thresholds: Thresholds | None = None,
    adversarial: bool = True,
    seed: int = 0,
    trust: Sequence[str] = (),
) -> Monitored:
    """Compare new rows with those that a model was made from.

    Columns of times are left out: time goes on. So should ids be that only grow (``drop``).

    Args:
        reference: a table of any library, a file, a folder with ``train``, or a run directory: the rows and columns
            that it learned from.
        new: a table of any library, a file, or a folder with ``test`` (or ``train``); where the reference is a run,
            files are read as its recipe reads them.
        drop: columns not to compare.
        scores: predictions of the new rows, a table or a file; where the reference is a run they are compared with its
            own, else give a pair: those of the reference, those of the new rows.
        over_time: the metric by period, which ``metric_over_time`` makes where labels are known. It is held against a
            run's own out of fold where it is the same metric.
        thresholds: from when on something is found; None: the defaults.
        adversarial: let trees tell the two sides apart: it finds what no column shows alone.
        seed: of the rows that trees look at.
        trust: modules of a run's own generators and estimators that may be imported.

    Returns:
        All figures, and what is beyond the thresholds.

    Raises:
        FastrecError: a side cannot be read, has fewer than 20 rows, or the two have no column in common.
    """
    thresholds = thresholds or Thresholds()
    sides = read_sides(reference, new, drop=drop, scores=scores, trust=trust)
    few = next((i for i in (0, 1) if len(sides.tables[i]) < limits.MONITOR_ROWS), None)
    if few is not None:
        raise DataError(
            f"{sides.names[few]} has {len(sides.tables[few])} rows",
            remedy=f"Give at least {limits.MONITOR_ROWS} of each side",
        )
    compared = list(_compare(sides))
    if not compared:
        raise DataError("the two sides have no column in common", remedy="Give tables with columns of the same names")
    # The tests of shape, missing and unseen values of all columns are corrected together.
    p = np.array([[c.shape.p, c.missing_test.p, c.unseen_test.p] for c in compared])
    correct = benjamini_hochberg if thresholds.correction == "bh" else holm
    adjusted = [tuple(row) for row in correct(p.ravel()).reshape(p.shape).tolist()]
    found = [Finding(name, "gone", "the new rows do not have this column") for name in sides.gone]
    found += [Finding(n, "type", f"was a {was}, is a {now}") for n, (was, now) in sides.retyped.items()]
    by_column = {c.name: list(_of_column(c, p, thresholds, c.name in sides.scores)) for c, p in zip(compared, adjusted)}
    found += [f for some in by_column.values() for f in some]
    trees = None
    if adversarial:
        names, rng = [c.name for c in compared if c.name not in sides.scores], np.random.default_rng(seed)
        old, now = (_sample(t.select(names), rng) for t in sides.tables)
        trees = adversarial_validation(old, now, columns=names, seed=seed)
    if trees is not None and trees.auc.low > 0.5 and trees.auc.mean >= thresholds.auc:
        told = ", ".join(f"{c.name} ({c.gain:.0%})" for c in trees.columns[:3])
        found.append(Finding("all columns", "joint", f"trees tell new rows from old ones (AUC {trees.auc}): {told}"))
    own = None if over_time is None else over_time.attrs.get("metric")
    metric = sides.metric if sides.metric is None or own in (None, sides.metric[2]) else None  # another's says nothing
    found += _of_metric(over_time, metric, thresholds)
    return Monitored(
        _as_frame(compared, adjusted, by_column, sides.scores),
        found,
        trees,
        over_time,
        None if metric is None else metric[0],
        (len(sides.tables[0]), len(sides.tables[1])),
        sides.names,
        sides.added,
        sides.left_out,
        thresholds,
        compared,
    )


def _compare(sides: Sides) -> Iterator[Compared]:
    pairs = [(n, sides.tables[0][n], sides.tables[1][n]) for n in sides.common]
    pairs += [(n, a, b) for n, (a, b) in sides.scores.items()]
    with ThreadPoolExecutor(max(torch.get_num_threads(), 1)) as threads:
        # Threads help, as numpy sorts without the interpreter's lock.
        yield from (c for c in threads.map(lambda pair: compare_columns(*pair), pairs) if c is not None)


def _of_column(c: Compared, p: tuple[float, float, float], thresholds: Thresholds, is_score: bool) -> Iterator[Finding]:
    shape, missing, unseen = (one < thresholds.alpha for one in p)
    by_ks = c.test == "ks" and c.shape.statistic >= thresholds.ks
    if shape and (c.psi >= thresholds.psi or c.js >= thresholds.js or by_ks):
        said = f"PSI {c.psi:.3f}, JS {c.js:.3f}" + (f", KS {c.shape.statistic:.3f}" if c.test == "ks" else "")
        what = "predictions are" if is_score else "values are"
        yield Finding(c.name, "prediction" if is_score else "shape", f"{what} spread otherwise ({said})")
    if missing and abs(c.missing[1] - c.missing[0]) >= thresholds.missing:
        yield Finding(c.name, "missing", f"{c.missing[1]:.1%} missing, before {c.missing[0]:.1%}")
    if unseen and c.unseen - c.unseen_usual >= thresholds.unseen:
        what = "lie outside the range of before" if c.kind == "number" else "hold values that were not there before"
        yield Finding(c.name, "unseen", f"{c.unseen:.1%} of the rows {what} (usual: {c.unseen_usual:.1%})")


def _sample(table: Table, rng: np.random.Generator) -> Table:
    most = limits.MONITOR_TREE_ROWS
    return table if len(table) <= most else table.take(torch.from_numpy(np.sort(rng.choice(len(table), most, False))))


def _of_metric(
    over_time: pd.DataFrame | None, metric: tuple[float, bool, str] | None, thresholds: Thresholds
) -> Iterator[Finding]:
    if over_time is None or metric is None:
        return
    value, greater, _ = metric
    for row in over_time.itertuples():
        worse = value - row.high if greater else row.low - value
        if worse > thresholds.metric * abs(value):
            said = f"{row.value:.4f} [{row.low:.4f}, {row.high:.4f}], the run's out of fold is {value:.4f}"
            yield Finding(str(row.period), "metric", said)


def _as_frame(
    compared: Sequence[Compared],
    adjusted: Sequence[tuple[float, float, float]],
    findings: dict[str, list[Finding]],
    scores: dict[str, Any],
) -> pd.DataFrame:
    rows = []
    for c, (shape, missing, unseen) in zip(compared, adjusted, strict=True):
        rows.append(
            {
                "column": c.name,
                "kind": "prediction" if c.name in scores else c.kind,
                "finding": ", ".join(f.kind for f in findings[c.name]),
                "psi": c.psi,
                "js": c.js,
                "test": c.test,
                "statistic": c.shape.statistic,
                "p": shape,
                "missing_reference": c.missing[0],
                "missing_new": c.missing[1],
                "p_missing": missing,
                "unseen": c.unseen,
                "unseen_usual": c.unseen_usual,
                "p_unseen": unseen,
                "values_reference": c.values[0],
                "values_new": c.values[1],
                "values_grown": c.grown,
            }
        )
    return pd.DataFrame(rows)
