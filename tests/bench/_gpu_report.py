"""``GPU.md``: what a GPU is to reach and the figures that were found, side by side, floors, and the machine.

Sections that were written by hand (what the check does, how its packages come in) stay as they are.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from _timing import Record, cells, put

LARGEST = 65_536  # the batch up to which 16 bits and graphs are to help
EXTREME = 204_800
SERVED = 16_384  # rows of a request that the goals of serving speak of
PLACED = 20_000_000  # rows of the table that does not fit
ROWS = 40_000_000  # of the end-to-end benchmark and of that of extreme batches


class Found(NamedTuple):
    """A figure in the goal's own unit, and which system or batch it is of."""

    value: float
    notes: str = ""
    of: Record | None = None  # the record with the floor
    full: bool = True  # of the size that the goal speaks of; of a smaller one nothing is judged


Find = Callable[[list[Record]], Found | None]


class Goal(NamedTuple):
    """One line of the table: the part that gives the figure, what is measured, the limit and its side, the form."""

    part: str
    name: str
    side: str
    limit: float
    form: str
    case: str  # how those of its records begin
    find: Find

    def figure(self, records: Sequence[Record]) -> Found | None:
        found = [r for r in records if r.get("part") == self.part and r["case"].startswith(self.case)]
        return self.find(found) if found else None

    def met(self, value: float) -> bool:
        return value >= self.limit if self.side == "≥" else value <= self.limit


def _smoke(found: list[Record]) -> Found | None:
    found = [r for r in found if "wrong" in r]
    wrong = [f"{r['system']}: {r['notes']}" for r in found if r["wrong"]]
    return Found(len(wrong), "; ".join(wrong) or f"{len(found)} stages") if found else None


def _tests(found: list[Record]) -> Found:
    one = found[0]
    unfinished = one["failed"] == 0 and (one["status"] != 0 or one["passed"] == 0)  # it ended before its end
    beside = "cuDF's frames among them" if one.get("cudf") else "without cuDF, which is not installed"
    return Found(one["failed"] + unfinished, f"{one['notes']}; {beside}")


def _copies(found: list[Record]) -> Found:
    each = ", ".join(f"{r['system']} {r['copies']} ({r['large']} large)" for r in found)
    return Found(sum(r["beyond"] for r in found), f"copies: {each}")


def _loader(found: list[Record]) -> Found | None:
    best = max((r for r in found if r["system"] == "fastrec"), key=lambda r: r["rows_per_s"], default=None)
    return best and Found(best["rows_per_s"] / 1e6, best["case"].partition(", ")[2], best)


def _named(found: list[Record]) -> Found:
    return Found(float(found[0]["named"]), found[0]["notes"])


def _tables(found: list[Record]) -> Found | None:
    worst = max((r for r in found if r["share"] is not None), key=lambda r: r["batch"], default=None)
    return worst and Found(worst["share"] * 100, f"batch {worst['batch']:,}; {worst['notes']}", worst)


def _busy(found: list[Record]) -> Found:
    best = max(found, key=lambda r: r["busy"])
    each = ", ".join(f"{r['system']}, batch {r['batch']:,}: {r['busy']:.0%}" for r in found)
    return Found(best["busy"] * 100, each, best)


def _faster(half: bool) -> Find:
    """Find the smallest gain of 16 bits or graphs over the batch sizes, of each the best.

    Launches bound a step of nets as narrow as this one, and autocast adds launches: 16 bits are compared graph with
    graph.
    """

    def find(found: list[Record]) -> Found | None:
        steps = [r for r in found if r["system"].endswith("graph") and r["batch"] <= LARGEST]
        steps = [r for r in steps if not str(r.get("notes", "")).startswith("no graph")]
        if half:
            wide = {r["batch"]: r["speedup"] for r in steps if r["system"] == "float32, graph"}
            steps = [r for r in steps if r["system"] != "float32, graph" and r["batch"] in wide]
            steps = [{**r, "speedup": r["speedup"] / wide[r["batch"]]} for r in steps]
        steps.sort(key=lambda r: (r["batch"], r["speedup"]))
        best = {r["batch"]: r for r in steps}
        worst = min(best.values(), key=lambda r: r["speedup"], default=None)
        each = ", ".join(f"{bs:,}: {r['speedup']:.2f}× ({r['system']})" for bs, r in best.items())
        return worst and Found(worst["speedup"], each, worst)

    return find


