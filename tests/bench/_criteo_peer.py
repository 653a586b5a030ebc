"""NVTabular's preprocessing of click logs in Criteo's form, run in its own environment (it imports nothing of fastrec).

    PEER_PYTHON tests/bench/_criteo_peer.py --data DIR --work DIR [--threads 2] [--convert]

What its example for Criteo does: counts filled with 0, clipped at 0, log(1 + x); categories coded, those below 15 rows
together; written as Parquet. ``--convert``: the text becomes Parquet first, as the example has it, and that counts too;
else ``fit`` and ``transform`` read the text. Prints seconds of each stage as JSON.
"""

import argparse
import glob
import json
import logging
import os
import resource
import shutil
import time
import warnings

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", required=True)
parser.add_argument("--work", required=True)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--part-size", default="64MB")
parser.add_argument("--convert", action="store_true")
options = parser.parse_args()
os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)

import dask  # noqa: E402
import numpy as np  # noqa: E402
import nvtabular as nvt  # noqa: E402
from nvtabular import ops  # noqa: E402

if options.threads > 1:
    dask.config.set(scheduler="threads", num_workers=options.threads)
else:
    dask.config.set(scheduler="synchronous")
shutil.rmtree(options.work, ignore_errors=True)
os.makedirs(options.work)
conts, cats = [f"I{i + 1}" for i in range(13)], [f"C{i + 1}" for i in range(26)]
dtypes = {"label": np.float32, **dict.fromkeys(conts, np.float64), **dict.fromkeys(cats, str)}
files = sorted(glob.glob(f"{options.data}/day_*.tsv"))
seconds = {}


def csv():
    return nvt.Dataset(
        files, engine="csv", sep="\t", names=["label", *conts, *cats], header=None, dtype=dtypes, cpu=True,
        part_size=options.part_size,
    )  # fmt: skip


begun = resource.getrusage(resource.RUSAGE_SELF)
cpu = begun.ru_utime + begun.ru_stime


def clock(name, run):
    start = time.perf_counter()
    run()
    seconds[name] = round(time.perf_counter() - start, 4)


data = csv()
if options.convert:
    clock("convert", lambda: csv().to_parquet(options.work + "/raw"))
    data = nvt.Dataset(options.work + "/raw", engine="parquet", cpu=True)
graph = (cats >> ops.Categorify(freq_threshold=15, out_path=options.work + "/cat")) + (
    conts >> ops.FillMissing() >> ops.Clip(min_value=0) >> ops.LogOp()
)
flow = nvt.Workflow(graph + ["label"])  # noqa: RUF005 - its own operator
clock("fit", lambda: flow.fit(data))
clock("transform", lambda: flow.transform(data).to_parquet(options.work + "/proc"))
used = resource.getrusage(resource.RUSAGE_SELF)
peak = used.ru_maxrss // 1024
cpu = used.ru_utime + used.ru_stime - cpu
print(json.dumps({"seconds": seconds, "cpu_s": cpu, "peak_rss_mb": peak, "version": nvt.__version__}))
