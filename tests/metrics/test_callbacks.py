"""Metrics in a Learner's table: their value is that of all validated rows, or of ``get_preds``."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner, load_learner
from fastai.losses import BCEWithLogitsLossFlat, CrossEntropyLossFlat, MSELossFlat
from torch import nn

from fastrec import metrics as m
from fastrec.errors import DataError
from fastrec.losses import BCE
from tests.training.helpers import quiet_fit

N = 61
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(N, 3, generator=GENERATOR)
SIGNAL = X[:, 0] + torch.randn(N, generator=GENERATOR)
GROUPS = torch.randint(0, 7, (N,), generator=GENERATOR)
WEIGHT = torch.rand(N, generator=GENERATOR)
TASKS = {
    "binary": ((SIGNAL > 0).float(), 1, BCE()),
    "two columns": ((SIGNAL > 0).long(), 2, CrossEntropyLossFlat()),
    "multiclass": (torch.bucketize(SIGNAL, torch.tensor([-0.7, 0.7])), 3, CrossEntropyLossFlat()),
    "regression": (SIGNAL.exp(), 1, MSELossFlat()),
    "two numbers": (torch.stack([SIGNAL.exp(), SIGNAL + 5], 1), 2, MSELossFlat()),
    "multilabel": (torch.stack([SIGNAL > 0, X[:, 1] > 0.5], 1).float(), 2, BCEWithLogitsLossFlat()),
    "ranking": ((SIGNAL > 0.8).float(), 1, BCE()),
}
CASES = {
    "binary": ["auc", "logloss", "f1", "gini"],
    "two columns": ["auc", "logloss", "mcc", "gini", "mrr"],
    "multiclass": ["auc", "logloss", "quadratic_kappa", "accuracy"],
    "regression": ["rmse", "pinball@0.9", "gini"],
    "two numbers": ["mae"],
    "multilabel": ["auc", "logloss", "f1_macro"],
    "ranking": ["mrr", "ndcg@3", "hit_rate@2", "gauc"],
}


class Rows(list):
    """A data set that can be exported."""

    def new_empty(self):
        return Rows()


def learner(task, metrics, folder="."):
    y, width, loss = TASKS[task]
    rows = Rows(zip(X, y))
    dls = DataLoaders(DataLoader(rows, bs=16, shuffle=True), DataLoader(rows, bs=16))
    dls.c = 3 if task == "multiclass" else width
    torch.manual_seed(0)
    return Learner(dls, nn.Linear(3, width), loss_func=loss, metrics=metrics, path=folder)


@pytest.mark.parametrize(("task", "name"), [(task, name) for task, names in CASES.items() for name in names])
def test_value_is_that_of_the_predictions(task, name):
    grouped = m.get_metric(name).needs_groups
    groups = GROUPS if grouped else None
    of_learner = (lambda learn: groups) if grouped else None
    learn = learner(task, [m.fastai_metric(name, groups), m.fastai_metric(name, of_learner, weight=WEIGHT)])
    with learn.no_bar(), learn.no_logging():
        learn.fit(1)
        p, y = learn.get_preds()
        values = learn.validate()[1:]
    assert [metric.name for metric in learn.metrics] == [name, name]
    p = p[:, 1] - p[:, 0] if grouped and p.ndim == 2 and p.shape[1] == 2 else p
    metric = m.get_metric(name)
    assert values[0] == pytest.approx(metric(y, p, groups=groups), abs=1e-6)
    assert values[1] == pytest.approx(metric(y, p, groups=groups, weight=WEIGHT), abs=1e-6)
    assert values[0] != pytest.approx(values[1], abs=1e-4)
    assert learn.metrics[0].check(learn) is None


def test_half_precision_logits_keep_apart():
    # In half precision the sigmoid of both logits would be 1, and the loss of the wrong one infinite.
    learn = learner("binary", [])
    metric = m.fastai_metric("logloss")
    learn.pred, learn.yb = torch.tensor([20.0, 18.0], dtype=torch.float16), (torch.tensor([1.0, 0.0]),)
    metric.accumulate(learn)
    assert metric.value == pytest.approx(9.0, abs=1e-4)


def test_a_function_of_ones_own():
    @m.as_metric(greater_is_better=True, wants="classes")
    def hits(y, classes):
        return (y == classes).mean()

    learn = learner("multiclass", [m.fastai_metric(hits)])
    with learn.no_bar(), learn.no_logging():
        learn.fit(1)
        p, y = learn.get_preds()
        _, value = learn.validate()
    assert value == pytest.approx(float((p.argmax(1) == y).double().mean()))


def test_what_belongs_to_rows_is_not_exported(tmp_path):
    learn = learner("ranking", [m.fastai_metric("ndcg@3", GROUPS, weight=WEIGHT)], tmp_path)
    quiet_fit(learn, 1, by="fit")
    learn.export("model.pkl")
    loaded = load_learner(tmp_path / "model.pkl", pickle_module=__import__("pickle"))
    metric = loaded.metrics[0]
    assert (metric.groups, metric.weight, metric.name) == (None, None, "ndcg@3")
    loaded.dls = learn.dls
    with loaded.no_bar(), loaded.no_logging():
        for name, values in (("groups", GROUPS), ("weight", WEIGHT)):
            with pytest.raises(DataError, match=f"loaded without its {name}"):
                loaded.validate()
            setattr(metric, name, values)
        assert loaded.validate()[1] == pytest.approx(learn.validate()[1])


def test_refused():
    with pytest.raises(DataError, match="no groups were given"):
        m.fastai_metric("mrr")
    with pytest.raises(DataError, match="no metric 'rsme'"):
        m.fastai_metric("rsme")
    with pytest.raises(DataError, match=r"mrr takes one score a row, but there are 3 classes"):
        m.fastai_metric("mrr", GROUPS).check(learner("multiclass", []))
    for name in ("mrr", "auc"):
        with pytest.raises(DataError, match=f"{name} has 60 groups for 61 validated rows"):
            m.fastai_metric(name, GROUPS[:60]).check(learner("binary", []))
    learn = learner("binary", [])
    learn.pred, learn.yb, learn.training = torch.zeros(2, 3, 4), (torch.zeros(2),), False
    with pytest.raises(DataError, match=r"predictions are \(2, 3, 4\)"):
        m.fastai_metric("auc").accumulate(learn)
    learn.training = True
    with pytest.raises(DataError, match="Pass a function of the learner as weight"):
        m.fastai_metric("auc", weight=WEIGHT).accumulate(learn)


# ---- the ranking metrics


class Shape(torch.nn.Module):
    """A linear layer whose output takes the given form."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.layer = form, torch.nn.Linear(3, 2 if form == "[b, 2]" else 1)

    def forward(self, x):
        out = self.layer(x)
        return out[:, 0] if self.form == "[b]" else out


