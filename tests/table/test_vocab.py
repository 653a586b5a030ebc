from __future__ import annotations

import warnings
from collections import Counter
from decimal import Decimal
from itertools import count

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.table import Vocab, as_column, load_state, save_state
from fastrec.table import vocab as module
from fastrec.table.vocab import Lookup, hash_codes, hash_text


def fit(values, **options) -> Vocab:
    return Vocab.fit(as_column(values, name="x"), **options)


def encode(vocab: Vocab, values) -> list[int]:
    return vocab.encode(as_column(values, name="x")).tolist()


def fastai_codes(series: pd.Series) -> tuple[list[int], list]:
    """Codes and classes of fastai's own Categorify, all rows being training rows."""
    from fastai.tabular.all import Categorify, TabularPandas

    frame = pd.DataFrame({"x": series.reset_index(drop=True), "y": np.zeros(len(series))})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fastai's own, about pandas
        made = TabularPandas(frame, procs=[Categorify], cat_names=["x"], splits=[list(range(len(frame))), []])
    return made.items["x"].astype(int).tolist(), list(made.classes["x"])


SERIES = {
    "integers": pd.Series([5, -3, 5, 10, 9, 100]),
    "text": pd.Series(["b", "a", None, "B", "é", "z", "😀", "a", ""]),
    "booleans": pd.Series([True, False, True]),
    "floats": pd.Series([2.5, np.nan, -1.0, 1e9, 2.5]),
    "a categorical": pd.Series(pd.Categorical(["b", None, "a"], categories=["c", "b", "a"])),
    "an ordered categorical": pd.Series(
        pd.Categorical(["lo", "hi", "lo"], categories=["lo", "mid", "hi"], ordered=True)
    ),
    "a categorical of integers": pd.Series(pd.Categorical([3, 1, None, 3])),
    "times": pd.Series(pd.to_datetime(["2020-02-01", None, "2019-01-01"])),
    "numbers as text": pd.Series(["10", "9", "1"]),
}


@pytest.mark.parametrize("name", SERIES)
def test_codes_and_classes_are_those_of_fastai(name):
    codes, classes = fastai_codes(SERIES[name])
    vocab = fit(SERIES[name])
    assert encode(vocab, SERIES[name]) == codes
    assert vocab.classes == classes
    assert len(vocab) == len(classes)


def test_nullable_columns_are_coded_exactly_and_an_unordered_dictionary_is_sorted():
    # fastai's Categorify raises on pd.NA
    vocab = fit(pd.Series([3, None, 2**53 + 1, 2**53], dtype="Int64"))
    assert vocab.classes == ["#na#", 3, 2**53, 2**53 + 1]
    assert encode(vocab, pd.Series([2**53 + 1, None, 2**53], dtype="Int64")) == [3, 0, 2]
    assert fit(pd.Series([True, None, False], dtype="boolean")).classes == ["#na#", False, True]
    array = pa.DictionaryArray.from_arrays([2, 0, None], ["z", "unused", "a"])
    assert fit(array).classes == ["#na#", "a", "z"]
    ordered = pa.DictionaryArray.from_arrays([2, 0], ["z", "unused", "a"], ordered=True)
    assert fit(ordered).classes == ["#na#", "z", "unused", "a"]
    assert fit(ordered).ordered


@given(
    st.lists(st.integers(0, 8), max_size=40), st.integers(0, 4), st.one_of(st.none(), st.integers(0, 6)), st.booleans()
)
@settings(max_examples=80, deadline=None)
def test_frequency_and_size_caps(values, min_count, max_size, unseen):
    counts = Counter(values)
    kept = [v for v in sorted(counts) if counts[v] >= min_count]
    kept = sorted(sorted(kept, key=lambda v: (-counts[v], v))[:max_size])
    reserved = ["#na#"] + ["#unseen#"] * unseen + ["#rare#"] * (min_count > 1 or max_size is not None)
    vocab = fit(np.array(values, dtype=np.int64), min_count=min_count, max_size=max_size, unseen=unseen)
    assert vocab.classes == reserved + kept
    new = [*range(-1, 10)]

    def code(value):
        if value in kept:
            return len(reserved) + kept.index(value)
        if value in counts:
            return reserved.index("#rare#")
        return int(unseen)

    assert encode(vocab, np.array(new)) == [code(v) for v in new]
    assert encode(vocab, [None, None]) == [0, 0]


