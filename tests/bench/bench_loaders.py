"""Time fastrec's TabularFrame and loaders beside what one would use today: ``make bench-loaders``, or this file.

Cases:
  prepare   a raw pandas frame to ready tensors, beside fastai's TabularPandas (warm), of integers and of text.
  random    the same with the splits that fastai's RandomSplitter draws, a fifth of the rows for validation.
  wide      the same of tables of numbers alone: 93 counts of 62,000 rows, 369 numbers of 61,000.
  epoch     one shuffled epoch, beside fastai's loader, torch's DataLoader over a TensorDataset (no and two workers, on
            a quarter of the rows) and a bare loop of index_select over the same packed bytes.
  stream    shuffled epochs from Parquet files and from the packed cache, beside NVTabular's loader on the same files;
            the better of two epochs in a process of its own (needs the peer script and its environment).
  memory    how far a process grows: making a TabularFrame, over the packed bytes; streaming a file of ten times the
            buffer, beyond the buffer.
  converge  AUC of a net trained in memory and from a sorted file through a buffer of a tenth of it.

Systems are timed by turns in one run. The table goes to the screen and beside the JSON file, whose fields
``_timing.py`` explains; ``ratio`` is a system's seconds over fastrec's for the same rows.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import _stream
import _tabular
import torch
from _timing import ROOT, Record, Timing, child, command_line, cores, heading, race, record, show, use_threads, write
from fastai.data.transforms import RandomSplitter
from fastai.tabular.core import range_of
from rich.console import Console

Options = argparse.Namespace


def prepare(options: Options) -> Iterator[Record]:
    """Raw frame to ready tensors; ``words`` is text of several widths."""
    for keys in ("int", "str", "words"):
        df = _tabular.tabular(options.rows, keys)
        systems = {"fastrec": partial(_tabular.with_fastrec, df), "TabularPandas": partial(_tabular.with_fastai, df)}
        timings, made = race(systems, options.repeats)
        _tabular.check_equal(made["fastrec"], made["TabularPandas"])
        for system, timing in timings.items():
            yield record(f"prepare, {keys}", system, options.rows, timing, timings["fastrec"])


def random(options: Options) -> Iterator[Record]:
    """Rows split at random, as most people split them."""
    for keys in ("int", "str", "words"):
        yield from _split(f"random splits, {keys}", _tabular.tabular(options.rows, keys), options.repeats)


def wide(options: Options) -> Iterator[Record]:
    """Many columns of numbers, split at random."""
    for rows, count in ((62_000, 93), (61_000, 369)):
        yield from _split(f"wide, {count} numbers", _tabular.wide(rows, count), options.repeats)


def _split(case: str, df: Any, repeats: int) -> Iterator[Record]:
    splits = RandomSplitter(seed=0)(range_of(df))
    systems = {
        "fastrec": partial(_tabular.with_fastrec, df, splits),
        "TabularPandas": partial(_tabular.with_fastai, df, splits),
    }
    timings, made = race(systems, repeats)
    _tabular.check_equal(made["fastrec"], made["TabularPandas"], split=True)
    for system, timing in timings.items():
        yield record(case, system, len(df), timing, timings["fastrec"])


def epoch(options: Options) -> Iterator[Record]:
    """A shuffled epoch of batches."""
    df = _tabular.tabular(options.rows, "int")
    ours, theirs = _tabular.with_fastrec(df), _tabular.with_fastai(df)
    _tabular.check_equal(ours, theirs)
    few = options.rows // 4
    data = torch.utils.data.TensorDataset(*(view[:few].clone() for view in ours.packed.views))
    for bs in (4_096, 65_536):
        case = f"epoch, batch {bs:,}"
        systems: dict[str, Callable[[], Any]] = {
            "fastrec": partial(_count, ours.dataloaders(bs=bs).train),
            "bare index_select": partial(_count, _Bare(ours.packed, bs)),
            "fastai": partial(_count, theirs.dataloaders(bs=bs).train),
        }
        timings, rows = race(systems, options.repeats)
        if len(set(rows.values())) > 1:
            raise SystemExit(f"{case}: not as many rows from each: {rows}")
        for system, timing in timings.items():
            yield record(case, system, options.rows, timing, timings["fastrec"])
        slow = {
            f"torch DataLoader, {workers} workers": partial(
                _count,
                torch.utils.data.DataLoader(data, batch_size=bs, shuffle=True, drop_last=True, num_workers=workers),
            )
            for workers in (0, 2)
        }
        timings_of_few, _ = race(slow, max(1, options.repeats // 2))
        own = Timing(timings["fastrec"].seconds * few / options.rows)
        for system, timing in timings_of_few.items():
            yield record(case, system, few, Timing(timing.seconds), own)


class _Bare:
    """The ten lines that anyone might write."""

    def __init__(self, packed: Any, bs: int) -> None:
        self.packed, self.bs = packed, bs

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(len(self.packed))
        for start in range(0, len(order) // self.bs * self.bs, self.bs):
            yield self.packed.layout.views(self.packed.buffer.index_select(0, order[start : start + self.bs]))


def _count(loader: Any) -> int:
    return sum(len(batch[0]) for batch in loader)


def stream(options: Options) -> Iterator[Record]:
    """Shuffled epochs from files."""
    script = Path(os.environ.get("FASTREC_PEERS", ROOT.parent / "shared" / "peers")) / "nvtabular" / "run.py"
    python = Path(options.peer_python).absolute()
    absent = next((path for path in (script, python) if not path.exists()), None)
    if absent is not None:
        print(f"stream: left out, there is no {absent} (FASTREC_PEERS, --peer-python or NVTABULAR_PYTHON name others)")
        return
    peer = [str(python), str(script.absolute())]
    found = list(
        _stream.compare(options.rows, options.repeats, options.threads, peer, batch=65_536, buffer=options.rows // 4)
    )
    own = {case: timing for case, system, timing in found if system != "NVTabular"}
    for case, system, timing in found:
        yield record(case, system, options.rows, timing, own[case])


def memory(options: Options) -> Iterator[Record]:
    """Peaks, in processes of their own (Linux only)."""
    if not Path("/proc/self/clear_refs").exists():
        print("memory: left out, this system does not tell what a process has held")
        return
    with tempfile.TemporaryDirectory() as folder:
        for keys in ("int", "str"):
            command = [sys.executable, _tabular.__file__, "--keys", keys, "--rows", str(options.rows)]
            seen = child(command, folder, options.threads)
            share = seen["grown"] / seen["packed"]
            notes = f"peak {share:.2f}× of {seen['packed'] / 2**20:,.0f} MiB packed"
            yield _peak(f"memory, TabularFrame, {keys}", options.rows, seen, memory_ratio=round(share, 2), notes=notes)
        (Path(folder) / "pq").mkdir()
        _stream.write_wide(Path(folder) / "pq", options.rows, max(options.rows // 100, 1))
        for more in ([], ["--cache", f"{folder}/cache"]):
            command = [sys.executable, _stream.__file__, "memory", "--files", f"{folder}/pq", *more]
            seen = child([*command, "--buffer", str(options.rows // 10)], folder, options.threads)
            beyond = (seen["grown"] - seen["buffer"]) / 2**20
            notes = f"{beyond:,.0f} MiB beyond a buffer of {seen['buffer'] / 2**20:,.0f} MiB"
            case = f"memory, stream from {'the packed cache' if more else 'Parquet'}"
            yield _peak(case, options.rows, seen, beyond_buffer_mib=round(beyond), notes=notes)


def _peak(case: str, rows: int, seen: dict[str, Any], **more: Any) -> Record:
    empty = {"seconds": None, "rows_per_s": None, "ratio": None, "cpu_seconds": None, "cpu_ratio": None}
    return {"case": case, "system": "fastrec", "rows": rows, **empty, "grown_bytes": seen["grown"], **more}


def converge(options: Options) -> Iterator[Record]:
    """What sorted files cost in AUC."""
    for order in ("time", "target"):
        command = [sys.executable, _stream.__file__, "converge", "--order", order, "--seeds", str(options.seeds)]
        with tempfile.TemporaryDirectory() as folder:
            seen = child(command, folder, options.threads)
        for system, name in (("memory", "TabularFrame"), ("stream", "ParquetFrame")):
            mean, sd = statistics.mean(seen[system]), statistics.stdev(seen[system])
            notes = f"AUC {mean:.4f} ± {sd:.4f} (sd of {options.seeds})"
            case = f"converge, sorted by {order}"
            more = {"auc_mean": round(mean, 5), "auc_sd": round(sd, 5), "notes": notes}
            yield {**_peak(case, 9_000, {"grown": None}, **more), "system": f"fastrec, {name}"}


CASES: dict[str, Callable[[Options], Iterator[Record]]] = {
    "prepare": prepare,
    "random": random,
    "wide": wide,
    "epoch": epoch,
    "stream": stream,
    "memory": memory,
    "converge": converge,
}


def parse() -> Options:
    """The command line."""
    peer = os.environ.get("NVTABULAR_PYTHON", str(ROOT / ".venv-nvt" / "bin" / "python"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of every case but wide and converge")
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {', '.join(CASES)}, with commas between")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of every system")
    parser.add_argument("--seeds", type=int, default=20, help="nets that converge trains of each kind")
    parser.add_argument("--threads", type=int, default=cores(), help="that every system may use (default: all cores)")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/loaders.json"), help="the file of results")
    parser.add_argument("--peer-python", default=peer, help="the Python that has NVTabular (or NVTABULAR_PYTHON)")
    options = parser.parse_args()
    options.cases = [c for c in options.cases.split(",") if c]
    unknown = set(options.cases) - set(CASES)
    if unknown:
        parser.error(f"there is no case {unknown.pop()!r}; there are {', '.join(CASES)}")
    return options


def main() -> None:
    """Run the cases, print the table, write the files."""
    options = parse()
    use_threads(options.threads)
    console = Console(record=True, width=180)
    console.print(heading(command_line()), highlight=False)
    console.print(f"frame    {_tabular.ABOUT}", highlight=False)
    records: list[Record] = []
    for name in options.cases:
        for one in CASES[name](options):
            records.append(one)
            shown = one.get("notes") or f"{one['seconds']:9.3f} s"
            print(f"  {one['case']:36s} {one['system']:28s} {shown}", flush=True)
    if not records:
        return
    show(console, records, title="fastrec's TabularFrame and loaders beside others")
    write(options.out, records, console.export_text())
    print(f"written: {options.out} and {options.out.with_suffix('.txt')}")


if __name__ == "__main__":
    main()
