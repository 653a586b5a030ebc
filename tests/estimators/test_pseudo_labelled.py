"""``PseudoLabelled`` against plain loops; what it must never see; where it pays."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.svm import SVC

from fastrec.errors import DataError, NotFittedError
from fastrec.estimators import ConstantModel, Estimator, PseudoLabelled, SKModel, XGBModel
from fastrec.estimators.base import held_out
from fastrec.table import Table
from fastrec.validate import CrossFit, Folds, Rows
from tests.estimators.made import frame_of, rows_of

TREES = {"rounds": 8, "early_stopping_rounds": None, "eta": 0.4, "max_depth": 3, "nthread": 1}
TASKS = ["binary", "multiclass", "regression", "multilabel"]


def trees(**options) -> XGBModel:
    return XGBModel("trees", **{**TREES, **options})


def frame(seed: int, n: int) -> pd.DataFrame:
    """Rows with a city of their own."""
    made = frame_of(seed, n)
    return made.assign(city=made.city.mask(made.item == 0, f"only {seed}"))


rows = partial(rows_of, cats=["city"], conts=["x"])
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
    own = rows(TRAIN, task).label
    label = torch.cat([own, torch.tensor(labels, dtype=own.dtype)])
    weights = torch.cat([weight, torch.full((len(taken),), share * float(weight[weight > 0].mean()))])
    return trees().fit(rows(both, task, label=label, weight=weights), seed=seed), len(taken)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("rounds", "weighted"), [(1, False), (3, True)])
def test_it_is_the_plain_loop(task, rounds, weighted):
    weight = torch.arange(len(TRAIN)) % 4 / 2.0 if weighted else torch.ones(len(TRAIN))
    train = rows(TRAIN, task, weight=weight.double() if weighted else None)
    expected, confidence, share = trees().fit(train, seed=5), 0.7, 0.3
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
    names = ["x", "z[m]", "city", "item"]
    assert [set(s.table.names) for s in seen] == [{*names, "id", "odd", "mine"}, {*names, "id"}]
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


def test_test_rows_alone_are_not_taken_for_rows_to_learn_from():
    """They may hold the scored fold's targets in their features."""
    train, other = rows(TRAIN, "binary"), rows(OTHER, "binary", label=None)
    (outside, inside), *_ = Folds.kfold(len(TRAIN), 3)
    with pytest.raises(DataError, match=r"trees learns from rows without labels too.*unlabeled="):
        CrossFit([PseudoLabelled(trees())], 150, 90).fold(train.take(outside), train.take(inside), inside, other)
    cross = CrossFit([PseudoLabelled(trees())], 150, 0)  # there are none
    cross.fold(train.take(outside), train.take(inside), inside)


# ------------------------------------------------------------------------------------------------- saving and mistakes


def test_mistakes_are_named():
    for wrong in ({"confidence": 0.0}, {"confidence": 1.1}, {"weight": 0.0}, {"rounds": 0}):
        with pytest.raises(DataError, match="no pseudo-labels of"):
            PseudoLabelled(trees(), **wrong)
    assert "ranking" not in PseudoLabelled(trees()).tasks
    assert PseudoLabelled(SKModel("svc", SVC())).tasks == ("binary", "multiclass", "multilabel")
    with pytest.raises(NotFittedError):
        PseudoLabelled(None).fit(rows(TRAIN, "binary"))
