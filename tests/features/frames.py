"""Frames that the features' tests share: plain columns with every trouble in them, in every library."""

import functools
import itertools
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fastrec.table import Table

EMOJI = ["🎉", "naïve", "", "a\x00b", "日本"]
TAGS = [[], ["x"], ["x", "y"], [None], ["z", None, "x"], ["🎉", "a b"]]
TEXTS = ["", "plain words", "#one and #two", "@you #one", "naïve 🎉 a\x00b"]


def columns(n=40, seed=0):
    """Plain columns: name → list of values, None where missing, in types that every library has."""
    rng = np.random.default_rng(seed)

    def holes(values, share=0.15):
        return [None if rng.random() < share else v for v in values]

    return {
        "row": list(range(n)),
        "user": rng.integers(0, 6, n).tolist(),
        "item": holes([f"i{k}" for k in rng.integers(0, 5, n)]),
        "city": holes([EMOJI[k] for k in rng.integers(0, 5, n)]),
        "flag": holes([bool(k) for k in rng.integers(0, 2, n)]),
        "price": holes(rng.choice([-math.inf, math.inf, -2.5, 0.0, 1.0, 1e8, 1e8 + 1], n).tolist()),
        "clicks": holes([int(k) for k in rng.integers(-3, 4, n)]),
        "views": [int(k) for k in rng.integers(0, 4, n)],
        "when": [int(k) for k in rng.permutation(n)],
        "time": holes(
            [pd.Timestamp("2023-12-30") + pd.Timedelta(minutes=977 * int(k)) for k in rng.integers(0, 500, n)]
        ),
        "y": holes([int(k) for k in rng.integers(0, 2, n)]),
        "z": rng.normal(size=n).tolist(),
        "fold": rng.integers(0, 4, n).tolist(),
        "other": [f"kept {k}" for k in range(n)],
        "tags": holes([TAGS[k] for k in rng.integers(0, 6, n)]),
        "text": holes([TEXTS[k] for k in rng.integers(0, 5, n)]),
        "vec": holes([[float(v) for v in row] for row in rng.integers(-2, 3, (n, 3))]),
    }


def tables(seed=0):
    rng = np.random.default_rng(seed + 100)
    log = {
        "user": rng.integers(0, 7, 30).tolist(),
        "item": [None if rng.random() < 0.1 else f"i{k}" for k in rng.integers(0, 6, 30)],
        "when": rng.integers(0, 40, 30).tolist(),
        "kind": rng.choice(["a", "b c", "d"], 30).tolist(),
        "worth": [None if rng.random() < 0.2 else float(k) for k in rng.integers(0, 9, 30)],
        "word": rng.choice(EMOJI, 30).tolist(),
    }
    tags = [[], ["x"], ["x", "y"], ["y", "z"], ["x", "y", "z"]]
    items = {"item": [f"i{k}" for k in range(5)], "tags": tags}
    return {"log": pd.DataFrame(log), "items": pd.DataFrame(items)}


def to_pandas(data):
    """A pandas frame with nullable integers and booleans, a categorical, and an index that repeats itself."""
    types = {"user": "int32", "when": "int64", "clicks": "Int64", "flag": "boolean", "y": "Int8", "item": "category"}
    types |= {"price": "float64", "time": "datetime64[ns]", "z": "float64", "views": "int16", "fold": "int64"}
    index = pd.Index([f"r{i // 2}" for i in range(len(data["row"]))], name="index")
    blank = {n for n, v in data.items() if v and all(x is None for x in v)}
    types |= dict.fromkeys(blank & {"views"}, "Int16")
    types |= {"tags": object, "vec": object}
    return pd.DataFrame({n: pd.Series(v, dtype=types.get(n)) for n, v in data.items()}).set_index(index)


def to_arrow(data):
    types = {"price": pa.float64(), "clicks": pa.int64(), "time": pa.timestamp("us"), "y": pa.int8(), "z": pa.float64()}
    types |= {"item": pa.string(), "city": pa.large_string(), "flag": pa.bool_(), "other": pa.string()}
    types |= {"text": pa.string(), "tags": pa.list_(pa.string()), "vec": pa.list_(pa.float64())}
    return pa.table({n: pa.array(v, types.get(n, pa.int64())) for n, v in data.items()})


def to_polars(data):
    return pytest.importorskip("polars").from_arrow(to_arrow(data))


def to_table(data):
    return Table.read(to_arrow(data))


MAKERS = {"pandas": to_pandas, "polars": to_polars, "pyarrow": to_arrow, "table": to_table}


def names_of(frame):
    if isinstance(frame, Table):
        return frame.names
    return frame.schema.names if isinstance(frame, pa.Table) else list(frame.columns)


def rows(data, chosen):
    """Some of the rows of plain columns."""
    return {n: [v[i] for i in chosen] for n, v in data.items()}


def of_rows(rows, **types):
    """A pandas frame of some rows, a tuple each; every column has its own type."""
    values = zip(*rows, strict=True) if rows else ((),) * len(types)
    return pd.DataFrame({n: pd.Series(v, dtype=t) for (n, t), v in zip(types.items(), values, strict=True)})


def plain(values):
    """A list of a column's values, None where one is missing."""
    return [None if pd.isna(v) else v for v in values]


def clicks(n=120, seed=0):
    """Rows of users and items in an order of time, clicked or not."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "user": rng.integers(0, 20, n),
            "item": [f"i{k}" for k in rng.integers(0, 25, n)],
            "t": rng.permutation(n),
            "price": rng.normal(size=n),
            "clicked": rng.integers(0, 2, n),
            "fold": rng.integers(0, 4, n),
        }
    )


def learned(feature, parts):
    """The generator after it has learned from parts, the last one first."""
    states = [feature.collect(Table.read(part)) for part in parts]
    feature.learn(functools.reduce(lambda merged, state: feature.merge(state, merged), states[:-1], states[-1]))
    return feature


def pieces(frame, parts):
    """A pandas frame's rows in that many parts; where there are more parts than rows, some hold none."""
    bounds = np.linspace(0, len(frame), parts + 1).astype(int)
    return [frame.iloc[a:b] for a, b in itertools.pairwise(bounds)]
