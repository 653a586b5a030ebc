"""Frames in partitions, for the tests of Dask."""

from __future__ import annotations

import dask
import dask.dataframe as dd
import pandas as pd
import pytest


def parted(frame, ends):
    """A Dask frame whose partitions end at these rows, the last with the frame; some may hold none."""
    ends = [*sorted(ends), len(frame)]
    return of_parts(frame.iloc[a:b] for a, b in zip([0, *ends[:-1]], ends))


def of_parts(parts):
    """A Dask frame of these partitions."""
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
