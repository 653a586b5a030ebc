"""Features of logs larger than a cluster's memory: two workers of 2 GB each, one of them killed in the middle.

    python tests/bench/bench_cluster_memory.py FOLDER [--sessions 5300000] [--parts sample kill whole]

``FOLDER/data`` has simulated trivago logs, which are simulated where they are not there. The rows are the candidates of
all clicks of both logs (``--places 10``: the first ten of each list): a partition is 48 MB of a log's text, which a
worker reads, takes the clicks of and lays out. Six features are learned from all rows and made for them: the item's
count and mean price, the city's target mean, and the session's least price, the price's rank in its list and the item's
last one in the session, for which rows are shuffled by session. Each partition's columns go to a Parquet file on the
worker that made them; what comes back is how many rows it has and a digest of its values.

Parts:
  sample  the first partitions: the values on the cluster beside those of one table in this process
  kill    the same with one worker killed when half of the partitions have their first columns: the same digests
  whole   all partitions
  again   all partitions, one worker killed so, and the same digests: twice the time
  keys    a vocabulary of ten million texts, each twice in 20 M rows: ``Categorify`` learned by hash of the text;
          ``keys-tree``: by a tree of merges whose last one holds all

Digests are kept in ``FOLDER/digests.json``: a later call compares with those of an earlier one (take the file away
where the features have changed).

A worker's limit is Dask's: its nanny ends it when it holds more than .95 of it. ``worker_mb`` is the most that a worker
held resident, ``caller_mb`` this process, ``spilled_mb`` the most that lay in the workers' folders.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from _timing import ROOT, command_line, heading

from fastrec._core import limits

sys.path.insert(0, str(ROOT))

WAITING = {"target": 0.2, "spill": 0.3, "pause": 0.85}  # shares of a worker's memory: what waits in it, all of it
BLOCK = 48_000_000  # bytes of text in a partition
LOGS = ("train.csv", "test.csv")
READ = ["session_id", "step", "action_type", "reference", "city", "impressions", "prices"]
KINDS = {n: pa.int64() if n == "step" else pa.string() for n in READ}
Block = tuple[str, int, int]


def blocks_of(data: Path) -> list[Block]:
    """Stretches of the logs: file, first and last byte."""
    found = []
    for name in LOGS:
        size = (data / name).stat().st_size
        found += [(str(data / name), start, min(start + BLOCK, size)) for start in range(0, size, BLOCK)]
    return found


def candidates(block: Block, places: int) -> pd.DataFrame:
    """The items listed first at the clicks in the lines that begin in a stretch of a log."""
    clicks = _clicks(block)
    lists = (pc.split_pattern(clicks[n], "|").combine_chunks() for n in ("impressions", "prices"))
    items, prices = (pc.list_slice(found, 0, places) for found in lists)
    of = pc.list_parent_indices(items).to_numpy()
    item = items.flatten().cast(pa.int64()).to_numpy()
    text = {n: clicks[n].combine_chunks().dictionary_encode() for n in ("session_id", "city")}
    columns = {
        **{n: pd.Categorical.from_codes(t.indices.to_numpy()[of], t.dictionary.to_pandas()) for n, t in text.items()},
        "step": clicks["step"].to_numpy()[of],
        "item_id": item,
        "price": prices.flatten().cast(pa.float64()).to_numpy(),
        "clicked": (clicks["reference"].cast(pa.int64()).to_numpy()[of] == item).astype(np.float64),
    }
    return pd.DataFrame(columns)


def _clicks(block: Block) -> pa.Table:
    file, start, end = block
    with open(file, "rb") as lines:
        header = lines.readline().decode().strip().split(",")
        lines.seek(max(start - 1, 0))
        lines.readline()  # the header, or the rest of a line that began before
        text = lines.read(max(end - lines.tell(), 0)) + lines.readline()
    read = pa_csv.ReadOptions(column_names=header, use_threads=False)
    kept = pa_csv.ConvertOptions(include_columns=READ, column_types=KINDS)
    table = pa_csv.read_csv(io.BytesIO(text), read, convert_options=kept)
    clicked = pc.and_(pc.equal(table["action_type"], "clickout item"), pc.not_equal(table["reference"], ""))
    return table.filter(clicked)


def frame_of(blocks: Sequence[Block], places: int) -> dd.DataFrame:
    """The candidates as a Dask frame, a partition each."""
    kinds = {"step": "int64", "item_id": "int64", "price": "float64", "clicked": "float64"}
    text = {n: pd.Categorical([]) for n in ("session_id", "city")}
    meta = pd.DataFrame(text | {n: np.zeros(0, k) for n, k in kinds.items()})
    return dd.from_delayed([dask.delayed(candidates)(b, places) for b in blocks], meta=meta, verify_meta=False)


def features() -> Any:
    """What is learned of items, and what is seen within lists and sessions."""
    from fastrec.features import CountEncode, FeatureSet, GroupRank, GroupStats, Lag, TargetEncode

    return FeatureSet(
        [
            CountEncode("item_id"),
            TargetEncode("city", "clicked"),
            GroupStats("price", by="item_id", stats=["mean"]),
            GroupStats("price", by="session_id", stats=["min"], over="group"),
            GroupRank("price", by=["session_id", "step"]),
            Lag("price", by=["session_id", "item_id"], order="step"),
        ],
        key="session_id",
        keep="outputs",
    )


def write(part: pd.DataFrame, path: str) -> tuple[int, str]:
    """A partition's columns into a file: how many rows there are, and a digest of the values."""
    table = pa.Table.from_pandas(part, preserve_index=False)
    pq.write_table(table, path, compression="zstd")
    digest = hashlib.sha256()
    for name in table.column_names:
        column = table[name].combine_chunks()
        digest.update(column.is_valid().to_numpy(zero_copy_only=False).tobytes())
        digest.update(column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64).tobytes())
    return len(table), digest.hexdigest()