@pytest.mark.parametrize(
    ("known", "new", "codes"),
    [
        ([1, 2, 3], [1.0, 2.5, np.nan, 3.0, np.inf, -np.inf, 1e300], [1, 0, 0, 3, 0, 0, 0]),
        ([2**53, 2**53 + 1], [2.0**53], [1]),
        ([2.0**53, 5.5], [2**53 + 1, 2**53], [0, 2]),
        (np.array([1, 2], np.int8), [257, 2], [0, 2]),
        (np.array([2**63 - 1, 2**63 + 1], np.uint64), [2**63 - 1, -1, 0], [1, 0, 0]),
        ([2**63 - 1, 5], np.array([2**63 + 1, 5], np.uint64), [0, 1]),
        ([True, False], [2, 1, 0, -1], [0, 2, 1, 0]),
        (np.array([0.1, 0.5], np.float32), [0.1, 0.5], [0, 2]),
        ([Decimal("1.2"), Decimal("3")], [Decimal("1.25"), Decimal("1.20"), Decimal("3.000")], [0, 1, 2]),
        ([Decimal("0.1"), Decimal("3")], [0.1, 3.0, np.inf, 1e300, 1e-300], [1, 2, 0, 0, 0]),
        ([0.1, 3.0], [Decimal("0.1"), Decimal("0.11"), Decimal(3)], [1, 0, 2]),
        (["a", "b"], pd.Categorical(["b", "c", None]), [2, 0, 0]),
        ([None, None], ["a", None], [0, 0]),
        (np.array([], np.float64), ["a"], [0]),
        (np.array([1, 2], "M8[s]"), np.array([1_500_000_000, 2_000_000_000], "M8[ns]"), [0, 2]),
        (np.array([1, 2_000_000_000], "M8[ns]"), np.array([2, 2**62], "M8[s]"), [2, 0]),
        (pa.array([3], pa.timestamp("s", "UTC")), pa.array([3000], pa.timestamp("ms", "Europe/Berlin")), [1]),
        ([-0.0, 1.0], [0.0, -0.0, 0], [1, 1, 1]),
        (pa.array([-0.0, 1.0]).dictionary_encode(), [0.0], [1]),
    ],
)
def test_one_value_has_one_code_whatever_its_type(known, new, codes):
    assert encode(fit(known), new) == codes


def test_values_that_cannot_be_compared_and_what_has_no_codes_are_named():
    time, zoned = np.array([1], "M8[s]"), pa.array([1], pa.timestamp("s", "UTC"))
    for known, new in ((["a"], [1]), ([1], ["1"]), ([1], time), ([True], ["True"]), (time, zoned)):
        with pytest.raises(DataError, match=r"column 'x'.*the same type in every frame"):
            encode(fit(known), new)
    for call, message in (
        (lambda: fit([[1, 2]]), r"column 'x', row 0.*as a key"),
        (lambda: fit([1], min_count=-1), "negative"),
        (lambda: fit([1], max_size=-1), "negative"),
        (lambda: hash_codes(pa.array(["a"]), 0), "at least one bucket"),
    ):
        with pytest.raises(DataError, match=message):
            call()


def test_decode_takes_reserved_codes_for_missing_and_refuses_those_of_others():
    vocab = fit(["a", "b"])
    assert vocab.decode(torch.tensor([0, 2, 1], dtype=torch.int32)).to_pylist() == [None, "b", "a"]
    assert vocab.decode(torch.tensor([], dtype=torch.int64)).to_pylist() == []
    for bad in (3, -1):
        with pytest.raises(DataError, match=r"column 'x', row 1: code -?\d is outside"):
            vocab.decode(torch.tensor([0, bad]))
    vocab = fit(["a", "a", "b"], min_count=2, unseen=True)
    assert vocab.classes == ["#na#", "#unseen#", "#rare#", "a"]
    assert vocab.decode(torch.arange(4)).to_pylist() == [None, None, None, "a"]


@pytest.mark.parametrize("name", SERIES)
@pytest.mark.parametrize("options", [{}, {"min_count": 2, "unseen": True}])
def test_a_saved_vocabulary_gives_the_same_codes(tmp_path, name, options):
    vocab = fit(SERIES[name], **options)
    save_state(tmp_path / "v", vocab.to_state())
    loaded = Vocab.from_state(load_state(tmp_path / "v"))
    assert loaded.classes == vocab.classes
    assert encode(loaded, SERIES[name]) == encode(vocab, SERIES[name])
    assert (loaded.ordered, loaded.name, loaded.reserved) == (vocab.ordered, vocab.name, vocab.reserved)


def fnv1a(text: str, buckets: int, seed: int) -> int:
    """The published loop, then the mix that the docstring states, in Python's own integers."""
    state = 0xCBF29CE484222325 ^ (seed % 2**64)
    for byte in text.encode():
        state = ((state ^ byte) * 0x100000001B3) % 2**64
    state = ((state ^ (state >> 32)) * 0x100000001B3) % 2**64
    return (state >> 1) % buckets


def test_hash_codes_are_published_values_and_those_of_other_types_are_of_their_text():
    # draft-eastlake-fnv, section 5: 64-bit FNV-1a of "", "a" and "foobar"
    for text, value in {"": 0xCBF29CE484222325, "a": 0xAF63DC4C8601EC8C, "foobar": 0x85944171F73967E8}.items():
        mixed = ((value ^ (value >> 32)) * 0x100000001B3) % 2**64
        assert hash_codes(pa.array([text]), 2**62).tolist() == [(mixed >> 1) % 2**62]
    assert hash_codes(pa.array([5, -17]), 1000).tolist() == [fnv1a("5", 1000, 0), fnv1a("-17", 1000, 0)]
    assert hash_codes(pa.array([5], pa.int8()), 1000).tolist() == hash_codes(pa.array([5], pa.uint64()), 1000).tolist()
    assert hash_codes(pa.array([True]), 1000).tolist() == [fnv1a("true", 1000, 0)]


