"""``PseudoLabelled`` against plain loops; what it must never see; where it pays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.svm import SVC

from fastrec.errors import DataError, NotFittedError
from fastrec.estimators import ConstantModel, Estimator, PseudoLabelled, SKModel, XGBModel
from fastrec.estimators._tree_model import TreeModel
from fastrec.estimators.base import held_out
from fastrec.table import Table
from fastrec.validate import CrossFit, Folds, Rows

TREES = {"rounds": 8, "early_stopping_rounds": None, "eta": 0.4, "max_depth": 3, "nthread": 1}
TASKS = ["binary", "multiclass", "regression", "multilabel"]
N_OUT = {"multiclass": 3, "multilabel": 2}


def trees(**options) -> XGBModel:
    return XGBModel("trees", **{**TREES, **options})


def frame(seed: int, n: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    made = pd.DataFrame({"x": rng.normal(size=n), "city": rng.choice(["oslo", "rome", f"only {seed}"], n)})
    made["value"] = 2 * made.x + (made.city == "rome") + rng.normal(size=n) / 3
    made.loc[rng.random(n) < 0.1, "x"] = np.nan
    return made


def label_of(made: pd.DataFrame, task: str) -> torch.Tensor:
    value = torch.from_numpy(made.value.to_numpy(copy=True))
    return {
        "binary": (value > 0).double(),
        "multiclass": (value > -1).long() + (value > 1),
        "regression": value,
        "multilabel": torch.stack([value > 0, value < -1], 1).double(),
    }[task]


def rows(made: pd.DataFrame, task: str, **more) -> Rows:
    given = {"label": label_of(made, task), "n_outputs": N_OUT.get(task, 1), **more}
    return Rows(Table.read(made[["x", "city"]]), task, cats=["city"], conts=["x"], **given)


TRAIN, OTHER = frame(0, 150), frame(1, 90)


def plain_round(teacher: Estimator, task: str, weight: torch.Tensor, confidence: float, share: float, seed: int):
    """One round by a loop over rows, on pandas' frames; the model, and how many rows it took."""
    predicted = teacher.predict(rows(OTHER, task, label=None)).tolist()
    taken, labels = [], []
    for i, p in enumerate(predicted):
        every = np.atleast_1d(p)
        if task == "regression":
            sure, label = True, p
        elif task == "multiclass":
            sure, label = every.max() >= confidence, int(every.argmax())
        else:
            sure, label = (np.maximum(every, 1 - every) >= confidence).all(), (np.array(p) > 0.5).astype(float).tolist()
        if sure:
            taken.append(i)
            labels.append(label)
    both = pd.concat([TRAIN, OTHER.iloc[taken]], ignore_index=True)
    own = label_of(TRAIN, task)
    label = torch.cat([own, torch.tensor(labels, dtype=own.dtype)])
    weights = torch.cat([weight, torch.full((len(taken),), share * float(weight[weight > 0].mean()))])
    return trees().fit(rows(both, task, label=label, weight=weights), seed=seed), len(taken)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("rounds", "weighted"), [(1, False), (3, True)])
def test_it_is_the_plain_loop(task, rounds, weighted):
    weight = torch.arange(len(TRAIN)) % 4 / 2.0 if weighted else torch.ones(len(TRAIN))
    train = rows(TRAIN, task, weight=weight.double() if weighted else None)
    expected, confidence, share = trees().fit(train, seed=5), 0.85, 0.3
    for _ in range(rounds):
        expected, taken = plain_round(expected, task, weight.double(), confidence, share, seed=5)
    assert 0 < taken <= len(OTHER)
    assert (taken == len(OTHER)) == (task == "regression")
    made = PseudoLabelled(trees(), confidence=confidence, weight=share, rounds=rounds)
    made.fit(train, seed=5, unlabeled=rows(OTHER, task))  # their labels are there, and are not looked at
    probe = rows(frame(2, 60), task)
    assert torch.equal(made.predict(probe), expected.predict(probe))
    assert made.taken == taken
    assert made.trace.importance == expected.trace.importance
    assert not torch.equal(made.predict(probe), trees().fit(train, seed=5).predict(probe))


