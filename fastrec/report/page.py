"""A run's report: one HTML file that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastrec._core.atomic import atomic_file
from fastrec.report import charts as charts
from fastrec.report.data import SPLITS, RunResults, Slice, Split, read_run, share_of_way
from fastrec.report.leaderboard_section import leaderboard_section
from fastrec.report.noted import noted_runs
from fastrec.report.render import render
from fastrec.report.row_sections import row_sections
from fastrec.report.section import Panel, Section
from fastrec.report.text import (
    TITLES,
    all_models,
    also_of,
    count_lists,
    duration,
    ends,
    leaderboard_table,
    score_of,
    signed,
    standing_of,
    total_seconds,
    unit_of,
)

__all__ = ["leaderboard_table", "read_run", "write_report"]

_TOP_FEATURES = 25
_PARTS, _COUNTS = ("fold", "seed", "output"), ("epoch", "round")  # what a record of the curves is of, besides figures


@dataclass(frozen=True)
class Cell:
    """A figure of the leaderboard, what stands below it, and whether it is even with the best."""

    text: str = ""
    below: str = ""
    even: bool = False


@dataclass(frozen=True)
class Row:
    """A model's row of the leaderboard."""

    name: str
    colour: str
    cells: Sequence[Cell]
    best: bool = False


def write_report(run: str | Path, *, name: str | None = None, repeats: int = 2000, seed: int = 0) -> Path:
    """Write ``report.html`` into a run directory.

    Read are ``scores.json`` (needed), ``lists.parquet``, ``curves.json``, ``importance.json`` and ``config.json``. What
    is absent has no section. The page holds its style and pictures, fetches nothing and runs no script.

    Args:
        run: the run directory.
        name: what to call the run; None: as its folder is called.
        repeats: bootstrap resamples of the sessions.
        seed: seed of the resampling; the same run and seed give the same page.

    Returns:
        Path of the page.

    Raises:
        MissingFileError: no such directory, or no ``scores.json`` in it.
        UnreadableFileError: a file that is there cannot be read.
        WriteError: the page could not be written; an older one is untouched.
    """
    results = read_run(run, repeats=repeats, seed=seed)
    results = replace(results, name=name or results.name)
    colours = charts.palette(all_models(results))
    found = [
        _leaderboard_section(results, colours, repeats),
        *leaderboard_section(noted_runs(run), Path(run).resolve().name, results.metric, results.greater_is_better),
        _curves_section(results),
        *(_slices_section(results, colours, w) for w in ("by_length", "by_touched") if results.task == "ranking"),
        *row_sections(results.of_rows, results.best or "", results.permutation),
        _importance_section(results, colours),
        _seconds_section(results),
        _transductive_section(results),
        _config_section(results),
    ]
    sections = [s for s in found if s is not None]
    title = str(results.config.get("competition") or results.name)
    page = render(
        "report.html",
        title=title,
        facts=_facts(results),
        best=results.best,
        summary=_summary(results),
        tiles=_tiles(results),
        sections=sections,
    )
    with atomic_file(Path(run) / "report.html") as path:
        path.write_text(page, encoding="utf-8")
    return Path(run) / "report.html"


def _facts(results: RunResults) -> list[str]:
    settings = {key: results.config.get(key) for key in ("started", "device", "seed")}
    return [f"Run {results.name}"] + [f"{key} {value}" for key, value in settings.items() if value is not None]


def _summary(results: RunResults) -> str:
    """What the page says first; the best model's name stands before it."""
    if results.best is None:
        return "This run reported no scores."
    split: Split = "test" if results.scores["test"] else "oof"
    score, standing = score_of(results, split, results.best), standing_of(results, split, results.best)
    unit = unit_of(results)
    where = f"on the test {unit}" if split == "test" else f"out of fold (no ground truth was given for the test {unit})"
    known = f" (95 %: {ends(standing.score, 3)})" if standing else ""
    text = f"reaches {results.metric} {score:.4f}{known} {where}"
    floor = results.scores[split].get("display_order")
    if floor is not None and results.best != "display_order":
        text += f", {signed(score - floor, 3)} over display order"
    way = share_of_way(results) if split == "test" else None
    return text + (f" and {100 * way:.0f} % of the way from there to the oracle." if way is not None else ".")