@given(
    st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)),
    st.integers(1, 2**40),
    st.integers(-(2**63), 2**64),
)
@settings(max_examples=80, deadline=None)
def test_hash_codes_are_those_of_a_plain_loop(values, buckets, seed):
    wanted = [fnv1a(v, buckets, seed) for v in values]
    assert hash_codes(pa.array(values, pa.string()), buckets, seed=seed).tolist() == wanted
    padded = pa.array(["padding", *values, "end"])[1 : len(values) + 1]
    assert hash_codes(padded, buckets, seed=seed).tolist() == wanted


@pytest.mark.parametrize("long", [64, 65])  # at most so many long values go one by one
def test_hash_codes_of_long_values_beside_short_ones(long):
    values = ["é" * 70_000, *(f"{i:03}" * 400 for i in range(long - 1)), "", *(f"u{i}" * (i % 90) for i in range(300))]
    wanted = [fnv1a(v, 2**62, 3) for v in values]
    assert hash_codes(pa.array(["padding", *values])[1:], 2**62, seed=3).tolist() == wanted


ENDS = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1]
near = st.integers(-50, 50)
far = st.sampled_from(ENDS) | st.integers(-(2**63), 2**63 - 1)


def plain(values: list, codes, wanted: list, absent: int) -> list[int]:
    known = dict(zip(values, codes))
    return [known.get(v, absent) for v in wanted]


@given(
    st.lists(near, unique=True, max_size=40) | st.lists(far, unique=True, max_size=40), st.lists(near | far), st.data()
)
@settings(max_examples=80, deadline=None)
def test_integers_near_and_far(values, others, data):
    codes = data.draw(st.lists(st.integers(0, 99), min_size=len(values), max_size=len(values)))
    absent = data.draw(st.integers(0, 99))
    wanted = others + values
    found = Lookup(pa.array(values, pa.int64()), np.array(codes), absent=absent)
    assert found.numbers(torch.tensor(wanted, dtype=torch.int64)).tolist() == plain(values, codes, wanted, absent)


@given(st.sets(st.integers(-(2**40), 2**40), min_size=1, max_size=300), st.integers(300, 999))
@settings(max_examples=60, deadline=None)
def test_many_values_that_want_the_same_places(values, absent):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "NARROW_SPAN", 0)
        patch.setattr(limits, "NARROW_SPARE", 0)
        patch.setattr(module, "_FACTOR", 1)  # every value falls on the first place, or on the last
        patch.setattr(module, "_SIGNED", 1)
        values = sorted(values)
        found = Lookup(pa.array(values), np.arange(len(values)), absent=absent)
        wanted = [*values[::-1], 2**41, -1 - 2**41]
        codes = [*reversed(range(len(values))), absent, absent]
        assert found.numbers(torch.tensor(wanted)).tolist() == codes


@given(st.sets(st.floats(allow_nan=False, width=32), max_size=30), st.lists(st.floats(width=32)))
@settings(max_examples=100, deadline=None)
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_floats_by_value(kind, values, others):
    values = list(values)
    wanted = [-0.0, 0.0, float("nan"), *values, *others]
    found = Lookup(pa.array(values, kind), np.arange(len(values)) + 1, absent=0)
    for dtype in (torch.float32, torch.float64):
        assert found.numbers(torch.tensor(wanted, dtype=dtype)).tolist() == plain(values, count(1), wanted, 0)
    assert not found.takes(torch.int64)


words = st.text(st.sampled_from("ab\0é😀"), max_size=20)


@given(st.sets(words, max_size=60), st.lists(words), st.integers(0, 3), st.booleans())
@settings(max_examples=80, deadline=None)
def test_text(values, others, front, large):
    values, kind = sorted(values), pa.large_string() if large else pa.string()
    wanted = list(dict.fromkeys([*others, *values]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "ARROW_LOOKUPS", 0)
        found = Lookup(pa.array(values, pa.large_string()), np.arange(len(values)) + 3, absent=2)
    codes = found.distinct(pa.array(["x"] * front + wanted, kind)[front:])
    assert codes.tolist() == plain(values, count(3), wanted, 2)


def test_text_of_equal_hash_is_told_apart(monkeypatch):
    values = [f"word {i}" for i in range(600)]
    monkeypatch.setattr(module, "hash_text", lambda v: np.full(len(v), 7, dtype=np.int64))
    known = Lookup(pa.array(values, pa.large_string()), np.arange(600), absent=0)
    assert known.distinct(pa.array(["word 599", "word 4", "another"])).tolist() == [599, 4, 0]
    monkeypatch.undo()
    known = Lookup(pa.array(values, pa.large_string()), np.arange(600), absent=0)
    same = hash_text(pa.array(["word 9"], pa.large_string()))
    monkeypatch.setattr(module, "hash_text", lambda v: np.repeat(same, len(v)))
    assert known.distinct(pa.array(["word 9", "none"], pa.large_string())).tolist() == [9, 0]
