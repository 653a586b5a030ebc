"""AUC by batch size, up to a few dozen steps an epoch: ``make bench-extreme``, or this file.

Cases:
  planted    one epoch of 40 M rows of ``fastrec.datasets.planted_ctr`` (``--rows``: 42 M, of which 2 M are scored): ids
             by a power law, one column of a million of them, and a click probability that is known, so that the best
             possible AUC is too.
  movielens  MovieLens-1M as clicks (rating ≥ 4), fold 4 held out, at smaller batches (``--data`` names its folder).

For each case, batch size and rule (``--rules``; ``_extreme.py`` says what they are) nets are trained and scored. A
rule's learning rates are those of its grid with the best AUC at the smallest batch, on ``--tune-rows`` rows
(MovieLens: folds 0 to 2, scored on 3); it then follows the rule.

Every net is written to the JSON file as soon as it is trained; ``--resume`` goes on where a run was stopped. Fields:
``rows`` trained on, ``seconds`` of training, ``ratio``: seconds of the same rule at the smallest batch over these,
``auc``, ``auc_lost``: the AUC at the smallest batch (same rule and seed) less this one, ``lr`` (of embeddings and of
all else), ``batch``, ``steps``, ``seed``. Records of cases that end in "rate" are of the grid.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _extreme
from _timing import ROOT, Record, bare, command_line, cores, heading, use_threads, write
from rich.console import Console
from rich.table import Table as Grid

Options = argparse.Namespace
PLANTED = [4_096, 16_384, 65_536, 204_800, 819_200]
MOVIELENS = [1_024, 2_048, 4_096, 8_192, 16_384]


class Results:
    """Records, on disk after every one.

    Args:
        path: the file of results.
        head: what stands above the table in the text beside it.
        resume: take up what is there.
    """

    def __init__(self, path: Path, head: str, *, resume: bool) -> None:
        self.path, self.head = path, head
        self.records: list[Record] = json.loads(path.read_text()) if resume and path.exists() else []

    def find(self, **wanted: Any) -> Record | None:
        """The record with these fields, or None."""
        return next((r for r in self.records if all(r.get(k) == v for k, v in wanted.items())), None)

    def add(self, record: Record) -> None:
        """One more."""
        self.records.append(record)
        write(self.path, self.records, f"{self.head}\n")
        note = f"AUC {record['auc']:.5f}, loss {record['loss']:.5f}, {record['seconds']:8.1f} s"
        where = f"{record['case']:20s} {record['system']:8s} batch {record['batch']:>8,}"
        print(f"  {where} {record['steps']:>7,} steps, rates {record['lr']}: {note}", flush=True)


def chosen_rates(case: _extreme.Case, rule: str, results: Results, how: dict[str, Any]) -> list[float]:
    """The rates of the rule's grid, of embeddings and of all else, with the best AUC at the smallest batch.

    Args:
        case: the data.
        rule: its name.
        results: what is there is not trained again.
        how: ``warm_up``, ``grads`` and ``net`` of every net, see ``_extreme.train``.
    """
    base, aucs = case.batches[0], []
    for lrs in _extreme.GRIDS[rule]:
        key = {"case": f"{case.name}, rate", "system": rule, "batch": base, "seed": 0, "lr": lrs}
        key |= {"train_rows": case.sample.split, **how}
        if results.find(**key) is None:
            run = _extreme.train(case.sample, rule, lrs, bs=base, base=base, **how)
            results.add(_record(key, run))
        aucs.append(results.find(**key)["auc"])
    return _extreme.GRIDS[rule][aucs.index(max(aucs))]


def cells(case: _extreme.Case, rule: str, lrs: list[float], results: Results, how: dict[str, Any]) -> list[Record]:
    """Every batch size of one rule; those that ``results`` has are not trained again.

    Args:
        case: the data.
        rule: its name.
        lrs: the rates chosen at the smallest batch.
        results: where records go.
        how: ``epochs``, ``warm_up``, ``grads`` and ``net`` of every net, see ``_extreme.train``.
    """
    base, found = case.batches[0], []
    for bs in case.batches:
        if bs > case.frame.split:
            print(f"  {case.name}: no batch of {bs:,}, there are {case.frame.split:,} rows to train on")
            continue
        for seed in range(case.seeds):
            key = {"case": case.name, "system": rule, "batch": bs, "seed": seed, "base_lr": lrs}
            key |= {"train_rows": case.frame.split, **how}
            if results.find(**key) is None:
                run = _extreme.train(case.frame, rule, lrs, bs=bs, base=base, seed=seed, **how)
                first = results.find(**{**key, "batch": base}) or {"seconds": run.seconds, "auc": run.auc}
                shown = [float(f"{x:.4g}") for x in _extreme.rates_of(rule, lrs, bs, base)[0]]
                more = {"ratio": round(first["seconds"] / run.seconds, 2), "auc_lost": round(first["auc"] - run.auc, 6)}
                results.add(_record({**key, "lr": shown, "bayes_auc": case.bayes_auc}, run, **more))
            found.append(results.find(**key))
    return found


def _record(key: Record, run: _extreme.Run, *, ratio: float | None = None, auc_lost: float | None = None) -> Record:
    more = {"auc": round(run.auc, 6), "auc_lost": auc_lost, "steps": run.steps, "loss": round(run.loss, 6), **key}
    return bare(rows=run.steps * key["batch"], seconds=round(run.seconds, 3), **more) | {"ratio": ratio}


# The table -----------------------------------------------------------------------------------------------------------


def show(console: Console, case: str, records: list[Record]) -> None:
    """Print the cells of one case, means over seeds."""
    bayes = records[0].get("bayes_auc")
    title = f"{case}, {records[0]['train_rows']:,} training rows" + (
        "" if bayes is None else f", Bayes AUC {bayes:.5f}"
    )
    grid = Grid(title=title, title_justify="left")
    for name in ("rule", "batch", "steps", "lr", "AUC", "sd", "AUC lost", "seconds", "rows/s", "× as fast"):
        grid.add_column(name, justify="left" if name == "rule" else "right", no_wrap=True)
    for rule in dict.fromkeys(r["system"] for r in records):
        own = [r for r in records if r["system"] == rule]
        for bs in dict.fromkeys(r["batch"] for r in own):
            grid.add_row(*_cells([r for r in own if r["batch"] == bs]))
        grid.add_section()
    console.print(grid)
    for line in _best(records):
        console.print(line, highlight=False)


def _cells(runs: list[Record]) -> Iterator[str]:
    one = runs[0]
    aucs = [r["auc"] for r in runs]
    lost = [r["auc_lost"] for r in runs if r["auc_lost"] is not None]
    yield from (
        one["system"],
        f"{one['batch']:,}",
        f"{one['steps']:,}",
        "{} and {}".format(*one["lr"]),
        f"{statistics.mean(aucs):.5f}",
    )
    yield f"{statistics.stdev(aucs):.5f}" if len(aucs) > 1 else ""
    yield f"{statistics.mean(lost):+.5f}" if lost else ""
    seconds = statistics.median(r["seconds"] for r in runs)
    yield from (f"{seconds:.1f}", f"{one['rows'] / seconds:,.0f}", f"{statistics.median(r['ratio'] for r in runs):.1f}")


def _best(records: list[Record]) -> Iterator[str]:
    """Of each batch size, the rule with the best AUC, beside the best at the smallest batch and that rule's own."""
    batches = sorted({r["batch"] for r in records})
    means: dict[int, dict[str, float]] = {bs: {} for bs in batches}
    for bs in batches:
        for rule in dict.fromkeys(r["system"] for r in records if r["batch"] == bs):
            means[bs][rule] = statistics.mean(r["auc"] for r in records if (r["system"], r["batch"]) == (rule, bs))
    top = max(means[batches[0]], key=means[batches[0]].get)
    for bs in batches[1:]:
        best = max(means[bs], key=means[bs].get)
        auc, first = means[bs][best], means[batches[0]]
        yield (
            f"best at batch {bs:,}: {best}, AUC {auc:.5f}; lost from the best at {batches[0]:,} "
            f"({top}, {first[top]:.5f}): {first[top] - auc:+.5f}, from its own: {first[best] - auc:+.5f}"
        )


