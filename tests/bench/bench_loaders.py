"""Time fastrec's TabularFrame and loaders beside what one would use today: ``make bench-loaders``, or this file.

Cases:
  prepare  a raw pandas frame to ready tensors, beside fastai's TabularPandas (warm), of integers and of text.
  random   the same with the splits that fastai's RandomSplitter draws, a fifth of the rows for validation.
  wide     the same of tables of numbers alone: 93 counts of 62,000 rows, 369 numbers of 61,000.
  epoch    one shuffled epoch, beside fastai's loader, torch's DataLoader over a TensorDataset (no and two workers, on
           a quarter of the rows) and a bare loop of index_select over the same packed bytes.
  stream   shuffled epochs from Parquet files and from the packed cache, beside NVTabular's loader on the same files
           (needs the peer script and its environment).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import _frames
import torch
from _timing import NVTABULAR, Options, Record, Timing, race, record, run_cases
from fastai.data.transforms import RandomSplitter
from fastai.tabular.core import range_of


def made(options: Options, *, case: str) -> Iterator[Record]:
    if case == "wide":
        frames = ((f"wide, {n} numbers", _frames.wide(rows, n)) for rows, n in ((62_000, 93), (61_000, 369)))
    else:  # words: text of several widths
        frames = ((f"{case}, {keys}", _frames.tabular(options.rows, keys)) for keys in ("int", "str", "words"))
    for name, df in frames:
        splits = None if case == "prepare" else RandomSplitter(seed=0)(range_of(df))
        systems = {"fastrec": _frames.with_fastrec, "TabularPandas": _frames.with_fastai}
        timings, found = race({s: partial(run, df, splits) for s, run in systems.items()}, options.repeats)
        _frames.check_equal(found["fastrec"], found["TabularPandas"], split=splits is not None)
        for system, timing in timings.items():
            yield record(name, system, len(df), timing, timings["fastrec"])


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
    import _nvtabular

    peer = _nvtabular.peer(options.peer_python)
    found = [] if peer is None else list(_nvtabular.compare_epochs(options, peer))
    own = {case: timing for case, system, timing in found if system != "NVTabular"}
    for case, system, timing in found:
        yield record(case, system, options.rows, timing, own[case])


if __name__ == "__main__":
    run_cases(
        __doc__,
        {
            "prepare": partial(made, case="prepare"),
            "random": partial(made, case="random splits"),
            "wide": partial(made, case="wide"),
            "epoch": epoch,
            "stream": stream,
        },
        "loaders",
        about=f"frame    {_frames.ABOUT}",
        rows=(2_000_000, "of every case but wide"),
        repeats=(5, "timed runs of every system"),
        peer_python=NVTABULAR,
    )