def _tiles(results: RunResults) -> list[tuple[str, str, str]]:
    tiles = []
    for split in SPLITS:
        score = score_of(results, split, results.best) if results.best else None
        if score is not None:
            foot = ", ".join(filter(None, [results.best, count_lists(results.n_lists.get(split))]))
            tiles.append((f"{TITLES[split]} {results.metric}", f"{score:.4f}", foot))
    way, total = share_of_way(results), total_seconds(results)
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
    rows = [_leaderboard_row(results, name, shown, colours) for name in all_models(results)]
    if results.oracle is not None and "test" in shown:
        empty = [Cell()] * (2 * len(shown) - 1 + len(results.also))
        rows.append(Row("oracle", "none", [Cell(f"{results.oracle:.4f}"), *empty]))
    data = {
        "heads": [(f"{TITLES[s]} {results.metric}", count_lists(results.n_lists.get(s))) for s in shown],
        "also": [(n.upper(), TITLES[also_of(results)].lower()) for n in results.also],
        "rows": rows,
        "panels": [_interval_picture(results, split, colours) for split in shown if results.standings.get(split)],
    }
    note = (
        f"The best {'out of fold' if results.scores['oof'] else 'on the test lists'} first. Below each score its "
        f"95 % interval: {repeats:,} bootstrap resamples of whole sessions. Differences are paired: both models on the "
        "same lists, those where every model's rank is known. A grey difference has 0 in its interval: the lists do "
        "not tell the two apart."
        if results.standings and results.task == "ranking"
        else "The best first. The run holds no lists.parquet, so there are no intervals."
        if results.task == "ranking"
        else "The best first. The interval is a bootstrap's over rows, or over whole groups."
    )
    return Section("Leaderboard", "leaderboard.html", data, note)


def _leaderboard_row(results: RunResults, name: str, shown: Sequence[Split], colours: Mapping[str, str]) -> Row:
    cells = []
    for split in shown:
        score, standing = score_of(results, split, name), standing_of(results, split, name)
        below = ends(standing.score, 3) if standing else ""
        cells.append(Cell() if score is None else Cell(f"{score:.4f}", below))
        cells.append(_difference_cell(results, split, name))
    cells += [Cell(f"{m[name]:.4f}" if name in m else "") for m in results.also.values()]
    return Row(name, colours[name], cells, best=name == results.best)


def _difference_cell(results: RunResults, split: Split, name: str) -> Cell:
    if name == results.best:
        return Cell("best", even=True)
    standing = standing_of(results, split, name)
    if standing and standing.to_best:
        gap = standing.to_best
        return Cell(signed(gap.mean, 4), ends(gap, 3), even=gap.low <= 0 <= gap.high)
    score, best = score_of(results, split, name), score_of(results, split, results.best or "")
    return Cell() if score is None or best is None else Cell(signed(score - best, 4))


def _interval_picture(results: RunResults, split: Split, colours: Mapping[str, str]) -> Panel:
    standings = results.standings[split]
    rows = {name: standings[name].score for name in all_models(results) if name in standings}
    mark = results.oracle if split == "test" else None
    chart = charts.interval_chart(rows, colours, mark=mark, mark_label="oracle")
    return Panel(TITLES[split], chart)


def _curves_section(results: RunResults) -> Section | None:
    panels = [panel for model, records in results.curves.items() for panel in _curve_panels(model, records)]
    if not panels:
        return None
    note = "Thin: each fold. Bold: their mean, as far as all folds go."
    return Section("Learning curves", "curves.html", {"panels": panels}, note)


def _curve_panels(model: str, records: Sequence[Mapping[str, Any]]) -> list[Panel]:
    keys = [k for k in dict.fromkeys(k for r in records for k in r) if k not in (*_PARTS, *_COUNTS)]
    counted = next((c for c in _COUNTS if any(c in r for r in records)), _COUNTS[0])
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
    # where some have stopped, the mean of the others is another mean
    mean = [(e, sum(values) / len(values)) for e, values in sorted(by_epoch.items()) if len(values) == len(folds)]
    label = key.replace("_", " ")
    thin = [charts.Line(p, colour, bold=False, title=f"{label}, {part}") for part, p in folds.items()]
    return ([*thin] if len(folds) > 1 else []) + ([charts.Line(mean, colour, title=f"{label}, mean")] if mean else [])


