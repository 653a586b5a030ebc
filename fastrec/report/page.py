"""Write a run's report: one self-contained HTML file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fastrec._core.atomic import atomic_file
from fastrec.report import charts
from fastrec.report.charts import Panel, Section, render
from fastrec.report.data import SPLITS, RowResults, RunResults, RunSummary, Slice, Split, noted_runs, read_run, readable
from fastrec.report.text import TITLES, count_lists, duration, ends, signed


def row_sections(rows: RowResults | None, best: str, permutation: Mapping[str, float] | None) -> list[Section]:
    """Build the non-empty cards of a run's rows; ``best`` is the summarised model."""
    made = {"bins": _bins_section, "lift": _lift_section, "confusion": _confusion_section}
    sections = [section(rows, best) for part, section in made.items() if getattr(rows, part, None)]
    if rows is not None and rows.intervals:
        what = ("intervals", "mean width") if rows.task == "regression" else ("sets of classes", "classes in a set")
        tables = []
        for name, levels in list(rows.intervals.items())[:6]:  # more targets would fill the page
            figures = [("covered", [f"{100 * covered:.1f} %" for _, covered, _ in levels])]
            figures.append((what[1], [f"{size:.4g}" for _, _, size in levels]))
            heads = [(f"{100 * level:g} %", "asked for") for level, _, _ in levels]
            tables.append({"title": name, "heads": heads, "rows": figures})
        note = "Share of rows inside, out of fold: each fold's rows by how far the stack was off in the other folds."
        sections.append(Section(f"Coverage of {what[0]}", "tables.html", {"tables": tables}, note))
    if permutation:
        top = dict(sorted(permutation.items(), key=lambda item: -item[1])[:25])
        bars = charts.bar_list({n: max(v, 0.0) for n, v in top.items()}, [f"{v:.5f}" for v in top.values()])
        note = "By how much the best base model's score is worse on unseen rows if a feature's values are shuffled."
        panels = {"panels": [Panel("features", bars)]}
        sections.append(Section("Permutation importance", "importance.html", panels, note))
    if rows is not None and rows.correlations:
        lines = [(a, [f"{v:.3f}" for v in line.values()]) for a, line in rows.correlations.items()]
        table: dict[str, Any] = {"title": "", "heads": [(n, "") for n in rows.correlations], "rows": lines}
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
        words = {"predicted": "predicted", "actual": "actual"} | ({"low": "10 %", "high": "90 %"} if amounts else {})
        figures = [(text, [f"{getattr(b, w):.4g}" for b in bins]) for w, text in words.items()]
        heads = [(str(i + 1), f"{b.rows:,}") for i, b in enumerate(bins)]
        tables.append({"title": name, "heads": heads, "rows": figures})
    title = "Predicted and actual" if amounts else "Calibration"
    note = f"{best}, out of fold: rows in ten parts by prediction. Bold: their mean target; thin: as predicted" + (
        ", and the range of 10 % to 90 % of the targets." if amounts else "."
    )
    return Section(title, "slices.html", {"legend": "", "panels": panels, "tables": tables}, note)


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
    return Section("Lift", "slices.html", {"legend": "", "panels": [Panel("Gain", chart)], "tables": [table]}, note)


def _confusion_section(rows: RowResults, best: str) -> Section:
    names = rows.outputs if len(rows.outputs) == len(rows.confusion) else [str(i) for i in range(len(rows.confusion))]
    lines = [(n, [f"{v:,}" for v in line]) for n, line in zip(names, rows.confusion, strict=True)]
    table = {"title": "actual, and below it predicted as", "heads": [(n, "") for n in names], "rows": lines}
    right = sum(rows.confusion[i][i] for i in range(len(rows.confusion)))
    note = f"{best}, out of fold: {right:,} of {sum(map(sum, rows.confusion)):,} rows are of the likeliest class."
    return Section("Confusions", "tables.html", {"tables": [table]}, note)


