"""A frame for timing fastai's tabular objects: eight categoricals, ten continuous columns, a target.

    python tests/bench/_tabular.py --keys int --rows 2000000 [--threads 2]

prints how far making a ``TabularFrame`` raises a process above the frame that it is given.
"""

from __future__ import annotations

import argparse
import json
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from _timing import forget_peak, resident, use_threads
from fastai.data.block import CategoryBlock

CARDINALITIES = (2, 7, 24, 100, 1_000, 5_000, 20_000, 100_000)
CATS, CONTS = [f"c{i}" for i in range(8)], [f"x{i}" for i in range(10)]
ABOUT = (
    f"8 categoricals (cardinality {', '.join(f'{c:,}' for c in CARDINALITIES)}; int64 or text), 10 numbers (6 float64, "
    "2 float32, 2 int64; 5 % missing in three), a target"
)


def tabular(rows: int, keys: str, *, seed: int = 0) -> pd.DataFrame:
    """A frame of ``rows`` rows.

    Args:
        rows: how many.
        keys: what the categoricals hold: ``int``, ``str`` (text of eight characters) or ``words`` (of two to nine);
            values are skewed, their order is not that of their codes.
        seed: other seeds draw other frames.
    """
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {}
    for name, size in zip(CATS, CARDINALITIES, strict=True):
        share = np.cumsum(1 / (np.arange(size) + 10))
        codes = np.searchsorted(share, rng.random(rows) * share[-1]).clip(0, size - 1)
        ids = rng.permutation(np.cumsum(rng.integers(1, 20, size)))
        form = {"str": "v{:07X}", "words": "v{}"}.get(keys)
        words = pa.array([form.format(i) for i in ids.tolist()]) if form else None
        columns[name] = ids[codes] if words is None else words.take(pa.array(codes)).to_pandas()
    for i, name in enumerate(CONTS):
        values = rng.normal(size=rows) * 10 ** (i % 4)
        values = values.astype("float32") if i in (6, 7) else values.astype("int64") if i in (8, 9) else values
        if i in (0, 1, 6):
            values[rng.random(rows) < 0.05] = np.nan
        columns[name] = values
    columns["y"] = (rng.random(rows) < 0.3).astype("int64")
    return pd.DataFrame(columns)


def wide(rows: int, count: int, *, seed: int = 0) -> pd.DataFrame:
    """A frame of numbers alone: ``count`` counts that are mostly 0; beyond 100, decimals and flags among them.

    Args:
        rows: how many.
        count: of columns.
        seed: other seeds draw other frames.
    """
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {}
    for i in range(count):
        values = rng.negative_binomial(0.2, 0.1 + 0.8 * i / count, rows)
        if count > 100 and i % 3:
            values = rng.normal(size=rows) * 10 ** (i % 5) if i % 3 == 1 else rng.integers(0, 2 + i % 7, rows)
            if i % 50 == 7:
                values = np.where(rng.random(rows) < 0.05, np.nan, values)
        columns[f"f{i}"] = values
    columns["y"] = rng.integers(0, 9, rows)
    return pd.DataFrame(columns)


def _names(df: pd.DataFrame) -> tuple[list[str], list[str]]:
    return [n for n in df if n[0] == "c"], [n for n in df if n[0] in "xf"]


def with_fastrec(df: pd.DataFrame, splits: Any = None) -> Any:
    """Ready tensors."""
    from fastrec.tabular import Categorify, FillMissing, Normalize, TabularFrame

    return TabularFrame(df, [Categorify, FillMissing, Normalize], *_names(df), "y", CategoryBlock, splits=splits)


def with_fastai(df: pd.DataFrame, splits: Any = None) -> Any:
    """fastai's own."""
    from fastai.tabular.core import Categorify, FillMissing, Normalize, TabularPandas

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about pandas' options and arrays
        procs = [Categorify, FillMissing, Normalize]
        return TabularPandas(df, procs, *_names(df), "y", CategoryBlock(), splits=splits)


def check_equal(ours: Any, theirs: Any, *, split: bool = False) -> None:
    """Stop where the two are not the same: codes exactly, numbers to what float32 leaves of them.

    Args:
        ours, theirs: prepared frames.
        split: there are validation rows: fastai counts their text among the classes, so only columns of the same
            classes are compared.
    """
    names = list(ours.cat_names)
    same = [not split or list(ours.classes[n]) == list(theirs.classes[n]) for n in names]
    theirs_cat = torch.from_numpy(theirs.cats.to_numpy(dtype=np.int64))
    if names != list(theirs.cat_names) or not torch.equal(ours.x_cat.long()[:, same], theirs_cat[:, same]):
        raise SystemExit("prepare: the codes differ")
    theirs_cont = torch.from_numpy(theirs.conts.to_numpy(dtype=np.float32))
    if not torch.allclose(ours.x_cont, theirs_cont, rtol=1e-3, atol=1e-3):
        raise SystemExit("prepare: the numbers differ")


def main() -> None:
    """Peak memory, from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--keys", choices=("int", "str", "words"), default="int")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    use_threads(options.threads)
    with_fastrec(tabular(300_000, options.keys))  # so many that loops are compiled, which takes memory once
    df = tabular(options.rows, options.keys)
    forget_peak()
    before = resident()
    made = with_fastrec(df)
    print(json.dumps({"grown": resident(peak=True) - before, "packed": made.packed.nbytes, "before": before}))


if __name__ == "__main__":
    main()