# The cluster ---------------------------------------------------------------------------------------------------------


class Watch(threading.Thread):
    """Looks at the workers' memory and files while they work, and kills one of them.

    Args:
        client: of the cluster.
        workers: the workers' folder.
        kill_at: a worker is killed when so many partitions have their first columns; None: none is.
    """

    def __init__(self, client: Any, workers: Path, kill_at: float | None) -> None:
        super().__init__(daemon=True)
        self.client, self.workers, self.kill_at = client, workers, kill_at
        self.over, self.most, self.spilled, self.killed = threading.Event(), 0, 0, 0
        self.first = set(pids(client))

    def run(self) -> None:
        """Until it is stopped."""
        while not self.over.wait(0.2):
            now = pids(self.client)
            self.most = max([self.most, *map(resident, now)])
            self.spilled = max(self.spilled, size_of(self.workers))
            made = self.client.cluster.scheduler.task_prefixes.get("made")
            if self.kill_at is not None and made is not None and made.states["memory"] >= self.kill_at and now:
                self.killed, self.kill_at = now[0], None
                os.kill(now[0], signal.SIGKILL)


def pids(client: Any) -> list[int]:
    """The workers' processes."""
    with_pid = client.cluster.workers.values()
    return [w.pid for w in with_pid if getattr(w, "pid", None)]


def resident(pid: int) -> int:
    """Bytes that a process holds; 0: it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def size_of(folder: Path) -> int:
    """Bytes of the files in a folder that may change meanwhile."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(Path(at) / name).st_size
            except OSError:
                continue
    return total


@contextmanager
def cluster(folder: Path, limit: str) -> Iterator[Any]:
    """Two workers of one thread and so much memory.

    Of a small worker's memory the libraries have a large share (.45 GB) and the work under way as much: what waits goes
    to the disk earlier than Dask's own settings say, which leave .4 of the memory for both.
    """
    import distributed

    dask.config.set({f"distributed.worker.memory.{n}": share for n, share in WAITING.items()})
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0", "memory_limit": limit}
    options |= {"local_directory": str(folder)}
    with distributed.LocalCluster(**options) as own, distributed.Client(own) as client:
        yield client


