from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fastrec.features as ff
from fastrec.errors import FastrecError, NotFittedError
from fastrec.features import category
from fastrec.features._engine import chain as counting
from fastrec.features._engine.chain import counted, step_by_step
from fastrec.features.base import Cells
from fastrec.table import Table
from tests.features.frames import learned

word = st.one_of(st.none(), st.sampled_from(["a", "b", "c", "d", "", "🎉"]))
column = st.lists(word, min_size=1, max_size=25)
listed = st.lists(st.one_of(st.none(), st.lists(word, max_size=4)), min_size=1, max_size=10)


def oracle(train, *, min_count=1, max_size=None, unseen=False, buckets=None):
    """What a value's code is, by a plain loop."""
    counts = Counter(v for v in train if v is not None)
    kept = sorted((v for v in counts if counts[v] >= min_count), key=lambda v: (-counts[v], v.encode()))
    kept = sorted(kept if max_size is None else kept[:max_size], key=str.encode)
    reserved = ["#na#"] + ["#unseen#"] * unseen + ["#rare#"] * (min_count > 1 or max_size is not None)
    if buckets is not None:
        reserved = ["#na#"] + [f"#hash{i + 1}#" for i in range(buckets)]

    def code(value):
        if value is None:
            return 0
        if value in kept:
            return len(reserved) + kept.index(value)
        if buckets is not None:
            return fnv(value, buckets)
        if value in counts:
            return reserved.index("#rare#") if "#rare#" in reserved else 0
        return reserved.index("#unseen#") if unseen else 0

    return code, [*reserved, *kept]


options = st.one_of(
    st.fixed_dictionaries(
        {"min_count": st.integers(0, 4), "max_size": st.one_of(st.none(), st.integers(0, 4)), "unseen": st.booleans()}
    ),
    st.fixed_dictionaries({"min_count": st.integers(1, 4), "buckets": st.integers(1, 5)}),
)


@given(column, column, options)
def test_codes_equal_a_plain_loop(train, new, how):
    code, classes = oracle(train, **how)
    feature = ff.Categorify("k", **how)
    frames = [pa.table({"k": pa.array(v, pa.string())}) for v in (train, new)]
    assert feature.fit_transform(frames[0])["code_k"].to_pylist() == [code(v) for v in train]
    assert feature.transform(frames[1])["code_k"].to_pylist() == [code(v) for v in new]
    assert feature.vocabs["k"].classes == classes


@given(listed, listed, options)
def test_lists_equal_a_plain_loop(train, new, how):
    code, _ = oracle([v for row in train for v in row or ()], **how)
    feature = ff.Categorify("k", **how)
    kind = pa.list_(pa.string())
    for rows, apply in ((train, feature.fit_transform), (new, feature.transform)):
        made = apply(pa.table({"k": pa.array(rows, kind)}))["code_k"].to_pylist()
        assert made == [None if row is None else [code(v) for v in row] for row in rows]


@given(st.lists(st.tuples(word, word), min_size=1, max_size=20), options)
def test_a_shared_vocabulary_equals_a_plain_loop(rows, how):
    code, classes = oracle([v for pair in rows for v in pair], **how)
    frame = pa.table({n: pa.array([r[i] for r in rows], pa.string()) for i, n in enumerate("ab")})
    feature = ff.Categorify(["a", "b"], shared="word", **how)
    made = feature.fit_transform(frame)
    for i, name in enumerate("ab"):
        assert made[f"code_{name}"].to_pylist() == [code(r[i]) for r in rows]
    assert {n: v.classes for n, v in feature.vocabs.items()} == {"word": classes}


def fastai_frames():
    rng = np.random.default_rng(0)
    size = pd.Categorical(rng.choice(["small", "mid", "large"], 60), ["small", "mid", "large", "giant"], ordered=True)
    yield pd.DataFrame({"k": rng.choice(["b", "a", "é", "🎉", None], 60)})
    yield pd.DataFrame({"k": rng.integers(-5, 5, 60)})
    yield pd.DataFrame({"k": rng.choice([0.5, -1.0, np.nan, 7.0], 60)})
    yield pd.DataFrame({"k": rng.choice([True, False], 60)})
    yield pd.DataFrame({"k": pd.to_datetime(rng.choice(["2024-01-02", "1969-01-01"], 60))})
    yield pd.DataFrame({"k": size})
    yield pd.DataFrame({"k": pd.Categorical(rng.choice(["y", "x"], 60), ["y", "x"])})


