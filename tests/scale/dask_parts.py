from __future__ import annotations

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest


def parted(frame, ends):
    """A Dask frame whose partitions end at these rows, the last with the frame; some may hold none."""
    ends = [*sorted(ends), len(frame)]
    return of_parts(frame.iloc[a:b] for a, b in zip([0, *ends[:-1]], ends))


def of_parts(parts):
    parts = list(parts)
    return dd.from_delayed([dask.delayed(p) for p in parts], meta=parts[0].iloc[:0], verify_meta=False)


def assert_near(wanted, made, names, near=1e-9):
    """Equal columns: numbers but for rounding, all else exactly; missing where they are."""
    for name in names:
        a, b = wanted[name].tolist(), made[name].tolist()
        if wanted[name].dtype == object or str(wanted[name].dtype) in ("category", "str"):
            assert [None if pd.isna(v) else v for v in a] == [None if pd.isna(v) else v for v in b], name
        else:
            a, b = (pd.to_numeric(pd.Series(v), errors="coerce").astype(float).tolist() for v in (a, b))
            assert b == pytest.approx(a, rel=near, abs=near, nan_ok=True), name


def events(n=240, seed=0):
    """Rows with repeated and missing keys, one of them in most parts missing alone."""
    rng = np.random.default_rng(seed)
    item = np.array([f"i{k}" for k in rng.integers(0, 9, n)], dtype=object)
    item[rng.random(n) < 0.2] = None
    item[n // 2 : n // 2 + n // 6] = None
    user = [None if rng.random() < 0.1 else int(k) for k in rng.integers(0, 5, n)]
    return pd.DataFrame(
        {
            "id": rng.permutation(n) + 10**6,
            "item": pd.Series(item, dtype=object),
            "user": pd.array(user, dtype="Int64"),
            "price": np.where(rng.random(n) < 0.15, np.nan, np.round(rng.normal(50, 20, n), 2)),
            "y": rng.integers(0, 2, n),
            "z": rng.normal(1e8, 1, n),
        }
    )
