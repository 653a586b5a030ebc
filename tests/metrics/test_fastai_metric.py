"""Every metric of the registry in a Learner's table: its value is that of ``get_preds``."""

from __future__ import annotations

import pytest
import torch
from fastai.callback import progress  # noqa: F401  (adds Learner.no_bar)
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner, load_learner
from fastai.losses import BCEWithLogitsLossFlat, CrossEntropyLossFlat, MSELossFlat
from torch import nn

from fastrec import metrics as m
from fastrec.errors import DataError
from fastrec.losses import BCE

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
    with learn.no_bar(), learn.no_logging():
        learn.fit(1)
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