def leaderboard_section(runs: Sequence[RunSummary], name: str, metric: str, greater: bool) -> list[Section]:
    """Build the section of the run ``name``, if at least two runs have a noted score."""
    if len(runs) < 2:
        return []
    points = {r.name: (r.score, r.leaderboard) for r in runs}
    chart = charts.point_chart(points, name, x_label=f"{metric} out of fold", y_label=f"{metric} on the leaderboard")
    oof, board = np.array(list(points.values())).T
    i, j = np.triu_indices(len(runs), 1)
    signs = np.sign(oof[i] - oof[j]) * np.sign(board[i] - board[j])
    pairs, gaps = int((signs != 0).sum()), board - oof
    agreement = f"Of {pairs} pairs of runs both put {int((signs > 0).sum())} in the same order. " if pairs else ""
    note = (
        f"{len(runs)} runs of this folder. The leaderboard less out of fold lies between {signed(min(gaps), 4)} and "
        f"{signed(max(gaps), 4)}. {agreement}{'Higher' if greater else 'Lower'} is better on both axes."
    )
    return [Section("Out of fold and on the leaderboard", "seconds.html", {"chart": chart}, note)]


_PARTS, _COUNTS = ("fold", "seed", "output"), ("epoch", "round")  # keys of a record of the curves that are no metrics


@dataclass(frozen=True)
class Cell:
    """A number of the leaderboard, a second line, and whether 0 is in the interval of its difference to the best."""

    text: str = ""
    below: str = ""
    even: bool = False


def write_report(run: str | Path, *, name: str | None = None, repeats: int = 2000) -> Path:
    """Write ``report.html`` into a run directory, and return its path.

    ``scores.json`` is required; other absent files have no section. The page contains its style and charts, fetches
    nothing and runs no script.

    Args:
        run: the run directory.
        name: of the run; None: its folder's name.
        repeats: bootstrap resamples of the sessions.

    Raises:
        MissingFileError: no such directory, or no ``scores.json`` in it.
        UnreadableFileError: a file cannot be read.
        WriteError: the page could not be written; an older one is unchanged.
    """
    results = read_run(run, repeats=repeats)
    results = replace(results, name=name or results.name)
    with readable(Path(run)):
        page = _page(Path(run), results, repeats)
    with atomic_file(Path(run) / "report.html") as path:
        path.write_text(page, encoding="utf-8")
    return Path(run) / "report.html"


def _page(run: Path, results: RunResults, repeats: int) -> str:
    colours = charts.palette(results.all_models)
    curves = [panel for model, records in results.curves.items() for panel in _curve_panels(model, records)]
    note = "Thin: each fold. Bold: their mean, as far as all folds go."
    sections = [
        _leaderboard_section(results, colours, repeats),
        *leaderboard_section(noted_runs(run), run.resolve().name, results.metric, results.greater_is_better),
        *([Section("Learning curves", "curves.html", {"panels": curves}, note)] if curves else []),
        *_groups_section(results),
        *(s for which in _SLICES if results.task == "ranking" for s in _slices(results, colours, which)),
        *_position_section(results),
        *_explanation_section(results.explanation),
        *row_sections(results.of_rows, results.best or "", results.permutation),
        *_importance_section(results, colours),
    ]
    stages = {stage: s for stage, s in results.seconds.items() if stage != "total"}
    if stages:
        chart = charts.bar_list(stages, [duration(s) for s in stages.values()])
        note = f"In the order they ran; {duration(results.total_seconds or 0)} in all."
        sections.append(Section("Seconds by stage", "seconds.html", {"chart": chart}, note))
    if results.transductive:
        note = "Target-free statistics that were fitted on train and test rows together."
        sections.append(Section("Transductive features", "transductive.html", {"names": results.transductive}, note))
    elif results.transductive is not None:
        absent = "None: every feature was fitted on training rows alone."
        sections.append(Section("Transductive features", absent=absent))
    settings = _flat({**results.config, **({"rows": results.rows} if results.rows else {})})
    if settings:
        sections.append(Section("Settings", "settings.html", {"settings": settings}))
    facts = {key: results.config.get(key) for key in ("started", "device", "seed")}
    return render(
        "report.html",
        title=str(results.config.get("competition") or results.name),
        facts=[f"Run {results.name}", *(f"{key} {value}" for key, value in facts.items() if value is not None)],
        best=results.best,
        summary=_summary(results),
        tiles=_tiles(results),
        sections=sections,
    )


