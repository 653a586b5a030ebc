"""What NVTabular's peer script does, by fastrec: the same Parquet files, the same stages, a process of its own.

    python tests/bench/_nvtabular.py --raw DIR [--threads 2] [--out FILE]

Both processes are cold: they have imported everything and done nothing yet. A stage starts from the files on disk, as
theirs do, and ``transform`` ends with a pandas frame, as theirs does. NVTabular's transform gives training rows
out-of-fold target means; fastrec's ``transform`` gives any rows those of all training rows, and ``fit_transform`` gives
training rows out-of-fold ones, in one pass over the files: that is timed besides.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.dataset  # noqa: F401 - else the first file read would import it, and time be taken of that
from _timing import Timing, child, cpu_time, use_threads

from fastrec.features import Categorify, FeatureSet, FillMissing, Normalize, TargetEncode
from fastrec.table import Table

CATS, CONTS, TARGET, LABEL = ["c0", "c1", "c2"], ["x0", "x1", "x2", "x3"], "target", "label"
STAGES = ("fit", "transform")


def features() -> FeatureSet:
    """What the peer's workflow makes, not yet fitted."""
    filled = FillMissing(CONTS, "constant", value=0.0, add_col=False)
    return FeatureSet(
        [Categorify(CATS, min_count=5), Normalize(filled), TargetEncode(CATS, TARGET, folds=5, smooth=20)]
    )


def as_frame(table: Table, names: list[str]) -> Any:
    """What the user gets: the columns made, and the label, in pandas."""
    return table.select([*names, LABEL]).to_pandas()


def stages(raw: str) -> tuple[dict[str, dict[str, float]], Any]:
    """Wall and CPU seconds of each stage, and the frame with out-of-fold values."""
    taken: dict[str, dict[str, float]] = {}

    def clock(name: str, run: Callable[[], Any]) -> Any:
        cpu, wall = cpu_time(), time.perf_counter()
        made = run()
        taken[name] = {"s": time.perf_counter() - wall, "cpu_s": cpu_time() - cpu}
        return made

    fs = features()
    columns, names = [*CATS, *CONTS, LABEL], fs.outputs
    clock("fit", lambda: fs.fit(Table.read(raw, [*CATS, *CONTS, TARGET])))
    frame = clock("transform", lambda: as_frame(fs.transform(Table.read(raw, columns)), names))
    rows = len(frame)
    del frame
    made = clock(
        "fit_transform", lambda: as_frame(features().fit_transform(Table.read(raw, [*columns, TARGET])), names)
    )
    assert len(made) == rows
    return taken, made


def main() -> None:
    """The stages once, from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw", required=True, help="the folder of Parquet files that the peer has written")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", help="write what was made here, as Parquet")
    options = parser.parse_args()
    use_threads(options.threads)
    taken, frame = stages(options.raw)
    if options.out:
        frame.to_parquet(options.out)
    print(json.dumps(taken))


# What the benchmark calls --------------------------------------------------------------------------------------------


def compare(rows: int, repeats: int, threads: int, peer: list[str]) -> dict[str, dict[str, Timing]]:
    """Both systems by turns, each time in a process of its own, on files that the peer's script writes.

    Args:
        rows: of the table.
        repeats: runs of each.
        threads: that each may use.
        peer: the command that starts the peer's script.

    Returns:
        stage → system → medians; ``fit + transform`` among the stages, and fastrec's ``fit_transform``.
    """
    runs: dict[str, list[dict[str, Any]]] = {"fastrec": [], "NVTabular": []}
    with tempfile.TemporaryDirectory() as folder:
        raw, work, out = f"{folder}/raw", f"{folder}/work", f"{folder}/made.parquet"
        theirs = [*peer, "--json", "--raw", raw, "--work", work, "--epochs", "1", "--rows", str(rows)]
        ours = [sys.executable, str(Path(__file__).resolve()), "--raw", raw]
        for turn in range(repeats):
            runs["NVTabular"].append(child(theirs, folder, threads, own=False))
            runs["fastrec"].append(child(ours if turn else [*ours, "--out", out], folder, threads))
            if turn == 0:
                check_alike(raw, f"{work}/proc", out)
    stages = {stage: {n: _median(found, [stage]) for n, found in runs.items()} for stage in STAGES}
    stages["fit + transform"] = {n: _median(found, STAGES) for n, found in runs.items()}
    stages["fit + transform"]["fastrec, fit_transform"] = _median(runs["fastrec"], ["fit_transform"])
    return stages


def _median(runs: Sequence[dict[str, Any]], stages: Sequence[str]) -> Timing:
    walls = [sum(run[stage]["s"] for stage in stages) for run in runs]
    known = all("cpu_s" in run[stage] for run in runs for stage in stages)
    return Timing.of(walls, [sum(run[stage]["cpu_s"] for stage in stages) for run in runs] if known else ())


def check_alike(raw: str, theirs: str, ours: str) -> None:
    """Stop the benchmark where the two have not done the same work.

    The same rows in the same order; codes that tell the same values apart; numbers equal to float32's digits; target
    means within what another drawing of the folds explains. Of rows without a category only the codes are compared:
    the peer gives some of them target means below 0.
    """
    given = pd.read_parquet(raw)
    found = pd.concat(pd.read_parquet(f) for f in sorted(Path(theirs).glob("*.parquet")))
    made = pd.read_parquet(ours)
    problems = [] if np.array_equal(found[LABEL], made[LABEL]) else ["the labels differ"]
    for name in CONTS:
        if not np.allclose(found[name], made[f"norm_filled_{name}"], atol=1e-4):
            problems.append(f"{name} differs")
    for name in CATS:
        pairs = pd.DataFrame({"ours": made[f"code_{name}"].to_numpy(), "theirs": found[name].to_numpy()})
        pairs = pairs.drop_duplicates()
        if len(pairs) != pairs["ours"].nunique() or len(pairs) != pairs["theirs"].nunique():
            problems.append(f"the codes of {name} tell other values apart")
        known = given[name].notna().to_numpy()
        gap = np.abs(found[f"TE_{name}_{TARGET}"].to_numpy() - made[f"te_{name}__{TARGET}"].to_numpy())[known].mean()
        if gap > 0.02:
            problems.append(f"the target means of {name} differ by {gap:.4f} on average")
    if problems:
        raise SystemExit(f"nvtabular: {'; '.join(problems)}")


if __name__ == "__main__":
    main()
