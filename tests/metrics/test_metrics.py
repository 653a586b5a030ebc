"""Grouped ranking metrics against hand-worked cases, scikit-learn and plain loops."""

import math
import pickle
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner, load_learner
from fastai.losses import BCEWithLogitsLossFlat, CrossEntropyLossFlat, MSELossFlat
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fastrec import metrics as m
from fastrec.errors import DataError
from fastrec.losses import BCE
from tests._core.refusals import refused
from tests.training.helpers import quiet_fit

INF, NAN = math.inf, math.nan


@st.composite
def ranked_rows(draw):
    """Rows with few distinct scores (ties), missing and infinite ones, grades and scattered group numbers."""
    n = draw(st.integers(1, 25))
    score = st.sampled_from([0.0, -0.0, 0.5, 1.0, 2.0, -3.0, INF, -INF, NAN])
    scores = draw(st.lists(score, min_size=n, max_size=n))
    labels = draw(st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=n, max_size=n))
    groups = draw(st.lists(st.sampled_from([7, -3, 10**15, 0]), min_size=n, max_size=n))
    return np.array(scores), np.array(labels), np.array(groups)


cuts = st.sampled_from([None, 1, 2, 3, 30])
tie_rules = st.sampled_from(["worst", "ordinal", "best"])
empties = st.sampled_from(["zero", "skip"])


def height(score):
    return (0, 0.0) if math.isnan(score) else (1, score)


def loop_groups(groups):
    return {g: [i for i in range(len(groups)) if groups[i] == g] for g in sorted(set(groups.tolist()))}


def loop_rank(scores, rows, i, ties):
    above = sum(height(scores[j]) > height(scores[i]) for j in rows)
    equal = [j for j in rows if height(scores[j]) == height(scores[i])]
    return above + {"worst": len(equal), "best": 1, "ordinal": equal.index(i) + 1}[ties]


def loop_order(scores, labels, rows, ties):
    label_key = {"worst": lambda i: labels[i], "best": lambda i: -labels[i], "ordinal": lambda i: 0}[ties]
    return sorted(rows, key=lambda i: (tuple(-h for h in height(scores[i])), label_key(i), i))


def loop_mean(value, labels, groups, empty):
    values = []
    for rows in loop_groups(groups).values():
        if any(labels[i] > 0 for i in rows):
            values.append(value(rows))
        elif empty == "zero":
            values.append(0.0)
    return sum(values) / len(values) if values else NAN


@settings(max_examples=150, deadline=None)
@given(ranked_rows(), cuts, tie_rules, empties)
def test_mrr_and_ranks_against_a_loop(rows, k, ties, empty):
    scores, labels, groups = rows

    def value(members):
        rank = min(loop_rank(scores, members, i, ties) for i in members if labels[i] > 0)
        return 1 / rank if k is None or rank <= k else 0.0

    expected = loop_mean(value, labels, groups, empty)
    got = m.mrr(scores, labels, groups, k=k, ties=ties, empty=empty)
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    ids, rr = m.reciprocal_ranks(scores, labels, groups, k=k, ties=ties, empty=empty)
    np.testing.assert_allclose(rr.mean().item() if len(rr) else NAN, expected, rtol=1e-12)
    keep = [g for g, r in loop_groups(groups).items() if empty == "zero" or labels[r].any()]
    assert ids.tolist() == keep
    ranks = m.group_ranks(scores, groups, ties=ties)
    by_group = loop_groups(groups)
    assert ranks.tolist() == [loop_rank(scores, by_group[g], i, ties) for i, g in enumerate(groups.tolist())]


