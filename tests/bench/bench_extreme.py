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

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _extreme
from _timing import ROOT, Options, Record, arguments, bare, cores, read, screen, table, use_threads, write


class Results:
    """Records, on disk after every one: those at ``path`` are taken up with ``resume``."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self.records: list[Record] = read(path) if resume else []

    def find(self, key: Record) -> Record | None:
        return next((r for r in self.records if all(r.get(k) == v for k, v in key.items())), None)

    def add(self, key: Record, run: _extreme.Run, **more: Any) -> None:
        more = {"auc": round(run.auc, 6), "auc_lost": None, "steps": run.steps, "loss": round(run.loss, 6)} | more
        one = bare(rows=run.steps * key["batch"], seconds=round(run.seconds, 3), **{**key, **more})
        self.records.append(one)
        write(self.path, self.records)
        note = f"AUC {one['auc']:.5f}, loss {one['loss']:.5f}, {one['seconds']:8.1f} s"
        where = f"{one['case']:20s} {one['system']:8s} batch {one['batch']:>8,}"
        print(f"  {where} {one['steps']:>7,} steps, rates {one['lr']}: {note}", flush=True)


def chosen_rates(case: _extreme.Case, rule: str, results: Results, how: dict[str, Any]) -> list[float]:
    """The rates of the rule's grid, of embeddings and of all else, with the best AUC at the smallest batch.

    What is in ``results`` is not trained again; ``how`` has ``warm_up``, ``grads`` and ``net``, see ``_extreme.train``.
    """
    base, aucs = case.batches[0], []
    for lrs in _extreme.GRIDS[rule]:
        key = {"case": f"{case.name}, rate", "system": rule, "batch": base, "seed": 0, "lr": lrs}
        key |= {"train_rows": case.sample.split, **how}
        if results.find(key) is None:
            results.add(key, _extreme.train(case.sample, rule, lrs, bs=base, base=base, **how))
        aucs.append(results.find(key)["auc"])
    return _extreme.GRIDS[rule][aucs.index(max(aucs))]


def cells(case: _extreme.Case, rule: str, lrs: list[float], results: Results, how: dict[str, Any]) -> Iterator[Record]:
    """Every batch size of one rule, see ``chosen_rates``; ``how`` has ``epochs`` too."""
    base = case.batches[0]
    for bs in case.batches:
        if bs > case.frame.split:
            print(f"  {case.name}: no batch of {bs:,}, there are {case.frame.split:,} rows to train on")
            continue
        for seed in range(case.seeds):
            key = {"case": case.name, "system": rule, "batch": bs, "seed": seed, "base_lr": lrs}
            key |= {"train_rows": case.frame.split, **how}
            if results.find(key) is None:
                run = _extreme.train(case.frame, rule, lrs, bs=bs, base=base, seed=seed, **how)
                first = results.find({**key, "batch": base}) or {"seconds": run.seconds, "auc": run.auc}
                shown = [float(f"{x:.4g}") for x in _extreme.rates_of(rule, lrs, bs, base)[0]]
                more = {"ratio": round(first["seconds"] / run.seconds, 2), "auc_lost": round(first["auc"] - run.auc, 6)}
                results.add({**key, "lr": shown, "bayes_auc": case.bayes_auc}, run, **more)
            yield results.find(key)


def lines(records: list[Record]) -> Iterator[list[str] | None]:
    """Of the table, means over seeds: rule, batch, steps, lr, AUC, sd, AUC lost, seconds, rows/s, × as fast."""
    for rule in dict.fromkeys(r["system"] for r in records):
        for bs in dict.fromkeys(r["batch"] for r in records if r["system"] == rule):
            runs = [r for r in records if (r["system"], r["batch"]) == (rule, bs)]
            aucs, lost = ([r[n] for r in runs if r[n] is not None] for n in ("auc", "auc_lost"))
            seconds, ratio = (statistics.median(r[n] for r in runs) for n in ("seconds", "ratio"))
            yield [
                rule,
                f"{bs:,}",
                f"{runs[0]['steps']:,}",
                "{} and {}".format(*runs[0]["lr"]),
                f"{statistics.mean(aucs):.5f}",
                f"{statistics.stdev(aucs):.5f}" if len(aucs) > 1 else "",
                f"{statistics.mean(lost):+.5f}" if lost else "",
                f"{seconds:.1f}",
                f"{runs[0]['rows'] / seconds:,.0f}",
                f"{ratio:.1f}",
            ]
        yield None


def numbers(text: str) -> list[int]:
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
    sizes = {"type": numbers, "help": "batch sizes with commas between, the smallest first"}
    options = arguments(
        __doc__,
        cases=(("planted", "movielens"), "what is run"),
        rows=(42_000_000, "planted clicks; 2 M of them are scored"),
        tune_rows=(4_000_000, "of planted clicks, to choose rates on"),
        rules=(tuple(_extreme.GRIDS), "optimizers and what changes with the batch"),
        batches={"default": [4_096, 16_384, 65_536, 204_800, 819_200], **sizes},
        ml_batches={"default": [1_024, 2_048, 4_096, 8_192, 16_384], **sizes},
        seeds=(1, "nets in each cell of planted clicks"),
        ml_seeds=(3, "nets in each cell of MovieLens"),
        epochs=(1, "of every net"),
        warm_up=(0.25, "share of the steps in which the rate rises"),
        grads={"choices": ("rows", "dense"), "default": "rows", "help": "of large embedding tables"},
        net={"choices": list(_extreme.NETS), "default": "dcn", "help": "what is trained"},
        data=(ROOT.parent / "shared" / "data" / "movielens-1m", "folder of MovieLens-1M"),
        threads=(cores(), "default: all cores"),
        out=(Path("runs/bench/extreme.json"), "the file of results"),
        resume=(False, "leave out what the file of results has"),
    )
    use_threads(options.threads)
    console = screen(160)
    results = Results(options.out, resume=options.resume)
    how = {"warm_up": options.warm_up, "grads": options.grads, "net": options.net}
    head = ("rule", "batch", "steps", "lr", "AUC", "sd", "AUC lost", "seconds", "rows/s", "× as fast")
    for name in options.cases:
        case = make(name, options)
        if case is None:
            continue
        found: list[Record] = []
        for rule in options.rules:
            lrs = chosen_rates(case, rule, results, how)
            found += cells(case, rule, lrs, results, {"epochs": options.epochs, **how})
        bayes = "" if case.bayes_auc is None else f", Bayes AUC {case.bayes_auc:.5f}"
        title = f"{case.name}, {case.frame.split:,} training rows{bayes}"
        console.print(table(title, head, lines(found)))
        write(options.out, results.records, console.export_text(clear=False))
        del case  # gigabytes


if __name__ == "__main__":
    main()