def _placed(found: list[Record]) -> Found | None:
    one = next((r for r in found if r["system"] == "cached" and "speed" in r), None)
    notes = one and f"{one['rows']:,} rows, hit rate {one['hit_rate']:.1%}"
    return one and Found(one["speed"], notes, one, one["rows"] >= PLACED)


def _served(field: str, scale: float) -> Find:
    """Find a figure of the net from codes; the notes have that of raw columns."""

    def find(found: list[Record]) -> Found | None:
        by = {r["system"]: r for r in found}
        one, raw = by.get("net, codes"), by.get("graph, raw columns")
        beside = f"raw columns {raw['rows_per_s']:,} rows/s, p99 {raw['p99_seconds'] * 1e3:.1f} ms" if raw else ""
        return one and Found(one[field] * scale, beside, one, one["batch"] >= SERVED)

    return find


def _dask(found: list[Record]) -> Found | None:
    cut = [r for r in found if r["system"] != "one frame"]
    each = ", ".join(f"{r['system']} {r['seconds']:.2f} s, {r['ratio']:.1f} × one frame's" for r in cut)
    return Found(sum(not r["same"] for r in cut), each) if cut else None


def _ratio(one: Record) -> float:
    return one["ratio"]


def _e2e(value: Callable[[Record, Record], float], key: Callable[[Record], float] = _ratio, floor: bool = True) -> Find:
    """Find a figure of stock and of the best system by ``key``; without ``floor`` it is not of the whole."""

    def find(found: list[Record]) -> Found | None:
        own = [r for r in found if "stages" in r]
        stock = next((r for r in own if r["system"] == "stock"), None)
        best = max((r for r in own if r["system"].startswith("+")), key=key, default=None)
        if stock is None or best is None:
            return None
        notes = f"{best['rows']:,} rows, {best['system']}, MRR {best['mrr_mean']:.4f} ± {best['mrr_sd']:.4f}"
        return Found(value(stock, best), notes, best if floor else None, best["rows"] >= ROWS)

    return find


def _until_trained(one: Record) -> float:
    return sum(one["stages"][s] for s in ("read", "features", "preprocess", "train"))


def _stage(stage: str) -> Find:
    """Find how many times as fast as stock a stage is in the fastest system."""

    def times(stock: Record, best: Record) -> float:
        return stock["stages"][stage] / max(best["stages"][stage], 1e-9)

    return _e2e(times, lambda r: -r["stages"][stage], floor=False)


def _extreme(found: list[Record]) -> Found | None:
    own = [r for r in found if not r["case"].endswith("rate") and r.get("batch") == EXTREME]  # those chose the rates
    lost: dict[str, list[float]] = {}
    for r in own:
        lost.setdefault(r["system"], []).append(r["auc_lost"])
    if not lost:
        return None
    best = min(lost, key=lambda rule: statistics.mean(lost[rule]))
    sd, rows = statistics.stdev(lost[best]) if len(lost[best]) > 1 else 0.0, own[0]["train_rows"]
    notes = f"{best}, ± {sd:.5f} over {len(lost[best])} seeds, {rows:,} rows to train on"
    return Found(statistics.mean(lost[best]), notes, full=rows >= 0.8 * ROWS)  # some of them validate