def _summary(results: RunResults) -> str:
    # the template prepends the best model's name
    if results.best is None:
        return "This run reported no scores."
    split: Split = "oof" if results.score_of("test", results.best) is None else "test"
    score, standing = results.score_of(split, results.best), results.standing_of(split, results.best)
    unit = "lists" if results.task == "ranking" else "rows"
    where = f"on the test {unit}" if split == "test" else f"out of fold (no ground truth was given for the test {unit})"
    known = f" (95 %: {ends(standing.score, 3)})" if standing else ""
    text = f"reaches {results.metric} {score:.4f}{known} {where}"
    floor = results.scores[split].get("display_order")
    if floor is not None and results.best != "display_order":
        text += f", {signed(score - floor, 3)} over display order"
    way = results.share_of_way if split == "test" else None
    return text + (f" and {100 * way:.0f} % of the way from there to the oracle." if way is not None else ".")


def _tiles(results: RunResults) -> list[tuple[str, str, str]]:
    tiles = []
    for split in SPLITS:
        score = results.score_of(split, results.best) if results.best else None
        if score is not None:
            foot = ", ".join(filter(None, [results.best, count_lists(results.n_lists.get(split))]))
            tiles.append((f"{TITLES[split]} {results.metric}", f"{score:.4f}", foot))
    way, total = results.share_of_way, results.total_seconds
    if way is not None:
        tiles.append(("Way to the oracle", f"{100 * way:.0f} %", "from display order"))
    if total is not None:
        stages = len(results.seconds) - ("total" in results.seconds)
        tiles.append(("Whole run", duration(total), f"{stages} stages"))
    return tiles


def _leaderboard_section(results: RunResults, colours: Mapping[str, str], repeats: int) -> Section:
    shown = [split for split in SPLITS if results.scores[split] or results.standings.get(split)]
    if not shown:
        return Section("Leaderboard", absent="This run reported no scores.")
    rows = []
    for name in results.all_models:
        cells = []
        for split in shown:
            score, standing = results.score_of(split, name), results.standing_of(split, name)
            below = ends(standing.score, 3) if standing else ""
            cells.append(Cell() if score is None else Cell(f"{score:.4f}", below))
            gap = standing.to_best if standing else None
            top = results.score_of(split, results.best or "")
            if name == results.best:
                cells.append(Cell("best", even=True))
            elif gap:
                cells.append(Cell(signed(gap.mean, 4), ends(gap, 3), even=gap.low <= 0 <= gap.high))
            else:
                cells.append(Cell() if score is None or top is None else Cell(signed(score - top, 4)))
        cells += [Cell(f"{m[name]:.4f}" if name in m else "") for m in results.also.values()]
        rows.append({"name": name, "colour": colours[name], "cells": cells, "best": name == results.best})
    if results.oracle is not None and "test" in shown:
        cells = [Cell(f"{results.oracle:.4f}"), *[Cell()] * (2 * len(shown) - 1 + len(results.also))]
        rows.append({"name": "oracle", "colour": "none", "cells": cells, "best": False})
    panels = []
    for split in shown:
        if standings := results.standings.get(split):
            intervals = {name: standings[name].score for name in results.all_models if name in standings}
            mark = results.oracle if split == "test" else None
            chart = charts.interval_chart(intervals, colours, mark=mark, mark_label="oracle")
            panels.append(Panel(TITLES[split], chart))
    data = {
        "heads": [(f"{TITLES[s]} {results.metric}", count_lists(results.n_lists.get(s))) for s in shown],
        "also": [(n.upper(), TITLES[results.also_of].lower()) for n in results.also],
        "rows": rows,
        "panels": panels,
    }
    note = (
        f"The best {'out of fold' if results.scores['oof'] else 'on the test lists'} first. Below each score its "
        f"95 % interval: {repeats:,} bootstrap resamples of whole sessions. Differences are paired: both models on the "
        "same lists, those where every model's rank is known. A grey difference has 0 in its interval: the lists do "
        "not tell the two apart."
        if results.n_lists and results.task == "ranking"
        else "The best first. The run holds no lists.parquet, so there are no intervals."
        if results.task == "ranking" and not results.standings
        else "The best first. The interval is a bootstrap's over rows, or over whole groups."
    )
    return Section("Leaderboard", "leaderboard.html", data, note)