@pytest.mark.parametrize("task", TASKS)
def test_without_sure_rows_it_is_the_estimator_alone(task):
    train, other = rows(TRAIN, task), rows(OTHER, task, label=None)
    alone = trees().fit(train, seed=5).predict(other)
    nobody = other.take(torch.zeros(len(other), dtype=torch.bool))
    for unlabeled in (None, nobody, other):
        if unlabeled is other and task == "regression":
            continue
        made = PseudoLabelled(trees(), confidence=1.0, rounds=2).fit(train, seed=5, unlabeled=unlabeled)
        assert torch.equal(made.predict(other), alone)
        assert made.taken == 0


def test_columns_that_are_not_learned_from_come_along_where_they_fit():
    train, other = rows(TRAIN, "binary"), rows(OTHER, "binary")
    train = train.with_table(train.table.with_columns({"id": list(range(150)), "odd": ["a"] * 150, "mine": [1] * 150}))
    other = other.with_table(other.table.with_columns({"id": list(range(90)), "odd": list(range(90))}))
    seen = []

    class Seeing(ConstantModel):
        def fit(self, train, valid=None, **more):
            seen.append(train)
            return super().fit(train, valid, **more)

        def predict(self, data):
            return torch.full((len(data),), 0.99, dtype=torch.float64)

    PseudoLabelled(Seeing()).fit(train, unlabeled=other)
    assert [set(s.table.names) for s in seen] == [{"x", "city", "id", "odd", "mine"}, {"x", "city", "id"}]
    assert seen[1].table["id"].number().tolist() == [*range(150), *range(90)]
    assert seen[1].guessed.tolist() == [False] * 150 + [True] * 90


@settings(max_examples=60, deadline=None)
@given(data=st.data(), n=st.integers(2, 60), kind=st.sampled_from(["rows", "classes", "order", "groups", "both"]))
def test_guessed_rows_are_never_held_out_and_change_nothing_for_the_others(data, n, kind):
    guessed = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    numbers = torch.tensor(data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)))
    more = {"order": numbers.double()} if kind in ("order", "both") else {}
    more |= {"groups": numbers.flip(0)} if kind in ("groups", "both") else {}
    task = "binary" if kind == "classes" else "regression"
    some = Rows(Table({"x": numbers}), task, conts=["x"], label=(numbers % 2).double(), guessed=guessed, **more)
    held = held_out(some, 1 / 4, seed=1)
    assert not bool((held & guessed).any())
    assert torch.equal(held[~guessed], held_out(replace(some.take(~guessed), guessed=None), 1 / 4, seed=1))


