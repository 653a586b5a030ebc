"""Level-2 inputs against plain loops, the blend against SciPy, and the stack's folds."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fastrec.errors import DataError
from fastrec.estimators import Ranker, Trace, XGBRanker
from fastrec.metrics import get_metric, reciprocal_ranks
from fastrec.stacking import BoostedBlend, LinearBlend, MeanBlend, Stack
from fastrec.stacking.blends import in_list, level_two
from fastrec.table import Table
from fastrec.validate import Lists
from tests.stacking.stack_cases import Given, bases, digest_of, folds_for

INF, NAN = math.inf, math.nan


def rows_by_group(groups) -> dict[int, list[int]]:
    return {g: [i for i, other in enumerate(groups) if other == g] for g in groups}


def loop_in_list(scores: list[float], groups: list[int]) -> dict[str, list[float]]:
    out = {w: [0.0] * len(scores) for w in ("rank", "gap", "softmax", "log_softmax")}
    for rows in rows_by_group(groups).values():
        height = {i: -INF if math.isnan(scores[i]) else scores[i] for i in rows}
        top = max(height.values())
        for i in rows:
            if height[i] == top:
                out["gap"][i] = 0.0
            else:
                out["gap"][i] = height[i] - top if math.isfinite(height[i]) and math.isfinite(top) else -1000.0
        total = sum(math.exp(out["gap"][i]) for i in rows)
        last = {i: (math.isnan(scores[i]), -height[i], i) for i in rows}
        for place, i in enumerate(sorted(rows, key=last.get), start=1):
            out["rank"][i] = place
        for i in rows:
            out["log_softmax"][i] = out["gap"][i] - math.log(total)
            out["softmax"][i] = math.exp(out["gap"][i]) / total
    return out


score = st.sampled_from([0.0, -0.0, 1.0, 1.0, -2.5, 700.0, -900.0, INF, -INF, NAN]) | st.floats(-50, 50)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(score, st.sampled_from([5, -1, 10**15])), max_size=15))
def test_inputs_of_a_model_are_those_of_plain_loops(rows):
    scores, groups = [r[0] for r in rows], [r[1] for r in rows]  # a list's rows stand anywhere
    got = in_list(torch.tensor(scores, dtype=torch.float64), torch.tensor(groups, dtype=torch.int64))
    for word, expected in loop_in_list(scores, groups).items():
        np.testing.assert_allclose(got[word].numpy(), expected, rtol=1e-12, atol=1e-12, err_msg=word)


def clicks(
    lists: int = 150, size: int = 5, models: int = 2, seed: int = 0, step: float = 1.0
) -> tuple[Lists, dict[str, torch.Tensor]]:
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(lists, size))
    label = np.zeros_like(truth)
    label[np.arange(lists), (truth + rng.gumbel(size=truth.shape)).argmax(1)] = 1
    groups = torch.arange(lists).repeat_interleave(size)
    columns = {"shop": rng.choice(["a", "b"], truth.size), "price": rng.normal(size=truth.size)}
    data = Lists(Table(columns), groups, cats=["shop"], conts=["price"], label=torch.from_numpy(label.ravel()))
    scores = {
        f"m{i}": torch.from_numpy((truth + (i * step + 0.7) * rng.normal(size=truth.shape)).ravel())
        for i in range(models)
    }
    return data, scores


def test_level_two_holds_the_inputs_and_the_extra_columns():
    data, scores = clicks()
    two = level_two(scores, data, extra=["price", "shop"])
    assert list(two.cats) == ["shop"]
    assert list(two.conts) == ["price", *(f"{m}_{w}" for m in scores for w in ("rank", "gap", "softmax"))]
    for model, values in scores.items():
        for word, expected in loop_in_list(values.tolist(), data.groups.tolist()).items():
            np.testing.assert_allclose(two.table[f"{model}_{word}"].number(), expected, atol=1e-12)
    assert torch.equal(two.label, data.label)
    with pytest.raises(DataError, match="m_rank"):
        level_two({"m": scores["m0"]}, data.with_table(data.table.rename({"price": "m_rank"})), extra=["m_rank"])


def likelihood(weights, x, label, groups, weight, ridge) -> float:
    s, value = x @ weights, ridge * float(weights @ weights)
    for rows in rows_by_group(groups).values():
        clicked = sum(label[i] for i in rows)
        if len(rows) < 2 or not clicked:
            continue
        log_total = np.logaddexp.reduce(s[rows])
        value -= weight[rows[0]] * sum(label[i] / clicked * (s[i] - log_total) for i in rows)
    return value


def blend_case(seed: int) -> tuple[Lists, Lists, dict[str, torch.Tensor]]:
    data, scores = clicks(60, 4, 3, seed)
    label = data.label.clone()
    label[:8] = 0  # two lists without a click,
    label[8:10] = 1  # one with several
    data = replace(data, label=label, weight=torch.where(data.groups % 2 == 0, 1.0, 0.5).double())
    return data, level_two(scores, data), scores


@pytest.mark.parametrize("ridge", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_blend_weights_are_those_of_scipy(seed, ridge):
    data, two, scores = blend_case(seed)
    x = np.stack([loop_in_list(s.tolist(), data.groups.tolist())["log_softmax"] for s in scores.values()], 1)
    about = (x, data.label.tolist(), data.groups.tolist(), data.weight.tolist(), ridge)
    best = minimize(likelihood, np.zeros(3), args=about, bounds=[(0, None)] * 3, options={"gtol": 1e-8, "ftol": 1e-14})
    got = LinearBlend(list(scores), ridge=ridge).fit(two)
    np.testing.assert_allclose(got.weights.numpy(), best.x, atol=2e-4)
    assert likelihood(got.weights.numpy(), *about) <= best.fun + 1e-7
    np.testing.assert_allclose(got.predict(two).numpy(), x @ got.weights.numpy(), atol=1e-12)
    assert got.trace.importance == dict(zip(scores, got.weights.tolist(), strict=True))


def test_blend_survives_infinite_scores():
    data, scores = clicks()
    out = torch.arange(len(data)) % 7 == 3
    scores["m0"] = torch.where(out, -torch.inf, scores["m0"])  # some of them clicked
    scores["m1"] = torch.where(out & (data.label == 0), -torch.inf, scores["m1"])
    blend = LinearBlend(["m0", "m1"]).fit(two := level_two(scores, data))
    assert blend.weights.isfinite().all()
    got = blend.predict(two)
    assert got.isfinite().all()
    assert blend.weights[1] > 0.1
    assert (got[out & (data.label == 0)] < got.median()).all()


class Spy(Ranker):
    """Remembers its training lists; scores 1 for a row of one of them, else by a column."""

    def __init__(self, name: str, column: str = "m0_gap", fits: list | None = None) -> None:
        self.name, self.column, self.trace, self.fits = name, column, Trace(), fits

    def fit(self, train, valid=None, *, seed=0, device=None):
        self.lists, self.seed = set(train.groups.tolist()), seed
        self.trace = Trace(importance={"x": float(seed)})
        return self

    def predict(self, data):
        seen = torch.tensor([g in self.lists for g in data.groups.tolist()], dtype=torch.bool)
        values = data.table[self.column].number()
        return torch.where(seen, torch.inf, values)

    def save(self, folder):
        pass


def test_no_level_two_model_scores_rows_it_was_trained_on():
    (data, scores), (test, test_scores) = clicks(), clicks(20, seed=1)
    test = replace(test, groups=test.groups + 10_000)
    spies = Spy("a", "m0_gap"), Spy("b", "m1_gap")
    made, tried = Given(*spies).fit(
        bases(scores, test_scores, digest_of(folds_for(data, 3))), data, folds_for(data, 3), test, seed=20
    )
    assert made.oof.isfinite().all()
    assert set(tried) == {"a", "b"}
    for k, model in enumerate(made.models):
        assert model.lists == {g for g in range(150) if g * 7 % 3 != k}
        assert model.seed == 20 + k
    assert made.importance == {"x": 21.0}


@pytest.mark.parametrize("asked", [0, 1, 4])
def test_when_time_is_up_only_the_usual_blend_and_what_learns_nothing_are_tried(asked):
    """So many questions whether it is late are answered no; a blend asks before each of its three folds."""
    (data, scores), (test, test_scores) = clicks(), clicks(20, seed=1)
    test = replace(test, groups=test.groups + 10_000)
    base, answers = bases(scores, test_scores, digest_of(folds_for(data, 3))), iter([False] * asked)
    every = Stack().fit({p.name: p for p in base}, data, folds_for(data, 3), test).tried  # as CrossFit gives them
    stacked = Stack().fit(base, data, folds_for(data, 3), test, late=lambda: next(answers, True))
    learn = {b.name for b in Stack().blends(list(scores), data, get_metric("mrr")) if b.learns}
    usual = "blend"
    assert usual in learn
    assert len(learn) >= 4
    done = asked // 3  # blends beside the usual one that were through in time
    assert len(set(stacked.tried) & learn) == 1 + done
    assert set(every) - learn <= set(stacked.tried)
    assert {n: every[n] for n in stacked.tried} == stacked.tried
    assert stacked.predictions.oof.isfinite().all()


def test_the_better_out_of_fold_is_chosen_over_the_counted_rows():
    (data, scores), (test, test_scores) = clicks(), clicks(20, seed=1)
    test = replace(test, label=None, groups=test.groups + 10_000)
    # Model m0 is right in even lists and wrong in odd ones; m1 the other way round.
    even = data.groups % 2 == 0
    scores = {"m0": torch.where(even, data.label, -data.label), "m1": torch.where(even, -data.label, data.label)}
    folds = folds_for(data, 3)
    base = bases(scores, test_scores, digest_of(folds))
    stack = Given(Spy("a", "m0_gap"), Spy("b", "m1_gap"))
    for counted, best in ((even, "m0"), (~even, "m1")):
        made, tried = stack.fit(base, data, folds, test, counted=counted)
        ranks = {
            n: float(reciprocal_ranks(s[counted], data.label[counted], data.groups[counted])[1].mean())
            for n, s in (("a", scores["m0"]), ("b", scores["m1"]))
        }
        assert tried == pytest.approx(ranks, abs=0.3)
        assert max(tried.values()) == 1
        gap = in_list(test_scores[best], test.groups)["gap"]
        torch.testing.assert_close(made.test, gap)
        assert (made.name, len(made.models)) == ("stack", 3)


def test_the_real_stack_beats_its_parts_and_repeats_itself():
    (data, scores), (test, test_scores) = clicks(600, step=0.0), clicks(100, seed=1, step=0.0)
    test = replace(test, label=None)
    folds = folds_for(data, 4)
    base = bases(scores, test_scores, digest_of(folds))
    made, tried = Stack(rounds=20).fit(base, data, folds, test, seed=3)
    again, _ = Stack(rounds=20).fit(base, data, folds, test, seed=3)
    assert torch.equal(made.oof, again.oof)
    assert torch.equal(made.test, again.test)

    def mean(values):
        return float(reciprocal_ranks(values, data.label, data.groups, ties="ordinal")[1].mean())

    blends = {"xgb_ranker", "blend", "boosted_blend", "mean_log_softmax", "mean_rank", "hill_climb"}
    assert set(tried) == blends | set(scores)
    assert mean(made.oof) > max(mean(s) for s in scores.values())
    models = [LinearBlend(["m0", "m1"]).fit(level_two(scores, data).take(folds != k)) for k in range(4)]
    expected = torch.stack([m.predict(level_two(test_scores, test)) for m in models]).mean(0)
    torch.testing.assert_close(made.test, expected)  # no other is clearly better


def test_odd_lists_and_scores_go_through_the_real_stack():
    data, scores = clicks(90)
    label = data.label.clone()
    label[:10] = 0
    data = replace(data, label=label, weight=torch.where(data.groups % 5 == 0, 0.0, 1.0).double())
    single = (torch.arange(len(data)) % 5 == 0) | (data.groups > 10)  # lists of one candidate at the start
    data, scores = data.take(single), {m: s[single] for m, s in scores.items()}
    scores["m0"] = torch.where(data.groups % 3 == 0, -torch.inf, scores["m0"])
    scores["m1"] = torch.where(data.groups % 4 == 0, 1.0, scores["m1"])
    made, _ = Stack(rounds=5, extra=["shop", "price"]).fit(
        bases(scores, scores, digest_of(folds_for(data, 3))), data, folds_for(data, 3), data
    )
    assert made.oof.isfinite().all()
    assert made.test.isfinite().all()


def test_extra_columns_reach_the_trees_only():
    data, scores = clicks()
    stack = Stack(rounds=3, extra=["shop"], max_depth=2)
    trees, blend, *_ = stack.blends(list(scores), data, get_metric("mrr"))
    assert isinstance(trees, XGBRanker)
    assert isinstance(blend, LinearBlend)
    two = level_two(scores, data, stack.extra)
    assert "shop" in trees.fit(two).trace.importance
    assert set(blend.fit(two).trace.importance) == {"m0", "m1"}


def test_nothing_to_stack_or_wrong_folds_are_refused():
    data, scores = clicks()
    with pytest.raises(DataError, match="nothing to stack"):
        Stack().fit([], data, folds_for(data, 3), data)
    with pytest.raises(DataError, match="3 folds for 750"):
        Stack().fit(bases(scores, scores, digest_of(folds_for(data, 3))), data, torch.zeros(3, dtype=torch.int64), data)


def test_no_test_rows_and_predictions_as_arrays():
    data, scores = clicks()
    none = {n: s[:0] for n, s in scores.items()}
    base = bases(scores, none, digest_of(folds_for(data, 3)))
    made, same = (
        Stack(rounds=2).fit(base, data, folds_for(data, 3), test) for test in (None, data.take(torch.arange(0)))
    )
    assert torch.equal(made.predictions.oof, same.predictions.oof)
    arrays = {n: s.numpy().copy() for n, s in scores.items()}
    arrays["m0"].flags.writeable = False  # as a frame's are
    assert torch.equal(made.model.predict(arrays, data), made.model.predict(scores, data))


def test_average_blend_is_the_plain_mean_in_each_list():
    groups = torch.tensor([0, 0, 0, 1, 1])
    scores = {
        "a": torch.tensor([3.0, 1.0, 2.0, 0.0, 5.0]).double(),
        "b": torch.tensor([1.0, 9.0, 2.0, 4.0, 4.5]).double(),
    }
    data = level_two(scores, Lists(Table({"x": torch.zeros(5)}), groups))
    # ranks: a 1 3 2 | 2 1, b 3 1 2 | 2 1
    assert MeanBlend(["a", "b"], of="rank").predict(data).tolist() == [-2.0, -2.0, -2.0, -2.0, -1.0]
    expected = []
    for rows in ([0, 1, 2], [3, 4]):
        logs = [[math.log(math.exp(s[i]) / sum(math.exp(s[j]) for j in rows)) for i in rows] for s in scores.values()]
        expected += [(a + b) / 2 for a, b in zip(*logs, strict=True)]
    assert MeanBlend(["a", "b"], of="log_softmax").predict(data).tolist() == pytest.approx(expected)


def test_boosted_blend_starts_from_the_blend(tmp_path):
    data, scores = clicks()
    two = level_two(scores, data)
    blend = LinearBlend(list(scores)).fit(two)
    start = BoostedBlend(list(scores), rounds=1, eta=1e-6).fit(two)
    torch.testing.assert_close(
        start.predict(two) - start.predict(two)[0], blend.predict(two) - blend.predict(two)[0], atol=1e-4, rtol=0
    )
    model = BoostedBlend(list(scores), rounds=30, max_depth=2).fit(two)

    def mean(values):
        return float(reciprocal_ranks(values, data.label, data.groups, ties="ordinal")[1].mean())

    assert mean(model.predict(two)) > mean(blend.predict(two))  # on its own training rows
    model.save(tmp_path)
    assert json.loads((tmp_path / "blend" / "estimator.json").read_text())["importance"].keys() == {"m0", "m1"}
    assert (tmp_path / "trees" / "trees0.ubj").exists()