def on_cluster(
    blocks: Sequence[Block], places: int, folder: Path, limit: str, *, kill: bool
) -> tuple[dict[str, Any], list[list[Any]]]:
    """Learn and make the features, and write them: what it took, and each partition's rows and digest."""
    out, workers = folder / "made", folder / "workers"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    began, before = time.monotonic(), cpu_time()
    with cluster(workers, limit) as client:
        watch = Watch(client, workers, len(blocks) / 2 if kill else None)
        watch.start()
        made = features().fit_transform(frame_of(blocks, places))
        learned = time.monotonic() - began
        parts = made.to_delayed(optimize_graph=False)
        found = dask.compute(*[dask.delayed(write)(p, str(out / f"{i:05d}.parquet")) for i, p in enumerate(parts)])
        watch.over.set()
        watch.join()
        last = set(pids(client))
    rows = sum(n for n, _ in found)
    took = {"rows": rows, "partitions": len(blocks), "seconds": round(time.monotonic() - began)}
    took |= {"of_them_learning": round(learned), "cpu_seconds": round(cpu_time() - before)}
    took |= {"worker_mb": watch.most >> 20, "caller_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}
    took |= {"spilled_mb": watch.spilled >> 20, "written_mb": size_of(out) >> 20}
    took |= {"killed": bool(watch.killed), "workers_replaced": len(last - watch.first)}
    return took, [list(f) for f in found]


KEYS, KEY_PARTS = 10_000_000, 40


def texts(i: int) -> pd.DataFrame:
    """The ``i``-th part of ten million texts that come twice each, in an order that looks random."""
    n = 2 * KEYS // KEY_PARTS
    row = np.arange(i * n, (i + 1) * n, dtype=np.int64)
    number = row * 7_654_321 % KEYS  # no factor in common: each number once in the first ten million rows, once after
    digits = np.char.add("user-", number.astype("U8"))
    return pd.DataFrame({"user": pd.array(pa.array(digits).to_pandas(), dtype="str")})


def vocabulary(folder: Path, limit: str, *, by_hash: bool) -> dict[str, Any]:
    """Learn the texts' codes on the cluster.

    Raises:
        AssertionError: they are not the texts in order.
    """
    from fastrec.features import Categorify

    if not by_hash:
        limits.MANY_KEYS = 1 << 62
    began, before = time.monotonic(), cpu_time()
    with cluster(folder / "workers", limit) as client:
        watch = Watch(client, folder / "workers", None)
        watch.start()
        meta = pd.DataFrame({"user": pd.array([], dtype="str")})
        parts = [dask.delayed(texts)(i) for i in range(KEY_PARTS)]
        codes = Categorify("user").fit(dd.from_delayed(parts, meta=meta, verify_meta=False))
        watch.over.set()
        watch.join()
    few = texts(3).head(1000).sort_values("user")
    found = codes.transform(few)["code_user"].astype("int64").to_numpy()
    assert (np.diff(found) > 0).all()
    assert found.min() > 0
    assert len(codes.vocabs["user"]) == KEYS + 1  # one for missing
    took = {"rows": 2 * KEYS, "keys": KEYS, "partitions": KEY_PARTS, "seconds": round(time.monotonic() - began)}
    took |= {
        "cpu_seconds": round(cpu_time() - before),
        "worker_mb": watch.most >> 20,
        "spilled_mb": watch.spilled >> 20,
    }
    return took | {"caller_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}


def cpu_time() -> float:
    """Seconds of this process and of its children that have ended."""
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(r.ru_utime + r.ru_stime for r in both)


def compare(blocks: Sequence[Block], places: int, folder: Path) -> dict[str, float]:
    """The largest differences, as shares of the value, between the files and one table in memory.

    Raises:
        AssertionError: counts and ranks are not equal, or others not within rounding.
    """
    rows = pd.concat(
        [candidates(b, places).astype({"session_id": str, "city": str}) for b in blocks], ignore_index=True
    )
    here = features().fit_transform(rows)
    there = pd.concat([pd.read_parquet(f) for f in sorted((folder / "made").glob("*.parquet"))], ignore_index=True)
    found = {}
    for name in here.columns:
        a, b = (f[name].astype("float64").to_numpy() for f in (here, there))
        exact = name.startswith(("count", "rank", "lag", "min"))
        np.testing.assert_allclose(b, a, rtol=0 if exact else 1e-9, atol=0 if exact else 1e-9, err_msg=name)
        found[name] = float(np.nanmax(np.abs(b - a) / np.maximum(np.abs(a), 1), initial=0))
    return found


def main() -> None:
    """The parts, from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sessions", type=int, default=5_300_000, help="to simulate")
    parser.add_argument("--limit", default="2GB", help="memory of each of the two workers")
    parser.add_argument("--places", type=int, default=25, help="of a list that are candidates; 25 are all")
    parser.add_argument("--sample", type=int, default=8, help="partitions of the sample")
    parser.add_argument("--parts", nargs="+", default=["sample", "kill", "whole"])
    parser.add_argument("--json", type=Path, default=ROOT / "runs" / "bench" / "cluster_memory.json")
    options = parser.parse_args()
    folder, data = options.folder.resolve(), options.folder.resolve() / "data"
    print(heading(command_line()))
    if not (data / LOGS[0]).is_file():
        from competitions.trivago2019.simulate import simulate

        simulate(options.sessions, data)
    blocks = blocks_of(data)
    few = blocks[: options.sample]
    raw = sum((data / n).stat().st_size for n in LOGS)
    limit = dask.utils.parse_bytes(options.limit)
    print(f"logs of {raw:,} bytes of CSV, {raw / 2 / limit:.2f} times the workers' {2 * limit:,} bytes", flush=True)
    records, known = [], folder / "digests.json"
    digests = json.loads(known.read_text()) if known.is_file() else {}
    for part in options.parts:
        if part.startswith("keys"):
            records.append({"case": part, **vocabulary(folder, options.limit, by_hash=part == "keys")})
            print(json.dumps(records[-1]), flush=True)
            continue
        whole = part in ("whole", "again")
        used, killing = blocks if whole else few, part in ("kill", "again")
        took, found = on_cluster(used, options.places, folder, options.limit, kill=killing)
        name = f"{len(used)} partitions of {options.places} places"
        same = digests.setdefault(name, found) == found
        known.write_text(json.dumps(digests))
        record = {
            "case": part,
            "places": options.places,
            "raw_bytes": raw if whole else sum(e - s for _, s, e in few),
            **took,
            "same": same,
        }
        if part == "sample":
            record["differences"] = compare(few, options.places, folder)
        records.append(record)
        print(json.dumps(record), flush=True)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(records, indent=1) + "\n")
        if not same:
            raise SystemExit(f"{part}: other values than before")
    shutil.rmtree(folder / "made")


if __name__ == "__main__":
    main()