def loss(pred, target):
    pred = pred[:, 1] - pred[:, 0] if pred.ndim == 2 and pred.shape[1] == 2 else pred.reshape(-1)
    return torch.nn.functional.binary_cross_entropy_with_logits(pred.float(), target.reshape(-1).float())


def tiny_learner(form, metrics, folder):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(61, 3, generator=generator)
    y = (x[:, 0] + torch.randn(61, generator=generator) > 0.7).float()
    groups = torch.randint(0, 7, (61,), generator=generator)
    rows = Rows(zip(x, y))
    dls = DataLoaders(DataLoader(rows, bs=16, shuffle=True), DataLoader(rows, bs=16))
    learn = Learner(dls, Shape(form), loss_func=loss, metrics=metrics(groups), path=folder)
    return learn, x, y, groups


def all_metrics(groups):
    return [
        m.MRR(groups=groups),
        m.MRR(groups.numpy(), k=2, ties="best"),
        m.NDCG(lambda learn: groups, k=3),
        m.Recall(pd.Series(groups.numpy()), 2),
        m.MAP(groups, empty="skip"),
        m.AUC(),
    ]


@pytest.mark.parametrize("form", ["[b]", "[b, 1]", "[b, 2]"])
def test_learner_reports_the_metric_of_the_whole_validation_set(form, tmp_path):
    learn, x, y, groups = tiny_learner(form, all_metrics, tmp_path)
    quiet_fit(learn, 2, 0.1, by="fit")
    names = ["mrr", "mrr@2", "ndcg@3", "recall@2", "map", "auc"]
    assert list(learn.recorder.metric_names) == ["epoch", "train_loss", "valid_loss", *names, "time"]
    with torch.no_grad():
        out = learn.model.eval()(x).double()
    scores = out[:, 1] - out[:, 0] if form == "[b, 2]" else out.reshape(-1)
    expected = [
        m.mrr(scores, y, groups),
        m.mrr(scores, y, groups, k=2, ties="best"),
        m.ndcg(scores, y, groups, k=3),
        m.recall(scores, y, groups, k=2),
        m.mean_average_precision(scores, y, groups, empty="skip"),
        m.auc(scores, y),
    ]
    np.testing.assert_allclose(learn.recorder.values[-1][2:], expected, rtol=1e-9)
    assert list(learn.validate())[1:] == pytest.approx(expected)


