"""The stack of every task: an honest score, an honest choice, folds held against what was stacked."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from fastrec.errors import DataError, LeakageError, MissingFileError, UnreadableFileError
from fastrec.estimators import Estimator, Trace
from fastrec.metrics import as_metric, best_threshold, default_metric, get_metric
from fastrec.stacking import HillClimb, OneBase, Stack, StackModel
from fastrec.stacking.stack import cross_fit, level_two_folds, level_two_of
from fastrec.table import Table
from fastrec.validate import CrossFit, Lists, Predictions, Rows, folds_digest
from tests.stacking.stack_cases import TASKS, Given, bases, digest_of, folds_for, make, sigmoid


def fit(stack: Stack, scores, train: Rows, folds=None, test=None, test_scores=None, **options):
    folds = folds_for(train) if folds is None else folds
    base = bases(scores, scores if test_scores is None else test_scores, digest_of(folds))
    return stack.fit(base, train, folds, train if test is None else test, **options)


def stacked(case: str, noise: float = 0.5):
    train, scores = make(case, 400, 2, 0, noise)
    test, test_scores = make(case, 100, 2, 1, noise)
    about = {"metric": default_metric(train.task), "seed": 2}
    made = fit(Stack(rounds=10, extra=["city"]), scores, train, None, test, test_scores, **about)
    return made, train, scores, test, test_scores


def oof_score(metric, train: Rows, values: torch.Tensor) -> float:
    return metric(train.label, values, groups=train.groups)


@pytest.mark.parametrize("noise", [0.2, 3.0])
@pytest.mark.parametrize("case", TASKS)
def test_a_stack_is_scored_by_its_own_predictions(case, noise):
    made, train, scores, test, _ = stacked(case, noise=noise)
    metric = get_metric(default_metric(train.task))
    of_base = {m: oof_score(metric, train, s) for m, s in scores.items()}
    ours = oof_score(metric, train, made.predictions.oof)
    best = max(of_base, key=of_base.get) if metric.greater_is_better else min(of_base, key=of_base.get)
    assert made.best_base == best
    assert made.score == pytest.approx(ours, abs=1e-12)
    assert made.scores["stack"].mean == pytest.approx(ours, abs=1e-12)
    assert made.scores["stack"].low <= ours <= made.scores["stack"].high
    assert made.difference.mean == pytest.approx(ours - of_base[best], abs=1e-12)
    for m, value in of_base.items():
        assert made.tried[m] == pytest.approx(value, abs=1e-12)
    assert made.predictions.oof.shape == scores["m0"].shape
    assert made.predictions.test.shape == (len(test), *scores["m0"].shape[1:])
    assert made.predictions.test.isfinite().all()
    if train.task in ("binary", "multilabel", "multiclass"):
        assert ((made.predictions.oof >= 0) & (made.predictions.oof <= 1)).all()
    if train.task == "multiclass":
        torch.testing.assert_close(made.predictions.test.sum(1), torch.ones(len(test), dtype=torch.float64))


class Fixed(Estimator):
    """Scores by a column, better or worse by a shift of its own in each fold."""

    learns = False

    def __init__(self, name: str, values: torch.Tensor) -> None:
        self.name, self.values, self.trace = name, values, Trace(importance={name: 1.0})

    def forget(self) -> None:
        pass

    def fit(self, train, valid=None, *, seed=0, device=None):
        return self

    def predict(self, data):
        return self.values[data.table["row"].integer()]


def chosen_by_loops(label, candidates, folds, blocks, metric):
    """The first candidate, unless others are better than it by more than two standard errors over the blocks."""
    names = list(candidates)
    among = np.isin(folds, blocks)
    better = []
    for name in names[1:]:
        gains = [
            metric(label[i], candidates[names[0]][i]) - metric(label[i], candidates[name][i])
            for i in (folds == k for k in blocks)
        ]
        if np.mean(gains) > np.std(gains, ddof=1) / np.sqrt(len(blocks)):
            better.append(name)
    return min(better, key=lambda n: metric(label[among], candidates[n][among])) if better else names[0]


def nested_by_loops(label, candidates, folds, metric):
    """For each fold what the other folds choose; its values of that fold."""
    oof, names, numbers = np.zeros(len(label)), [], sorted(set(folds.tolist()))
    for k in numbers:
        best = chosen_by_loops(label, candidates, folds, [j for j in numbers if j != k], metric)
        names.append(best)
        oof[folds == k] = candidates[best][folds == k]
    return oof, names


@pytest.mark.parametrize("seed", range(4))
def test_the_choice_is_that_of_plain_loops(seed):
    rng = np.random.default_rng(seed)
    n = 60
    label, folds = rng.normal(size=n), rng.integers(0, 4, n)
    # The later ones are better, by no more than their scores are sure of: the folds do not agree
    candidates = {f"c{i}": label + (1.6 - 0.2 * i) * rng.normal(size=n) for i in range(4)}
    base = torch.from_numpy(label + 5 * rng.normal(size=n))

    table = Table({"row": torch.arange(n)})
    train = Rows(table, "regression", label=torch.from_numpy(label))
    codes = torch.from_numpy(folds)
    one = Predictions("base", base, base, folds=digest_of(codes))
    fixed = [Fixed(m, torch.from_numpy(v)) for m, v in candidates.items()]
    made = Given(*fixed, extra=["row"]).fit([one], train, codes, train, metric="mae")

    def mae(y, p):
        return float(np.abs(y - p).mean())

    oof, names = nested_by_loops(label, candidates, folds, mae)
    assert made.choices == names
    np.testing.assert_array_equal(made.predictions.oof.numpy(), oof)
    assert made.score == pytest.approx(mae(label, oof), abs=1e-12)
    overall = chosen_by_loops(label, candidates, folds, range(4), mae)
    assert made.chosen == overall
    assert torch.equal(made.predictions.test, torch.from_numpy(candidates[overall]))
    assert made.tried == pytest.approx({m: mae(label, v) for m, v in candidates.items()}, abs=1e-12)
    assert made.score >= min(made.tried.values())


@pytest.mark.parametrize("seed", [2, 13, 23])
def test_a_metric_of_the_order_sees_folds_that_chose_other_blends_on_one_scale(seed):
    rng = np.random.default_rng(seed)
    n = 200
    label, folds = rng.integers(0, 2, n).astype(float), rng.integers(0, 4, n)
    noisy = [np.round(label + (1.6 - 0.2 * i) * rng.normal(size=n), 1) for i in range(3)]
    candidates = {f"c{i}": v * 10.0**-i + i for i, v in enumerate(noisy)}  # each on a scale of its own

    table, codes = Table({"row": torch.arange(n)}), torch.from_numpy(folds)
    train = Rows(table, "binary", label=torch.from_numpy(label))
    one = Predictions("base", torch.from_numpy(label), torch.from_numpy(label), folds=digest_of(codes))
    fixed = [Fixed(m, torch.from_numpy(v)) for m, v in candidates.items()]
    made = Given(*fixed, extra=["row"]).fit([one], train, codes, train, metric="auc")
    said, whole = made.predictions.oof.numpy(), candidates[made.chosen]
    assert len({*made.choices}) > 1
    for k, name in enumerate(made.choices):
        own, values = candidates[name][folds == k], np.sort(whole[folds == k])
        expected = [values[(sum(own < v) + sum(own <= v) - 1) // 2] for v in own]  # of equal ones the middle
        np.testing.assert_array_equal(said[folds == k], whole[folds == k] if name == made.chosen else expected)
    assert made.score == pytest.approx(roc_auc_score(label, said))


class Quick(Stack):
    def blends(self, models, data, metric):
        return [b for b in super().blends(models, data, metric) if isinstance(b, HillClimb | OneBase)]


def of_noise(seed: int, n: int, metric: str, count: int = 5):
    rng = np.random.default_rng(seed)
    label = torch.from_numpy(rng.integers(0, 2, n).astype(float))
    said = {f"m{i}": torch.from_numpy(sigmoid(1.5 * rng.normal(size=n))) for i in range(count)}
    train = Rows(Table({"row": torch.arange(n)}), "binary", label=label)
    folds = torch.from_numpy(rng.permutation(n) % 5)
    means = torch.stack([label[folds != k].mean() for k in range(5)])
    level = Predictions("constant", means[folds], label.mean().expand(n).clone(), folds=digest_of(folds))
    return fit(Quick(), said, train, folds, metric=metric, seed=seed, constant=level), train


def test_a_metric_of_the_order_sees_the_blends_of_all_folds_on_one_scale():
    rng, folds = np.random.default_rng(0), torch.arange(90) % 3
    label = torch.from_numpy(rng.integers(0, 2, 90).astype(float))
    said = {f"m{i}": (label + 2 * torch.from_numpy(rng.normal(size=90))).sigmoid() * 10.0**-i for i in range(3)}
    made = fit(Quick(), said, Rows(Table({"row": torch.arange(90)}), "binary", label=label), folds, metric="auc")
    weights = torch.stack([m.weights for m in made.predictions.models])
    assert [*made.choices, len(torch.unique(weights, dim=0))] == ["hill_climb"] * 3 + [3]
    for k in range(3):
        x, found = torch.stack([*said.values()], 1)[folds == k], made.predictions.oof[folds == k]
        assert torch.equal((x @ weights[k]).argsort(), found.argsort())
        torch.testing.assert_close(found.sort().values, (x @ weights.mean(0)).sort().values)


def test_the_score_of_a_stack_of_noise_is_that_of_chance():
    found = np.array([of_noise(seed, 60, "auc")[0].score for seed in range(16)])
    assert abs(found.mean() - 0.5) < 2.5 * found.std(ddof=1) / len(found) ** 0.5
    best = of_noise(0, 60, "auc")[0]
    assert best.tried[best.best_base] > 0.5  # the best of many is flattered


@pytest.mark.parametrize("task", ["binary", "ranking"])
def test_no_blend_learns_that_means_of_the_other_folds_are_low_where_labels_are_high(task):
    """Out-of-fold target means of random ids: a sum with negative weights, or trees, told .57 of AUC from chance."""
    found = []
    for seed in range(8):
        rng, n = np.random.default_rng(seed), 600
        y, lists = rng.integers(0, 2, n).astype(float), np.arange(n) // 6
        if task == "ranking":
            y = (np.arange(n) % 6 == rng.integers(0, 6, 100)[lists]).astype(float)
        fold, said = (lists if task == "ranking" else np.arange(n)) % 10, {}
        for name in "ab":
            ids, others = rng.integers(0, 60, n), [fold != k for k in range(10)]
            known = [[y[o & (ids == i)] for i in range(60)] for o in others]
            means = [[(v.sum() + 5 * y[o].mean()) / (len(v) + 5) for v in row] for o, row in zip(others, known)]
            said[name] = torch.tensor(means)[torch.from_numpy(fold), torch.from_numpy(ids)]
        rows, label = Table({"row": torch.arange(n)}), torch.from_numpy(y)
        rows = Lists(rows, torch.from_numpy(lists), label=label) if task == "ranking" else Rows(rows, task, label=label)
        made = fit(Stack(), said, rows, torch.from_numpy(fold), metric="mrr" if task == "ranking" else "auc")
        found.append([made.score, *(v for n, v in made.tried.items() if n not in said)])
    chance, found = 0.5 if task == "binary" else np.mean(1 / np.arange(1, 7)), np.array(found)
    assert (found.mean(0) - chance < 3 * found.std(0, ddof=1) / 8**0.5).all()


def test_hill_climbing_takes_a_constant_and_no_tree_sees_it():
    made, _ = of_noise(0, 150, "logloss")
    assert made.predictions.importance["constant"] > 0.5
    assert made.model.models[-1] == "constant"
    assert made.score < min(made.tried[f"m{i}"] for i in range(5))
    rows, scores = make("binary", 300, 2, 0, 0.5)
    folds = folds_for(rows)
    half = torch.full((300,), 0.5, dtype=torch.float64)
    level = Predictions("constant", half, half, folds=digest_of(folds))
    made = fit(Stack(rounds=5), scores, rows, folds, metric="logloss", constant=level)
    assert made.chosen != "constant"
    assert made.tried["constant"] == pytest.approx(math.log(2))
    again = made.model.predict({**scores, "constant": level.test}, rows)
    torch.testing.assert_close(again, made.predictions.test)


def test_a_constant_that_is_better_is_taken():
    rows, scores = make("regression", 200, 1, 0, 9.0)
    folds = folds_for(rows)
    mean = torch.full((200,), float(rows.label.mean()), dtype=torch.float64)

    level = Predictions("constant", mean, mean, folds=digest_of(folds))
    made = fit(Given(OneBase("m0")), scores, rows, folds, constant=level)
    assert (made.chosen, made.choices, made.best_base) == ("constant", ["constant"] * 4, "m0")
    assert made.score == pytest.approx(float(rows.label.std(correction=0)), abs=1e-12)
    assert made.model.models == ["m0", "constant"]
    torch.testing.assert_close(made.model.predict({**scores, "constant": mean}, rows), mean)
    assert fit(Given(OneBase("m0")), scores, rows, folds).score > made.score


def test_a_first_fold_that_knows_nothing_leaves_no_constant_to_the_later_ones():
    rng = np.random.default_rng(0)
    label = torch.from_numpy(rng.normal(size=120))
    first = torch.arange(120) < 60
    said = torch.where(first, 0.01, label + 0.3 * torch.from_numpy(rng.normal(size=120)))
    level = torch.zeros(120, dtype=torch.float64)
    order = torch.arange(180)
    train = Rows(Table({"row": order}), "regression", label=torch.cat([level[:60], label]), order=order.double())
    none = torch.full((60,), math.nan, dtype=torch.float64)
    folds = [(order[:60], order[60:120]), (order[:120], order[120:])]
    digest = folds_digest([v for _, v in folds], 180)
    model, constant = (
        Predictions(n, torch.cat([none, v]), v, folds=digest) for n, v in (("m", said), ("constant", level))
    )
    made = Quick().fit([model], train, folds, train.take(order < 120), constant=constant)
    assert "constant" not in made.choices
    assert made.chosen != "constant"
    assert made.score < 0.8 * float(label.std())


@pytest.mark.parametrize("name", ["f1", "accuracy", "mcc"])
def test_a_metric_of_classes_is_scored_and_resampled_by_the_same_thresholds(name):
    rng = np.random.default_rng(3)
    n, truth = 600, rng.normal(size=600)
    label = torch.from_numpy((rng.random(n) < sigmoid(1.5 * truth - 2.5)).astype(float))
    said = {f"m{i}": torch.from_numpy(sigmoid(truth + (0.5 + i) * rng.normal(size=n) - 3)) for i in range(3)}
    train = Rows(Table({"row": torch.arange(n)}), "binary", label=label)
    folds = torch.arange(n) % 4
    made = fit(Quick(), said, train, folds, metric=name)

    def scored(values):
        classes = np.zeros(n)
        for k in range(4):  # each fold is cut where the others are best
            rest, own = (folds != k).numpy(), (folds == k).numpy()
            cut = best_threshold(label[rest], values[rest], name)
            classes[own] = values[own].numpy() > cut
        return get_metric(name)(label, classes)

    assert made.score == pytest.approx(scored(made.predictions.oof), abs=1e-12)
    for model, values in said.items():
        assert made.tried[model] == pytest.approx(scored(values), abs=1e-12)
    stack, best = made.scores["stack"], made.scores[made.best_base]
    assert stack.mean == pytest.approx(made.score, abs=1e-12)
    assert stack.low < stack.mean < stack.high
    assert best.low < made.tried[made.best_base] < best.high
    assert made.difference.mean == pytest.approx(made.score - made.tried[made.best_base], abs=1e-12)


def test_the_choice_follows_the_metric():
    # m0 orders well on a wrong scale, m1 has the scale and less order.
    train, scores = make("binary", 2000, 1, 0, 0.1)
    noise = torch.from_numpy(np.random.default_rng(9).normal(size=2000))
    scores = {"m0": scores["m0"] / 50, "m1": (scores["m0"].logit() + noise).sigmoid()}
    assert fit(Stack(), scores, train, metric="auc").best_base == "m0"
    assert fit(Stack(), scores, train, metric="logloss").best_base == "m1"
    own = as_metric(lambda y, p: float(np.abs(y - p).mean()), greater_is_better=False, name="gap")
    made = fit(Stack(), scores, train, metric=own)
    assert made.tried["m1"] == pytest.approx(float((train.label - scores["m1"]).abs().mean()))
    with pytest.raises(DataError, match="rmse is a metric of regression tasks, not of a binary"):
        fit(Stack(), scores, train, metric="rmse")


def test_scores_of_a_scaled_target_are_of_raw_values():
    train, scores = make("regression", 300, 2, 0, 0.2)
    train = replace(train, label=train.label / 10)
    scores = {m: s / 10 for m, s in scores.items()}
    made = fit(Stack(), scores, train, metric="rmspe", restore=torch.expm1)

    def rmspe(values):
        y, p = torch.expm1(train.label), torch.expm1(values)
        return float((((y - p) / y) ** 2).mean().sqrt())

    assert made.tried["m0"] == pytest.approx(rmspe(scores["m0"]))
    assert made.score == pytest.approx(rmspe(made.predictions.oof))
    assert made.scores["stack"].mean == pytest.approx(made.score)
    assert "mean_rank" not in made.tried


class Memory(Estimator):
    """Knows the label of every row it was fitted on."""

    name = "memory"
    learns = True
    beside = False

    def __init__(self) -> None:
        self.trace, self.known = Trace(), {}

    def fit(self, train, valid=None, *, seed=0, device=None):
        self.known = dict(zip(train.table["row"].integer().tolist(), train.label.tolist(), strict=True))
        return self

    def predict(self, data):
        return torch.tensor([self.known.get(r, 0.5) for r in data.table["row"].integer().tolist()]).double()


def cross_fitted(train: Rows, folds: torch.Tensor) -> Predictions:
    cross = CrossFit([Memory()], len(train), 0)
    for k in torch.unique(folds):
        inside = folds == k
        cross.fold(train.take(~inside), train.take(inside), inside.nonzero().squeeze(1))
    return cross.finish()["memory"]


def test_in_fold_predictions_are_refused():
    train, scores = make("binary", 120, 1, 0, 1.0)
    train = train.with_table(train.table.with_columns({"row": torch.arange(120)}))
    folds = folds_for(train)
    none = train.take(torch.zeros(0, dtype=torch.int64))
    honest = cross_fitted(train, folds)
    assert (honest.oof == 0.5).all()
    fair = Predictions("m0", scores["m0"], scores["m0"][:0], folds=digest_of(folds))
    assert Stack().fit([honest, fair], train, folds, none).best_base == "m0"
    by_others = cross_fitted(train, (folds + 1) * (torch.arange(120) % 3) % 4)
    with pytest.raises(LeakageError, match="memory were made by other folds"):
        Stack().fit([fair, by_others], train, folds, none)
    seen = Predictions("memory", Memory().fit(train).predict(train), torch.zeros(0))
    with pytest.raises(LeakageError, match=r"memory are not known to be out of fold.*folds_digest"):
        Stack().fit([fair, seen], train, folds, none)


def test_a_binary_target_given_as_one_list_is_refused():
    # What a new user tried: all rows in one list, which ended as a constant of AUC .5.
    train, scores = make("binary", 100, 2, 0, 0.5)
    lists = Lists(train.table, torch.zeros(100, dtype=torch.int64), label=train.label)
    with pytest.raises(DataError, match=r"all rows are one list.*task='binary'"):
        fit(Stack(), scores, lists, folds_for(train))
    two = Lists(train.table, torch.arange(100) // 50, label=train.label)
    with pytest.raises(DataError, match="row 0: a list is not whole in fold 0"):
        fit(Stack(), scores, two, folds_for(train))


def time_folds(n: int, blocks: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    edges = torch.linspace(0, n, blocks + 1).long().tolist()
    return [(torch.arange(edges[k]), torch.arange(edges[k], edges[k + 1])) for k in range(1, blocks)]


@pytest.mark.parametrize("case", ["binary", "several targets", "ranking"])
def test_rows_that_no_fold_scores_take_no_part(case):
    train, scores = make(case, 400, 2, 0, 0.5)
    pairs = time_folds(400, 4)
    digest = folds_digest([v for _, v in pairs], 400)
    hidden = {m: torch.cat([torch.full_like(s[:100], math.nan), s[100:]]) for m, s in scores.items()}
    made = Stack(rounds=5).fit(bases(hidden, scores, digest), train, pairs, train)
    oof = made.predictions.oof.reshape(400, -1)
    assert oof[:100].isnan().all()
    assert oof[100:].isfinite().all()
    # Labels of the rows without a prediction do not matter.
    other = train.label.clone()
    other[:100] = other[:100].flip(0)
    if case != "ranking":
        again = Stack(rounds=5).fit(bases(hidden, scores, digest), replace(train, label=other), pairs, train)
        torch.testing.assert_close(again.predictions.oof, made.predictions.oof, equal_nan=True, rtol=0, atol=0)
        assert again.tried == made.tried
    metric = get_metric(default_metric(train.task))
    later = train.take(torch.arange(100, 400))
    assert made.tried["m0"] == pytest.approx(oof_score(metric, later, scores["m0"][100:]))


def test_folds_by_time_learn_from_what_came_before():
    train, _ = make("binary", 400, 1, 0, 0.5)
    found = level_two_folds(time_folds(400, 4), train)
    got = [(rows.tolist(), valid.tolist()) for rows, valid in found.pairs]
    assert got[1] == (list(range(100, 200)), list(range(200, 300)))
    assert got[2] == (list(range(100, 300)), list(range(300, 400)))
    assert got[0] == (list(range(200, 400)), list(range(100, 200)))  # nothing came before


def test_one_fold_alone_is_cut_into_parts():
    train, scores = make("regression", 200, 2, 0, 0.5)
    pairs = [(torch.arange(120), torch.arange(120, 200))]
    digest = folds_digest([pairs[0][1]], 200)
    hidden = {m: torch.cat([torch.full_like(s[:120], math.nan), s[120:]]) for m, s in scores.items()}
    made = Stack().fit(bases(hidden, scores, digest), train, pairs, train)
    assert made.predictions.oof[:120].isnan().all()
    assert made.predictions.oof[120:].isfinite().all()
    for options in ({}, {"groups": torch.arange(200) // 8}, {"order": torch.arange(200).flip(0)}):
        data = replace(train, **options)
        found = level_two_folds(pairs, data)
        scored = torch.cat([valid for _, valid in found.pairs])
        assert sorted(scored.tolist()) == list(range(120, 200))
        for rows, valid in found.pairs:
            assert sorted([*rows.tolist(), *valid.tolist()]) == list(range(120, 200))
            if "groups" in options:
                assert not set(data.groups[rows].tolist()) & set(data.groups[valid].tolist())
            if "order" in options:
                assert int(valid.max() - valid.min()) == len(valid) - 1


def test_codes_of_rows_in_no_fold_and_codes_with_gaps():
    train, _ = make("binary", 60, 1, 0, 0.5)
    codes = torch.arange(60) % 3 * 2 - 1  # -1, 1, 3
    found = level_two_folds(codes, train)
    assert found.scored.tolist() == (codes >= 0).tolist()
    assert [v.tolist() for _, v in found.pairs] == [(codes == k).nonzero()[:, 0].tolist() for k in (1, 3)]
    assert found.digest == digest_of(codes)


def test_predictions_of_other_rows_or_shapes_are_refused():
    train, scores = make("multiclass", 60, 2, 0, 0.5)
    folds = folds_for(train)
    digest = digest_of(folds)
    good = bases(scores, scores, digest)
    m0 = scores["m0"]
    for one, message in (
        (Predictions("z", m0[:, 0], m0[:, 0], folds=digest), r"z predicts \(60,\)"),
        (Predictions("z", m0[:9], m0, folds=digest), "z has 9 and 60 predictions"),
        (Predictions("z", m0 * math.nan, m0, folds=digest), "row 0: a prediction of z is no"),
        (Predictions("mean", m0, m0, folds=digest), "two blends have the name 'mean'"),
    ):
        with pytest.raises(DataError, match=message):
            Stack().fit([*good, one], train, folds, train)
    with pytest.raises(DataError, match="no labels"):
        Stack().fit(good, replace(train, label=None), folds, train)


@pytest.mark.parametrize("case", ["binary", "multiclass", "ranking"])
def test_blends_learn_from_some_of_many_rows(case, monkeypatch):
    monkeypatch.setattr("fastrec._core.limits.BLEND_ROWS", 60)
    monkeypatch.setattr("fastrec._core.limits.BLEND_ROWS_OF_MANY", 30)
    learned = []

    class Noting(OneBase):
        learns = True

        def fresh(self):
            return self

        def fit(self, train, valid=None, *, seed=0, device=None):
            learned.append(train)
            return self

    train, scores = make(case, 400, 2, 0, 0.5)
    two = level_two_of(scores, train, [])
    folds = level_two_folds(folds_for(train), train)
    made = cross_fit(Noting(next(iter(scores)), name="noting"), two, folds, two, 0)
    assert not made.oof.isnan().any() or case == "ranking"
    drawn = [len(rows) for rows, _ in folds.pairs] if case == "ranking" else [max(60 // train.n_scores, 30)] * 4
    assert [len(rows) for rows in learned] == drawn
    if case != "ranking":  # another draw for each fold, and none of the rows that it scores
        row = {n: i for i, n in enumerate(two.table[two.conts[0]].number().tolist())}
        seen = [[row[v] for v in rows.table[two.conts[0]].number().tolist()] for rows in learned]
        assert all(not set(s) & set(valid.tolist()) for s, (_, valid) in zip(seen, folds.pairs, strict=True))
        assert all(s == sorted(s) for s in seen)
        assert len({tuple(s) for s in seen}) == 4


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("stacks"), {}
    for case in TASKS:
        made, _, _, test, test_scores = stacked(case)
        found[case] = made, test, test_scores
        made.model.save(folder / case / "stack")
    return folder, found


@pytest.mark.parametrize("case", TASKS)
def test_a_saved_stack_predicts_the_same(kept, case):
    folder, found = kept
    made, test, test_scores = found[case]
    again = StackModel.load(folder / case / "stack").predict(test_scores, test)
    torch.testing.assert_close(again, made.predictions.test, rtol=0, atol=1e-9)
    torch.testing.assert_close(made.model.predict(test_scores, test), made.predictions.test, rtol=0, atol=1e-12)
    one = test.take(torch.arange(5))  # a list; and rows do not depend on the rows beside them
    few = made.model.predict({m: s[:5] for m, s in test_scores.items()}, one)
    torch.testing.assert_close(few, made.predictions.test[:5], rtol=0, atol=1e-9)


def test_a_saved_stack_says_what_it_lacks(kept, tmp_path):
    folder, found = kept
    _, test, scores = found["binary"]
    model = StackModel.load(folder / "binary" / "stack")
    with pytest.raises(DataError, match=r"needs predictions of m1\. It blends m0, m1"):
        model.predict({"m0": scores["m0"]}, test)
    with pytest.raises(DataError, match="m0 has 9 predictions for 100 rows"):
        model.predict({"m0": scores["m0"][:9], "m1": scores["m1"]}, test)
    with pytest.raises(MissingFileError):
        StackModel.load(tmp_path)
    (tmp_path / "stack.json").write_text("{")
    with pytest.raises(UnreadableFileError):
        StackModel.load(tmp_path)
