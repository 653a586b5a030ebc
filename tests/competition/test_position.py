"""Clicks with a position bias that is known: its estimate, models without it, and scores as chances."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from fastrec._core.progress import Stages
from fastrec.competition import Competition, SavedRun, predict_run, run_competition
from fastrec.competition.scoring import Decision, click_weights, examination
from fastrec.errors import DataError
from fastrec.estimators import LGBMModel
from fastrec.report import write_report
from fastrec.serve import Scorer, export_run
from fastrec.validate import Folds

EXAMINED = np.array([1.0, 0.6, 0.35, 0.2, 0.12, 0.08])
C = len(EXAMINED)


def impressions(seed: int, lists: int) -> pd.DataFrame:
    """Lists in the order of an old ranker that knows little of what is relevant; only what is examined is clicked."""
    rng = np.random.default_rng(seed)
    quality, old = rng.normal(size=(2, 60))
    item = np.array([rng.permutation(60)[:C] for _ in range(lists)])
    order = np.argsort(-(old[item] + 0.7 * rng.normal(size=item.shape)), axis=1)
    item = np.take_along_axis(item, order, 1)
    chance = 1 / (1 + np.exp(1.0 - 1.5 * quality[item]))
    clicked = rng.random(item.shape) < chance * EXAMINED
    frame = pd.DataFrame({"search": np.repeat(np.arange(lists), C), "product": item.ravel()})
    frame["shown_at"] = np.tile(np.arange(1, C + 1), lists)
    frame["old"], frame["quality"] = old[item].ravel(), (quality[item] + 0.8 * rng.normal(size=item.shape)).ravel()
    return frame.assign(clicked=clicked.ravel().astype(int), chance=chance.ravel())


LOG = impressions(0, 4000)


def test_the_examination_of_places_is_found():
    found = examination(LOG["product"].to_numpy(), LOG["shown_at"].to_numpy(), LOG["clicked"].to_numpy())
    assert list(found) == [1, 2, 3, 4, 5, 6]
    assert np.array(list(found.values())) == pytest.approx(EXAMINED, rel=0.3)
    rates = LOG.groupby("shown_at")["clicked"].mean()
    apart = np.abs(np.log(list(found.values())) - np.log(EXAMINED)).max()
    assert apart < np.abs(np.log((rates / rates[1]).to_numpy()) - np.log(EXAMINED)).max()


def test_the_examination_of_a_few_rows_by_hand():
    # Item 0 at place 1 (4 times, 3 clicks) and place 2 (2 times, 1 click); item 1 at places 2 and 4.
    items = [0, 0, 0, 0, 0, 0, 1, 1]
    places = [1, 1, 1, 1, 2, 2, 2, 4]
    clicks = [1, 1, 1, 0, 1, 0, 1, 0]
    # Mantel and Haenszel: (1 * 4 / 6) / (3 * 2 / 6). A ratio without a click below says nothing.
    found = examination(items, places, clicks)
    assert found == pytest.approx({1: 1.0, 2: 2 / 3, 4: 2 / 3})
    weights = click_weights([7, 7, 8, 8], [1, 2, 1, 2], [0, 1, 0, 0], {1: 1.0, 2: 0.25})
    assert weights.tolist() == [4.0, 4.0, 1.0, 1.0]
    assert click_weights([0], [2], [1], {1: 1.0, 2: 0.001}).tolist() == [20.0]
    with pytest.raises(DataError, match=r"1\.5 is no place"):
        examination([0, 1], [1, 1.5], [0, 1])


class Log(Competition):
    name, task = "log", "ranking"
    metric = "ndcg@3"
    list_column, item, label = "search", "product", "clicked"
    n_folds = 2

    def __init__(self, **options) -> None:
        vars(self).update(options)

    def models(self, *, bs):
        return [LGBMModel("lgbm", rounds=30, num_leaves=8, early_stopping_rounds=None)]


NEW = impressions(1, 400).sample(frac=1.0, random_state=0)  # not in the old ranker's order


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("places")
    (root / "data").mkdir()
    LOG.drop(columns="chance").to_csv(root / "data" / "train.csv", index=False)
    NEW.drop(columns=["chance", "clicked", "shown_at"]).to_csv(root / "data" / "test.csv", index=False)
    recipes = {
        "plain": Log(),
        "feature": Log(position="shown_at", calibrate="platt"),
        "weights": Log(position="shown_at", position_as="weights", calibrate="isotonic"),
    }
    for name, recipe in recipes.items():
        run_competition(recipe, root / "data", root / name, stages=Stages(quiet=True))
    return {n: root / n for n in recipes} | {"data": root / "data"}


def true_relevance(run: Path) -> float:
    """The true chance of the item that a run puts first, less that of a random one."""
    made = pd.read_parquet(run / "test" / "stack.parquet").merge(NEW, on=["search", "product"])
    best = made.sort_values("score", ascending=False, kind="stable").groupby("search").head(1)
    return float(best["chance"].mean() - made["chance"].mean())


def test_models_without_the_bias_find_what_is_relevant(runs):
    plain, feature, weights = (true_relevance(runs[n]) for n in ("plain", "feature", "weights"))
    assert feature > plain + 0.03
    assert weights > plain + 0.01
    page = write_report(runs["feature"], repeats=20).read_text()
    assert "The column shown_at is a feature of the models" in page
    told = {n: json.loads((runs[n] / "position.json").read_text()) for n in ("feature", "weights")}
    assert not (runs["plain"] / "position.json").exists()
    assert told["feature"]["clicked"]["1"] == pytest.approx(LOG.loc[LOG["shown_at"] == 1, "clicked"].mean())
    scores = {n: json.loads((runs[n] / "scores.json").read_text())["oof"]["lgbm"] for n in ("plain", "feature")}
    assert scores["feature"] < scores["plain"]  # judged by the biased clicks


def test_rows_to_predict_need_no_place(runs, tmp_path):
    made = predict_run(runs["feature"], runs["data"] / "test.csv", tmp_path / "p.csv")
    there = pd.read_csv(runs["feature"] / "submission.csv")
    pd.testing.assert_frame_equal(pd.read_csv(made), there, rtol=1e-6)
    given = NEW.drop(columns=["chance", "clicked"])  # a place that is there changes nothing
    saved = SavedRun(runs["feature"])
    assert "shown_at" not in saved.inputs
    joined = given.assign(made=saved.predict(given).numpy()).merge(there, on=["search", "product"])
    assert len(joined) == len(NEW)
    assert joined["made"].to_numpy() == pytest.approx(joined["score"].to_numpy(), abs=1e-6)


@pytest.mark.parametrize("name", ["feature", "weights"])
def test_a_server_gives_the_same_chances(runs, tmp_path, name):
    pytest.importorskip("onnx")
    export_run(runs[name], tmp_path / "served")
    scorer = Scorer(tmp_path / "served")
    assert "shown_at" not in [i.name for i in scorer.spec.sent]
    rows = NEW.sort_values("search", kind="stable").head(10 * C)
    wanted = SavedRun(runs[name]).predict(rows).numpy()
    sent = rows[["search", *(i.name for i in scorer.spec.sent)]]
    assert scorer.score(sent.to_dict("list")) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(("name", "how"), [("feature", "platt"), ("weights", "isotonic")])
def test_chances_are_those_of_scikit_learn(runs, name, how):
    oof = pd.read_parquet(runs[name] / "oof" / "stack.parquet")
    folds = Folds.load(runs[name] / "folds.parquet").codes.numpy()
    x, y = oof["score"].to_numpy(), oof["clicked"].to_numpy()
    fits = {"platt": lambda x, y: LogisticRegression(C=np.inf, tol=1e-8, max_iter=500).fit(x[:, None], y)}
    fits["isotonic"] = lambda x, y: IsotonicRegression(out_of_bounds="clip").fit(x, y)

    def chances(fitted, x):
        return fitted.predict_proba(x[:, None])[:, 1] if how == "platt" else fitted.predict(x)

    for fold in (0, 1):
        others = fits[how](x[folds != fold], y[folds != fold])
        assert oof["chance"].to_numpy()[folds == fold] == pytest.approx(chances(others, x[folds == fold]), abs=1e-3)
    submitted = pd.read_csv(runs[name] / "submission.csv")["score"].to_numpy()
    scores = pd.read_parquet(runs[name] / "test" / "stack.parquet")["score"].to_numpy()
    assert submitted == pytest.approx(chances(fits[how](x, y), scores), abs=1e-3)
    assert "Calibration" in write_report(runs[name], repeats=20).read_text()
    # Well calibrated: in ten parts the mean chance is near the share of clicks.
    parts = oof.groupby(pd.qcut(oof["chance"].rank(method="first"), 10))[["chance", "clicked"]].mean()
    assert np.abs(parts["chance"] - parts["clicked"]).max() < 0.05


def test_what_cannot_be_used_is_refused(tmp_path):
    with pytest.raises(DataError, match="all rows are relevant, or none"):
        Decision.calibrated("platt", torch.ones(3), torch.rand(3))
    for options in ({"position": "shown_at", "position_as": "prior"}, {"calibrate": "beta"}):
        with pytest.raises(DataError, match=r"position_as='prior'|calibrate='beta'"):
            run_competition(Log(**options), tmp_path, tmp_path / "run", stages=Stages(quiet=True))
