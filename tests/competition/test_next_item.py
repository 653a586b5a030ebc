"""Next-item competitions by ``fastrec run``: logs of several forms, odd logs, sessions in which nothing comes twice."""

import datetime as dt
import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fastrec.competition import NextItemCompetition, SavedNextItems, check_submission, predict_run, run_competition
from fastrec.competition.run import load_competition
from fastrec.errors import DataError, FastrecError, MissingColumnError, MissingFileError
from fastrec.retrieval import RankedCandidates
from fastrec.sequences import VSTAN, CoVisitation, NextItemNet, PopularItems, SessionBlend, SessionFrame, SessionModel
from tests._core.refusals import refused

# some sessions hold no item that the model knows
pytestmark = pytest.mark.filterwarnings("ignore:no item of")

ROOT = Path(__file__).resolve().parents[2]
WORDS = [f"item-{i:02d}" for i in range(30)]


class Small(NextItemCompetition):
    name = "Small"

    def models(self, *, bs):
        return {"net": NextItemNet(width=16, tokens=128, epochs=10), "knn": VSTAN()}


class Default(NextItemCompetition):
    name = "Default"


def test_the_default_pairs_count_what_came_right_after_the_last_item():
    draw = np.random.default_rng(0)
    lists = [[WORDS[i] for i in draw.integers(0, 12, n)] for n in draw.integers(1, 9, 200)]
    follows: dict[str, Counter[str]] = defaultdict(Counter)
    for one in lists:
        for a, b in pairwise(one):
            follows[a][b] += a != b  # an item that comes again is no pair
    pairs = Default().models(bs=None)["pairs"].fit(SessionFrame(pd.DataFrame({"items": lists}), item="items"))
    asked = SessionFrame(pd.DataFrame({"items": [["item-05", w] for w in WORDS[:12]]}), item="items")
    best, scores = pairs.recommend(asked.recode(pairs.items), 5)
    for word, codes, found in zip(WORDS, best, scores.tolist(), strict=False):
        counts = [follows[word][other] for other in pairs.items.decode(codes).to_pylist()]
        assert counts == sorted(follows[word].values(), reverse=True)[:5]
        assert found == pytest.approx([found[0] * n / counts[0] for n in counts], rel=1e-5)


def walk(start: int, length: int) -> list[str]:
    return [WORDS[(start + i) % 30] for i in range(length)]


def write(folder: Path, *, truth: bool = True) -> Path:
    folder.mkdir()
    pd.DataFrame({"items": [walk(i, 2 + i % 4) for i in range(300)]}).to_parquet(folder / "train.parquet")
    test = pd.DataFrame({"items": [walk(7, 3), [], ["unseen"], walk(20, 50)]})
    if truth:
        test["target"] = [WORDS[10], WORDS[1], "unseen", WORDS[10]]
    test.to_parquet(folder / "test.parquet")
    return folder


def test_a_run_has_everything(tmp_path):
    out = run_competition(Small(), write(tmp_path / "data"), tmp_path / "run", minutes=0.5)
    ranked = [line.split(" ") for line in pd.read_csv(out / "submission.csv")["items"]]
    assert len(ranked) == 4
    assert all(len(set(r)) == 20 and set(r) <= set(WORDS) for r in ranked)
    assert WORDS[10] in ranked[0][:5]
    scores = json.loads((out / "scores.json").read_text())
    places = [r.index(t) + 1 if t in r else 0 for r, t in zip(ranked, [WORDS[10], WORDS[1], "unseen", WORDS[10]])]
    assert scores["hr@20"] == pytest.approx(sum(p > 0 for p in places) / 4)
    assert scores["mrr@20"] == pytest.approx(sum(1 / p for p in places if p) / 4)
    assert set(scores["models"]) == {"net", "knn", "blend", "popularity"} == set(scores["oof"])
    assert (out / "report.html").stat().st_size > 1000
    saved = SessionModel.load(out / "models" / "blend")
    test = Small().read(tmp_path / "data", None)[1]
    items = test.decode(saved.recommend(test, 20)[0]).to_pylist()
    assert items == [v for r in ranked for v in r]
    recommender, told = SavedNextItems(out), []
    best, known = recommender.recommend(test, 20, told.append), recommender.blend.recommend_each(test, 20)["blend"]
    assert all(map(torch.equal, best, known))  # scored alone as beside its models, to the bit
    assert sum(told) == len(test)
    assert recommender.recommend_items([walk(7, 3), [], ["unseen"], walk(20, 50)]) == ranked
    assert [len(r) for r in recommender.recommend_items([[WORDS[3]], ["unseen", WORDS[3]]], 4)] == [4, 4]
    assert recommender.recommend_items([]) == []
    with pytest.raises(DataError, match=r"list is no SessionFrame.*recommend_items"):
        recommender.recommend([[WORDS[3]]])
    with pytest.raises(DataError, match="'item-03' is no session"):
        recommender.recommend_items([WORDS[3]])


