"""Values that a change of the house must not move: record them before it, compare them after it.

    python tests/golden/golden.py record DIR           before the change
    python tests/golden/golden.py check DIR            after it; exit 1 if a value differs
    python tests/golden/golden.py check DIR --cases otto,features

The work: eight recipes on simulated data, two tables through ``fit``, a retrain, an export, all generators. Both sides
run on one machine, as floating-point sums differ between processors. A case is a file ``DIR/<case>.npz`` of named
arrays. Numbers may differ by 1e-9 of their size, everything else must be equal.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

Values = dict[str, np.ndarray]
TOLERANCE = 1e-9
_SIMULATED = {"census": 1200, "criteo": 6000, "otto": 400, "rossmann": 6, "trivago2019": 250, "xmarket2022": 60}
_RECIPES = {**{name: name for name in _SIMULATED}, "streamed": "trivago2019/streamed.py"}  # a ranking from a stream


def fastrec(*words: object, passes: tuple[int, ...] = (0,)) -> None:
    """Run a command of fastrec in a process of its own; any other exit code than these ends the record."""
    command = [sys.executable, "-m", "fastrec", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    if done.returncode not in passes:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def column_values(column: object) -> np.ndarray:
    """Turn a column into an array that ``np.savez`` holds without pickle: numbers, all else as text."""
    values = pd.Series(column)
    if pd.api.types.is_bool_dtype(values) or not pd.api.types.is_numeric_dtype(values):
        return np.array([repr(v) if v is not None else "" for v in values.tolist()], dtype=str)
    return values.to_numpy(dtype="float64", na_value=np.nan) if values.isna().any() else values.to_numpy()


def run_values(run: Path) -> Values:
    """Read out-of-fold and test predictions and the submission of a run."""
    found: Values = {}
    for path in sorted([*run.glob("oof/*.parquet"), *run.glob("test/*.parquet")]):
        table = pq.read_table(path)
        for name in table.column_names:
            found[f"{path.parent.name}/{path.stem}/{name}"] = column_values(table[name].to_pandas())
    for path in sorted(run.glob("submission.*")):
        found[path.name] = lines_of(path)
    return found


def lines_of(path: Path) -> np.ndarray:
    return np.array(path.read_text(encoding="utf-8").splitlines(), dtype=str)


def recipe(name: str, folder: Path) -> Values:
    data, run, competition = folder / "data", folder / "run", name.partition("/")[0]
    fastrec("simulate", f"competitions/{competition}", "--rows", _SIMULATED[competition], "--out", data)
    fastrec("run", f"competitions/{name}", "--data", data, "--out", run)
    found = run_values(run)
    if name == "census":
        fastrec("export", run, "--out", folder / "served")  # it ends with an error if a score differs by 1e-5
        fastrec("predict", run, "--data", data, "--out", folder / "again.csv")
        found["again.csv"] = lines_of(folder / "again.csv")
    return found


def diginetica(folder: Path) -> Values:
    """Run the recipe on sessions that walk along a ring of items, with steps aside."""
    rng, data = np.random.default_rng(0), folder / "data"
    data.mkdir(parents=True)

    def walks(n: int) -> list[list[int]]:
        return [np.cumsum(rng.choice([1, 1, 1, 2, 7], rng.integers(3, 9))).tolist() for _ in range(n)]

    train = [[1 + (s + i) % 60 for i in walk] for s, walk in enumerate(walks(400))]
    test = [[1 + (3 * s + i) % 60 for i in walk] for s, walk in enumerate(walks(80))]
    pd.DataFrame({"items": train}).to_parquet(data / "train.parquet")
    pd.DataFrame({"items": [t[:-1] for t in test], "target": [t[-1] for t in test]}).to_parquet(data / "test.parquet")
    fastrec("run", "competitions/diginetica", "--data", data, "--out", folder / "run")
    return run_values(folder / "run")


def table(task: str, folder: Path) -> Values:
    """Fit a small table, with more time than it can use, and retrain the binary one."""
    import fastrec as library

    rng = np.random.default_rng(1)
    n = 400
    made = pd.DataFrame({"id": np.arange(n), "city": rng.choice(list("abcdefgh"), n)})
    made["size"] = rng.normal(size=n).round(3)
    made["day"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 90, n), "D")
    made["note"] = rng.choice(["red cap", "blue cap", "green hat", None], n)
    signal = made["size"] + (made["city"] < "d") + made["day"].dt.day_of_week / 7
    made["y"] = signal.round(4) if task == "regression" else (signal + rng.normal(size=n) > 1).astype(int)
    fitted = library.fit(made[:300], "y", test=made[300:].drop(columns="y"), minutes=30, folder=folder / "fit")
    found = run_values(fitted.run) | {"predict": column_values(fitted.predict(made[300:].drop(columns="y")))}
    if task == "binary":
        made[300:].to_csv(folder / "new.csv", index=False)
        words = ("--data", folder / "new.csv", "--time", "day", "--every", "week", "--scored", 12)
        fastrec("retrain", fitted.run, *words, "--out", folder / "again", passes=(0, 3))
        found |= {f"retrain/{n}": v for n, v in run_values(folder / "again").items()}
    return found


def features(folder: Path) -> Values:
    """Apply ``fit_transform`` and ``transform`` of every public generator's examples to three frames."""
    from fastrec.features import FeatureSet
    from tests.features import frames
    from tests.features.examples import EXAMPLES

    found: Values = {}
    for name, makers in sorted(EXAMPLES.items()):
        for i, make in enumerate(makers):
            for seed in range(3):
                data, other = (frames.to_pandas(frames.columns(40, s)) for s in (seed, seed + 50))
                made = FeatureSet([make()], key="row")
                how = {"tables": frames.tables(seed)}
                steps = {"fit": made.fit_transform(data, **how), "transform": made.transform(other, **how)}
                for step, frame in steps.items():
                    for column in frame.columns.difference(data.columns, sort=False):
                        found[f"{name}.{i}/{seed}/{step}/{column}"] = column_values(frame[column])
    return found


CASES: dict[str, Callable[[Path], Values]] = {
    "features": features,
    **{name: partial(recipe, path) for name, path in _RECIPES.items()},
    "diginetica": diginetica,
    "binary": partial(table, "binary"),
    "regression": partial(table, "regression"),
}


def differences(before: Values, after: Values) -> list[str]:
    """Name every array that is not there on both sides or whose values differ."""
    found = [f"{n}: only {'before' if n in before else 'after'}" for n in sorted(before.keys() ^ after.keys())]
    for name in sorted(before.keys() & after.keys()):
        numeric = all(v[name].dtype.kind in "fiu" for v in (before, after))
        how = {"rtol": TOLERANCE, "atol": TOLERANCE} if numeric else {}
        try:
            (np.testing.assert_allclose if numeric else np.testing.assert_array_equal)(after[name], before[name], **how)
        except AssertionError as error:
            found.append(f"{name}: {' '.join(str(error).split())[:300]}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "check"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", default=",".join(CASES))
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    wrong = 0
    for name in asked.cases.split(","):
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="fastrec-golden-") as work:
            values = CASES[name](Path(work))
        kept, said = asked.folder / f"{name}.npz", []
        if asked.what == "record":
            np.savez_compressed(kept, **values)
        else:
            with np.load(kept, allow_pickle=False) as stored:
                said = differences(dict(stored), values)
        wrong += len(said)
        about = "; ".join(said[:8]) or ("equal" if asked.what == "check" else f"{len(values)} arrays recorded")
        print(f"{name} ({time.perf_counter() - began:.0f} s): {about}", flush=True)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