@pytest.mark.parametrize("frame", list(fastai_frames()), ids=lambda f: str(f["k"].dtype))
def test_codes_equal_tabular_pandas(frame):
    from fastai.tabular.core import Categorify as Fastai
    from fastai.tabular.core import TabularPandas

    to = TabularPandas(frame.copy(), procs=[Fastai], cat_names=["k"])
    feature = ff.Categorify("k")
    assert feature.fit_transform(frame)["code_k"].tolist() == to.items["k"].tolist()
    assert len(feature.vocabs["k"]) == len(to.classes["k"])


def test_missing_values_in_several_partitions_code_right():
    parts = [pa.table({"k": pa.array(p, pa.string())}) for p in (["b", None], [None, None], ["a", "b", None], ["c"])]
    made = learned(ff.Categorify("k", min_count=2), parts).transform(pd.DataFrame({"k": ["a", "b", None, "new"]}))
    assert made["code_k"].tolist() == [1, 2, 0, 0]
    parts = [pa.table({"k": [["a"], ["b", "a"]]}), pa.table({"k": pa.nulls(2)})]
    for some in (parts, parts[::-1]):
        feature = learned(ff.Categorify("k"), some)
        made = feature.transform(parts[1])["code_k"]
        assert (made.type, made.to_pylist()) == (pa.large_list(pa.int64()), [None, None])
        assert feature.transform(parts[0])["code_k"].to_pylist() == [[1], [2, 1]]


@given(st.lists(st.tuples(word, st.integers(0, 2)), min_size=1, max_size=20), options)
def test_cells_left_out_are_as_if_never_seen(rows, how):
    frame = pa.table({"k": pa.array([r[0] for r in rows], pa.string()), "l": [[r[0], r[0]] for r in rows]})
    table = Table.read(frame.set_column(1, "l", frame["l"].cast(pa.list_(pa.string()))))
    cell = [r[1] for r in rows]
    feature = ff.Categorify(["k", "l"], **how)
    cells, excluded = Cells(torch.tensor(cell, device=table.device), 3), torch.eye(3, device=table.device).bool()
    made = feature.compute_out_of_cell(table, feature.collect(table, cells), cells, excluded)
    for repeats, name in ((1, "k"), (2, "l")):
        codes = [oracle([r[0] for r in rows for _ in range(repeats) if r[1] != c], **how)[0] for c in range(3)]
        expected = [codes[c](value) for value, c in rows]
        found = made[f"code_{name}"].to_arrow().to_pylist()
        assert found == (expected if name == "k" else [[code, code] for code in expected])


def test_options_by_column_selectors_and_what_shares():
    frame = pd.DataFrame({"a": ["x", "x", "y"], "b": ["p", "q", "q"], "n": [1.0, 2.0, 3.0]})
    made = ff.Categorify(category(), min_count={"b": 2}, max_size={"a": 1}).fit_transform(frame)
    assert list(made)[3:] == ["code_a", "code_b"]
    assert (made["code_a"].tolist(), made["code_b"].tolist()) == ([2, 2, 1], [1, 2, 2])
    feature = ff.Categorify(["item", "seen"], shared=True, name="id")  # a column and lists
    made = feature.fit_transform(pd.DataFrame({"item": ["b", "z"], "seen": [["a", "b"], []]}))
    assert made["id_item"].tolist() == [2, 3]
    assert [list(v) for v in made["id_seen"]] == [[1, 2], []]
    assert list(feature.vocabs) == ["shared"]


