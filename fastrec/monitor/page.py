"""A page of a comparison, in the style of a run's report."""

from __future__ import annotations

from typing import Any

from fastrec.report import charts
from fastrec.report.charts import Panel, Section, render

_COLOURS = {"before": "var(--c-grey)", "new": "var(--c1)"}


def page(found: Any) -> str:
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


def _tiles(found: Any) -> list[tuple[str, str, str]]:
    touched = int((found.columns["finding"] != "").sum())
    made = [("New rows", f"{found.rows[1]:,}", f"beside {found.rows[0]:,}")]
    made.append(("Columns", f"{len(found.columns):,}", f"{touched} with a finding"))
    if found.adversarial is not None:
        made.append(("Told apart", f"{found.adversarial.auc.mean:.3f}", "AUC of trees; 0.5 = not at all"))
    if found.over_time is not None and len(found.over_time):
        last = found.over_time.iloc[-1]
        made.append(("Latest metric", f"{last['value']:.4f}", str(last["period"])))
    return made


def _pictures(found: Any) -> list[Section]:
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


def _over_time(found: Any) -> list[Section]:
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


def _adversarial(found: Any) -> Section:
    title = "What tells new rows from old ones"
    report = found.adversarial
    if report is None:
        return Section(title, absent="Trees were not asked.")
    top = [c for c in report.columns if c.gain > 0][:12]
    chart = charts.bar_list({c.name: c.gain for c in top}, [f"{c.gain:.0%}" for c in top], whole=1.0)
    note = f"Trees, out of fold: AUC {report.auc}; 0.5 = they are alike. Below: each column's share of the gain."
    return Section(title, "seconds.html", {"chart": chart}, note)


def _table(found: Any) -> Section:
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
