"""Evidently's verdicts of files, run in its own environment (it imports nothing of fastrec).

    PEER_PYTHON tests/bench/_monitor_peer.py --data DIR

DIR holds ``reference.csv`` and others. Its preset for drift of data compares each with the reference, by the tests that
it takes by itself and its own thresholds. Prints, as JSON, of each file the columns that it calls drifted, or what it
raised, and seconds.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", type=Path, required=True)
parser.add_argument("--threads", type=int, default=1)
options = parser.parse_args()
warnings.simplefilter("ignore")

import pandas as pd  # noqa: E402
from evidently import Report, __version__  # noqa: E402
from evidently.presets import DataDriftPreset  # noqa: E402

reference = pd.read_csv(options.data / "reference.csv")
said = {}
for file in sorted(options.data.glob("*.csv")):
    if file.stem == "reference":
        continue
    new = pd.read_csv(file)
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        metrics = json.loads(Report([DataDriftPreset()]).run(new, reference).json())["metrics"]
        drifted, tests = [], {}
        for metric in metrics:
            about = metric["config"]
            if "column" not in about:
                continue
            distance = "distance" in about["method"] or "divergence" in about["method"] or "PSI" in about["method"]
            beyond = metric["value"] >= about["threshold"] if distance else metric["value"] < about["threshold"]
            drifted += [about["column"]] if beyond else []
            tests[about["column"]] = about["method"]
        said[file.stem] = {"drifted": drifted, "tests": tests}
    except Exception as error:
        said[file.stem] = {"raised": f"{type(error).__name__}: {error}"[:200]}
    said[file.stem] |= {"seconds": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
print(json.dumps({"version": __version__, "said": said}))
