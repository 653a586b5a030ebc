"""Compare one column of the reference with the same column of new rows; what was found, as JSON or a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from fastrec._core import limits
from fastrec._core.atomic import atomic_file, write_json
from fastrec._core.messages import plain
from fastrec.errors import DataError
from fastrec.report import charts
from fastrec.report.charts import Panel, Section, render
from fastrec.table import Column
from fastrec.table.keys import Coded
from fastrec.validate import AdversarialReport


class Test(NamedTuple):
    """A test's statistic and p-value."""

    statistic: float
    p: float


def psi(reference: np.ndarray, new: np.ndarray) -> float:
    """Compute the population stability index of cells' counts ``[k]``: sum over cells of (b - a) ln(b / a).

    By rule of thumb, less than 0.1 is no change and more than 0.25 a large one (Siddiqi 2006, "Credit Risk Scorecards",
    chapter 9).
    """
    # The logarithm of an empty cell would be infinite.
    a, b = (np.clip(c / max(c.sum(), 1), 1e-4, None) for c in (reference, new))
    return float(((b - a) * np.log(b / a)).sum())


def js_distance(reference: np.ndarray, new: np.ndarray) -> float:
    """Compute the Jensen-Shannon distance, base 2, of counts ``[k]``: 0 equal, 1 disjoint (Endres, Schindelin 2003)."""
    from scipy.special import rel_entr

    a, b = (c / max(c.sum(), 1) for c in (reference, new))
    middle = (a + b) / 2
    nats = float((rel_entr(a, middle) + rel_entr(b, middle)).sum())
    return float(np.sqrt(max(nats / np.log(2), 0.0) / 2))


def ks_test(reference: np.ndarray, new: np.ndarray) -> Test:
    """Run the two-sided two-sample Kolmogorov-Smirnov test of ascending values, by the limiting distribution.

    With repeated values the p-value is too large (conservative).
    """
    from scipy.stats import kstwo

    n, m = len(reference), len(new)
    if not n or not m:
        return Test(0.0, 1.0)
    # The distribution function of `new` is a step function: the gap is largest at a step, or just before the next.
    ends = np.flatnonzero(np.append(new[1:] != new[:-1], True))
    starts = np.append(0, ends[:-1] + 1)
    values = new[ends]
    upto = np.searchsorted(reference, values, side="right")
    before = upto.copy()
    shared = np.flatnonzero(reference[np.maximum(upto - 1, 0)] == values)
    before[shared] = np.searchsorted(reference, values[shared], side="left")
    over = ((ends + 1) / m - upto / n).max()
    under = (before / n - starts / m).max()
    statistic = float(np.clip(max(over, under), 0.0, 1.0))
    return Test(statistic, float(kstwo.sf(statistic, max(round(n * m / (n + m)), 1))))


def chi_square(reference: np.ndarray, new: np.ndarray) -> Test:
    """Run Pearson's chi-square test of equal shares on cells' counts ``[k]``.

    Rare cells are merged; two cells are compared by ``shares_test``.
    """
    from scipy.stats import chi2_contingency

    n, m = float(reference.sum()), float(new.sum())
    if not n or not m:
        return Test(0.0, 1.0)
    rare = (reference + new) * (min(n, m) / (n + m)) < limits.LEAST_EXPECTED
    table = np.array([np.append(c[~rare], c[rare].sum()) for c in (reference, new)])
    table = table[:, table.any(0)]
    if table.shape[1] == 2:
        return shares_test((int(table[0, 0]), int(table[1, 0])), (int(n), int(m)))
    return Test(*map(float, chi2_contingency(table, correction=False)[:2])) if table.shape[1] > 2 else Test(0.0, 1.0)


def shares_test(some: tuple[int, int], of: tuple[int, int]) -> Test:
    """Test whether two samples, of sizes ``of``, have the same share ``some``, by the chi-square of the 2 x 2 table.

    If an expected count is below five, the p-value is that of Fisher's exact test (1935, "The Design of Experiments",
    section 21). The statistic is the chi-square's.
    """
    if min(of) == 0 or sum(some) in (0, sum(of)):
        return Test(0.0, 1.0)
    from scipy.stats import chi2_contingency, fisher_exact

    table = [[k, n - k] for k, n in zip(some, of, strict=True)]
    statistic, p, _, expected = chi2_contingency(table, correction=False)
    return Test(float(statistic), float(p if expected.min() >= limits.LEAST_EXPECTED else fisher_exact(table)[1]))