def _slices_section(results: RunResults, colours: Mapping[str, str], which: str) -> Section | None:
    by_length = which == "by_length"
    title = f"{results.metric} by list length" if by_length else f"{results.metric} by touched before"
    slices: dict[Split, list[Slice]] = getattr(results, which)
    shown = [split for split in SPLITS if len(slices.get(split, ())) > 1]
    if not shown:
        return None
    names = [name for name in all_models(results) if any(name in slices[s][0].means for s in shown)]
    draw = charts.category_lines if by_length else charts.category_bars
    panels = []
    for split in shown:
        part = slices[split]
        series = {name: [piece.means[name] for piece in part] for name in names if name in part[0].means}
        notes = [f"{piece.n_lists:,}" for piece in part]
        chart = draw([piece.label for piece in part], notes, series, colours, y_label=title)
        panels.append(Panel(TITLES[split], chart))
    note = (
        "Number of candidates in the list; below it, how many such lists. Lists of one, always 1, are left out."
        if by_length
        else ("Whether the session had touched the clicked item before; below it, how many such lists.")
    )
    tables = [_slice_table(TITLES[split], slices[split], names) for split in shown]
    return Section(
        title, "slices.html", {"legend": charts.legend(names, colours), "panels": panels, "tables": tables}, note
    )


def _slice_table(title: str, slices: Sequence[Slice], names: Sequence[str]) -> dict[str, Any]:
    rows = [(name, [f"{s.means[name]:.4f}" for s in slices]) for name in names if name in slices[0].means]
    return {"title": title, "heads": [(s.label, f"{s.n_lists:,}") for s in slices], "rows": rows}


def _importance_section(results: RunResults, colours: Mapping[str, str]) -> Section | None:
    title, panels = "Feature importance", []
    # the first one's bars are seen at once: the features' rather than what the stack says of its models
    for model in sorted((m for m in all_models(results) if m in results.importance), key=lambda m: m == "stack"):
        gains = results.importance[model]
        if not gains:
            continue
        top = dict(sorted(gains.items(), key=lambda item: -item[1])[:_TOP_FEATURES])
        total = sum(gains.values()) or 1.0
        bars = charts.bar_list(
            top, [f"{100 * v / total:.1f} %" for v in top.values()], colour=colours.get(model, "var(--c0)")
        )
        count = f"first {len(top)} of {len(gains)}" if len(gains) > len(top) else f"all {len(gains)}"
        panels.append(Panel(f"{model}: {count} features", bars))
    if not panels:
        return None
    return Section(title, "importance.html", {"panels": panels}, "Share of the total gain of all splits.")


def _seconds_section(results: RunResults) -> Section | None:
    stages = {stage: s for stage, s in results.seconds.items() if stage != "total"}
    if not stages:
        return None
    chart = charts.bar_list(stages, [duration(s) for s in stages.values()])
    note = f"In the order they ran; {duration(total_seconds(results) or 0)} in all."
    return Section("Seconds by stage", "seconds.html", {"chart": chart}, note)


def _transductive_section(results: RunResults) -> Section | None:
    title = "Transductive features"
    if results.transductive is None:
        return None
    if not results.transductive:
        return Section(title, absent="None: every feature was fitted on training rows alone.")
    note = "Target-free statistics that were fitted on train and test rows together."
    return Section(title, "transductive.html", {"names": results.transductive}, note)


def _config_section(results: RunResults) -> Section | None:
    settings = _flat({**results.config, **({"rows": results.rows} if results.rows else {})})
    if not settings:
        return None
    return Section("Settings", "settings.html", {"settings": settings})


def _flat(content: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            rows += _flat(value, f"{prefix}{key}.")
        else:
            text = f"{value:,}" if prefix == "rows." and isinstance(value, int) else value
            rows.append((f"{prefix}{key}", text if isinstance(text, str) else json.dumps(text, default=str)))
    return rows
