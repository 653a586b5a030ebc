"""AUC by batch size, up to a few dozen steps an epoch: ``make bench-extreme``, or this file.

One epoch of 40 M rows of ``fastrec.datasets.planted_ctr`` (``--rows``: 42 M, of which 2 M are scored): ids by a power
law, one column of a million of them, and a click probability that is known, so that the best possible AUC is too. Nets
of each batch size and rule (``--rules``; ``_extreme.py`` says what they are) are trained and scored. A rule's learning
rates are those of its grid with the best AUC at the smallest batch, on ``--tune-rows`` rows; it then follows the rule.

Every net is written to the JSON file as soon as it is trained; ``--resume`` goes on where a run was stopped. Fields:
``rows`` trained on, ``seconds`` of training, ``ratio``: seconds of the same rule at the smallest batch over these,
``auc``, ``auc_lost``: the AUC at the smallest batch (same rule and seed) less this one, ``lr`` (of embeddings and of
all else), ``batch``, ``steps``, ``seed``. Records of cases that end in "rate" are of the grid.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _extreme
from _timing import Options, Record, arguments, bare, cores, heading, read, table, use_threads, write

from fastrec.datasets import planted_ctr
from fastrec.tabular import TabularFrame

CASE = "planted CTR"


class Results:
    """Records, on disk after every one: those at ``path`` are taken up with ``resume``."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self.records: list[Record] = read(path) if resume else []

    def find(self, key: Record) -> Record | None:
        return next((r for r in self.records if all(r.get(k) == v for k, v in key.items())), None)

    def add(self, key: Record, run: Record, **more: Any) -> None:
        one = bare(rows=run["steps"] * key["batch"], **{**key, "auc_lost": None, **run, **more})
        self.records.append(one)
        write(self.path, self.records)
        note = f"AUC {one['auc']:.5f}, loss {one['loss']:.5f}, {one['seconds']:8.1f} s"
        where = f"{one['case']:20s} {one['system']:8s} batch {one['batch']:>8,}"
        print(f"  {where} {one['steps']:>7,} steps, rates {one['lr']}: {note}", flush=True)


def chosen_rates(sample: TabularFrame, rule: str, results: Results, options: Options) -> list[float]:
    """Return the rates of the rule's grid, of embeddings and of all else, with the best AUC at the smallest batch."""
    base, aucs = options.batches[0], []
    for lrs in _extreme.GRIDS[rule]:
        key = {"case": f"{CASE}, rate", "system": rule, "batch": base, "seed": 0, "lr": lrs}
        key |= {"train_rows": sample.split, "net": options.net}
        if results.find(key) is None:
            results.add(key, _extreme.train(sample, rule, lrs, bs=base, base=base, net=options.net))
        aucs.append(results.find(key)["auc"])
    return _extreme.GRIDS[rule][aucs.index(max(aucs))]


def trained(frame: TabularFrame, rule: str, lrs: list[float], results: Results, options: Options) -> Iterator[Record]:
    """Yield the records of every batch size of one rule; ``lrs`` are those at the smallest."""
    base, bayes = options.batches[0], frame.bayes_auc
    for bs in options.batches:
        if bs > frame.split:
            print(f"  no batch of {bs:,}, there are {frame.split:,} rows to train on")
            continue
        for seed in range(options.seeds):
            key = {"case": CASE, "system": rule, "batch": bs, "seed": seed, "base_lr": lrs}
            key |= {"train_rows": frame.split, "net": options.net}
            if results.find(key) is None:
                run = _extreme.train(frame, rule, lrs, bs=bs, base=base, seed=seed, net=options.net)
                first = results.find({**key, "batch": base}) or run
                shown = [float(f"{x:.4g}") for x in _extreme.rates_of(rule, lrs, bs, base)[0]]
                more = {"ratio": round(first["seconds"] / run["seconds"], 2)}
                more["auc_lost"] = round(first["auc"] - run["auc"], 6)
                results.add({**key, "lr": shown, "bayes_auc": bayes}, run, **more)
            yield results.find(key)


def lines(records: list[Record]) -> Iterator[list[str]]:
    """Yield the table's lines, means over seeds."""
    for rule, bs in dict.fromkeys((r["system"], r["batch"]) for r in records):
        runs = [r for r in records if (r["system"], r["batch"]) == (rule, bs)]
        aucs, lost = ([r[n] for r in runs] for n in ("auc", "auc_lost"))
        seconds, ratio = (statistics.median(r[n] for r in runs) for n in ("seconds", "ratio"))
        yield [
            rule,
            f"{bs:,}",
            f"{runs[0]['steps']:,}",
            "{} and {}".format(*runs[0]["lr"]),
            f"{statistics.mean(aucs):.5f}",
            f"{statistics.stdev(aucs):.5f}" if len(aucs) > 1 else "",
            f"{statistics.mean(lost):+.5f}",
            f"{seconds:.1f}",
            f"{runs[0]['rows'] / seconds:,.0f}",
            f"{ratio:.1f}",
        ]


def numbers(text: str) -> list[int]:
    return sorted(int(word.replace("_", "")) for word in text.split(","))


def main() -> None:
    sizes = {"type": numbers, "help": "batch sizes with commas between, the smallest first"}
    options = arguments(
        __doc__,
        rows=(42_000_000, "planted clicks; 2 M of them are scored"),
        tune_rows=(4_000_000, "of planted clicks, to choose rates on"),
        rules=(tuple(_extreme.GRIDS), "optimizers and what changes with the batch"),
        batches={"default": [4_096, 16_384, 65_536, 204_800, 819_200], **sizes},
        seeds=(1, "nets in each cell"),
        net={"choices": list(_extreme.NETS), "default": "dcn", "help": "what is trained"},
        threads=(cores(), "default: all cores"),
        out=(Path("runs/bench/extreme.json"), "the file of results"),
        resume=(False, "leave out what the file of results has"),
    )
    use_threads(options.threads)
    frame = planted_ctr(options.rows, valid=min(options.rows // 10, 2_000_000))
    rows = min(options.tune_rows, frame.split * 4 // 5)
    beyond = min(rows // 4, 1_000_000)  # the first rows of the same table, scored on those right after them
    sample = planted_ctr(rows + beyond, valid=beyond)
    results, found = Results(options.out, resume=options.resume), []
    for rule in options.rules:
        found += trained(frame, rule, chosen_rates(sample, rule, results, options), results, options)
    head = ("rule", "batch", "steps", "lr", "AUC", "sd", "AUC lost", "seconds", "rows/s", "× as fast")
    title = f"{CASE}, {frame.split:,} training rows, Bayes AUC {frame.bayes_auc:.5f}"
    write(options.out, results.records, f"{heading()}\n{title}\n{table(head, lines(found))}")


if __name__ == "__main__":
    main()
