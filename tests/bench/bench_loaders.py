"""Time fastrec's TabularFrame and loaders beside what one would use today: ``make bench-loaders``, or this file.

Cases:
  prepare   a raw pandas frame to ready tensors, beside fastai's TabularPandas (warm), of integers and of text.
  random    the same with the splits that fastai's RandomSplitter draws, a fifth of the rows for validation.
  wide      the same of tables of numbers alone: 93 counts of 62,000 rows, 369 numbers of 61,000.
  epoch     one shuffled epoch, beside fastai's loader, torch's DataLoader over a TensorDataset (no and two workers, on
            a quarter of the rows) and a bare loop of index_select over the same packed bytes.
  stream    shuffled epochs from Parquet files and from the packed cache, beside NVTabular's loader on the same files;
            the better of two epochs in a process of its own (needs the peer script and its environment).
  memory    how far a process grows: making a TabularFrame, over the packed bytes; streaming, beyond the buffer.
  converge  AUC of a net trained in memory and from a sorted file through a buffer of a tenth of it.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import _frames
import _stream
import torch
from _timing import NVTABULAR, Options, Record, Timing, bare, child, nvtabular, race, record, run_cases
from fastai.data.transforms import RandomSplitter
from fastai.tabular.core import range_of

KEYS = ("int", "str", "words")  # words: text of several widths


def prepare(options: Options) -> Iterator[Record]:
    for keys in KEYS:
        yield from _beside(f"prepare, {keys}", _frames.tabular(options.rows, keys), options.repeats, split=False)


def random(options: Options) -> Iterator[Record]:
    for keys in KEYS:
        yield from _beside(f"random splits, {keys}", _frames.tabular(options.rows, keys), options.repeats)


def wide(options: Options) -> Iterator[Record]:
    for rows, count in ((62_000, 93), (61_000, 369)):
        yield from _beside(f"wide, {count} numbers", _frames.wide(rows, count), options.repeats)


def _beside(case: str, df: Any, repeats: int, *, split: bool = True) -> Iterator[Record]:
    splits = RandomSplitter(seed=0)(range_of(df)) if split else None
    systems = {"fastrec": _frames.with_fastrec, "TabularPandas": _frames.with_fastai}
    timings, made = race({name: partial(run, df, splits) for name, run in systems.items()}, repeats)
    _frames.check_equal(made["fastrec"], made["TabularPandas"], split=split)
    for system, timing in timings.items():
        yield record(case, system, len(df), timing, timings["fastrec"])


def epoch(options: Options) -> Iterator[Record]:
    df = _frames.tabular(options.rows, "int")
    ours, theirs = _frames.with_fastrec(df), _frames.with_fastai(df)
    _frames.check_equal(ours, theirs)
    few = options.rows // 4
    data = torch.utils.data.TensorDataset(*(view[:few].clone() for view in ours.packed.views))

    def bare_loop(bs: int) -> int:
        order = torch.randperm(len(ours.packed))
        places = (order[start : start + bs] for start in range(0, len(order) // bs * bs, bs))
        return count(ours.packed.layout.views(ours.packed.buffer.index_select(0, own)) for own in places)

    def count(batches: Any) -> int:
        return sum(len(batch[0]) for batch in batches)

    for bs in (4_096, 65_536):
        case, how = f"epoch, batch {bs:,}", {"batch_size": bs, "shuffle": True, "drop_last": True}
        systems = {
            "fastrec": partial(count, ours.dataloaders(bs=bs).train),
            "bare index_select": partial(bare_loop, bs),
            "fastai": partial(count, theirs.dataloaders(bs=bs).train),
        }
        timings, rows = race(systems, options.repeats)
        if len(set(rows.values())) > 1:
            raise SystemExit(f"{case}: not as many rows from each: {rows}")
        for system, timing in timings.items():
            yield record(case, system, options.rows, timing, timings["fastrec"])
        slow = {
            f"torch DataLoader, {n} workers": partial(count, torch.utils.data.DataLoader(data, num_workers=n, **how))
            for n in (0, 2)
        }
        own = Timing(timings["fastrec"].seconds * few / options.rows)
        for system, timing in race(slow, max(1, options.repeats // 2))[0].items():
            yield record(case, system, few, Timing(timing.seconds), own)


def stream(options: Options) -> Iterator[Record]:
    peer = nvtabular(options.peer_python)
    if peer is None:
        return
    sizes = {"batch": 65_536, "buffer": options.rows // 4}
    found = list(_stream.compare(options.rows, options.repeats, options.threads, peer, **sizes))
    own = {case: timing for case, system, timing in found if system != "NVTabular"}
    for case, system, timing in found:
        yield record(case, system, options.rows, timing, own[case])


def memory(options: Options) -> Iterator[Record]:
    if not Path("/proc/self/clear_refs").exists():
        print("memory: left out, this system does not tell what a process has held")
        return
    with tempfile.TemporaryDirectory() as folder:
        for keys in ("int", "str"):
            command = [sys.executable, _frames.__file__, "--keys", keys, "--rows", str(options.rows)]
            seen = child(command, folder, options.threads)
            share = seen["grown"] / seen["packed"]
            more = {"grown_bytes": seen["grown"], "memory_ratio": round(share, 2)}
            more["notes"] = f"peak {share:.2f}× of {seen['packed'] / 2**20:,.0f} MiB packed"
            yield bare(f"memory, TabularFrame, {keys}", "fastrec", options.rows, **more)
        (Path(folder) / "pq").mkdir()
        _stream.write_wide(Path(folder) / "pq", options.rows, max(options.rows // 100, 1))
        for name, cache in (("Parquet", []), ("the packed cache", ["--cache", f"{folder}/cache"])):
            command = [sys.executable, _stream.__file__, "memory", "--files", f"{folder}/pq", *cache]
            seen = child([*command, "--buffer", str(options.rows // 10)], folder, options.threads)
            beyond = (seen["grown"] - seen["buffer"]) / 2**20
            notes = f"{beyond:,.0f} MiB beyond a buffer of {seen['buffer'] / 2**20:,.0f} MiB"
            more = {"grown_bytes": seen["grown"], "beyond_buffer_mib": round(beyond), "notes": notes}
            yield bare(f"memory, stream from {name}", "fastrec", options.rows, **more)


def converge(options: Options) -> Iterator[Record]:
    for order in ("time", "target"):
        command = [sys.executable, _stream.__file__, "converge", "--order", order, "--seeds", str(options.seeds)]
        with tempfile.TemporaryDirectory() as folder:
            seen = child(command, folder, options.threads)
        for system, name in (("memory", "TabularFrame"), ("stream", "ParquetFrame")):
            mean, sd = statistics.mean(seen[system]), statistics.stdev(seen[system])
            more = {"auc_mean": round(mean, 5), "auc_sd": round(sd, 5)}
            more["notes"] = f"AUC {mean:.4f} ± {sd:.4f} (sd of {options.seeds})"
            yield bare(f"converge, sorted by {order}", f"fastrec, {name}", 9_000, **more)


if __name__ == "__main__":
    run_cases(
        __doc__,
        {c.__name__: c for c in (prepare, random, wide, epoch, stream, memory, converge)},
        "loaders",
        title="fastrec's TabularFrame and loaders beside others",
        about=f"frame    {_frames.ABOUT}",
        rows=(2_000_000, "of every case but wide and converge"),
        repeats=(5, "timed runs of every system"),
        seeds=(20, "nets that converge trains of each kind"),
        peer_python=NVTABULAR,
    )
