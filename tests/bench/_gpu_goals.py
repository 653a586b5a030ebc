"""What a GPU is to reach, and where in the records the figure is found."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from _timing import Record

LARGEST = 65_536  # the batch up to which 16 bits and graphs are to help
EXTREME = 204_800
SERVED = 16_384  # rows of a request that the goals of serving speak of
PLACED = 20_000_000  # rows of the table that does not fit
ROWS = 40_000_000  # of the end-to-end benchmark and of that of extreme batches
BEFORE = ("read", "features", "preprocess", "train")  # from the files to a trained net


@dataclass(frozen=True)
class Found:
    """A figure.

    Args:
        value: in the goal's own unit.
        share: of the floor's speed that is reached, if a floor is known.
        floor: what the floor is, in words.
        notes: which system or batch it is of.
        full: whether it is of the size that the goal speaks of; of a smaller one nothing is judged.
    """

    value: float
    share: float | None = None
    floor: str = ""
    notes: str = ""
    full: bool = True


@dataclass(frozen=True)
class Goal:
    """One line of the table.

    Args:
        part: the part of the benchmark that gives the figure.
        name: what is measured.
        limit: what it is to be at least or at most.
        side: which of the two.
        form: how figure and limit are shown, with ``{}``.
        find: the figure in the records; None: they do not have it.
    """

    part: str
    name: str
    limit: float
    side: Literal["at least", "at most"]
    form: str
    find: Callable[[Sequence[Record]], Found | None]

    def met(self, value: float) -> bool:
        """Whether a figure reaches the goal."""
        return value >= self.limit if self.side == "at least" else value <= self.limit


def _case(records: Sequence[Record], start: str, **wanted: object) -> list[Record]:
    return [r for r in records if r["case"].startswith(start) and all(r.get(k) == v for k, v in wanted.items())]


def _of(record: Record, value: float, notes: str = "", *, full: bool = True) -> Found:
    return Found(value, record.get("floor_share"), record.get("floor_of", ""), notes, full)


def _smoke(records: Sequence[Record]) -> Found | None:
    found = [r for r in _case(records, "smoke") if "wrong" in r]
    wrong = [f"{r['system']}: {r['notes']}" for r in found if r["wrong"]]
    return Found(len(wrong), notes="; ".join(wrong) or f"{len(found)} stages") if found else None


def _tests(records: Sequence[Record]) -> Found | None:
    found = _case(records, "test-suite")
    if not found:
        return None
    one = found[0]
    unfinished = one["failed"] == 0 and (one["status"] != 0 or one["passed"] == 0)  # it ended before its end
    beside = "cuDF's frames among them" if one.get("cudf") else "without cuDF, which is not installed"
    return Found(one["failed"] + unfinished, notes=f"{one['notes']}; {beside}")


def _copies(records: Sequence[Record]) -> Found | None:
    found = _case(records, "copies to the host")
    if not found:
        return None
    most = [f"{r['system']} {r['copies']} ({r['large']} large)" for r in found]
    return Found(sum(r["beyond"] for r in found), notes="copies: " + ", ".join(most))


def _named(records: Sequence[Record]) -> Found | None:
    found = _case(records, "out of memory")
    return Found(float(found[0]["named"]), notes=found[0]["notes"]) if found else None


def _loader(records: Sequence[Record]) -> Found | None:
    found = _case(records, "loader,", system="fastrec")
    best = max(found, key=lambda r: r["rows_per_s"], default=None)
    return None if best is None else _of(best, best["rows_per_s"] / 1e6, best["case"].partition(", ")[2])


def _tables(records: Sequence[Record]) -> Found | None:
    found = [r for r in _case(records, "embedding backward") if r["share"] is not None]
    worst = max(found, key=lambda r: r["batch"], default=None)
    return None if worst is None else _of(worst, worst["share"] * 100, f"batch {worst['batch']:,}; {worst['notes']}")


def _busy(records: Sequence[Record]) -> Found | None:
    found = _case(records, "device busy")
    best = max(found, key=lambda r: r["busy"], default=None)
    each = ", ".join(f"{r['system']}, batch {r['batch']:,}: {r['busy']:.0%}" for r in found)
    return None if best is None else _of(best, best["busy"] * 100, each)


def _faster(kind: str) -> Callable[[Sequence[Record]], Found | None]:
    """The least that 16 bits or graphs gain, over the batch sizes: of each the best.

    Launches bound a step of nets as narrow as this one, and autocast adds launches: 16 bits are compared graph with
    graph.
    """

    def find(records: Sequence[Record]) -> Found | None:
        best: dict[int, Record] = {}
        steps = [r for r in _case(records, "training step") if not str(r.get("notes", "")).startswith("no graph")]
        wide = {r["batch"]: r["speedup"] for r in steps if r["system"] == "float32, graph"}
        for r in steps:
            if not r["system"].endswith("graph") or r["batch"] > LARGEST:
                continue
            if kind == "16 bits":
                if r["system"] == "float32, graph" or r["batch"] not in wide:
                    continue
                r = {**r, "speedup": r["speedup"] / wide[r["batch"]]}
            best[r["batch"]] = max(best.get(r["batch"], r), r, key=lambda one: one["speedup"])
        worst = min(best.values(), key=lambda r: r["speedup"], default=None)
        each = ", ".join(f"{r['batch']:,}: {r['speedup']:.2f}× ({r['system']})" for _, r in sorted(best.items()))
        return None if worst is None else _of(worst, worst["speedup"], each)

    return find


def _placed(records: Sequence[Record]) -> Found | None:
    found = _case(records, "train", system="cached")
    if not found or "speed" not in found[0]:
        return None
    one = found[0]
    return _of(one, one["speed"], f"{one['rows']:,} rows, hit rate {one['hit_rate']:.1%}", full=one["rows"] >= PLACED)


def _served(field: str, scale: float) -> Callable[[Sequence[Record]], Found | None]:
    """A figure of the net from codes; what raw columns take is said beside."""

    def find(records: Sequence[Record]) -> Found | None:
        found = {r["system"]: r for r in _case(records, "serving")}
        if "net, codes" not in found:
            return None
        one, raw = found["net, codes"], found.get("graph, raw columns")
        beside = f"raw columns {raw['rows_per_s']:,} rows/s, p99 {raw['p99_seconds'] * 1e3:.1f} ms" if raw else ""
        return _of(one, one[field] * scale, beside, full=one["batch"] >= SERVED)

    return find


def _dask(records: Sequence[Record]) -> Found | None:
    found = [r for r in _case(records, "features, dask") if r["system"] != "one frame"]
    each = ", ".join(f"{r['system']} {r['seconds']:.2f} s, {r['ratio']:.1f} × one frame's" for r in found)
    return Found(sum(not r["same"] for r in found), notes=each) if found else None


# End to end ----------------------------------------------------------------------------------------------------------


def _systems(records: Sequence[Record]) -> tuple[Record, list[Record]] | None:
    own = [r for r in _case(records, "end to end") if "stages" in r]
    stock = next((r for r in own if r["system"] == "stock"), None)
    others = [r for r in own if r["system"].startswith("+")]
    return None if stock is None or not others else (stock, others)


def _trained(records: Sequence[Record]) -> Found | None:
    own = [r for r in _case(records, "end to end") if "stages" in r and r["system"].startswith("+")]
    if not own:
        return None
    times = {r["system"]: sum(r["stages"][s] for s in BEFORE) for r in own}
    best = min(own, key=lambda r: times[r["system"]])
    return _of(best, times[best["system"]], f"{best['rows']:,} rows, {best['system']}", full=best["rows"] >= ROWS)


def _times_stock(records: Sequence[Record]) -> Found | None:
    both = _systems(records)
    best = max(both[1], key=lambda r: r["ratio"]) if both else None
    return (
        None
        if best is None
        else _of(best, best["ratio"], f"{best['rows']:,} rows, {best['system']}", full=best["rows"] >= ROWS)
    )


def _same_mrr(records: Sequence[Record]) -> Found | None:
    both = _systems(records)
    if not both:
        return None
    stock, best = both[0], max(both[1], key=lambda r: r["ratio"])
    shown = [f"{r['system']} {r['mrr_mean']:.4f} ± {r['mrr_sd']:.4f}" for r in (stock, best)]
    return Found(stock["mrr_mean"] - best["mrr_mean"], notes=", ".join(shown), full=best["rows"] >= ROWS)


def _stage(stage: str) -> Callable[[Sequence[Record]], Found | None]:
    """How many times as fast as stock a stage is, in the fastest system."""

    def find(records: Sequence[Record]) -> Found | None:
        both = _systems(records)
        if not both:
            return None
        best = min(both[1], key=lambda r: r["stages"][stage])
        seconds = best["stages"][stage]
        if not seconds:
            return None
        notes = f"{seconds:.2f} s, {best['system']}"
        return Found(both[0]["stages"][stage] / seconds, notes=notes, full=best["rows"] >= ROWS)

    return find


def _extreme(records: Sequence[Record]) -> Found | None:
    planted = [r for r in _case(records, "planted") if not r["case"].endswith("rate")]  # those chose the rates
    own = [r for r in planted if r.get("batch") == EXTREME]
    lost: dict[str, list[float]] = {}
    for r in own:
        lost.setdefault(r["system"], []).append(r["auc_lost"])
    if not lost:
        return None
    means = {rule: statistics.mean(values) for rule, values in lost.items()}
    best = min(means, key=means.__getitem__)
    sd = statistics.stdev(lost[best]) if len(lost[best]) > 1 else 0.0
    notes = f"{best}, ± {sd:.5f} over {len(lost[best])} seeds, {own[0]['train_rows']:,} rows to train on"
    return Found(means[best], notes=notes, full=own[0]["train_rows"] >= 0.8 * ROWS)  # some of them validate


GOALS = (
    Goal("smoke", "stages that fail, or differ from the CPU", 0, "at most", "{:.0f}", _smoke),
    Goal("suite", "tests that fail on the device", 0, "at most", "{:.0f}", _tests),
    Goal("copies", "copies to the host beyond what is allowed", 0, "at most", "{:.0f}", _copies),
    Goal("memory", "out of memory: what, how much and what to lower are named", 1, "at least", "{:.0f}", _named),
    Goal("loader", "loader, rows on the device", 300, "at least", "{:,.0f} M rows/s", _loader),
    Goal("embeddings", "embeddings' backward pass, of a step", 2.3, "at most", "{:.1f} %", _tables),
    Goal("placement", "speed with a twentieth of a table on the device", 0.8, "at least", "{:.2f}", _placed),
    Goal("steps", "16 bits over float32, by graphs, to batch 65,536", 1.5, "at least", "{:.2f}×", _faster("16 bits")),
    Goal("steps", "CUDA graphs over float32, every batch to 65,536", 1.5, "at least", "{:.2f}×", _faster("graph")),
    Goal("busy", "device busy while training", 85, "at least", "{:.0f} %", _busy),
    Goal("dask", "features of dask-cuDF that differ from cuDF's", 0, "at most", "{:.0f}", _dask),
    Goal("serving", "a net served, batches of 16,384", 1.5, "at least", "{:.2f} M rows/s", _served("rows_per_s", 1e-6)),
    Goal("serving", "the same, 99th percentile", 10, "at most", "{:.1f} ms", _served("p99_seconds", 1e3)),
    Goal("e2e", "40 M rows, from files to a trained net", 10, "at most", "{:.1f} s", _trained),
    Goal("e2e", "end to end over stock fastai", 15.6, "at least", "{:.1f}×", _times_stock),
    Goal("e2e", "the same, as the stretch", 30, "at least", "{:.1f}×", _times_stock),
    Goal("e2e", "MRR lost to stock fastai", 0.001, "at most", "{:.4f}", _same_mrr),
    Goal("e2e", "preprocessing over TabularPandas", 9.6, "at least", "{:.1f}×", _stage("preprocess")),
    Goal("e2e", "features over pandas", 9.7, "at least", "{:.1f}×", _stage("features")),
    Goal("extreme", "AUC lost at batch 204,800", 0.001, "at most", "{:.4f}", _extreme),
)