def _curve_panels(model: str, records: Sequence[Mapping[str, Any]]) -> list[Panel]:
    keys = [k for k in dict.fromkeys(k for r in records for k in r) if k not in (*_PARTS, *_COUNTS)]
    counted = next((c for c in _COUNTS if any(c in r for r in records)), _COUNTS[0])
    # both losses in one chart: their gap shows overfitting
    losses = [k for k in keys if k in ("train_loss", "valid_loss")]
    groups = ([("loss", losses)] if losses else []) + [(k, [k]) for k in keys if k not in losses]
    panels = []
    for label, members in groups:
        colours = {k: "var(--c-grey)" if k == "train_loss" else "var(--c0)" for k in members}
        lines = [line for k in members for line in _curve_lines(records, k, colours[k], counted)]
        if not lines:
            continue
        lines.sort(key=lambda line: line.bold)
        named = {k.replace("_", " "): colours[k] for k in members}
        legend = charts.legend(list(named), named) if len(members) > 1 else ""
        chart = charts.line_chart(lines, x_label=counted, y_label=label.replace("_", " "))
        name = label.upper() if label.lower() == "mrr" else label.replace("_", " ")
        panels.append(Panel(f"{model}: {name}", chart, legend))
    return panels


def _curve_lines(records: Sequence[Mapping[str, Any]], key: str, colour: str, counted: str) -> list[charts.Line]:
    folds: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        value = record.get(key)
        if isinstance(value, int | float) and value == value and abs(value) != float("inf"):
            part = ", ".join(f"{n} {record[n]:g}" for n in _PARTS if n in record)
            folds.setdefault(part, []).append((float(record.get(counted, 0)) + 1, float(value)))
    by_epoch: dict[float, list[float]] = {}
    for epoch, value in (point for points in folds.values() for point in points):
        by_epoch.setdefault(epoch, []).append(value)
    # after some folds have stopped, the mean of the others is not comparable
    mean = [(e, sum(values) / len(values)) for e, values in sorted(by_epoch.items()) if len(values) == len(folds)]
    label = key.replace("_", " ")
    thin = [charts.Line(p, colour, bold=False, title=f"{label}, {part}") for part, p in folds.items()]
    return ([*thin] if len(folds) > 1 else []) + ([charts.Line(mean, colour, title=f"{label}, mean")] if mean else [])


def _groups_section(results: RunResults) -> list[Section]:
    shown = [split for split in SPLITS if split in results.groups]
    names = dict.fromkeys(n for split in shown for n in results.groups[split])
    rows = [(n, [results.groups[split].get(n, "") for split in shown]) for n in names]
    table = {"title": "", "heads": [(TITLES[split], "") for split in shown], "rows": rows}
    note = "The lists that are scored. Relevant are rows whose label is above 0."
    return [Section("Lists", "tables.html", {"tables": [table]}, note)] if shown else []


def _position_section(results: RunResults) -> list[Section]:
    found = results.position
    if not found:
        return []
    heads = [(place, "") for place in list(found["examination"])[:25]]  # more would fill the page
    named = {"examined": found["examination"], "clicked": found["clicked"]}
    rows = [(name, [f"{of[place]:.3f}" for place, _ in heads]) for name, of in named.items()]
    tables: list[dict[str, Any]] = [{"title": "place", "heads": heads, "rows": rows}]
    both = results.scores["oof"], found["weighed"]
    figures = [(n, [f"{of[n]:.4f}" for of in both]) for n in results.all_models if all(n in of for of in both)]
    words = (f"{results.metric} of the clicks", f"{results.metric} by inverse examination")
    tables.append({"title": "", "heads": [(w, "out of fold") for w in words], "rows": figures})
    learned = "a feature of the models, which score every row as if it were shown first"
    used = learned if found["as"] == "feature" else "used to weigh lists by the inverse examination of their clicks"
    note = (
        f"The column {found['column']} is {used}. Examined: how often a place is looked at, relative to the first, "
        "by items that were shown at adjacent places. "
        "A model without the places' effect may score lower on the clicks, and higher where each click counts by the "
        "inverse examination of its place."
    )
    return [Section("Places", "tables.html", {"tables": tables}, note)]


