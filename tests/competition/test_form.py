"""Forms of submissions other than 2019's: written, kept in the run, found again."""

import csv
import json
import math
from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.competition import RECSYS2019, SubmissionForm, rank_lists, ranked_strings
from fastrec.competition.forms.lists import form_of_run, run_around
from fastrec.errors import DataError, MissingFileError, UnreadableFileError

LONG = SubmissionForm(
    ids=("basket", "day"),
    items="products",
    item_sep=",",
    max_items=40,
    targets=(("kind", "ask"),),
    candidates="shown",
    candidates_sep=";",
    answer="bought",
)
names = st.text("abc_ ,;'\"é", min_size=1, max_size=5)


@st.composite
def forms(draw):
    header = draw(st.lists(names, min_size=2, max_size=4, unique=True))
    sep = draw(st.sampled_from([" ", ",", ";", "|", "\t", ", ", "::", '"', "a", "é"]))
    return SubmissionForm(ids=tuple(header[:-1]), items=header[-1], item_sep=sep, max_items=draw(st.integers(1, 40)))


@settings(max_examples=60)
@given(form=forms(), lists=st.integers(1, 4), size=st.integers(1, 45), seed=st.integers(0, 99))
def test_a_file_of_any_form_holds_the_best_items_in_order(tmp_path_factory, form, lists, size, seed):
    rng = np.random.default_rng(seed)
    items = np.concatenate([rng.permutation(200)[:size] for _ in range(lists)])
    scores, groups = rng.integers(0, 5, lists * size).astype(float), np.repeat(np.arange(lists), size)
    keys = {name: [f"{name}{i}" for i in range(lists)] for name in form.ids}
    path = tmp_path_factory.mktemp("form") / "s.csv"
    best = ranked_strings(items, scores, groups, sep=form.item_sep, k=form.max_items)
    form.write(path, keys, {form.items: best})
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == [*form.ids, form.items]
    for i, row in enumerate(rows):
        own = [j for j in range(lists * size) if groups[j] == i]
        best = sorted(own, key=lambda j: (-scores[j], j))[: form.max_items]
        assert row[:-1] == [keys[name][i] for name in form.ids]
        assert row[-1].split(form.item_sep) == [str(items[j]) for j in best]
    assert len(rows) == lists


@given(form=forms())
def test_a_form_comes_back_from_json(form):
    for known in (form, LONG, RECSYS2019):
        assert SubmissionForm(**json.loads(json.dumps(asdict(known)))) == known


@pytest.mark.parametrize(
    "change",
    [
        *({"item_sep": ""}, {"candidates_sep": ""}, {"max_items": 0}, {"ids": ("a", "a")}, {"ids": ("a", "products")}),
        *({"items": None}, {"values": ("p",)}, {"sep": ", "}, {"ids": ("a", "b"), "candidates": None}),
    ],
)
def test_a_form_that_no_file_can_have_is_refused(change):
    with pytest.raises(DataError, match="no submission"):
        SubmissionForm(**{"ids": ("a",), "items": "products", **change})


def test_the_form_of_the_run_around_a_file_is_found_and_a_damaged_one_named(tmp_path):
    run = tmp_path / "run"
    (run / "tries").mkdir(parents=True)
    (run / "scores.json").write_text("{}")
    assert run_around(run / "submission.csv") is None
    broken = [{**asdict(LONG), **change} for change in ({"sep": 5}, {"max_items": "x"}, {"ids": None})]
    for damage in [*broken, {"sep": ","}, [], "text", {**asdict(LONG), "targets": [["a"]]}]:
        (run / "config.json").write_text(json.dumps({"task": "ranking", "submission": damage}))
        with pytest.raises(UnreadableFileError, match=r"config\.json"):
            form_of_run(run_around(run / "submission.csv"))
    (run / "config.json").write_text("{")
    with pytest.raises(UnreadableFileError, match=r"config\.json"):
        form_of_run(run)
    with pytest.raises(MissingFileError, match=r"config\.json"):
        form_of_run(run / "nowhere")
    (run / "config.json").write_text(json.dumps({"task": "ranking", "submission": asdict(LONG)}))
    assert form_of_run(run_around(run / "tries" / "other.csv")) == LONG
    assert run_around(tmp_path / "submission.csv") is None