_times = _e2e(lambda stock, best: best["ratio"])
_trained = _e2e(lambda stock, best: _until_trained(best), lambda r: -_until_trained(r))
_same_mrr = _e2e(lambda stock, best: stock["mrr_mean"] - best["mrr_mean"], floor=False)
_of_memory = "out of memory: what, how much and what to lower are named"
_graphs = "CUDA graphs over float32, every batch to 65,536"
E2E, STEP = "end to end", "training step"
GOALS = (
    Goal("smoke", "stages that fail, or differ from the CPU", "≤", 0, "{:.0f}", "smoke", _smoke),
    Goal("suite", "tests that fail on the device", "≤", 0, "{:.0f}", "test-suite", _tests),
    Goal("copies", "copies to the host beyond what is allowed", "≤", 0, "{:.0f}", "copies to", _copies),
    Goal("memory", _of_memory, "≥", 1, "{:.0f}", "out of memory", _named),
    Goal("loader", "loader, rows on the device", "≥", 300, "{:,.0f} M rows/s", "loader,", _loader),
    Goal("embeddings", "embeddings' backward pass, of a step", "≤", 2.3, "{:.1f} %", "embedding b", _tables),
    Goal("placement", "speed with a twentieth of a table on the device", "≥", 0.8, "{:.2f}", "train", _placed),
    Goal("steps", "16 bits over float32, by graphs, to batch 65,536", "≥", 1.5, "{:.2f}×", STEP, _faster(half=True)),
    Goal("steps", _graphs, "≥", 1.5, "{:.2f}×", STEP, _faster(half=False)),
    Goal("busy", "device busy while training", "≥", 85, "{:.0f} %", "device busy", _busy),
    Goal("dask", "features of dask-cuDF that differ from cuDF's", "≤", 0, "{:.0f}", "features, dask", _dask),
    Goal("serving", "a net served, batches of 16,384", "≥", 1.5, "{:.2f} M rows/s", "", _served("rows_per_s", 1e-6)),
    Goal("serving", "the same, 99th percentile", "≤", 10, "{:.1f} ms", "", _served("p99_seconds", 1e3)),
    Goal("e2e", "40 M rows, from files to a trained net", "≤", 10, "{:.1f} s", E2E, _trained),
    Goal("e2e", "end to end over stock fastai", "≥", 15.6, "{:.1f}×", E2E, _times),
    Goal("e2e", "the same, as the stretch", "≥", 30, "{:.1f}×", E2E, _times),
    Goal("e2e", "MRR lost to stock fastai", "≤", 0.001, "{:.4f}", E2E, _same_mrr),
    Goal("e2e", "preprocessing over TabularPandas", "≥", 9.6, "{:.1f}×", E2E, _stage("preprocess")),
    Goal("e2e", "features over pandas", "≥", 9.7, "{:.1f}×", E2E, _stage("features")),
    Goal("extreme", "AUC lost at batch 204,800", "≤", 0.001, "{:.4f}", "planted", _extreme),
)


# The report ----------------------------------------------------------------------------------------------------------

_NOT_YET = """**Nothing of fastrec has been run on a GPU yet.** To get figures, call `make gpu GPU_ARGS='--minutes 30'`
on a machine that has one; it writes them into this file.
"""
_ON_CPU = """**This run was on a CPU, at small sizes: it shows that the check works, and nothing about a GPU.**
"""
_OWN = ("Goals", "Floors", "Before and after", "All figures")  # sections; all others were written by hand
_FORMS = {"case": "", "system": "", "rows": ",", "seconds": ".6g", "rows_per_s": ",", "ratio": ".2f"}
_FORMS |= {"floor_s": ".3g", "floor_share": ".0%"}


def report(records: Sequence[Record], image: str | None = None) -> str:
    """Return the whole file, of all parts that have run."""
    about = next((r for r in records if r["case"] == "machine"), None)
    on_gpu = about is not None and about["on_gpu"]
    parts = [
        "# fastrec on a GPU\n",
        _NOT_YET if about is None else "" if on_gpu else _ON_CPU,
        _machine(about) if about else "",
        _goals(records, judged=on_gpu),
        _named_parts("Parts that failed", records, "error"),
        _named_parts("Parts left out", records, "skipped"),
        _floors(records),
        f"## Before and after\n\n![What the device does]({image})\n" if image else "",
        _figures(records),
    ]
    return "\n".join(part for part in parts if part)