def test_trees_that_stop_early_stop_by_the_labelled_rows(monkeypatch):
    monkeypatch.setattr(TreeModel, "regrows", False)  # the teacher, too, is what stopped
    train = rows(TRAIN, "binary", order=torch.arange(150), groups=torch.arange(150) // 2)
    stopping = PseudoLabelled(trees(rounds=30, early_stopping_rounds=2), confidence=0.8)
    made = stopping.fit(train, seed=1, unlabeled=rows(OTHER, "binary"))
    teacher = trees(rounds=30, early_stopping_rounds=2).fit(train, seed=1)
    label, sure = made._labelled("binary", teacher.predict(rows(OTHER, "binary")))
    both = made._together(train, rows(OTHER, "binary").take(sure), label[sure])
    held = held_out(both)
    assert torch.equal(held[:150], held_out(train))
    assert not bool(held[150:].any())
    used = both.take(~held)  # grown on these, as many as stopping by the labelled ones says
    best = min(made.trace.curves, key=lambda c: next(v for n, v in c.items() if n != "round"))
    again = trees(rounds=int(best["round"]) + 1).fit(used, seed=1)
    probe = rows(frame(2, 60), "binary")
    torch.testing.assert_close(again.predict(probe), made.predict(probe), rtol=0, atol=1e-6)


# -------------------------------------------------------------------------------------------------------- out of fold


def cross_fitted(model: Estimator, train: Rows, other: Rows, folds: Folds) -> tuple[torch.Tensor, torch.Tensor]:
    cross = CrossFit([model], len(train), len(other), seed=3)
    for outside, inside in folds:
        cross.fold(train.take(outside), train.take(inside), inside, other, train_rows=outside, unlabeled=other)
    made = cross.finish()[model.name]
    return made.oof, made.test


@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_labels_of_the_scored_fold_move_none_of_its_predictions(task):
    train, other, folds = rows(TRAIN, task), rows(OTHER, task, label=None), Folds.kfold(len(TRAIN), 3)
    model = PseudoLabelled(trees(), confidence=0.7, rounds=2)
    before, _ = cross_fitted(model, train, other, folds)
    for k, (_, inside) in enumerate(folds):
        turned = train.label.clone()
        turned[inside] = train.label[inside].flip(0)
        after, _ = cross_fitted(model, replace(train, label=turned), other, folds)
        assert torch.equal(after[inside], before[inside]), k
        assert not torch.equal(after, before)


def test_out_of_fold_it_is_the_loop_over_folds():
    train, other, folds = rows(TRAIN, "binary"), rows(OTHER, "binary", label=None), Folds.kfold(len(TRAIN), 3)
    oof, test = cross_fitted(PseudoLabelled(trees(), confidence=0.7), train, other, folds)
    mean = torch.zeros(len(other), dtype=torch.float64)
    for k, (outside, inside) in enumerate(folds):
        made = PseudoLabelled(trees(), confidence=0.7).fit(train.take(outside), seed=3 + k, unlabeled=other)
        assert torch.equal(oof[inside], made.predict(train.take(inside)))
        mean += made.predict(other) / 3
    torch.testing.assert_close(test, mean, rtol=1e-12, atol=0)


def test_test_rows_alone_are_not_taken_for_rows_to_learn_from():
    """They may hold the scored fold's targets in their features."""
    train, other = rows(TRAIN, "binary"), rows(OTHER, "binary", label=None)
    (outside, inside), *_ = Folds.kfold(len(TRAIN), 3)
    with pytest.raises(DataError, match=r"trees learns from rows without labels too.*unlabeled="):
        CrossFit([PseudoLabelled(trees())], 150, 90).fold(train.take(outside), train.take(inside), inside, other)
    cross = CrossFit([PseudoLabelled(trees())], 150, 0)  # there are none
    cross.fold(train.take(outside), train.take(inside), inside)


# ------------------------------------------------------------------------------------------------- saving and mistakes


def test_the_last_estimator_is_saved_alone(tmp_path):
    train, other = rows(TRAIN, "binary"), rows(OTHER, "binary", label=None)
    made = PseudoLabelled(trees(), confidence=0.8, rounds=2).fit(train, seed=1, unlabeled=other)
    made.save(tmp_path / "saved")
    assert {p.name for p in (tmp_path / "saved").iterdir()} == {"estimator.json", "learned", "model"}
    loaded = Estimator.load(tmp_path / "saved")
    assert isinstance(loaded, PseudoLabelled)
    assert torch.equal(loaded.predict(other), made.predict(other))
    assert torch.equal(Estimator.load(tmp_path / "saved" / "model").predict(other), made.predict(other))
    assert (loaded.taken, loaded.settings(), loaded.name) == (made.taken, made.settings(), "trees")
    again = loaded.fresh()
    assert again.taken == 0
    with pytest.raises(NotFittedError, match="trees"):
        again.predict(other)
    assert torch.equal(again.fit(train, seed=1, unlabeled=other).predict(other), made.predict(other))


def test_mistakes_are_named():
    for wrong in ({"confidence": 0.0}, {"confidence": 1.1}, {"weight": 0.0}, {"rounds": 0}):
        with pytest.raises(DataError, match="no pseudo-labels of"):
            PseudoLabelled(trees(), **wrong)
    assert "ranking" not in PseudoLabelled(trees()).tasks
    assert PseudoLabelled(SKModel("svc", SVC())).tasks == ("binary", "multiclass", "multilabel")
    with pytest.raises(NotFittedError):
        PseudoLabelled(None).fit(rows(TRAIN, "binary"))
