"""Vectors of a run's users and items: files whose products are the models' scores, similar items, drift, features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from fastrec.cli import app
from fastrec.competition import (
    Competition,
    NextItemCompetition,
    SavedNextItems,
    SavedRun,
    embed_run,
    run_competition,
    run_vectors,
)
from fastrec.competition.predict import read_rows
from fastrec.errors import DataError, FastrecError
from fastrec.estimators import NetModel, XGBModel
from fastrec.estimators.base import Estimator
from fastrec.monitor import Thresholds, monitor
from fastrec.retrieval import RankedCandidates, Vectors, neighbour_overlap
from fastrec.sequences import VSTAN, NextItemNet
from fastrec.table import as_column

pytestmark = pytest.mark.filterwarnings("ignore:no item of")


class Walks(NextItemCompetition):
    name, session, items, order = "Walks", "who", "item", ("at",)

    def models(self, *, bs):
        net = NextItemNet(width=8, tokens=128, epochs=2, options={"bias": "time"})
        return {"knn": VSTAN(), "ranked": RankedCandidates({"net": net}, rounds=2)}


class Pairs(Competition):
    name, task, target, ids = "Pairs", "binary", "liked", ("id",)

    def models(self, *, bs):
        towers = {"query": ["user", "age"], "item": ["item"], "dim": 4, "layers": [6]}
        options = {"epochs": 1, "keep_best": False}
        found = {"factors": NetModel("factors", model="MatrixFactorization", options={"dim": 4}, **options)}
        found["towers"] = NetModel("towers", model="TwoTower", options=towers, **options)
        found["boosted"] = XGBModel("boosted", rounds=2, early_stopping_rounds=None)
        return [found[n] for n in self.wanted]


@pytest.fixture(scope="module")
def walks(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("walks")
    rows = [(s, f"i{(s * 7 + j) % 30:02d}", 1000.0 + 10 * s + j) for s in range(200) for j in range(2 + s % 4)]
    train = pd.DataFrame(rows, columns=["who", "item", "at"])
    train.to_parquet(folder / "train.parquet")
    train[train["who"] > 197].assign(at=lambda d: d["at"] + 2000).to_parquet(folder / "test.parquet")
    run_competition(Walks(), folder, folder / "run", minutes=0.3)
    return folder


def pairs_run(folder: Path, wanted: list[str], *columns: str) -> Path:
    rng = np.random.default_rng(0)
    made = {"id": range(300), "user": rng.choice(list("abcdefgh"), 300), "item": rng.choice(list("pqrstu"), 300)}
    frame = pd.DataFrame({**made, "age": rng.normal(size=300), "liked": rng.integers(0, 2, 300)})
    frame = frame[["id", "user", "item", *columns, "liked"]]
    frame[:240].to_csv(folder / "train.csv", index=False)
    frame[240:].drop(columns="liked").to_csv(folder / "test.csv", index=False)
    Pairs.wanted = wanted
    return run_competition(Pairs(), folder, folder / "run")


def call(*words):
    return CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "200"})


def test_products_of_sessions_and_items_are_the_net_s_scores(walks, tmp_path):
    done = call("embed", walks / "run", "--data", walks / "test.parquet", "--out", tmp_path, "--device", "cpu")
    assert done.exit_code == 0, done.output
    users, items = (Vectors.load(tmp_path / f"{side}.parquet") for side in ("users", "items"))
    assert pq.read_schema(tmp_path / "items.parquet").field("vector").type.value_type == "float"
    saved = SavedNextItems(walks / "run")
    net, sessions = saved.blend.models["ranked"].models["net"], saved.read(walks / "test.parquet")
    assert users.ids.to_arrow().to_pylist() == [198, 199]
    assert users.about == {"run": "run", "model": "ranked.net", "side": "users", "until": 1000.0 + 10 * 199 + 4}
    assert users.until.tolist() == sessions.ends.tolist()
    rows, scores = next(iter(net.score(sessions)))
    codes = net.items.encode(items.ids)
    assert items.until.tolist() == [users.about["until"]] * len(items.values)  # of items the log is all there is
    assert torch.allclose((users.values @ items.values.T)[rows], scores[:, codes], atol=1e-5)
    frame = pq.read_table(tmp_path / "items.parquet").to_pandas()
    assert np.allclose(frame["norm"], [np.linalg.norm(v) for v in frame["vector"]])


def test_similar_items_are_those_of_a_loop(walks):
    vectors = run_vectors(walks / "run", "items", device="cpu")
    names, unit = vectors.ids.to_arrow().to_pylist(), vectors.values / vectors.values.norm(dim=1, keepdim=True)
    cosine = dict(zip(names, (unit @ unit[names.index("i03")]).tolist(), strict=True))
    expected = sorted(set(names) - {"i03"}, key=lambda n: -cosine[n])
    done = call("embed", walks / "run", "--similar", "i03", "--k", 3, "--device", "cpu")
    assert [line.split()[0] for line in done.output.splitlines()[1:]] == expected[:3]
    near = vectors.index(metric="cosine", verbose=False).similar(["i03", "i10"], 40).to_pandas()  # fewer are there
    assert near.groupby("id")["place"].agg(list).tolist() == [list(range(1, 30))] * 2
    assert not (near["id"] == near["neighbour"]).any()
    same = Vectors(vectors.ids, torch.ones(30, 2)).index(verbose=False).similar(["i29"], 3).to_pandas()
    assert same["neighbour"].tolist() == names[:3]  # it is not among the first of equal ones itself


@pytest.mark.parametrize("model", ["factors", "towers"])
def test_products_of_rows_vectors_order_as_the_model_does(tmp_path, model):
    columns = ["age"] if model == "towers" else []
    run = pairs_run(tmp_path, [model], *columns)
    data = tmp_path / "test.csv"
    embed_run(run, tmp_path / "v", data=data if columns else None, device="cpu")
    users, items = (Vectors.load(tmp_path / "v" / f"{side}.parquet") for side in ("users", "items"))
    said = [dict(zip(v.ids.to_arrow().to_pylist(), v.values, strict=True)) for v in (users, items)]
    _, rows = read_rows(SavedRun(run), data, device="cpu")
    if columns:  # of a user's rows the last one counts
        frame = pd.read_csv(data)
        assert set(said[0]) == set(frame["user"])
        rows = rows.take(torch.tensor(sorted(frame.groupby("user").tail(1).index)))
    chances = Estimator.load(run / "models" / model / "fold0").predict(rows)
    who, what = (rows.table[n].to_arrow().to_pylist() for n in ("user", "item"))
    found = torch.stack([said[0][u] @ said[1][i] for u, i in zip(who, what, strict=True)])
    logits = torch.logit(chances).float()
    offset = 0.0 if columns else (logits - found)[0]  # the common bias
    assert torch.allclose(logits, found / (0.05 if columns else 1.0) + offset, atol=1e-3)


def test_errors_name_the_run_s_models(walks, tmp_path):
    run = pairs_run(tmp_path, ["towers", "boosted"], "age")
    for words, said in [
        (("embed", run, "--items", "--out", tmp_path / "v"), "rows with all columns"),
        (("embed", run, "--out", tmp_path / "v", "--model", "boosted"), "Its models: constant, towers, boosted"),
        (("embed", walks / "run", "--users", "--out", tmp_path / "v"), "--items alone"),
        (("embed", walks / "run", "--similar", "none"), "no item 'none'"),
        (("embed", walks / "run", "--items"), "--out DIR"),
    ]:
        done = call(*words)
        assert done.exit_code == 1
        assert said in done.output
        assert not (tmp_path / "v").exists()


def test_vectors_are_features_of_later_rows_alone(walks, tmp_path):
    users = run_vectors(walks / "run", "users", data=walks / "test.parquet", device="cpu")
    end = users.until.tolist()
    made = users.features([199, 7, 198], [end[1] + 1, 0.0, end[0] + 1]).to_pandas()
    assert list(made.columns) == [f"vector_{i}" for i in range(8)]
    assert np.allclose(made.iloc[[0, 2]], users.values[[1, 0]])
    assert made.iloc[1].isna().all()  # whom nobody knows has no vector, and nothing to leak
    with pytest.raises(DataError, match="has learned until") as error:
        users.features([199, 198], [end[1] + 1, end[0]])
    assert error.value.row == 1
    with pytest.raises(DataError, match="not known until when"):
        Vectors(users.ids, users.values).features([199], [1e9])
    Vectors(users.ids.take(torch.arange(0)), users.values[:0]).save(tmp_path / "none.parquet")
    assert len(Vectors.load(tmp_path / "none.parquet").values) == 0
    odd, ids = tmp_path / "odd.parquet", pd.DataFrame({"id": [1, 2]})
    for frame, words in (
        (ids.assign(vector=[[1.0], [1.0, 2.0]]), "vector of 2 numbers where 1"),
        (ids.assign(vector=[1.0, 2.0]), "no vectors"),
        (ids, "vector"),
        (None, r"odd\.parquet"),
    ):
        odd.write_bytes(b"PAR1 no more") if frame is None else frame.to_parquet(odd)
        with pytest.raises(FastrecError, match=words):
            Vectors.load(odd)


def test_times_of_rows_are_in_the_unit_of_what_vectors_have_learned():
    last = 1_700_000_000
    dated = Vectors(as_column(["a"], name="id"), torch.ones(1, 2), torch.tensor([last], dtype=torch.float64))
    assert not dated.features(["a"], [last + 1]).to_pandas().isna().any(axis=None)
    for size in (10**3, 10**6, 10**9):  # milliseconds and the like
        early = (last - 5_000) * size  # a leak that no comparison of numbers would find
        with pytest.raises(DataError, match=f"row 1: the row is of {early}, .*: seconds since 1970") as error:
            dated.features(["a", "a"], [last + 1, early])
        assert error.value.column == "times"
        scaled = Vectors(dated.ids, dated.values, dated.until * size)
        with pytest.raises(DataError, match="Give times in the unit of until"):
            scaled.features(["a"], np.array([last + 90_000], "datetime64[s]"))
    for unit in ("ns", "us", "ms", "s", "h", "D"):
        moments = np.array([last, last + 90_000], "datetime64[s]").astype(f"datetime64[{unit}]")
        assert not dated.features(["a"], moments[1:]).to_pandas().isna().any(axis=None)
        with pytest.raises(DataError, match=r"row 0: .* has learned until 1700000000\. Embed"):
            dated.features(["a"], moments[:1])
    steps = Vectors(dated.ids, dated.values, torch.full((1,), 3.0, dtype=torch.float64))
    assert len(steps.features(["a"], [5_000])) == 1  # counts of events have no unit


def test_drift_is_the_share_of_neighbours_that_stay(tmp_path):
    draw = torch.Generator().manual_seed(0)
    values, turn = torch.randn(60, 5, generator=draw), torch.linalg.qr(torch.randn(5, 5, generator=draw))[0]
    order = torch.randperm(60, generator=draw)
    moved = torch.cat([values[:30], torch.randn(30, 5, generator=draw)])

    def near(vectors: torch.Tensor) -> list[set[int]]:
        cosine = torch.corrcoef(torch.cat([vectors, -vectors], 1))  # of centred rows the cosine
        return [set(sorted(set(range(60)) - {i}, key=lambda j: -float(cosine[i, j]))[:10]) for i in range(60)]

    def vectors(of: torch.Tensor) -> Vectors:
        return Vectors(as_column([f"i{i}" for i in order.tolist()]), of[order])

    old = Vectors(as_column([f"i{i}" for i in range(60)]), values)
    assert neighbour_overlap(old, vectors(values @ turn)) == 1.0  # a turned space is the same one
    expected = np.mean([len(a & b) / 10 for a, b in zip(near(values), near(moved), strict=True)])
    assert neighbour_overlap(old, vectors(moved)) == pytest.approx(expected)
    for name, found in (("old", old), ("turned", vectors(values @ turn)), ("new", vectors(moved))):
        found.save(tmp_path / f"{name}.parquet")
    said = monitor(tmp_path / "old.parquet", tmp_path / "turned.parquet", adversarial=False)
    assert said.ok
    assert said.to_dict()["overlap"] == 1.0
    thresholds = Thresholds(overlap=expected + 0.01)
    said = monitor(tmp_path / "old.parquet", tmp_path / "new.parquet", adversarial=False, thresholds=thresholds)
    assert [f.kind for f in said.findings] == ["neighbours"]
    assert said.overlap == pytest.approx(expected)
    with pytest.raises(DataError, match="3 ids in common"):
        neighbour_overlap(old, Vectors(old.ids.take(torch.arange(3)), old.values[:3]))
    few = tmp_path / "few.parquet"
    Vectors(as_column([f"i{i}" for i in range(57, 90)]), torch.randn(33, 5, generator=draw)).save(few)
    told = monitor(tmp_path / "old.parquet", few, adversarial=False)
    assert told.overlap is None
    assert "3 ids in common" in told.left_out["vector"]
    assert [(f.about, f.kind, f.says) for f in told.findings] == [
        ("id", "unseen", "90.9% of the ids were not there before")
    ]
    assert "vector, not compared: its neighbours cannot be compared: 3 ids in common" in str(told)
    dated = Vectors(old.ids, old.values, torch.zeros(len(old.values), dtype=torch.float64))
    with pytest.raises(DataError, match="1 times for 2 ids"):
        dated.features(["a", "b"], [5.0])