# Ranked lists against sorting in plain Python


row = st.tuples(
    st.sampled_from([0.0, -0.0, 1.0, 2.5, -1.0, math.inf, -math.inf, math.nan]),
    st.sampled_from([5, -2, 2**60, 2**60 + 1]),
    st.integers(-(2**62), 2**62),
)


def loop_lists(scores, groups, k):
    lists = {}
    for i, group in enumerate(groups):
        lists.setdefault(group, []).append(i)
    key = lambda i: (math.isnan(scores[i]), 0 if math.isnan(scores[i]) else -scores[i], i)  # noqa: E731
    return [sorted(rows, key=key)[:k] for rows in lists.values()]


@settings(max_examples=60, deadline=None)
@given(st.lists(row, min_size=1, max_size=30), st.sampled_from([None, 1, 2, 50]))
def test_lists_against_a_loop(rows, k):
    scores, groups, items = (list(column) for column in zip(*rows))
    expected = loop_lists(scores, groups, k)
    order, offsets = rank_lists(np.array(scores), np.array(groups), k=k)
    assert [order[a:b].tolist() for a, b in pairwise(offsets.tolist())] == expected
    strings = ranked_strings(np.array(items), np.array(scores), np.array(groups), k=k)
    assert strings.to_pylist() == [" ".join(str(items[i]) for i in members) for members in expected]


def test_every_kind_of_column_gives_the_same_lists():
    items, scores, groups = [2**53 + 1, 7, 8, 9], [0.1, 0.2, 0.3, 0.4], [4, 4, 1, 1]
    odd = [lambda x: pa.chunked_array([x[:1], x[1:]]), lambda x: pd.Series(x, index=[3, 2, 1, 0])]
    for kind in (np.array, torch.tensor, pd.Series, pl.Series, pa.array, *odd):
        strings = ranked_strings(kind(items), np.array(scores), kind(groups))
        assert strings.to_pylist() == ["7 9007199254740993", "9 8"]
    categories = pd.Categorical(["a", "b", "c", "d"], categories=["d", "c", "b", "a"])
    assert ranked_strings(categories, scores, pd.Categorical(["y", "y", "x", "x"])).to_pylist() == ["b a", "d c"]
    nullable = pd.Series(items, dtype="Int64")
    assert ranked_strings(nullable, pd.Series(scores), groups).to_pylist() == ["7 9007199254740993", "9 8"]


def test_no_rows_give_no_lists_and_a_bad_k_is_named():
    order, offsets = rank_lists(np.zeros(0), np.zeros(0, int))
    assert (order.tolist(), offsets.tolist()) == ([], [0])
    assert ranked_strings(np.zeros(0, int), np.zeros(0), np.zeros(0, int)).to_pylist() == []
    with pytest.raises(DataError, match="k=0 is not a whole number above 0"):
        rank_lists([1.0], [0], k=0)


@pytest.mark.parametrize(
    ("items", "scores", "groups", "words"),
    [
        ([1, 2], [1.0, 2.0], [0], "groups has 1 rows, scores has 2"),
        ([1], [1.0, 2.0], [0, 0], "items has 1 rows, scores has 2"),
        ([1.0, 2.0], [1.0, 2.0], [0, 0], "items are double, which has no exact text"),
        ([1, None], [1.0, 2.0], [0, 0], "column 'items', row 1: an item is missing"),
        ([1, 2], [1.0, 2.0], [None, 0], "column 'groups', row 0: a group is missing"),
        (["a", "b c"], [1.0, 2.0], [0, 0], "row 1: an item holds the separator ' '"),
        ([1, "a"], [1.0, 2.0], [0, 0], "column 'items': the values cannot be read as one column"),
        ([1, 2], ["a", "b"], [0, 0], "column 'scores': <U1 values are not numbers"),
    ],
)
def test_bad_input_is_named(items, scores, groups, words):
    with pytest.raises(DataError, match=words):
        ranked_strings(items, scores, groups)