def outside_test(outside: int, new: int, reference: int) -> Test:
    """Test how many of ``new`` values lie outside the range of the ``reference`` ones.

    For a continuous distribution the share outside is Beta(2, n - 1), so the count is beta-binomial (David and Nagaraja
    2003, "Order Statistics", section 7.2); for a discrete one it is smaller.
    """
    if outside == 0 or reference < 2:
        return Test(float(outside), 1.0)
    from scipy.stats import betabinom

    return Test(float(outside), float(betabinom.sf(outside - 1, new, 2, reference - 1)))


def benjamini_hochberg(p: np.ndarray) -> np.ndarray:
    """Adjust p-values to control the false discovery rate (Benjamini and Hochberg 1995)."""
    order = np.argsort(p)
    scaled = p[order] * len(p) / np.arange(1, len(p) + 1)
    return np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)[np.argsort(order)]


def holm(p: np.ndarray) -> np.ndarray:
    """Adjust p-values to control the family-wise error rate (Holm 1979)."""
    order = np.argsort(p)
    return np.minimum(np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p)))), 1.0)[np.argsort(order)]


@dataclass(frozen=True)
class Compared:
    """A column, compared between reference and new rows."""

    name: str
    kind: str  # ``'number'`` or ``'category'``
    rows: tuple[int, int]  # of the reference and of the new rows
    missing: tuple[float, float]  # share of missing values of each
    missing_test: Test  # whether these shares differ
    psi: float  # population stability index over the cells
    js: float  # Jensen-Shannon distance over the cells
    test: str  # ``'ks'`` or ``'chi2'``
    shape: Test
    values: tuple[int, int]  # distinct values of each
    unseen: float  # share of new rows with a value that the reference lacks (of a number: outside its range)
    unseen_usual: float  # the share expected without a change
    unseen_test: Test  # whether ``unseen`` exceeds it
    grown: int  # number of new categories
    # cells of ``psi`` and ``js``: labels, and the share of rows of each side
    cells: tuple[list[str], np.ndarray, np.ndarray] = field(repr=False)


def compare_columns(name: str, reference: Column, new: Column) -> Compared | None:
    """Compare a column of both sides; None if its kind is not comparable or differs."""
    compare = {"number": _numbers, "datetime": _numbers, "category": _categories}
    same = compare.get(reference.kind) is compare.get(new.kind)
    return compare[new.kind](name, reference, new) if same and new.kind in compare else None


def _sorted_values(column: Column) -> np.ndarray:
    """Return the known values, ascending; infinities count as values."""
    values = column.integer() if column.kind == "datetime" else column.values
    return np.sort(values[~column.is_missing()].cpu().numpy()).astype(np.float64, copy=False)


