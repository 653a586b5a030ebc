"""Odd logs from files to a run directory: empty and endless sessions, ids of any type, ties in time, refusals."""

from __future__ import annotations

import datetime as dt
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastrec.competition import NextItemCompetition, check_submission, predict_run, run_competition
from fastrec.errors import DataError, FastrecError, MissingColumnError
from fastrec.retrieval import RankedCandidates
from fastrec.sequences import VSTAN, CoVisitation, NextItemNet

# some sessions hold no item that the model knows
pytestmark = pytest.mark.filterwarnings("ignore:no item of")


class Small(NextItemCompetition):
    name, k, minutes = "Odd", 5, 2.0

    def models(self, *, bs):
        return {"net": NextItemNet(width=8, epochs=1), "near": CoVisitation(), "knn": VSTAN()}


class Log(Small):
    items, session, order = "item", "session", "time"
    exclude_seen, hold = True, "events"

    def models(self, *, bs):
        return {"near": CoVisitation(before=0.0), "knn": VSTAN()}


def run_of(recipe, folder, train, test):
    for name, frame in (("train", train), ("test", test)):
        pq.write_table(frame, folder / f"{name}.parquet")
    return run_competition(recipe, folder, folder / "run")


def lines_of(run):
    return [line.split(" ") for line in pd.read_csv(run / "submission.csv", dtype=str)["items"]]


def circle(ids, n):
    return [[ids[(s + i) % len(ids)] for i in range(2 + s % 3)] for s in range(n)]


def test_empty_endless_and_repeated_sessions_in_train_and_test(tmp_path):
    ids = [f"x{i}" for i in range(12)]
    train = [*circle(ids, 90), [], ["x1"], ["x2"] * 50, ids * 8334]  # the last one has 100,008 events
    test = [[], ["x3"], ["never"], [None, "x4"], ids * 8334, ["x5"] * 7]
    targets = ["x1", "x4", "x4", "x5", "never", None]
    made = run_of(Small(), tmp_path, pa.table({"items": train}), pa.table({"items": test, "target": targets}))
    lines = lines_of(made)
    assert [len(set(line)) for line in lines] == [5] * 6
    assert lines[0] == lines[2]  # nothing known of either: what is popular
    assert "x4" in lines[1]
    scores = json.loads((made / "scores.json").read_text())
    assert scores["hr@5"] <= 4 / 6  # what nobody saw, and what is missing, is never found
    assert predict_run(made, tmp_path, tmp_path / "p.csv").read_text() == (made / "submission.csv").read_text()
    check_submission(made / "submission.csv", tmp_path / "test.parquet", Small().submission)


@pytest.mark.parametrize(
    "ids",
    [
        pa.array([2**53 + i for i in range(9)], pa.int64()),
        pa.array([2**63 + i for i in range(9)], pa.uint64()),
        pa.array([f'ключ,"{i}"' for i in range(9)]),
        pa.array([f"c{i}" for i in range(9)]).dictionary_encode(),
        pa.array([i / 4 for i in range(9)], pa.float64()),
        pa.array([dt.date(2026, 1, 1 + i) for i in range(9)], pa.date32()),
    ],
    ids=["int64", "uint64", "text", "dictionary", "float", "date"],
)
def test_ids_of_any_type(ids, tmp_path):
    rows = [(s, i, (s + i) % 9) for s in range(60) for i in range(3)]
    session, time, item = (np.array(v) for v in zip(*rows, strict=True))
    log = pa.table({"session": session, "time": time, "item": ids.take(pa.array(item))})
    made = run_of(Log(), tmp_path, log, log.slice(0, 60))
    table = pd.read_csv(made / "submission.csv", dtype=str)
    assert table["session"].tolist() == [str(s) for s in range(20)]
    known = set(ids.cast(pa.string()).to_pylist())
    lines = [line.split(" ") for line in table["item"]]
    assert all(len(set(line)) == 5 and set(line) <= known for line in lines)
    following = [ids[(s + 3) % 9].cast(pa.string()).as_py() for s in range(20)]
    assert [line[0] for line in lines] == following


def test_ties_in_time_keep_the_order_of_the_rows(tmp_path):
    rows = [(s, 5, f"{'abc'[i]}") for i in range(3) for s in range(40)]
    log = pa.table(dict(zip(("session", "time", "item"), map(list, zip(*rows, strict=True)), strict=True)))
    made = run_of(Log(), tmp_path, log, log.filter(pa.compute.not_equal(log["item"], "c")))
    assert {line.split(" ")[0] for line in pd.read_csv(made / "submission.csv")["item"]} == {"c"}


def test_a_catalogue_of_few_items_gives_short_lists(tmp_path):
    made = run_of(Small(), tmp_path, pa.table({"items": [["a", "b"]] * 30}), pa.table({"items": [["a"], []]}))
    assert [len(line) for line in lines_of(made)] == [2, 2]
    said = check_submission(made / "submission.csv", tmp_path / "test.parquet", Small().submission)
    assert said.warnings == ("2 lists have fewer than 5 ids",)


@pytest.mark.parametrize("most", [2, 3, 20])
def test_the_recipe_for_diginetica_on_very_few_sessions(most, tmp_path):
    class Both(Small):
        def models(self, *, bs):
            return {"net": NextItemNet(width=8, epochs=1), "ranked": RankedCandidates(rounds=5)}

    test = pa.table({"items": [["b"], [], ["zz"]]})
    made = run_of(Both(), tmp_path, pa.table({"items": circle(list("abcdefgh"), most)}), test)
    assert len(lines_of(made)) == 3


@pytest.mark.parametrize(
    ("recipe", "train", "test", "error", "words"),
    [
        (Small, {"items": [["a"], ["b"]]}, {"items": [["a"]]}, DataError, "no session has two events"),
        (Small, {"items": pa.array([], pa.list_(pa.string()))}, {"items": [["a"]]}, DataError, "no session has two"),
        (Small, {"item": [["a", "b"]]}, {"items": [["a"]]}, MissingColumnError, "items"),
        (Small, {"items": [["a", "b"]]}, {"things": [["a"]]}, MissingColumnError, "items"),
        (Small, {"items": ["a", "b"]}, {"items": ["a"]}, DataError, "no column says which session"),
        (Log, {"item": ["a", "b"], "session": [1, None], "time": [1, 2]}, {}, DataError, "belongs to no session"),
        (Small, {"items": [["a b", "b"]] * 9}, {"items": [["b"]]}, DataError, "stands between items"),
    ],
)
def test_what_cannot_be_used_is_named(recipe, train, test, error, words, tmp_path):
    with pytest.raises(error, match=words) as raised:
        run_of(recipe(), tmp_path, pa.table(train), pa.table(test))
    assert isinstance(raised.value, FastrecError)
    assert not (tmp_path / "run").exists()