def test_types_that_differ_from_frame_to_frame():
    feature = ff.Categorify("k").fit(pd.DataFrame({"k": [2**53 + 1, 2, 10]}))
    assert feature.transform(pd.DataFrame({"k": [10.0, None, 2.5]}))["code_k"].tolist() == [2, 0, 0]
    assert feature.transform(pd.DataFrame({"k": [2**53]}))["code_k"].tolist() == [0]
    with pytest.raises(NotFittedError, match="Categorify"):
        ff.Categorify("k").vocabs  # noqa: B018


MASK = (1 << 64) - 1


def fnv(text, buckets, seed=0):
    """The hash as its definition has it, one byte at a time."""
    state = 0xCBF29CE484222325 ^ seed
    for byte in text.encode():
        state = ((state ^ byte) * 0x100000001B3) & MASK
    state = ((state ^ (state >> 32)) * 0x100000001B3) & MASK
    return 1 + (state >> 1) % buckets


@given(st.lists(st.one_of(st.none(), st.text(max_size=5)), min_size=1), st.integers(1, 1000), st.integers(0, 5))
def test_text_equals_a_plain_loop(texts, buckets, seed):
    frame = pa.table({"k": pa.array(texts, pa.large_string())})
    made = ff.HashEncode("k", buckets, seed=seed).fit_transform(frame)["hash_k"].to_pylist()
    assert made == [0 if t is None else fnv(t, buckets, seed) for t in texts]


BIG = [1, 2**53 + 1]


@pytest.mark.parametrize(
    ("frame", "texts"),
    [
        *((pd.DataFrame({"k": pd.Series(BIG, dtype=t)}), [*map(str, BIG)]) for t in ("int64", "Int64", "uint64")),
        (pl.DataFrame({"k": [*map(str, BIG)]}), [*map(str, BIG)]),
        (pd.DataFrame({"k": [1.0, 0.5, None, True]}, dtype="float64"), ["1", "0.5", None, "1"]),
        *(
            (pa.table({"k": pa.array([10**17]).cast(t, safe=False)}), [str(10**17)])
            for t in (pa.int64(), pa.float64(), pa.uint64())
        ),
        *(
            (pa.table({"k": pa.array([60 * n], pa.timestamp(u))}), ["60"])
            for u, n in {"s": 1, "ms": 10**3, "ns": 10**9}.items()
        ),
    ],
)
def test_a_number_and_a_time_have_one_code_whatever_holds_them(frame, texts):
    made = Table.read(ff.HashEncode("k", 10**6).fit_transform(frame), ["hash_k"])["hash_k"]
    assert made.to_arrow().to_pylist() == [0 if t is None else fnv(t, 10**6) for t in texts]


key = st.one_of(st.none(), st.sampled_from(["a", "b", ""]))
rows = st.lists(st.tuples(key, key), min_size=1, max_size=20)


@given(rows, rows)
def test_counts_shares_and_counts_in_groups_equal_a_loop(train, new):
    first, second = (pd.DataFrame(r, columns=["x", "y"], dtype=object) for r in (train, new))
    shares = [ff.CountEncode(["x", "y"], normalise=True), ff.CountEncode("x", by="y", normalise=True)]
    logs = [ff.CountEncode("x", log=True), ff.CountEncode("y", by="x", log=True)]
    counts = [ff.CountEncode(["x", "y"]), ff.CountEncode(ff.Cross("x", "y")), ff.CountEncode("x", by=["y"])]
    fs = ff.FeatureSet([*counts, *shares, *logs]).fit(first)
    for frame in (first, second):
        made = fs.transform(frame)
        for i, (x, y) in enumerate(frame.itertuples(index=False)):
            own = [sum(r[c] == v for r in train) if v is not None else 0 for c, v in ((0, x), (1, y))]
            both = train.count((x, y)) if None not in (x, y) else 0
            group = sum(r[1] == y for r in train)
            assert made.loc[i, ["count_x", "count_y", "count_x_x_y", "count_x__y"]].tolist() == [*own, both, both]
            expected = [*(n / len(train) for n in own), both / group if both else 0]
            assert made.loc[i, ["share_x", "share_y", "share_x__y"]].tolist() == pytest.approx(expected)
            expected = [math.log1p(own[0]), math.log1p(both)]
            assert made.loc[i, ["log_count_x", "log_count_y__x"]].tolist() == pytest.approx(expected)
    assert fs.fit_transform(first)["count_x"].tolist() == fs.transform(first)["count_x"].tolist()


