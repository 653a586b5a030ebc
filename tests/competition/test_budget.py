"""A run's limit of time: shares, models that are left out, trees and nets that stop."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression

from fastrec._core import limits
from fastrec._core.memory import held
from fastrec.competition import Competition, run_competition
from fastrec.competition.budget import Budget
from fastrec.errors import DataError, OutOfTimeError
from fastrec.estimators import (
    CatBoostModel,
    ConstantModel,
    Estimator,
    LGBMModel,
    NetModel,
    PseudoLabelled,
    SKModel,
    XGBModel,
)
from fastrec.estimators._tree_model import Deadline, seconds_for
from fastrec.table import Table
from fastrec.validate import Rows
from tests.files import write_csv


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Timed(ConstantModel):
    keeps_time = True


def test_shares_of_what_is_left():
    clock = Clock()
    budget = Budget(2, clock=clock)  # 120 s, of which 6 are kept for the end
    models = [Timed(n) for n in "abc"]
    assert budget.share(models) == pytest.approx(114 / (1 + 2 / 3 + 1 / 2))
    clock.now += 10  # the first has taken less than its share
    assert budget.share(models[1:]) == pytest.approx(104 / (1 + 2 / 3))
    assert budget.share(models[2:]) == pytest.approx(104)
    about = {"fold": 0, "folds": 4, "ends": clock.now + 52, "needed": False}
    assert budget.begin(models[1], **about) == pytest.approx(52 / 4 * 0.95)
    assert budget.begin(models[1], **about, beside=0.1) == pytest.approx(52 / 4 * 0.95)  # there is room for it
    assert budget.begin(models[1], **about, beside=4.0) == pytest.approx(52 / 4 - 4)
    clock.now += 40
    assert budget.begin(models[1], fold=3, folds=4, ends=150 + 12, needed=False) == pytest.approx(12 * 0.95)


@pytest.mark.parametrize(
    ("model", "rows", "columns", "measured"),  # MiB at the peak, by /proc/self/statm
    [
        (LGBMModel("m"), 800_000, 40, 515),
        (LGBMModel("m", num_leaves=1023, max_bin=4095), 100_000, 20, 1340),
        (XGBModel("m"), 800_000, 40, 549),
        (PseudoLabelled(XGBModel("m")), 800_000, 40, 549),  # as its model
        (CatBoostModel("m"), 800_000, 40, 638),
        (NetModel("m"), 100_000, 40, 657),
        (SKModel("m", LogisticRegression(), cats="every"), 400_000, 10, 223),
    ],
)
def test_models_above_the_memory_that_is_left_are_refused(model, rows, columns, measured):
    """Estimates are near what was measured: a half more is enough, two thirds of it are not."""
    some = type("Wide", (), {"__len__": lambda _: rows, "names": [f"x{i}" for i in range(columns)], "n_scores": 1})()
    copied = 8 * rows * columns  # of a fold's rows, beside the model
    for share, fits in ((1.5, True), (0.66, False)):
        budget = Budget(1, memory=held() + copied + round(share * measured * 2**20))
        if fits:
            budget.check_memory(model, some)
            continue
        with pytest.raises(DataError, match=r"m: it would take about [\d.]+ [MG]iB of memory, and .* are left"):
            budget.check_memory(model, some)
    Budget(1).check_memory(model, some)
    Budget(1, memory=1).check_memory(ConstantModel("c"), some)  # nothing is learned


def test_the_last_folds_may_take_from_the_models_after_them():
    clock = Clock()
    budget = Budget(1, clock=clock)  # 57 s for models
    model, ends = Timed("a"), clock.now + 10
    clock.now += 10  # four folds took its share: 4 s were for the fourth, and a second more to predict
    about = {"fold": 4, "folds": 5, "ends": ends, "needed": False}
    assert budget.begin(model, **about, beside=1.0, before=4.0) == pytest.approx(4)
    assert budget.begin(model, **about, beside=1.0, before=400.0) == pytest.approx(47 * 4 / 5 - 1)
    with pytest.raises(OutOfTimeError, match="38 s beside"):
        budget.begin(model, **about, beside=38.0, before=4.0)


def test_a_model_that_does_not_fit_into_its_share_is_stopped():
    clock = Clock()
    budget, plain, model = Budget(1, clock=clock), ConstantModel("a"), Timed("a")
    with pytest.raises(OutOfTimeError, match="a: 1 s are left for 5 folds"):
        budget.begin(model, fold=0, folds=5, ends=clock.now + 1, needed=False)
    assert budget.begin(model, fold=0, folds=5, ends=clock.now + 1, needed=True) == 0.5  # something has to learn
    # One that keeps no limit is stopped after a fold.
    assert budget.begin(plain, fold=0, folds=5, ends=clock.now + 50, needed=False) is None
    clock.now += 20
    with pytest.raises(OutOfTimeError, match="a fold takes 20 s"):
        budget.check(plain, took=20, fold=0, folds=5, needed=False)
    budget.check(plain, took=20, fold=0, folds=5, needed=True)
    budget.check(plain, took=5, fold=0, folds=5, needed=False)
    # Making rows and predicting counts, too.
    about = {"fold": 1, "folds": 5, "ends": clock.now + 10}
    with pytest.raises(OutOfTimeError, match="a: a fold takes 6 s beside its learning, and 10 s are left for 4 more"):
        budget.begin(model, **about, needed=False, beside=6.0)
    assert budget.begin(model, **about, needed=True, beside=6.0) == 0.5
    assert budget.begin(model, **about, needed=False, beside=3.0) == 0.5  # a little late


@pytest.mark.parametrize(("wanted", "times"), [(400, 6.0), (98, 2.0), (20, 1.0)])  # 400 / 49 is above the most
def test_trees_learn_faster_where_rounds_would_not_fit(wanted, times):
    clock = Clock()
    pace = Deadline(10.0, clock=clock)
    clock.now += 4.4
    assert pace.faster(1, wanted) == 1.0
    clock.now += 0.3
    assert pace.faster(4, wanted) == 1.0
    clock.now += 0.4  # seven rounds: 49 more in the 4.9 s that are left
    assert pace.faster(8, wanted) == pytest.approx(times)
    assert pace.faster(9, 400) == 1.0  # judged once
    assert pace.is_over is False
    clock.now += 5
    assert pace.is_over
    # Where eight rounds were as good as the whole time, few are judged: the rate would rise too late.
    slow, rates = Deadline(10.0, clock=clock), []
    for k in range(4):
        clock.now += 0.9 + 0.1 * (k == 0)
        rates.append(slow.faster(k + 1, 20))
    assert rates == pytest.approx([1.0, 1.0, 20 / 8, 1.0])


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(3_000, 6)))
    label = (x[:, 0] * x[:, 1] + x[:, 2] + 0.5 * torch.tensor(rng.normal(size=3_000)) > 0).double()
    table = Table({f"x{i}": x[:, i] for i in range(6)})
    return Rows(table, "binary", cats=[], conts=table.names, label=label)


MANY = 100_000  # rounds: hours
MODELS = [
    XGBModel("xgb", rounds=MANY, eta=1e-4, early_stopping_rounds=MANY),
    LGBMModel("lgbm", rounds=MANY, learning_rate=1e-4, early_stopping_rounds=MANY),
    CatBoostModel("cat", rounds=MANY, early_stopping_rounds=MANY),
    XGBModel("all", rounds=MANY, early_stopping_rounds=None),
    LGBMModel("all_lgbm", rounds=MANY, early_stopping_rounds=None),
    NetModel("net", model="TabularNet", epochs=MANY, max_rows=1 << 40),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_a_fit_ends_in_its_time(model, rows):
    """Without a limit each of these would take hours; with one it ends, and predicts."""
    if model.name == "net":  # a net's first step may compile its loops
        NetModel("first", model="TabularNet", epochs=1).fit(rows, seed=0)
    fresh = model.fresh()
    fresh.time_limit = limit = 1.0
    fresh.fit(rows, seed=0)
    said = fresh.predict(rows)
    assert said.isfinite().all()
    assert said[rows.label > 0.5].mean() > said[rows.label < 0.5].mean()  # however few the rounds were
    assert fresh.fresh().time_limit == limit
    assert "time_limit" not in fresh.settings()


@pytest.mark.parametrize("model", [m for m in MODELS if m.name != "net"], ids=lambda m: m.name)
def test_trees_whose_time_ends_in_the_first_round_predict(model, rows):
    fresh = model.fresh()
    fresh.time_limit = 1e-6
    if model.name == "cat":
        with pytest.raises(OutOfTimeError, match="CatBoost takes"):
            fresh.fit(rows, seed=0)
        return
    said = fresh.fit(rows, seed=0).predict(rows)
    assert said.isfinite().all()
    assert said.std() > 0


def test_the_best_trees_stay_where_time_ends_the_growing(rows):
    """Held-out loss has a best round before the end: the trees after it go, as with early stopping."""
    model = LGBMModel("lgbm", rounds=MANY, learning_rate=0.5, num_leaves=63, early_stopping_rounds=MANY)
    model.time_limit = 0.7
    model.fit(rows, seed=0)
    curve = [record["held_out"] for record in model.trace.curves]
    best = int(np.argmin(curve)) + 1
    assert best < len(curve)
    assert model._parts[0].current_iteration() == best


def test_a_net_without_time_for_an_epoch_says_so(rows, monkeypatch):
    monkeypatch.setattr(torch.optim, "AdamW", None)  # whose first use imports torch's compiler: it takes seconds
    model = NetModel("net", model="TabularNet")
    model.time_limit = 1e-4
    with pytest.raises(OutOfTimeError, match=r"an epoch takes [\d.]+ s, its share of the time is -?0.0 s"):
        model.fit(rows, seed=0)


def test_time_for_models_of_all_rows_is_given_to_no_other():
    clock = Clock()
    budget = Budget(2, clock=clock)  # 120 s, of which 6 are kept for the end
    models = [Timed("a"), ConstantModel("b")]
    budget.keep_for_refit(models[0], 20)
    budget.keep_for_refit(models[1], 30)
    assert budget.left == pytest.approx(114 - 50)
    clock.now += 64
    assert budget.refit(models) == pytest.approx(20)
    clock.now += 21  # a second late
    with pytest.raises(OutOfTimeError, match="b: all rows would take 30 s, and 29 s are left for it"):
        budget.refit(models[1:])
    budget = Budget(2, clock=clock)
    budget.keep_for_refit(models[0], 0.01)
    clock.now += 119  # five seconds late: one that keeps time has what was set aside
    assert budget.refit(models[:1]) == limits.LEAST_FIT_SECONDS


def test_what_all_rows_take_is_told_from_few():
    clock, sizes = Clock(), []

    def fit(n):
        sizes.append(n)
        clock.now += (n / 1000) ** 2

    assert seconds_for(100_000, fit, Deadline(200.0, clock=clock)) == pytest.approx(100**2)
    assert sizes == [500, 1000, 2000, 4000]  # 21 s are more than a twentieth
    assert seconds_for(900, fit, Deadline(200.0, clock=clock)) == 0


def test_a_forest_in_time_is_the_one_without_a_limit_or_has_fewer_trees(rows):
    forest = SKModel("f", ExtraTreesClassifier(12, max_depth=3))
    limited = forest.fresh()
    limited.time_limit = 1000.0
    made, expected = (model.fit(rows, seed=0).predict(rows) for model in (limited, forest))
    torch.testing.assert_close(made, expected, rtol=1e-12, atol=0)  # threads add trees in any order
    limited.time_limit = 1e-4
    with pytest.raises(OutOfTimeError, match="f: a fit takes about"):
        limited.fit(rows, seed=0)


class Weak(SKModel):
    """Says hardly more than a constant does."""

    def predict(self, rows):
        made = super().predict(rows)
        return 0.9 * made.mean() + 0.1 * made


class Uneven(Competition):
    name, target, n_folds = "uneven", "y", 4

    def models(self, *, bs: int | None) -> list[Estimator]:
        kind = LogisticRegression if self.task == "binary" else LinearRegression
        return [Weak("needed", kind()), SKModel("line", kind()), Weak("weak", kind()), SKModel("other", kind())]


@pytest.mark.parametrize(("task", "metric"), [("regression", "r2"), ("binary", "logloss")])
def test_a_model_that_is_far_behind_in_the_first_fold_is_left_out(task, metric, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    y = 3 * x + rng.normal(size=300)
    frame = pd.DataFrame({"x": x, "y": y if task == "regression" else (y > 0).astype(int)})
    uneven = Uneven()
    uneven.task, uneven.metric = task, metric
    write_csv(tmp_path, train=frame, test=frame.drop(columns="y"))
    run = run_competition(uneven, tmp_path, tmp_path / "run", minutes=0.5)
    config, scores = (json.loads((run / f"{n}.json").read_text()) for n in ("config", "scores"))
    assert config["minutes"] == 0.5
    assert set(config["left_out"]) == {"weak"}  # not the first one, without which there was nothing
    assert set(scores["oof"]) == {"constant", "needed", "line", "other", "stack"}
    said = config["left_out"]["weak"]
    assert said.startswith(f"weak: in the first fold its {metric} is ")
    assert ", that of line " in said
    assert ", of a constant " in said


@pytest.mark.parametrize(
    ("minutes", "rows", "outputs", "models", "metric", "seconds"),
    [
        (10, 200_000, 9, 5, 0, 13 * 4.5 + 2 * 4.5),  # 13 s a million predictions; 2 s if no blend learns from a row
        (10, 19_000_000, 1, 5, 0, 180),  # at most three tenths
        (10, 1_000, 1, 5, 0, 30),  # a twentieth at least
        (1, 30_000, 1, 6, 0.01, 9.5),  # the metric 950 times, as other work slows it
    ],
)
def test_the_end_is_longer_for_many_predictions_and_a_slow_metric(minutes, rows, outputs, models, metric, seconds):
    clock = Clock()
    budget = Budget(minutes, clock=clock)
    budget.keep_for_end(rows=rows, outputs=outputs, models=models, metric=metric)
    assert budget.left == pytest.approx(60 * minutes - seconds)
    for part, late in ((0.21, False), (0.19, True)):  # files and report take a fifth of it
        clock.now = budget.began + 60 * minutes - part * seconds
        assert budget.late == late