def _numbers(name: str, reference: Column, new: Column) -> Compared:
    a, b = _sorted_values(reference), _sorted_values(new)
    rows = len(reference), len(new)
    edges = np.unique(a[(np.arange(1, 10) * len(a)) // 10]) if len(a) else np.zeros(0)  # tenths of the reference
    cells = [np.diff(np.searchsorted(v, edges, side="right"), prepend=0, append=len(v)) for v in (a, b)]
    outside = int(np.searchsorted(b, a[0])) + len(b) - int(np.searchsorted(b, a[-1], side="right")) if len(a) else 0
    labels = [f"≤ {e:.4g}" for e in edges] + ([f"> {edges[-1]:.4g}"] if len(edges) else ["all"])
    known = len(a), len(b)
    return Compared(
        name, "number", rows, *_missing(rows, known), psi(*cells), js_distance(*cells), "ks", ks_test(a, b),
        (_distinct(a), _distinct(b)), outside / max(len(b), 1), 2 / (len(a) + 1),
        outside_test(outside, len(b), len(a)), 0, _shares(labels, *cells),
    )  # fmt: skip


def _distinct(ascending: np.ndarray) -> int:
    return int((ascending[1:] != ascending[:-1]).sum()) + 1 if len(ascending) else 0


def _categories(name: str, reference: Column, new: Column) -> Compared:
    old, now = reference.coded(), new.coded()
    in_old, codes = now.recode(old.keys).cpu().numpy(), now.codes.cpu().numpy()
    a = np.bincount(old.codes.cpu().numpy(), minlength=old.size)
    b = np.bincount(in_old, minlength=old.size)
    fresh = np.bincount(codes[in_old == 0], minlength=now.size)  # values that the reference lacks
    first = np.flatnonzero(fresh[1:]) + 1
    rows = len(reference), len(new)
    known, unseen = (rows[0] - int(a[0]), rows[1] - int(fresh[0])), int(fresh[first].sum())
    # Both sides choose the common values: the chance values of one side alone would count as a change.
    both = np.append(a[1:], np.zeros(len(first), int)), np.append(b[1:], fresh[first])
    share = sum(c / max(c.sum(), 1) for c in both)
    top = np.argsort(-share, kind="stable")[:30]  # the rarer values share a cell
    cells = [np.append(c[top], c.sum() - c[top].sum()) for c in both]
    return Compared(
        name, "category", rows, *_missing(rows, known), psi(*cells), js_distance(*cells), "chi2", chi_square(*both),
        (int((a[1:] > 0).sum()), int((both[1] > 0).sum())), unseen / max(known[1], 1),
        float((a[1:] == 1).sum()) / max(known[0], 1), _unseen_test(unseen, known[1], a[1:]), len(first),
        _shares(_labels(top, old, now, first), *cells),
    )  # fmt: skip


def _labels(values: np.ndarray, old: Coded, now: Coded, first: np.ndarray) -> list[str]:
    size = old.size - 1
    texts = [old.keys.columns[0][int(i)] if i < size else now.keys.columns[0][int(first[i - size]) - 1] for i in values]
    return [*map(str, texts), "others"]


def _unseen_test(unseen: int, new: int, counts: np.ndarray) -> Test:
    """Test whether more rows than expected hold unseen values.

    The expected share is that of values seen once (Good 1953), with the variance of Robbins (1968), (f1 + 2 f2) / n²,
    plus that of the new rows. The normal approximation fails for few rows: the larger of its p-value and that of a
    beta-binomial count, with share Beta(f1 + 1, n - f1 + 1), is taken.
    """
    from scipy.stats import betabinom, norm

    n, once, twice = float(counts.sum()), float((counts == 1).sum()), float((counts == 2).sum())
    if not n or not new or not unseen:
        return Test(0.0, 1.0)
    usual = once / n
    # Any sample may hold one more value seen once: a share of 1 / n is no surprise.
    spread = (once + 2 * twice + 1) / n**2 + max(usual * (1 - usual), 1 / n) / new
    z = (unseen / new - usual) / np.sqrt(spread)
    return Test(float(z), float(max(norm.sf(z), betabinom.sf(unseen - 1, new, once + 1, n - once + 1))))


def _missing(rows: tuple[int, int], known: tuple[int, int]) -> tuple[tuple[float, float], Test]:
    absent = rows[0] - known[0], rows[1] - known[1]
    return (absent[0] / max(rows[0], 1), absent[1] / max(rows[1], 1)), shares_test(absent, rows)


def _shares(labels: list[str], a: np.ndarray, b: np.ndarray) -> tuple[list[str], np.ndarray, np.ndarray]:
    return labels, a / max(a.sum(), 1), b / max(b.sum(), 1)


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of a finding: a change must be significant **and** large.

    Args:
        alpha: at most about this share of comparisons has a finding if nothing has changed, corrected over all tests.
        correction: ``'bh'`` (Benjamini and Hochberg: few findings are false) or ``'holm'`` (hardly any).
        psi: population stability index of a column.
        js: Jensen-Shannon distance of a column, base 2.
        ks: largest difference of a number's two distribution functions.
        missing: change of the share of missing values.
        unseen: share of rows with a value that the reference lacks, above the expected share.
        auc: AUC of trees that separate new rows from old ones, if its interval excludes 0.5.
        metric: relative loss of a period's metric against the reference's, beyond its interval.
        overlap: of vectors (``fastrec embed``): the share of unchanged nearest neighbours of an id.
    """

    alpha: float = limits.MONITOR_ALPHA
    correction: Literal["bh", "holm"] = "bh"
    psi: float = limits.MOVED_PSI
    js: float = limits.MOVED_JS
    ks: float = limits.MOVED_KS
    missing: float = limits.MOVED_MISSING
    unseen: float = limits.MOVED_UNSEEN
    auc: float = limits.MOVED_AUC
    metric: float = limits.MOVED_METRIC
    overlap: float = limits.MOVED_OVERLAP

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise DataError(f"alpha is {self.alpha}", remedy="Give a share between 0 and 1")
        if self.correction not in ("bh", "holm"):
            raise DataError(f"there is no correction {self.correction!r}", remedy="Give 'bh' or 'holm'")


@dataclass(frozen=True)
class Finding:
    """A change beyond its threshold."""

    about: str  #: a column, ``'all columns'``, or a period
    #: ``'gone'``, ``'type'``, ``'missing'``, ``'unseen'``, ``'shape'``, ``'prediction'``, ``'neighbours'``, ``'joint'``
    #: or ``'metric'``
    kind: str
    says: str  #: the change, in a sentence


@dataclass(frozen=True)
class Monitored:
    """Figures and findings of a comparison, to print or write as JSON or a page."""

    #: one row per column: every figure, ``p`` as adjusted for all tests, and ``finding`` ('' = none)
    columns: pd.DataFrame
    findings: list[Finding]  #: changes beyond the thresholds
    adversarial: AdversarialReport | None  #: None: no trees were fitted
    over_time: pd.DataFrame | None  #: the metric by period (see ``metric_over_time``); None: no labels were given
    #: a run's out-of-fold metric; None: unknown, or not the metric of ``over_time``
    reference_metric: float | None
    rows: tuple[int, int]  #: of the reference and of the new rows
    names: tuple[str, str]  #: of the two sides
    new_columns: list[str]  #: columns that only the new rows have
    left_out: dict[str, str]  #: columns that were not compared, and why
    thresholds: Thresholds
    #: of vectors: the share of nearest neighbours that are unchanged (see ``neighbour_overlap``); else None
    overlap: float | None
    compared: list[Compared] = field(repr=False)

    @property
    def ok(self) -> bool:
        """True without findings."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        trees = self.adversarial
        told = None if trees is None else {"auc": list(trees.auc), "columns": trees.columns}
        return plain({"ok": self.ok, **{n: v for n, v in vars(self).items() if n != "compared"}, "adversarial": told})

    def save_json(self, path: str | Path) -> Path:
        """Write ``to_dict`` as JSON."""
        return write_json(Path(path), self.to_dict())

    def save_html(self, path: str | Path) -> Path:
        """Write a self-contained page, without scripts."""
        with atomic_file(path) as part:
            part.write_text(page(self), encoding="utf-8")
        return Path(path)

    def __str__(self) -> str:
        head = f"{self.rows[1]:,} rows beside {self.rows[0]:,}, {len(self.columns)} columns: "
        lines = [f"{head}{len(self.findings) or 'nothing'} found", *(f"  {f.about}: {f.says}" for f in self.findings)]
        return "\n".join(lines + [f"  {name}, not compared: {why}" for name, why in self.left_out.items()])


_COLOURS = {"before": "var(--c-grey)", "new": "var(--c1)"}


def page(found: Monitored) -> str:
    """Render a ``Monitored``."""
    rows = [(f.about, [f.kind, f.says]) for f in found.findings]
    some = "thing is" if len(rows) == 1 else "things are"
    findings = Section("Findings", "findings.html", {"rows": rows}) if rows else Section("Findings", absent="None.")
    return render(
        "report.html",
        title=f"{found.names[1]} beside {found.names[0]}",
        facts=["Data monitor", f"level {found.thresholds.alpha:g}", f"correction {found.thresholds.correction}"],
        best=None,
        summary="Nothing is beyond the thresholds." if found.ok else f"{len(rows)} {some} beyond the thresholds.",
        tiles=_tiles(found),
        sections=[findings, *_pictures(found), *_over_time(found), _adversarial(found), _table(found)],
    )


def _tiles(found: Monitored) -> list[tuple[str, str, str]]:
    touched = int((found.columns["finding"] != "").sum())
    made = [("New rows", f"{found.rows[1]:,}", f"beside {found.rows[0]:,}")]
    made.append(("Columns", f"{len(found.columns):,}", f"{touched} with a finding"))
    if found.adversarial is not None:
        made.append(("Told apart", f"{found.adversarial.auc.mean:.3f}", "AUC of trees; 0.5 = not at all"))
    if found.over_time is not None and len(found.over_time):
        last = found.over_time.iloc[-1]
        made.append(("Latest metric", f"{last['value']:.4f}", str(last["period"])))
    return made


def _pictures(found: Monitored) -> list[Section]:
    with_finding = {f.about for f in found.findings if f.kind in ("shape", "unseen", "prediction")}
    shown = sorted((c for c in found.compared if c.name in with_finding), key=lambda c: -c.psi)[:8]
    if not shown:
        return []
    panels = [Panel(f"{c.name} (PSI {c.psi:.2f})", _bars(c)) for c in shown]
    note = "Share of the rows in each cell; of a number the cells are tenths of the rows before."
    legend = charts.legend(list(_COLOURS), _COLOURS)
    return [Section("Columns that moved", "drift_pictures.html", {"panels": panels, "legend": legend}, note)]


def _bars(c: Any, bars: int = 8) -> Any:
    labels, old, new = map(list, c.cells)
    if len(labels) > bars and c.kind == "category":
        order = sorted(range(len(labels)), key=lambda i: -abs(new[i] - old[i]))
        top, rest = order[: bars - 1], order[bars - 1 :]
        labels = [labels[i] for i in top] + ["all else"]
        old, new = ([s[i] for i in top] + [sum(s[i] for i in rest)] for s in (old, new))
    if c.kind == "number":  # the outer edges suffice as labels
        labels = [text if i in (0, len(labels) // 2, len(labels) - 1) else "" for i, text in enumerate(labels)]
    short = [text if len(text) <= 12 else f"{text[:11]}…" for text in labels]
    series = {"before": [float(v) for v in old], "new": [float(v) for v in new]}
    about = {"y_label": f"share of rows by {c.name}", "bars": True}
    return charts.category_chart(short, [""] * len(short), series, _COLOURS, **about)


def _over_time(found: Monitored) -> list[Section]:
    table = found.over_time
    if table is None or not len(table):
        return []
    known = table.dropna(subset=["value"])
    lines = [
        charts.Line(list(enumerate(known[name], 1)), "var(--c0)", bold=name == "value", title=name)
        for name in ("low", "high", "value")
    ]
    if found.reference_metric is not None and len(known):
        ends = [(1.0, found.reference_metric), (float(len(known)), found.reference_metric)]
        lines.insert(0, charts.Line(ends, "var(--c-grey)", bold=False, title="the run, out of fold"))
    names = dict(enumerate(map(str, known["period"]), 1))
    chart = charts.line_chart(lines, x_label="period", y_label="metric", x_names=names) if len(known) else None
    panels = [] if chart is None else [Panel("By period", chart)]
    rows = [
        (str(r.period), [f"{r.rows:,}", *("" if v != v else f"{v:.4f}" for v in (r.value, r.low, r.high))])
        for r in table.itertuples(index=False)
    ]
    heads = [("rows", ""), ("metric", ""), ("low", "95 %"), ("high", "95 %")]
    data = {"panels": panels, "legend": "", "tables": [{"title": "period", "heads": heads, "rows": rows}]}
    return [Section("The metric over time", "slices.html", data, "Thin lines: the ends of the 95 % interval.")]


def _adversarial(found: Monitored) -> Section:
    title = "What tells new rows from old ones"
    report = found.adversarial
    if report is None:
        return Section(title, absent="Trees were not asked.")
    top = [c for c in report.columns if c.gain > 0][:12]
    chart = charts.bar_list({c.name: c.gain for c in top}, [f"{c.gain:.0%}" for c in top], whole=1.0)
    note = f"Trees, out of fold: AUC {report.auc}; 0.5 = they are alike. Below: each column's share of the gain."
    return Section(title, "seconds.html", {"chart": chart}, note)


def _table(found: Monitored) -> Section:
    frame = found.columns.sort_values("psi", ascending=False).head(200)
    heads = ["finding", "PSI", "JS", "test", "p", "missing", "unseen", "values"]
    rows = [
        (
            str(r["column"]),
            [
                str(r["finding"]), f"{r['psi']:.3f}", f"{r['js']:.3f}", f"{r['test']} {r['statistic']:.3g}",
                f"{r['p']:.2g}", f"{r['missing_reference']:.1%} → {r['missing_new']:.1%}", f"{r['unseen']:.1%}",
                f"{r['values_reference']:,} → {r['values_new']:,}",
            ],
        )
        for _, r in frame.iterrows()
    ]  # fmt: skip
    note = "Largest PSI first. p is adjusted for all tests together. Shares: before → now."
    data = {"tables": [{"title": "column", "heads": [(h, "") for h in heads], "rows": rows}]}
    more = [f"{n}: {why}" for n, why in found.left_out.items()]
    if more:
        note += f" Not compared: {'; '.join(more[:20])}."
    if found.new_columns:
        note += f" Only the new rows have: {', '.join(found.new_columns[:20])}."
    return Section("All columns", "tables.html", data, note)