@pytest.mark.parametrize("exclude_seen", [False, True])
def test_popularity_is_a_row_beside_the_models(tmp_path, exclude_seen):
    """Counted by a plain loop: of the training sessions for the test, of those not held out for the held-out rows."""
    rng = np.random.default_rng(0)
    words, p = np.array(WORDS), np.arange(30, 0, -1.0) ** 2
    drawn = [rng.choice(words, size=4, replace=False, p=p / p.sum()).tolist() for _ in range(260)]
    pd.DataFrame({"items": drawn[:200]}).to_parquet(tmp_path / "train.parquet")
    test = pd.DataFrame({"items": [s[:3] for s in drawn[200:]], "target": [s[3] for s in drawn[200:]]})
    test.to_parquet(tmp_path / "test.parquet")
    recipe = type("Own", (NextItemCompetition,), {"name": "own", "k": 5, "exclude_seen": exclude_seen})()
    recipe.models = lambda bs: {"knn": VSTAN()}
    out = run_competition(recipe, tmp_path, tmp_path / "run")
    counts = pd.Series([w for s in drawn[:200] for w in s]).value_counts()
    assert counts.iloc[:9].is_unique
    expected = []
    for seen, target in zip(test["items"], test["target"]):
        shown = [w for w in counts.index if not (exclude_seen and w in seen)][:5]
        expected.append(1 / (1 + shown.index(target)) if target in shown else 0.0)
    scores = json.loads((out / "scores.json").read_text())
    assert scores["models"]["popularity"] == pytest.approx(np.mean(expected), abs=1e-7)
    assert 0.1 < scores["oof"]["popularity"] < 0.9
    rows = pd.read_parquet(out / "next_items.parquet").groupby("split")["rr_popularity"]
    assert rows.mean().to_dict() == pytest.approx({"oof": scores["oof"]["popularity"], "test": np.mean(expected)})
    assert (scores["final"], scores["also"]["hr@5"].keys()) == ("knn", {"popularity", "knn"})
    assert len(pd.read_csv(out / "submission.csv")) == 60


def test_a_target_of_train_is_learned_from(tmp_path):
    train = pd.DataFrame({"items": [["a"], ["b"], ["c"]] * 20, "target": ["b", "c", "d"] * 20})
    train.to_parquet(tmp_path / "train.parquet")
    train[["items"]].head(3).to_parquet(tmp_path / "test.parquet")
    sessions, test = Small().read(tmp_path, None)
    assert sessions.decode(sessions.values[:6]).to_pylist() == list("abbccd")
    assert test.target is None
    assert torch.equal(test.values, sessions.values[[0, 2, 4]])


class Odd(NextItemCompetition):
    name, k, minutes = "Odd", 5, 2.0

    def models(self, *, bs):
        return {"net": NextItemNet(width=8, epochs=1), "near": CoVisitation(), "knn": VSTAN()}


class OddLog(Odd):
    items, session, order = "item", "session", "time"
    exclude_seen, hold = True, "events"

    def models(self, *, bs):
        return {"near": CoVisitation(before=0.0), "knn": VSTAN()}


def run_of(recipe, folder, train, test):
    for name, frame in (("train", train), ("test", test)):
        if frame is not None:
            pq.write_table(frame, folder / f"{name}.parquet")
    return run_competition(recipe, folder, folder / "run")


def lines_of(run):
    return [line.split(" ") for line in pd.read_csv(run / "submission.csv", dtype=str)["items"]]


def circle(ids, n):
    return [[ids[(s + i) % len(ids)] for i in range(2 + s % 3)] for s in range(n)]


def test_empty_endless_and_repeated_sessions_in_train_and_test(tmp_path):
    ids = [f"x{i}" for i in range(12)]
    train = [*circle(ids, 90), [], ["x1"], ["x2"] * 50, ids * 834]  # the last one has 10,008 events
    test = [[], ["x3"], ["never"], [None, "x4"], ids * 834, ["x5"] * 7]
    targets = ["x1", "x4", "x4", "x5", "never", None]
    made = run_of(Odd(), tmp_path, pa.table({"items": train}), pa.table({"items": test, "target": targets}))
    lines = lines_of(made)
    assert [len(set(line)) for line in lines] == [5] * 6
    assert lines[0] == lines[2]  # nothing known of either: what is popular
    assert "x4" in lines[1]
    scores = json.loads((made / "scores.json").read_text())
    assert scores["hr@5"] <= 4 / 6  # what nobody saw, and what is missing, is never found
    assert predict_run(made, tmp_path, tmp_path / "p.csv").read_text() == (made / "submission.csv").read_text()
    check_submission(made / "submission.csv", tmp_path / "test.parquet", Odd().submission)


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
    made = run_of(OddLog(), tmp_path, log, log.slice(0, 60))
    table = pd.read_csv(made / "submission.csv", dtype=str)
    assert table["session"].tolist() == [str(s) for s in range(20)]
    seen = {str(s): {ids[(s + i) % 9].cast(pa.string()).as_py() for i in range(3)} for s in range(20)}
    assert not any(seen[s] & set(line.split(" ")) for s, line in table[["session", "item"]].to_numpy())
    scores = json.loads((made / "scores.json").read_text())
    assert (scores["models"], "hr@5" in scores) == ({}, False)  # without targets there are no test scores
    known = set(ids.cast(pa.string()).to_pylist())
    lines = [line.split(" ") for line in table["item"]]
    assert all(len(set(line)) == 5 and set(line) <= known for line in lines)
    following = [ids[(s + 3) % 9].cast(pa.string()).as_py() for s in range(20)]
    assert [line[0] for line in lines] == following


