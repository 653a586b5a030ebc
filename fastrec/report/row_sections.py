"""The report's cards about rows: calibration, residuals, lift, confusions, and correlations of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastrec.report import charts
from fastrec.report.row_data import Bin, RowResults
from fastrec.report.section import Panel, Section


def row_sections(rows: RowResults | None, best: str, permutation: Mapping[str, float] | None) -> list[Section]:
    """Build the cards of a run's rows that have content; ``best`` is the model of the summary."""
    sections = []
    if rows is not None and rows.bins:
        sections.append(_bins_section(rows, best))
    if rows is not None and rows.lift:
        sections.append(_lift_section(rows, best))
    if rows is not None and rows.confusion:
        sections.append(_confusion_section(rows, best))
    if permutation:
        top = dict(sorted(permutation.items(), key=lambda item: -item[1])[:25])
        bars = charts.bar_list({n: max(v, 0.0) for n, v in top.items()}, [f"{v:.5f}" for v in top.values()])
        note = "By how much the best base model's score is worse on unseen rows if a feature's values are shuffled."
        panels = {"panels": [Panel("features", bars)]}
        sections.append(Section("Permutation importance", "importance.html", panels, note))
    if rows is not None and rows.correlations:
        table: dict[str, Any] = {
            "title": "",
            "heads": [(n, "") for n in rows.correlations],
            "rows": [(a, [f"{v:.3f}" for v in line.values()]) for a, line in rows.correlations.items()],
        }
        note = "Rank correlation of out-of-fold predictions: models that differ add more to a blend."
        sections.append(Section("Models beside each other", "tables.html", {"tables": [table]}, note))
    return sections


def _bins_section(rows: RowResults, best: str) -> Section:
    amounts = rows.task == "regression"
    panels, tables = [], []
    for name in list(rows.bins)[:6]:  # more outputs would fill the page
        bins = rows.bins[name]
        ends = [min(b.predicted for b in bins), max(b.predicted for b in bins)]
        lines = [charts.Line([(e, e) for e in ends], "var(--c-grey)", bold=False, title="as predicted")]
        if amounts:
            for which, text in (("low", "10 %"), ("high", "90 %")):
                points = [(b.predicted, getattr(b, which)) for b in bins]
                lines.append(charts.Line(points, "var(--c-grey)", bold=False, title=text))
        lines.append(charts.Line([(b.predicted, b.actual) for b in bins], "var(--c0)", title="mean of what came true"))
        panels.append(Panel(name, charts.line_chart(lines, x_label="predicted", y_label="came true")))
        tables.append(
            {
                "title": name,
                "heads": [(str(i + 1), f"{b.rows:,}") for i, b in enumerate(bins)],
                "rows": _figures(bins, amounts),
            }
        )
    title = "Predicted and actual" if amounts else "Calibration"
    note = f"{best}, out of fold: rows in ten parts by prediction. Bold: their mean target; thin: as predicted" + (
        ", and the range of 10 % to 90 % of the targets." if amounts else "."
    )
    return Section(title, "slices.html", {"legend": "", "panels": panels, "tables": tables}, note)


def _figures(bins: Sequence[Bin], amounts: bool) -> list[tuple[str, list[str]]]:
    words = ["predicted", "actual", *(["low", "high"] if amounts else [])]
    names = {"low": "10 %", "high": "90 %"}
    return [(names.get(w, w), [f"{getattr(b, w):.4g}" for b in bins]) for w in words]


def _lift_section(rows: RowResults, best: str) -> Section:
    lines = [
        charts.Line([(0, 0), (1, 1)], "var(--c-grey)", bold=False, title="at random"),
        charts.Line(rows.lift, "var(--c0)", title="found"),
    ]
    chart = charts.line_chart(lines, x_label="share of rows, highest prediction first", y_label="share of class 1")
    heads = [(f"{100 * x:.0f} %", "") for x, _ in rows.lift if 0 < x <= 0.5]
    shares = [f"{100 * y:.0f} %" for x, y in rows.lift if 0 < x <= 0.5]
    lift = [f"{y / x:.2f}" for x, y in rows.lift if 0 < x <= 0.5]
    table = {"title": "rows", "heads": heads, "rows": [("class 1 found", shares), ("lift", lift)]}
    note = f"{best}, out of fold: how much of class 1 is among the rows of the highest predictions."
    data = {"legend": "", "panels": [Panel("Gain", chart)], "tables": [table]}
    return Section("Lift", "slices.html", data, note)


def _confusion_section(rows: RowResults, best: str) -> Section:
    names = rows.outputs if len(rows.outputs) == len(rows.confusion) else [str(i) for i in range(len(rows.confusion))]
    table = {
        "title": "actual, and below it predicted as",
        "heads": [(n, "") for n in names],
        "rows": [(n, [f"{v:,}" for v in line]) for n, line in zip(names, rows.confusion, strict=True)],
    }
    right = sum(rows.confusion[i][i] for i in range(len(rows.confusion)))
    total = sum(map(sum, rows.confusion))
    note = f"{best}, out of fold: {right:,} of {total:,} rows are of the likeliest class."
    return Section("Confusions", "tables.html", {"tables": [table]}, note)
