"""The cost of features against the number of rows: on one machine in memory, and by two Dask workers.

    python tests/bench/bench_scale.py [--millions 1 2 4 8 16] [--out runs/bench/scale.json]

Every measurement is a process of its own, which reads candidates from Parquet files (500,000 rows each), makes the
features and adds their columns up. ``seconds`` is from the first file read to the sums; ``cpu_seconds`` are those of
all its processes; ``peak_mb`` is the most memory that the process held, with workers that of the client and of the
workers together, and ``worker_mb`` that of the larger worker; the sums of both must agree. ``exponent`` is the slope of
log seconds over log rows, ``cpu_exponent`` and ``memory_exponent`` are those of the others. The results, and a picture
beside them, are written after every size. Building the log, starting Python and the cluster are not counted.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SYSTEMS = ("one machine", "two workers")
PART = 500_000
FITTED = {  # what is drawn over rows: the name of its exponent, and of its axis
    "cpu_seconds": ("cpu_exponent", "CPU seconds, all processes"),
    "seconds": ("exponent", "seconds"),
    "peak_mb": ("memory_exponent", "peak memory, MB, all processes"),
}


def write_candidates(folder: Path, rows: int) -> None:
    """Lists of 25 candidates: who looks, at what, for how much, and what was clicked."""
    for i, start in enumerate(range(0, rows, PART)):
        rng, n = np.random.default_rng(i), min(PART, rows - start)
        lists = (np.arange(start, start + n)) // 25
        item = (rng.pareto(0.8, n) * 100).astype(np.int64) % 200_000
        columns = {
            "list_id": lists,
            "user": (lists * 7919) % max(rows // 200, 1),
            "item": item,
            "city": item % 997,
            "price": rng.gamma(2.0, 60.0, n).round(0),
            "clicked": (rng.random(n) < 0.04).astype(np.int8),
        }
        pq.write_table(pa.table(columns), folder / f"{i:05d}.parquet")


def features() -> Any:
    """Counts, target means, statistics and ranks within lists: what a recipe of candidates is made of."""
    from fastrec.features import CountEncode, Cross, FeatureSet, GroupRank, GroupStats, NUnique, TargetEncode

    return FeatureSet(
        [
            CountEncode(["item", "city", Cross("city", "item")]),
            TargetEncode(["item", "city"], "clicked"),
            GroupStats("price", by="item", stats=["mean", "std"]),
            NUnique("item", by="user"),
            GroupRank("price", by="list_id", normalise=True),
            GroupRank(TargetEncode("user", "clicked"), by="list_id"),
        ],
        key="list_id",
        keep="outputs",
    )


def peak_mb() -> float:
    """The most memory that this process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(system: str, folder: Path) -> dict[str, Any]:
    """One measurement, in this process."""
    fs = features()
    if system == "one machine":
        from fastrec.table import Table

        began, cpu = time.monotonic(), time.process_time()
        made = fs.fit_transform(Table.read(folder))
        sums = {n: float(made[n].number().nansum()) for n in fs.outputs}
        took = {"seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - cpu}
        return {**took, "peak_mb": peak_mb(), "sums": sums}
    import dask.dataframe as dd

    from fastrec.scale import dask_cluster

    with dask_cluster("local:2") as client:
        began, cpu = time.monotonic(), all_cpu(client)
        made = fs.fit_transform(dd.read_parquet(folder))
        sums = {n: float(v) for n, v in made[fs.outputs].astype("float64").sum().compute().items()}
        took = {"seconds": time.monotonic() - began, "cpu_seconds": all_cpu(client) - cpu}
        workers = client.run(peak_mb).values()
        return {**took, "peak_mb": peak_mb() + sum(workers), "worker_mb": max(workers), "sums": sums}


def all_cpu(client: Any) -> float:
    """Seconds that this process and the workers have computed."""
    return time.process_time() + sum(client.run(time.process_time).values())


def exponent(found: list[dict[str, Any]], field: str) -> float | None:
    """The slope of the logarithm of a field over that of the rows; None: of one size there is none."""
    if len(found) < 2:
        return None
    rows, values = ([float(r[n]) for r in found] for n in ("rows", field))
    return round(float(np.polyfit(np.log(rows), np.log(values), 1)[0]), 3)


def picture(records: list[dict[str, Any]], path: Path) -> None:
    """Seconds and memory over rows, both axes logarithmic."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for axis, (field, (fitted, label)) in zip(axes, FITTED.items(), strict=True):
        for system in SYSTEMS:
            own = [r for r in records if r["system"] == system]
            slope = own[0].get(fitted) if own else None
            name = system if slope is None else f"{system}, exponent {slope}"
            axis.loglog([r["rows"] for r in own], [r[field] for r in own], marker="o", label=name)
        axis.set_xlabel("candidate rows")
        axis.set_ylabel(label)
        axis.set_ylim(top=4 * max(r[field] for r in records))  # room for the legend
        axis.legend(frameon=False, loc="upper left")
    figure.savefig(path)
    plt.close(figure)


def write(records: list[dict[str, Any]], path: Path) -> None:
    """The results with their exponents, and a picture beside them."""
    for system in SYSTEMS:
        own = [r for r in records if r["system"] == system]
        slopes = {fitted: exponent(own, field) for field, (fitted, _) in FITTED.items()}
        for one in own:
            one.update(slopes)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    picture(records, path.with_suffix(".svg"))


def main() -> None:
    """All measurements, from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 2, 4, 8, 16], help="candidate rows")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/scale.json"), help="the file of results")
    parser.add_argument("--one", nargs=2, metavar=("SYSTEM", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one[0], Path(given.one[1]))))
        return
    records: list[dict[str, Any]] = []
    for millions in given.millions:
        rows = int(millions * 1e6)
        with tempfile.TemporaryDirectory() as folder:
            write_candidates(Path(folder), rows)
            done = {}
            for system in SYSTEMS:
                command = [sys.executable, __file__, "--one", system, folder]
                text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                done[system] = json.loads(text.splitlines()[-1])
        sums = [d.pop("sums") for d in done.values()]
        for name in sums[0]:
            np.testing.assert_allclose(sums[0][name], sums[1][name], rtol=1e-6, err_msg=name)
        for system, one in done.items():
            ratio = round(one["seconds"] / done["one machine"]["seconds"], 2)
            about = {"case": "features of candidates", "system": system, "rows": rows}
            numbers = {n: round(one[n], 2) for n in ("seconds", "cpu_seconds")}
            numbers |= {"rows_per_s": round(rows / one["seconds"]), "ratio": ratio}
            records.append({**about, **numbers, **{n: round(one[n]) for n in ("peak_mb", "worker_mb") if n in one}})
            print(records[-1], flush=True)
        write(records, given.out)


if __name__ == "__main__":
    main()