@pytest.mark.parametrize("most", [2, 20])
def test_rankers_of_candidates_on_very_few_sessions(most, tmp_path):
    recipe = Odd()
    recipe.models = lambda bs: {"net": NextItemNet(width=8, epochs=1), "ranked": RankedCandidates(rounds=5)}
    test = pa.table({"items": [["b"], [], ["zz"]]})
    assert len(lines_of(run_of(recipe, tmp_path, pa.table({"items": circle(list("abcdefgh"), most)}), test))) == 3


@pytest.mark.parametrize(
    ("recipe", "train", "test", "error", "words"),
    [
        (Odd, {"items": [["a"], ["b"]]}, {"items": [["a"]]}, DataError, "no session has two events"),
        (Odd, {"items": pa.array([], pa.list_(pa.string()))}, {"items": [["a"]]}, DataError, "no session has two"),
        (Odd, {"item": [["a", "b"]]}, {"items": [["a"]]}, MissingColumnError, "items"),
        (Odd, {"items": [["a", "b"]]}, {"things": [["a"]]}, MissingColumnError, "items"),
        (Odd, {"items": ["a", "b"]}, {"items": ["a"]}, DataError, "no column says which session"),
        (OddLog, {"item": ["a", "b"], "session": [1, None], "time": [1, 2]}, {}, DataError, "belongs to no session"),
        (Odd, {"items": [["a b", "b"]] * 9}, {"items": [["b"]]}, DataError, "stands between items"),
        (Odd, {"items": [["a", "b"]] * 9}, None, MissingFileError, "test"),
    ],
)
def test_what_cannot_be_used_is_named(recipe, train, test, error, words, tmp_path):
    with pytest.raises(error, match=words) as raised:
        run_of(recipe(), tmp_path, pa.table(train), None if test is None else pa.table(test))
    assert isinstance(raised.value, FastrecError)
    assert not (tmp_path / "run").exists()


def test_the_last_event_of_each_is_held_out():
    lists = circle(list(range(40)), 200)
    sessions = SessionFrame(pd.DataFrame({"items": lists}), item="items")
    blend = SessionBlend({"near": CoVisitation(), "popular": PopularItems()}, k=5, hold="events", exclude_seen=True)
    blend.fit(sessions)
    before = SessionFrame(pd.DataFrame({"items": [s[:-1] for s in lists]}), item="items")
    alone = CoVisitation().fit(before)
    items, _ = alone.recommend(before, 5, True)
    wanted = torch.tensor([alone.items.classes.index(s[-1]) for s in lists])
    assert blend.valid["near"]["hr@5"] == pytest.approx(float((items == wanted[:, None]).any(1).float().mean()))
    with pytest.raises(DataError, match="hold out 'days'"):
        SessionBlend({}, hold="days")


def test_the_recipe_for_amazon_asks_for_the_last_item_of_any_such_file(tmp_path):
    recipe = load_competition("competitions/amazon")
    (tmp_path / "readme.md").write_text("no data")
    refused(MissingFileError, "it holds 0 files", lambda: recipe.read(tmp_path, None))
    (tmp_path / "any.txt").write_text("u1 b a c\nu2 a\nu3 c b\n")
    for rows, known, target in ((None, ["b", "a", "a", "c"], ["c", "b"]), (1, ["c"], ["b"])):
        train, test = recipe.read(tmp_path, rows)
        assert train.decode(train.values).to_pylist() == known
        assert test.decode(test.target).to_pylist() == target
        assert test.sessions.to_arrow().to_pylist() == ["u1", "u3"][-len(test) :]
    lists = pa.table({"user": [7, 8], "items": [[5, 6, 9], [9, 5]]})
    pq.write_table(lists, tmp_path / "users.parquet")
    refused(MissingFileError, "it holds 2 files", lambda: recipe.read(tmp_path, None))
    (tmp_path / "any.txt").unlink()
    train, test = recipe.read(tmp_path, None)
    assert train.decode(train.values).to_pylist() == [5, 6, 9]
    assert test.decode(test.target).to_pylist() == [9, 5]
