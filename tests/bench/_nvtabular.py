"""What NVTabular's peer script does, by fastrec: the same Parquet files, the same stages, a process of its own.

    python tests/bench/_nvtabular.py --raw DIR [--threads 2] [--out FILE]

Both processes are cold: they have imported everything and done nothing yet. A stage starts from the files on disk, as
theirs do, and ``transform`` ends with a pandas frame, as theirs does. NVTabular's transform gives training rows
out-of-fold target means; fastrec's ``transform`` gives any rows those of all training rows, and ``fit_transform`` gives
training rows out-of-fold ones, in one pass over the files: that is timed besides.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.dataset  # noqa: F401 - else the first file read would import it, and time be taken of that
from _timing import Timing, arguments, child, timed, use_threads

from fastrec.features import Categorify, FeatureSet, FillMissing, Normalize, TargetEncode
from fastrec.table import Table

CATS, CONTS, TARGET, LABEL = ["c0", "c1", "c2"], ["x0", "x1", "x2", "x3"], "target", "label"
# of the table: those of the programs that it adds up
STAGES = {"fit": ("fit",), "transform": ("transform",), "fit + transform": ("fit", "transform")}


def stages(raw: str) -> tuple[dict[str, dict[str, float]], Any]:
    """Wall and CPU seconds of each stage of what the peer's workflow makes, and the frame with out-of-fold values."""

    def features() -> FeatureSet:
        filled = FillMissing(CONTS, "constant", value=0.0, add_col=False)
        targets = TargetEncode(CATS, TARGET, folds=5, smooth=20)
        return FeatureSet([Categorify(CATS, min_count=5), Normalize(filled), targets])

    def as_frame(table: Table) -> pd.DataFrame:
        return table.select([*fs.outputs, LABEL]).to_pandas()

    fs = features()
    columns = [*CATS, *CONTS, LABEL]
    runs = {
        "fit": lambda: fs.fit(Table.read(raw, [*CATS, *CONTS, TARGET])),
        "transform": lambda: len(as_frame(fs.transform(Table.read(raw, columns)))),
        "fit_transform": lambda: as_frame(features().fit_transform(Table.read(raw, [*columns, TARGET]))),
    }
    taken, made = {}, {}
    for name, run in runs.items():
        made[name], wall, cpu = timed(run)
        taken[name] = {"s": wall, "cpu_s": cpu}
    assert len(made["fit_transform"]) == made["transform"]
    return taken, made["fit_transform"]


def compare(rows: int, repeats: int, threads: int, peer: list[str]) -> dict[str, dict[str, Timing]]:
    """Both systems by turns, each time in a process of its own, on files that the peer's command writes.

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

    def median(system: str, stages: tuple[str, ...]) -> Timing:
        parts = [[run[stage] for stage in stages] for run in runs[system]]
        known = all("cpu_s" in one for part in parts for one in part)
        return Timing.of(*([sum(one[n] for one in part) for part in parts] for n in ("s", "cpu_s")[: 1 + known]))

    found = {n: {s: median(s, own) for s in runs} for n, own in STAGES.items()}
    found["fit + transform"]["fastrec, fit_transform"] = median("fastrec", ("fit_transform",))
    return found


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
    options = arguments(
        __doc__,
        raw=(None, "the folder of Parquet files that the peer has written"),
        threads=(2, "of all"),
        out=(None, "write what was made here, as Parquet"),
    )
    use_threads(options.threads)
    taken, frame = stages(options.raw)
    if options.out:
        frame.to_parquet(options.out)
    print(json.dumps(taken))