def _machine(one: Record) -> str:
    lines = {"device": one["system"], "driver": one["driver"] or "none", "CUDA": one["cuda"] or "none"}
    lines |= {"host": one["host"], "versions": ", ".join(f"{n} {v}" for n, v in one["versions"].items())}
    lines |= {"command": one["command"], "date": one["date"]}
    return "```\n" + "".join(f"{name:9s}{text}\n" for name, text in lines.items()) + "```\n"


def verdict(goal: Goal, records: Sequence[Record], *, judged: bool) -> str:
    """Return ``met``, ``missed``, or why it is not judged."""
    found = goal.figure(records)
    if found is None:
        failed = any(r.get("error") for r in records if r.get("part") == goal.part)
        return "failed to run" if failed else "not run"
    if not judged or not found.full:
        return "not at full size" if judged else "not on a GPU"
    return "met" if goal.met(found.value) else "missed"


def _goals(records: Sequence[Record], *, judged: bool) -> str:
    lines = ["## Goals\n", "| what | goal | figure | | share of the floor | notes |", "|:---|---:|---:|:---|---:|:---|"]
    for goal in GOALS:
        found, limit = goal.figure(records), goal.form.format(goal.limit)
        figure = share = notes = ""
        if found is not None:
            figure, notes = goal.form.format(found.value), _cell(found.notes)
            of = found.of or {}
            share = f"{of['floor_share']:.0%} of {of['floor_of']}" if "floor_share" in of else ""
        said = verdict(goal, records, judged=judged)
        lines.append(f"| {goal.name} | {goal.side} {limit} | {figure} | {said} | {share} | {notes} |")
    return "\n".join(lines) + "\n"


def _named_parts(title: str, records: Sequence[Record], why: str) -> str:
    own = [r for r in records if isinstance(r.get(why), str)]  # of the suite ``skipped`` is a number of tests
    return f"{title}:\n\n" + "".join(f"- `{r['part']}`: {_cell(r[why])}\n" for r in own) if own else ""


def _floors(records: Sequence[Record]) -> str:
    own = [r for r in records if r.get("part") == "floors" and "per_second" in r]
    lines = ["## Floors\n", "| measured | speed |", "|:---|---:|", *(f"| {r['system']} | {r['notes']} |" for r in own)]
    return "\n".join(lines) + "\n" if own else ""


def _figures(records: Sequence[Record]) -> str:
    own = [r for r in records if r.get("part") not in (None, "floors", "machine")]
    own = [r for r in own if not r.get("error") and not isinstance(r.get("skipped"), str)]
    head = "| case | system | rows | seconds | rows/s | ratio | floor, s | share | notes |"
    lines = ["## All figures\n", head, "|:---|:---|" + "---:|" * 6 + ":---|"]
    for r in own:
        batch = f"batch {r['batch']:,}" if "batch" in r and "batch" not in r["case"] else ""
        notes = "; ".join(t for t in (batch, _cell(str(r.get("notes") or ""))) if t)
        lines.append(f"| {' | '.join([*cells(r, _FORMS), notes])} |")
    return "\n".join(lines) + "\n" if own else ""


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


def write(path: Path, records: Sequence[Record]) -> None:
    """Write the report in one step, sections by hand at its end."""
    image = path.with_name(f"{path.stem}-profile.png")
    old = re.split("^(?=## )", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:] if path.exists() else []
    by_hand = [section.strip() for section in old if section.partition("\n")[0].removeprefix("## ") not in _OWN]
    new = report(records, image.name if image.exists() else None)
    put(path, "\n".join([new, *(f"{section}\n" for section in by_hand)]))