# The command ---------------------------------------------------------------------------------------------------------


def parse() -> Options:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = {"type": _numbers, "help": "batch sizes with commas between, the smallest first"}
    parser.add_argument("--cases", default="planted,movielens", help="with commas between")
    parser.add_argument("--rows", type=int, default=42_000_000, help="planted clicks; 2 M of them are scored")
    parser.add_argument("--tune-rows", type=int, default=4_000_000, help="of planted clicks, to choose rates on")
    parser.add_argument("--rules", default=",".join(_extreme.GRIDS), help="with commas between")
    parser.add_argument("--batches", default=PLANTED, **numbers)
    parser.add_argument("--ml-batches", default=MOVIELENS, **numbers)
    parser.add_argument("--seeds", type=int, default=1, help="nets in each cell of planted clicks")
    parser.add_argument("--ml-seeds", type=int, default=3, help="nets in each cell of MovieLens")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--warm-up", type=float, default=0.25, help="share of the steps in which the rate rises")
    parser.add_argument("--grads", choices=("rows", "dense"), default="rows", help="of large embedding tables")
    parser.add_argument("--net", choices=list(_extreme.NETS), default="dcn", help="what is trained")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "movielens-1m")
    parser.add_argument("--threads", type=int, default=cores(), help="default: all cores")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/extreme.json"), help="the file of results")
    parser.add_argument("--resume", action="store_true", help="leave out what the file of results has")
    options = parser.parse_args()
    options.cases, options.rules = options.cases.split(","), options.rules.split(",")
    if unknown := [c for c in options.cases if c not in ("planted", "movielens")]:
        parser.error(f"there is no case {unknown[0]!r}; there are planted and movielens")
    if unknown := [r for r in options.rules if r not in _extreme.GRIDS]:
        parser.error(f"there is no rule {unknown[0]!r}; there are {', '.join(_extreme.GRIDS)}")
    return options


