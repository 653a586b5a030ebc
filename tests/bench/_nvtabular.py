"""NVTabular's peer script and fastrec on the same files: its stages, and shuffled epochs of what it has prepared.

    python tests/bench/_nvtabular.py stages --raw DIR [--threads 2] [--out FILE]
    python tests/bench/_nvtabular.py epochs --files DIR [--batch 65536] [--buffer 500000] [--cache DIR]

Every process is cold: it has imported everything and done nothing yet. A stage goes from the files on disk to a pandas
frame, as theirs do. NVTabular's transform gives training rows out-of-fold target means; fastrec's ``transform`` gives
any rows those of all training rows, and ``fit_transform`` out-of-fold ones in one pass: that is timed besides.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.dataset  # noqa: F401 - else the first file read would import it, and time be taken of that
from _timing import ROOT, Options, Timing, arguments, child, timed, use_threads

from fastrec.features import Categorify, FeatureSet, FillMissing, Normalize, TargetEncode
from fastrec.table import Table
from fastrec.tabular import ParquetFrame

CATS, CONTS, TARGET, LABEL = ["c0", "c1", "c2"], ["x0", "x1", "x2", "x3"], "target", "label"
# of the table: those of the programs that it adds up
STAGES = {"fit": ("fit",), "transform": ("transform",), "fit + transform": ("fit", "transform")}


def peer(python: str) -> list[str] | None:
    """Return the command of the peer script; None, with a message, if it or its Python is missing."""
    script = Path(os.environ.get("FASTREC_PEERS", ROOT.parent / "shared" / "peers")) / "nvtabular" / "run.py"
    command = [Path(python).absolute(), script.absolute()]
    if absent := [path for path in command if not path.exists()]:
        others = "FASTREC_PEERS, --peer-python or NVTABULAR_PYTHON name others"
        print(f"NVTabular: left out, there is no {absent[0]} ({others})")
        return None
    return [str(path) for path in command]


def stages(options: Options) -> dict[str, dict[str, float]]:
    """Measure wall and CPU seconds of each stage of what the peer's workflow makes."""

    def features() -> FeatureSet:
        filled = FillMissing(CONTS, "constant", value=0.0, add_col=False)
        targets = TargetEncode(CATS, TARGET, folds=5, smooth=20)
        return FeatureSet([Categorify(CATS, min_count=5), Normalize(filled), targets])

    def as_frame(table: Table) -> pd.DataFrame:
        return table.select([*fs.outputs, LABEL]).to_pandas()

    fs, columns = features(), [*CATS, *CONTS, LABEL]
    runs = {
        "fit": lambda: fs.fit(Table.read(options.raw, [*CATS, *CONTS, TARGET])),
        "transform": lambda: len(as_frame(fs.transform(Table.read(options.raw, columns)))),
        "fit_transform": lambda: as_frame(features().fit_transform(Table.read(options.raw, [*columns, TARGET]))),
    }
    taken, made = {}, {}
    for name, run in runs.items():
        made[name], wall, cpu = timed(run)
        taken[name] = {"s": wall, "cpu_s": cpu}
    assert len(made["fit_transform"]) == made["transform"]
    if options.out:
        made["fit_transform"].to_parquet(options.out)
    return taken


def epochs(options: Options) -> list[float]:
    """Measure the seconds of two shuffled epochs."""
    files = sorted(Path(options.files).glob("*.parquet"))
    conts = [*CONTS, *(f"TE_{name}_{TARGET}" for name in CATS)]
    frame = ParquetFrame(files, None, CATS, conts, LABEL, cache=options.cache)
    loader = frame.dataloaders(options.batch, buffer_rows=options.buffer, drop_last=False).train
    taken = []
    for _ in range(2):
        start = time.perf_counter()
        rows = sum(len(y) for _, _, y in loader)
        taken.append(time.perf_counter() - start)
        assert rows == len(frame)
    return taken


def compare_stages(options: Options, theirs: list[str]) -> dict[str, dict[str, Timing]]:
    """Run both systems by turns, each time in a process of its own, on files that the peer's command writes.

    Returns:
        stage → system → medians; ``fit + transform`` among the stages, and fastrec's ``fit_transform``.
    """
    runs: dict[str, list[dict[str, Any]]] = {"fastrec": [], "NVTabular": []}
    with tempfile.TemporaryDirectory() as folder:
        raw, work, out = f"{folder}/raw", f"{folder}/work", f"{folder}/made.parquet"
        theirs = [*theirs, "--json", "--raw", raw, "--work", work, "--epochs", "1", "--rows", str(options.rows)]
        ours = [sys.executable, __file__, "stages", "--raw", raw]
        for turn in range(options.repeats):
            runs["NVTabular"].append(child(theirs, folder, options.threads, own=False))
            runs["fastrec"].append(child(ours if turn else [*ours, "--out", out], folder, options.threads))
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

    Target means may differ as far as another drawing of the folds explains; of rows without a category only the codes
    are compared, as the peer gives some of them target means below 0.
    """
    given = pd.read_parquet(raw)
    found = pd.concat(pd.read_parquet(f) for f in sorted(Path(theirs).glob("*.parquet")))
    made = pd.read_parquet(ours)
    problems = [] if np.array_equal(found[LABEL], made[LABEL]) else ["the labels differ"]
    problems += [f"{n} differs" for n in CONTS if not np.allclose(found[n], made[f"norm_filled_{n}"], atol=1e-4)]
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


def compare_epochs(options: Options, peer: Sequence[str]) -> Iterator[tuple[str, str, Timing]]:
    """Yield case, system and medians of shuffled epochs by turns; of each process the better of two epochs counts."""
    batch = ["--batch", "65536"]
    with tempfile.TemporaryDirectory() as folder:
        theirs: list[float] = []
        ours: dict[str, list[float]] = {"stream, Parquet": [], "stream, packed cache": []}
        for _ in range(options.repeats):
            files = ["--raw", f"{folder}/raw", "--work", f"{folder}/nvt", "--rows", str(options.rows)]
            found = child([*peer, *batch, *files, "--json"], folder, options.threads, own=False)
            theirs.append(min(found[f"load_shuffle1_epoch{e}"]["s"] for e in (0, 1)))
            for case, walls in ours.items():
                more = ["--cache", f"{folder}/cache"] if "cache" in case else []
                command = [sys.executable, __file__, "epochs", "--files", f"{folder}/nvt/proc", *batch, *more]
                walls.append(min(child([*command, "--buffer", str(options.rows // 4)], folder, options.threads)))
    for case, walls in ours.items():
        yield case, "fastrec, packed cache" if "cache" in case else "fastrec", Timing.of(walls)
        yield case, "NVTabular", Timing.of(theirs)


if __name__ == "__main__":
    asked = arguments(
        __doc__,
        sys.argv[2:],
        raw=(None, "the folder of Parquet files that the peer has written"),
        out=(None, "write what the stages made, as Parquet"),
        files=(None, "the folder of Parquet files that the peer has prepared"),
        batch=(65_536, "rows"),
        buffer=(500_000, "rows"),
        cache=(None, "folder of packed rows"),
        threads=(2, "of all"),
    )
    use_threads(asked.threads)
    print(json.dumps({"stages": stages, "epochs": epochs}[sys.argv[1]](asked)))
