"""A run with ``PseudoLabelled``: what its folds learn from test rows holds nothing of the targets that they score."""

import warnings
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

from fastrec._core.progress import Stages
from fastrec.competition import Competition, CompetitionData, run_competition
from fastrec.competition.resumable import Parts
from fastrec.competition.run_features import RunFeatures, cut_folds, make_features
from fastrec.competition.run_record import TableRun
from fastrec.competition.table_run import read
from fastrec.competition.train_models import choose_inputs, fit_models, refit
from fastrec.errors import DataWarning
from fastrec.estimators import Estimator, PseudoLabelled, XGBModel
from fastrec.features import CountEncode, CoVisit, FeatureSet, Lag, TargetEncode
from fastrec.stacking import Stack
from fastrec.table import Table
from fastrec.validate import Folds
from tests.files import scores_of, write_csv

N, M, FOLDS = 240, 80, 4
TREES = {"rounds": 10, "eta": 0.4, "max_depth": 3, "early_stopping_rounds": None, "nthread": 1}


def frame(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    made = pd.DataFrame({"id": np.arange(n) + seed * 1000, "x": rng.normal(size=n), "day": np.arange(n) // 20})
    made["city"] = rng.choice(list("abcdefghij"), n)
    made["bought"] = (made.x + (made.city < "d") + rng.normal(size=n) / 3 > 0.5).astype(int)
    return made


TRAIN, TEST = frame(N, 1), frame(M, 2)


class Shop(Competition):
    name, task, ids, target, categories = "shop", "binary", ("id",), "bought", ["city"]

    def __init__(self, **attributes) -> None:
        vars(self).update(attributes)

    def features(self):
        return FeatureSet([TargetEncode("city", "bought"), CountEncode("city")], key="id")

    def folds(self, found, target):
        return super().folds(found, target) if self.time else Folds.kfold(N, FOLDS, seed=2)

    def baselines(self):
        return []

    def models(self, *, bs):
        return [XGBModel("alone", **TREES), PseudoLabelled(XGBModel("more", **TREES), confidence=0.7)]

    def stack(self):
        return Stack(rounds=3)


def write(folder: Path, train: pd.DataFrame = TRAIN, test: pd.DataFrame | None = TEST) -> Path:
    return write_csv(folder, train=train, test=None if test is None else test.drop(columns="bought"))


def fitted(data: Path, parts: Path | None = None, **attributes) -> TableRun:
    kept = None if parts is None else Parts(parts)
    options = {"device": torch.device("cpu"), "seed": 4, "stages": Stages(), "parts": kept}
    run = TableRun(recipe=Shop(**attributes), data=data, out=data.parent / "run", **options)
    for step in (read, cut_folds, make_features, choose_inputs, fit_models, refit):
        step(run)
    return run


def looking_back() -> FeatureSet:
    return FeatureSet([TargetEncode("city", "bought"), Lag("bought", by="city", order="day")], key="id")


@pytest.mark.parametrize("given", [{}, {"features": looking_back}])
@pytest.mark.parametrize("time", [None, "day"])
@pytest.mark.parametrize("keep", [False, True])
def test_targets_of_the_scored_fold_move_none_of_its_predictions(tmp_path, time, keep, given):
    given = {**given, "time": time, "refit": False}
    with pytest.warns(DataWarning, match="Write history") if "features" in given else nullcontext():
        made = fitted(write(tmp_path / "data"), tmp_path / "a" if keep else None, **given)
    before = {n: made.predictions[n].oof for n in ("alone", "more")}
    assert not torch.equal(before["alone"], before["more"])
    assert all(0 < m.taken < M for m in made.predictions["more"].models)
    _, inside = made.folds[1]
    turned = TRAIN.copy()
    turned.loc[inside.numpy(), "bought"] = 1 - turned.bought[inside.numpy()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        again = fitted(write(tmp_path / "turned", turned), tmp_path / "b" if keep else None, **given)
    for name in ("alone", "more"):
        after = again.predictions[name].oof
        assert torch.equal(after[inside], before[name][inside])
        assert not torch.equal(after.nan_to_num(), before[name].nan_to_num())
    # The rows of the test file say another thing of their cities, and are not what the fold has learned from
    column = "te_city__bought"
    assert not torch.equal(made.test.table[column].number(), again.test.table[column].number())


def test_events_at_or_after_the_scored_rows_are_not_counted():
    train, sides = TRAIN.assign(g=np.arange(N) % 12), []
    folds = Folds.time_series(Table.read(train), "day", 3)
    recipe = Shop(time="day", features=lambda: FeatureSet([CoVisit("city", by="g", order="day", table="log")]))
    for city in ("a", "b"):  # of the events from the first fold's scored rows on
        log = train.assign(city=train.city.where(train.day < train.day[folds[0][1].numpy()].min(), city))
        found = CompetitionData(Table.read(train), None, tables={"log": Table.read(log)})
        sides.append(RunFeatures(recipe, found, folds, ["bought"], None).fold(0)[0].to_pandas())
    pd.testing.assert_frame_equal(*sides)
    assert (sides[0]["covisit_sum"] > 0).any()


def test_rows_to_label_are_encoded_as_those_that_the_fold_scores(tmp_path):
    """By city: the scored rows' encoding of it, and the counts over all training rows."""
    made = fitted(write(tmp_path / "data"), refit=False)
    prepared: RunFeatures = made.prepared
    for k in range(FOLDS):
        valid, other = (t.to_pandas() for t in (prepared.fold(k)[1], prepared.unlabeled(k)))
        given = TEST.drop(columns="bought")
        pd.testing.assert_frame_equal(other[list(given)], given, check_dtype=False)
        for column in ("te_city__bought", "count_city"):
            by_city = valid.groupby("city")[column].agg(["min", "max"])
            assert (by_city["min"] == by_city["max"]).all()
            expected = other.city.map(by_city["min"])
            assert expected.notna().sum() > M / 2
            known = expected.notna()
            np.testing.assert_allclose(other[column][known], expected[known], rtol=1e-12)


def oof_of(run: Path) -> dict[str, list[float]]:
    return {n: pq.read_table(run / "oof" / f"{n}.parquet")["prediction"].to_pylist() for n in ("alone", "more")}


def test_a_run_is_refitted_predicted_and_gone_on_with(tmp_path):
    data = write(tmp_path / "data")
    run = run_competition(Shop(refit=True), data, tmp_path / "run", resume=True)
    model = Estimator.load(run / "models" / "more" / "fold0")
    assert 0 < model.taken < M  # that of all training rows has labelled test rows, too
    test = pq.read_table(run / "test" / "more.parquet")["prediction"].to_numpy()
    made = fitted(data, refit=True, models=lambda bs: [PseudoLabelled(XGBModel("more", **TREES), confidence=0.7)])
    expected = XGBModel("more", **TREES).fit(made.train, seed=4)
    assert not np.allclose(test, expected.predict(made.test).numpy())
    own = PseudoLabelled(XGBModel("more", **TREES), confidence=0.7).fit(made.train, seed=0, unlabeled=made.test)
    np.testing.assert_allclose(test, own.predict(made.test).numpy(), rtol=1e-6)

    again = run_competition(Shop(refit=True), data, tmp_path / "run", resume=True)
    assert scores_of(again)["reused"] == 2 * (FOLDS + 1) + 1  # every model, those of all rows too, and the features
    before = oof_of(again)
    sure = Shop(models=lambda bs: [XGBModel("alone", **TREES), PseudoLabelled(XGBModel("more", **TREES))])
    changed = run_competition(sure, data, tmp_path / "run", resume=True)  # the features are those of before
    assert scores_of(changed)["reused"] == FOLDS + 1 + FOLDS + FOLDS  # models, features: of all, of folds, of the test
    fresh = run_competition(sure, data, tmp_path / "fresh", resume=False)
    assert oof_of(changed) == oof_of(fresh)
    assert oof_of(changed)["alone"] == before["alone"]
    assert oof_of(changed)["more"] != before["more"]

    write(tmp_path / "data", test=TEST.head(M - 1))
    other = run_competition(Shop(refit=True), data, tmp_path / "run", resume=True)
    assert scores_of(other)["reused"] == 0


def test_where_there_are_no_test_rows_it_is_the_estimator_alone(tmp_path):
    made = fitted(write(tmp_path / "data", test=None), refit=False)
    assert torch.equal(made.predictions["alone"].oof, made.predictions["more"].oof)
    assert [m.taken for m in made.predictions["more"].models] == [0] * FOLDS
    # Without features of targets the test rows are as they are.
    recipe = Shop(features=lambda: FeatureSet([CountEncode("city")], key="id"))
    found = recipe.load(write(tmp_path / "data"), rows=None, device=torch.device("cpu"))
    prepared = RunFeatures(recipe, found, recipe.folds(found, None), ["bought"], None)
    prepared.fit()
    assert prepared.unlabeled(2) is prepared.test