def _numbers(text: str) -> list[int]:
    return sorted(int(word.replace("_", "")) for word in text.split(","))


def make(name: str, options: Options) -> _extreme.Case | None:
    """The data of a case; None where it is not there."""
    if name == "planted":
        return _extreme.planted(options.rows, options.tune_rows, options.batches, options.seeds)
    if not (options.data / "ratings.parquet").exists():
        print(f"MovieLens-1M: left out, there is no {options.data.name}/ratings.parquet (--data names its folder)")
        return None
    return _extreme.movielens(options.data, options.ml_batches, options.ml_seeds)


def main() -> None:
    """Run the cases, print the tables, write the files."""
    options = parse()
    use_threads(options.threads)
    console = Console(record=True, width=160)
    head = heading(command_line())
    console.print(head, highlight=False)
    results = Results(options.out, head, resume=options.resume)
    for name in options.cases:
        case = make(name, options)
        if case is None:
            continue
        found: list[Record] = []
        for rule in options.rules:
            how = {"warm_up": options.warm_up, "grads": options.grads, "net": options.net}
            lrs = chosen_rates(case, rule, results, how)
            found += cells(case, rule, lrs, results, {"epochs": options.epochs, **how})
        show(console, case.name, found)
        write(options.out, results.records, console.export_text(clear=False))
        del case  # gigabytes
    print(f"written: {options.out} and {options.out.with_suffix('.txt')}")


if __name__ == "__main__":
    main()