def _explanation_section(found: Mapping[str, Any]) -> list[Section]:
    if not found:
        return []
    contributions, names = np.array(found["contributions"]), found["columns"]
    mean = dict(sorted(zip(names, np.abs(contributions).mean(0).tolist(), strict=True), key=lambda item: -item[1])[:25])
    bars = charts.bar_list(mean, [f"{v:.4g}" for v in mean.values()])
    panels = [Panel(f"all {len(contributions)} rows: mean size", bars)]
    for i, which in enumerate(("low", "middle", "high")[: len(contributions)]):
        row, base, prediction = contributions[i], found["base"][i], found["prediction"][i]
        decimals = int(np.clip(3 - np.floor(np.log10(np.abs([*row, base, prediction]).max() or 1.0)), 0, 9))
        largest = np.argsort(-np.abs(row), kind="stable")[:10]
        shown = {f"{names[j]} = {found['values'][i][j]}": float(row[j]) for j in largest}
        rest = float(row.sum() - sum(shown.values()))
        shown |= {f"{len(row) - len(largest)} other columns": rest} if len(row) > len(largest) else {}
        what = f"a row of {found['class'][i]}" if "class" in found else f"a {which} prediction"
        sides = (f"{base:.{decimals}f} {signed(prediction - base, decimals)}", f"{prediction:.{decimals}f}")
        bars = charts.bar_list(shown, [signed(v, decimals) for v in shown.values()])
        panels.append(Panel(f"{what}: {' = '.join(sides)}", bars))
    note = (
        f"How a row's raw columns move its prediction from the mean of {found['background']} typical training rows: "
        "Shapley values, which add up to the prediction, by the first fold's models."
    )
    return [Section("Contributions of columns", "curves.html", {"panels": panels}, note)]


# Slices of the lists → title and description.
_SLICES = {
    "by_length": (
        "by list length",
        "Number of candidates in the list; below it, how many such lists. Lists of one, always 1, are left out.",
    ),
    "by_place": (
        "by place of the relevant row",
        "Place of the first relevant row among its list's rows, in the order of the data; below it, how many such "
        "lists. Lists without a relevant row are left out.",
    ),
    "by_touched": (
        "by touched before",
        "Whether the session had touched the clicked item before; below it, how many such lists.",
    ),
}


def _slices(results: RunResults, colours: Mapping[str, str], which: str) -> list[Section]:
    about, note = _SLICES[which]
    title = f"{results.metric} {about}"
    slices: dict[Split, list[Slice]] = getattr(results, which)
    shown = [split for split in SPLITS if len(slices.get(split, ())) > 1]
    if not shown:
        return []
    names = [name for name in results.all_models if any(name in slices[s][0].means for s in shown)]
    panels, tables = [], []
    for split in shown:
        part = slices[split]
        series = {name: [piece.means[name] for piece in part] for name in names if name in part[0].means}
        notes = [f"{piece.n_lists:,}" for piece in part]
        labels, bars = [piece.label for piece in part], which == "by_touched"
        chart = charts.category_chart(labels, notes, series, colours, y_label=title, bars=bars)
        panels.append(Panel(TITLES[split], chart))
        heads = [(piece.label, note) for piece, note in zip(part, notes, strict=True)]
        rows = [(name, [f"{v:.4f}" for v in values]) for name, values in series.items()]
        tables.append({"title": TITLES[split], "heads": heads, "rows": rows})
    data = {"legend": charts.legend(names, colours), "panels": panels, "tables": tables}
    return [Section(title, "slices.html", data, note)]


def _importance_section(results: RunResults, colours: Mapping[str, str]) -> list[Section]:
    panels = []
    # only the first panel is open: features matter more than the stack's weights
    for model in sorted((m for m in results.all_models if m in results.importance), key=lambda m: m == "stack"):
        gains = results.importance[model]
        if not gains:
            continue
        top = dict(sorted(gains.items(), key=lambda item: -item[1])[:25])  # more bars would fill the page
        total = sum(gains.values()) or 1.0
        texts = [f"{100 * v / total:.1f} %" for v in top.values()]
        bars = charts.bar_list(top, texts, colour=colours.get(model, "var(--c0)"))
        count = f"first {len(top)} of {len(gains)}" if len(gains) > len(top) else f"all {len(gains)}"
        panels.append(Panel(f"{model}: {count} features", bars))
    note = "Share of the total gain of all splits."
    return [Section("Feature importance", "importance.html", {"panels": panels}, note)] if panels else []


def _flat(content: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            rows += _flat(value, f"{prefix}{key}.")
        else:
            text = f"{value:,}" if prefix == "rows." and isinstance(value, int) else value
            rows.append((f"{prefix}{key}", text if isinstance(text, str) else json.dumps(text, default=str)))
    return rows