def test_export_leaves_groups_and_rows_out(tmp_path):
    learn, x, _, groups = tiny_learner("[b]", all_metrics, tmp_path)
    with learn.no_bar(), learn.no_logging():
        learn.fit(1, 0.1)
        before = learn.validate()
        learn.export("model.pkl")
    loaded = load_learner(tmp_path / "model.pkl")
    assert [metric.name for metric in loaded.metrics] == ["mrr", "mrr@2", "ndcg@3", "recall@2", "map", "auc"]
    assert all(metric.groups is None and metric.value is None for metric in loaded.metrics)
    assert torch.equal(loaded.model.eval()(x), learn.model.eval()(x))
    with loaded.no_bar(), pytest.raises(DataError, match="loaded without its groups"):
        loaded.validate(dl=learn.dls.valid)
    for metric in loaded.metrics[:-1]:
        metric.groups = groups
    with loaded.no_bar():
        assert list(loaded.validate(dl=learn.dls.valid)) == pytest.approx(list(before))
    assert len(pickle.dumps(learn.metrics[0])) < 2000
    with learn.no_bar():  # the learner that was exported is as it was
        assert list(learn.validate()) == pytest.approx(list(before))


def test_groups_that_do_not_fit_the_rows_are_refused(tmp_path):
    learn, *_ = tiny_learner("[b]", lambda groups: [m.MRR(groups[:-1])], tmp_path)
    with learn.no_bar(), pytest.raises(DataError, match="mrr has 60 groups for 61 validated rows"):
        learn.validate()
    learn, *_ = tiny_learner("[b]", lambda groups: [m.MRR(groups)], tmp_path)
    learn.recorder.train_metrics = True
    with learn.no_bar(), learn.no_logging(), pytest.raises(DataError, match="asked for on training batches"):
        learn.fit(1)
    with pytest.raises(DataError, match="no groups were given"):
        m.MRR(None)
    with pytest.raises(DataError, match="k=0"):
        m.NDCG(torch.zeros(3), k=0)


def test_three_class_predictions_are_refused():
    class Batch:
        pred, yb, training = torch.zeros(4, 3), (torch.zeros(4),), False

    with pytest.raises(DataError, match=r"predictions are \(4, 3\)"):
        m.AUC().accumulate(Batch())


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (lambda: m.MRR([1, 2], ties="wrost"), "wrost"),
        (lambda: m.NDCG([1, 2], gains="log"), "log"),
        (lambda: m.MAP([1, 2], empty="none"), "none"),
        (lambda: m.Recall([1, 2], 3, gains="exp2"), "gains"),
    ],
)
def test_a_bad_option_is_refused_where_it_is_given(made, error):
    with pytest.raises((DataError, TypeError), match=error):
        made()