@settings(max_examples=150, deadline=None)
@given(ranked_rows(), cuts, tie_rules, empties, st.sampled_from(["exp2", "linear"]))
def test_list_metrics_against_loops(rows, k, ties, empty, gains):
    scores, labels, groups = rows
    top = 1000 if k is None else k
    gain = (lambda x: 2.0**x - 1) if gains == "exp2" else float

    def dcg(order):
        return sum(gain(labels[i]) / math.log2(p + 2) for p, i in enumerate(order[:top]))

    def ndcg(members):
        return dcg(loop_order(scores, labels, members, ties)) / dcg(sorted(members, key=lambda i: -labels[i]))

    def recall(members):
        order = loop_order(scores, labels, members, ties)
        return sum(labels[i] > 0 for i in order[:top]) / sum(labels[i] > 0 for i in members)

    def hit(members):
        return any(loop_rank(scores, members, i, ties) <= top for i in members if labels[i] > 0)

    def average_precision(members):
        order = loop_order(scores, labels, members, ties)
        hits = [p for p, i in enumerate(order) if labels[i] > 0]
        return sum((n + 1) / (p + 1) for n, p in enumerate(hits) if p < top) / min(top, len(hits))

    options = {"k": k, "ties": ties, "empty": empty}
    for got, value in (
        (m.ndcg(scores, labels, groups, gains=gains, **options), ndcg),
        (m.recall(scores, labels, groups, **options), recall),
        (m.hit_rate(scores, labels, groups, **options), hit),
        (m.mean_average_precision(scores, labels, groups, **options), average_precision),
    ):
        np.testing.assert_allclose(got, loop_mean(value, labels, groups, empty), rtol=1e-9)


@settings(max_examples=150, deadline=None)
@given(ranked_rows(), st.booleans(), st.data())
def test_auc_and_gauc_against_pairs(rows, weighted, data):
    scores, labels, groups = rows
    n = len(scores)
    weight = np.ones(n)
    if weighted:
        weight = np.array(data.draw(st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=n, max_size=n)))

    def area(members):
        good, total = 0.0, 0.0
        for i in members:
            for j in members:
                if labels[i] > 0 and labels[j] == 0:
                    pair, a, b = weight[i] * weight[j], height(scores[i]), height(scores[j])
                    total, good = total + pair, good + pair * (a > b or (a == b) / 2)
        return good / total if total else NAN

    given_weight = weight if weighted else None
    np.testing.assert_allclose(m.auc(scores, labels, given_weight), area(range(n)), atol=1e-12)
    areas = [(area(r), weight[r].sum()) for r in loop_groups(groups).values()]
    areas = [(a, w) for a, w in areas if not math.isnan(a)]
    expected = np.average([a for a, _ in areas], weights=[w for _, w in areas]) if areas else NAN
    np.testing.assert_allclose(m.gauc(scores, labels, groups, sample_weight=given_weight), expected, atol=1e-12)
    equal = np.mean([a for a, _ in areas]) if areas else NAN
    got = m.gauc(scores, labels, groups, weights="equal", sample_weight=given_weight)
    np.testing.assert_allclose(got, equal, atol=1e-12)


def test_sample_weight_weighs_groups_by_the_mean_of_their_rows():
    scores, labels, groups = [2, 1, 2, 1], [1, 0, 0, 1], [0, 0, 1, 1]  # reciprocal ranks 1 and 1/2
    weight = [1, 3, 6, 6]  # groups weigh 2 and 6
    for f, second in ((m.mrr, 1 / 2), (m.mean_average_precision, 1 / 2), (m.ndcg, 1 / math.log2(3))):
        assert f(scores, labels, groups, sample_weight=weight) == pytest.approx((2 * 1 + 6 * second) / 8)
    assert m.recall(scores, labels, groups, k=1, sample_weight=weight) == pytest.approx(2 / 8)


def test_every_kind_of_column_is_taken():
    scores, labels, groups = [0.1, 0.9, 0.4, 0.2], [1, 0, 0, 1], [3, 3, 8, 8]
    kinds = [
        np.array,
        torch.tensor,
        lambda x: pd.Series(x, index=[9, 8, 7, 6], dtype="Int64" if isinstance(x[0], int) else "Float64"),
        lambda x: np.array(x, dtype=np.int32 if isinstance(x[0], int) else np.float32)[::1],
        lambda x: torch.tensor(x)[:, None],
        lambda x: pd.DataFrame({"a": x}),
    ]
    for kind in kinds:
        assert m.mrr(kind(scores), kind(labels), kind(groups)) == 1 / 2
    assert m.mrr(torch.tensor(scores).half(), torch.tensor(labels).bool(), np.array(groups, np.uint8)) == 1 / 2
    missing = pd.Series([None, 0.9, 0.4, 0.2], dtype="Float64")
    assert m.mrr(missing, labels, groups) == 1 / 2
    assert m.mrr([2**53 + 1.0, 2**53], [0, 1], [0, 0]) == 1 / 2
    ids, rr = m.reciprocal_ranks([1.0, 1.0], [1, 1], [2**60, 2**60 + 1])  # equal as floats
    assert (ids.tolist(), rr.tolist()) == ([2**60, 2**60 + 1], [1.0, 1.0])