def test_unlabeled_rows_of_a_generator_that_counts_another():
    train = pd.DataFrame({"a": ["x", "x"], "b": [1, 2], "y": [0, 1]})
    test = pd.DataFrame({"a": ["x", "x", "z"], "b": [1, 1, 1]})
    fs = ff.FeatureSet([ff.CountEncode(ff.Cross("a", "b"), scope="all")]).fit(train, unlabeled=test)
    assert fs.transform(train)["count_a_x_b"].tolist() == [3, 1]


keys = st.lists(st.one_of(st.none(), st.sampled_from("abcde")), min_size=1, max_size=20)


@given(keys, keys)
def test_it_equals_a_loop(train, new):
    first, second = (pd.DataFrame({"k": pd.Series(r, dtype=object)}) for r in (train, new))
    fs = ff.FeatureSet([ff.RankByCount("k", method=m) for m in ("min", "dense", "ordinal")]).fit(first)
    count = {k: train.count(k) for k in train if k is not None}
    own = sorted(count, key=lambda k: (-count[k], k))
    for frame, given_keys in ((first, train), (second, new)):
        made = fs.transform(frame)
        for i, k in enumerate(given_keys):
            expected = [0, 0, 0]
            if k in count:
                more = [n for n in count.values() if n > count[k]]
                expected = [1 + len(more), 1 + len(set(more)), 1 + own.index(k)]
            assert made.loc[i, ["countrank_k", "dense_countrank_k", "ordinal_countrank_k"]].tolist() == expected


cell = st.tuples(
    st.one_of(st.none(), st.floats(-1, 1)),
    st.one_of(st.none(), st.text(max_size=2)),
    st.one_of(st.none(), st.booleans()),
    st.one_of(st.none(), st.just(pd.Timestamp("2024-01-01"))),
    st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=2)),
)


@given(st.lists(cell, min_size=1, max_size=12))
def test_bits_equal_a_plain_loop(rows):
    kinds = ["float64", object, "boolean", "datetime64[ns]", object]
    frame = pd.DataFrame({f"c{i}": pd.Series([r[i] for r in rows], dtype=k) for i, k in enumerate(kinds)})
    made = ff.NaNPattern(list(frame)).fit_transform(frame)["nan_pattern"].tolist()
    assert made == [sum((value is None) << i for i, value in enumerate(row)) for row in rows]


def test_the_widest_pattern_and_one_too_wide():
    names = [f"c{i}" for i in range(62)]
    frame = pd.DataFrame([[None] * 62, [1.0] * 62], columns=names, dtype="float64")
    assert ff.NaNPattern(names).fit_transform(frame)["nan_pattern"].tolist() == [2**62 - 1, 0]
    for wrong in ([], [*names, "more"]):
        with pytest.raises(FastrecError, match="NaNPattern"):
            ff.NaNPattern(wrong)


# How far a set of features has come: every step once, in one thread or several


@pytest.mark.parametrize(("rows", "threads"), [(300, 1), (60_000, 2)])
def test_each_generator_of_a_set_is_counted(rows, threads, set_threads):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.integers(0, 9, rows), "b": rng.integers(0, 5, rows), "y": rng.integers(0, 2, rows)})
    features = ff.FeatureSet([ff.CountEncode("a"), ff.CountEncode("b"), ff.TargetEncode("a", "y")])
    set_threads(threads)
    told: list[int] = []
    with step_by_step(told.append, 60, 6):
        features.fit_transform(frame)
        assert sum(told) == 30
        features.transform(frame)
        assert told == [10] * 6
    assert told == [*[10] * 6, 0]


def test_an_error_leaves_no_listener_and_without_one_nothing_is_wrapped():
    def failing() -> None:
        with step_by_step(lambda units: None, 1, 1):
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - its own
        failing()
    assert counting._listeners == []
    assert counted(failing) is failing