PAIR = ([1.0, 2.0], [1, 0], [0, 0])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([1.0, 2.0], [1], [0, 0]), "labels has 1 rows, scores has 2"),
        (([1.0, 2.0], [1, 0], [0]), "groups has 1 rows, scores has 2"),
        (([1.0, 2.0, 3.0], [1, NAN, NAN], [0, 0, 0]), "column 'labels', row 1: a value is missing .2 such"),
        (([1.0], [1], [0.5]), "groups are torch.float64, not integers"),
        (([1.0], [1], ["a"]), "column 'groups': <U1 values are not numbers"),
        (([1.0], [1], np.array([2**63], np.uint64)), "above 2.63"),
        (([], [], []), "no rows to score"),
        ((np.zeros((2, 3)), [1, 0], [0, 0]), "scores has shape .2, 3."),
    ],
)
def test_bad_input_is_named(arguments, words):
    for f in (m.mrr, m.ndcg, m.mean_average_precision, m.gauc, m.reciprocal_ranks):
        refused(DataError, words, lambda f=f: f(*arguments))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: m.mrr(*PAIR, ties="middle"), "ties='middle' is not one of worst"),
        (lambda: m.recall(*PAIR, k=1, empty="no"), "empty='no'"),
        (lambda: m.ndcg(*PAIR, gains="log"), "gains='log'"),
        (lambda: m.gauc(*PAIR, weights="sum"), "weights='sum'"),
        *[(lambda k=k: m.mrr(*PAIR, k=k), f"k={k} is not a whole number") for k in (0, -1, 1.5)],
        (lambda: m.ndcg([1.0, 2.0], [1, -1], [0, 0]), "row 1: a value is below 0"),
        (lambda: m.mrr(*PAIR, sample_weight=[-1, 1]), "column 'sample_weight', row 0"),
        (lambda: m.nothing, "has no attribute 'nothing'"),
        (lambda: m.MRR(None), "no groups were given"),
        (lambda: m.NDCG(torch.zeros(3), k=0), "k=0"),
        (lambda: m.MRR([1, 2], ties="wrost"), "wrost"),
        (lambda: m.NDCG([1, 2], gains="log"), "log"),
        (lambda: m.MAP([1, 2], empty="none"), "none"),
        (lambda: m.Recall([1, 2], 3, gains="exp2"), "gains"),
        (lambda: m.fastai_metric("mrr"), "no groups were given"),
        (lambda: m.fastai_metric("rsme"), "no metric 'rsme'"),
    ],
)
def test_a_bad_option_is_named(call, words):
    refused((DataError, TypeError, AttributeError), words, lambda: call())


# Metrics in a Learner's table: their value is that of all validated rows, or of ``get_preds``


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


def learner(task, metrics, folder=".", model=None):
    y, width, loss = TASKS[task]
    rows = Rows(zip(X, y))
    dls = DataLoaders(DataLoader(rows, bs=16, shuffle=True), DataLoader(rows, bs=16))
    dls.c = 3 if task == "multiclass" else width
    torch.manual_seed(0)
    return Learner(dls, model or nn.Linear(3, width), loss_func=loss, metrics=metrics, path=folder)


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


@pytest.mark.parametrize(
    ("metric", "pred", "target", "training", "words"),
    [
        (m.AUC(), (4, 2), (4, 2), False, r"auc takes one target, and there are 2.*fastai_metric\('auc'\)"),
        (m.fastai_metric("auc"), (2, 3, 4), (2,), False, r"predictions are \(2, 3, 4\)"),
        (m.AUC(), (2, 3), (2,), False, r"predictions are \(2, 3\)"),
        (m.fastai_metric("auc", weight=WEIGHT), (2,), (2,), True, "Pass a function of the learner as weight"),
    ],
)
def test_a_batch_that_cannot_be_scored_is_refused(metric, pred, target, training, words):
    learn = learner("binary", [])
    learn.pred, learn.yb, learn.training = torch.zeros(pred), (torch.zeros(target),), training
    refused(DataError, words, lambda: metric.accumulate(learn))


def test_refused():
    metric = m.fastai_metric("mrr", GROUPS)
    refused(DataError, "mrr takes one score a row, but there are 3", lambda: metric.check(learner("multiclass", [])))
    for name in ("mrr", "auc"):
        with pytest.raises(DataError, match=f"{name} has 60 groups for 61 validated rows"):
            m.fastai_metric(name, GROUPS[:60]).check(learner("binary", []))
    learn = learner("ranking", [m.MRR(GROUPS[:-1])])
    with learn.no_bar(), pytest.raises(DataError, match="mrr has 60 groups for 61 validated rows"):
        learn.validate()
    learn = learner("ranking", [m.MRR(GROUPS)])
    learn.recorder.train_metrics = True
    with learn.no_bar(), learn.no_logging(), pytest.raises(DataError, match="asked for on training batches"):
        learn.fit(1)


RELEVANT = TASKS["ranking"][0]


def test_learner_reports_the_metric_of_the_whole_validation_set_and_exports_it_without_rows(tmp_path):
    of_lists = partial(partial, labels=RELEVANT, groups=GROUPS)
    every = [
        ("mrr", m.MRR(groups=GROUPS), of_lists(m.mrr)),
        ("mrr@2", m.MRR(GROUPS.numpy(), k=2, ties="best"), of_lists(m.mrr, k=2, ties="best")),
        ("ndcg@3", m.NDCG(lambda learn: GROUPS, k=3), of_lists(m.ndcg, k=3)),
        ("recall@2", m.Recall(pd.Series(GROUPS.numpy()), 2), of_lists(m.recall, k=2)),
        ("map", m.MAP(GROUPS, empty="skip"), of_lists(m.mean_average_precision, empty="skip")),
        ("auc", m.AUC(), partial(m.auc, labels=RELEVANT)),
        ("ndcg@3", m.fastai_metric("ndcg@3", GROUPS, weight=WEIGHT), of_lists(m.ndcg, k=3, sample_weight=WEIGHT)),
    ]
    names, metrics, functions = zip(*every)
    learn = learner("ranking", list(metrics), tmp_path, nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)))
    quiet_fit(learn, 2, 0.1, by="fit")
    assert list(learn.recorder.metric_names) == ["epoch", "train_loss", "valid_loss", *names, "time"]
    with torch.no_grad():
        scores = learn.model.eval()(X).double()
    expected = [function(scores) for function in functions]
    np.testing.assert_allclose(learn.recorder.values[-1][2:], expected, rtol=1e-9)
    with learn.no_bar(), learn.no_logging():
        before = list(learn.validate())
        learn.export("model.pkl")
        assert list(learn.validate()) == pytest.approx(before)  # the learner that was exported is as it was
    assert before[1:] == pytest.approx(expected)
    assert len(pickle.dumps(learn.metrics[0])) < 2000
    loaded = load_learner(tmp_path / "model.pkl")
    assert [metric.name for metric in loaded.metrics] == list(names)
    assert all(metric.groups is None and metric.value is None for metric in loaded.metrics)
    assert loaded.metrics[-1].weight is None
    for name, values in (("groups", GROUPS), ("weight", WEIGHT)):
        with loaded.no_bar(), pytest.raises(DataError, match=f"loaded without its {name}"):
            loaded.validate(dl=learn.dls.valid)
        for metric in loaded.metrics:
            if (name == "weight" and metric is loaded.metrics[-1]) or (name == "groups" and metric.name != "auc"):
                setattr(metric, name, values)
    with loaded.no_bar():
        assert list(loaded.validate(dl=learn.dls.valid)) == pytest.approx(before)


def test_labels_and_scores_in_the_other_order_are_refused():
    y, p = np.array([0, 1, 1, 0]), np.array([0.2, 0.9, 0.4, 0.1])
    assert m.auc(p, y) == m.get_metric("auc")(y, p) == 1
    assert m.auc(p, 4.0 * y) == 1  # graded
    assert m.auc(p, 0.5 * y) == 1  # a relevance may be a fraction
    for swapped in (lambda: m.auc(y, p), lambda: m.get_metric("auc")(p, y), lambda: m.auc(y, p, np.ones(4))):
        refused(DataError, r"'labels', row 0.*whole number.*Give auc\(scores, labels\)", swapped)
