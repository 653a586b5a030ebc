"""NetModel: every task, what weights and held-out rows do, and what it saves."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from fastai.callback.core import Callback
from scipy.special import log_expit, log_softmax
from torch import nn

from fastrec._core import limits
from fastrec.errors import DataError, UnreadableFileError
from fastrec.estimators import Estimator, NetModel
from fastrec.estimators import net_model as module
from fastrec.estimators._net_training import ScheduledDropout, coslog, flat_cos, train_real_mlp
from fastrec.estimators.base import held_out
from fastrec.estimators.net_model import Head, RowLoss
from fastrec.metrics import as_metric, get_metric
from fastrec.models import MeanOverMembers, RealMLP, TabM, TabularNet
from fastrec.table import Table
from fastrec.validate import Rows

TASKS = NetModel.tasks
SMALL = {
    "TabularNet": {"model": "TabularNet", "options": {"layers": [16]}, "lr": 2e-2},
    "TabM": {"model": TabM, "options": {"layers": [8], "k": 3, "d_embedding": 4}, "lr": 2e-2},
    "RealMLP": {"model": "RealMLP", "options": {"layers": [16, 16], "frequencies": 4}},
}
BEST = {"binary": ("auc", 0.8), "multiclass": ("auc", 0.8), "regression": ("r2", 0.6), "multilabel": ("auc", 0.8)}


def table(task: str, n: int = 240, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    x, kind = rng.normal(size=n), rng.integers(0, 4, n)
    gap = np.where(rng.random(n) < 0.2, np.nan, rng.normal(size=n))
    score = 2 * x + np.array([2.0, 0.0, -2.0, 1.0])[kind] + np.where(np.isnan(gap), 2.0, 0.0) - 0.5
    noisy = score + rng.logistic(size=n) / 2
    y, k = {
        "binary": (noisy > 0, 1),
        "multiclass": (np.digitize(noisy, [-1, 1]), 3),
        "regression": (1_000 + 50 * noisy, 1),
        "multilabel": (np.stack([noisy > 0, x > 0.3], 1), 2),
    }[task]
    label = torch.from_numpy(y.astype(np.int64 if task == "multiclass" else np.float64))
    frame = Table({"x": x, "gap": gap, "kind": [["a", "b", "c", "d"][i] for i in kind]})
    return Rows(frame, task, ["kind"], ["x", "gap"], label, n_outputs=k)


def small(model: str = "TabularNet", **options) -> NetModel:
    return NetModel("net", **{"epochs": 2, "bs": 60, **SMALL[model], **options})


def unknown(data: Rows) -> Rows:
    return replace(data, label=None, weight=None)


@pytest.mark.parametrize("model", SMALL)
@pytest.mark.parametrize("task", TASKS)
def test_learns_what_is_planted(task, model):
    train, test = table(task, 600), table(task, 300, seed=1)
    net = small(model, epochs=8).fit(train, seed=0)
    got = net.predict(unknown(test))
    name, least = BEST[task]
    assert get_metric(name)(test.label, got) > least
    if task == "regression":
        assert got.min() >= train.label.min()
        assert got.max() <= train.label.max()


def test_rows_to_report_on_change_nothing():
    data, valid = table("binary"), table("binary", seed=1)
    alone, told = small(stop_by="auc").fit(data, seed=1), small(stop_by="auc").fit(data, valid, seed=1)
    assert torch.equal(alone.predict(valid), told.predict(valid))
    assert [set(c) for c in alone.trace.curves] == [{"epoch", "train_loss", "held_out_loss", "held_out_auc"}] * 2
    best = max(told.trace.curves, key=lambda c: c["held_out_auc"])
    assert best["valid_auc"] == pytest.approx(get_metric("auc")(valid.label, told.predict(valid)))
    nobody = valid.take(torch.zeros(len(valid), dtype=torch.bool))
    assert "valid_loss" not in small().fit(data, nobody).trace.curves[0]
    with pytest.raises(DataError, match="labels"):
        small().fit(data, unknown(valid))


def test_without_keep_best_the_newest_rows_are_learned_and_the_last_weights_stay():
    """A kind that stands in the last rows alone, an eighth of all, is unseen where these are held out."""
    data = table("regression")
    data = replace(data, order=torch.arange(len(data)))
    late = torch.arange(len(data)) >= len(data) - 30
    kind = ["new" if new else "old" for new in late.tolist()]
    label = torch.where(late, 500.0, 1_000.0).double()
    data = replace(data, label=label).with_table(data.table.with_columns({"kind": kind}))
    made = {keep: small(epochs=30, keep_best=keep).fit(data, seed=1) for keep in (True, False)}
    off = {keep: float((m.predict(data) - label)[late].abs().mean()) for keep, m in made.items()}
    assert off[False] < 50 < 300 < off[True]
    assert set(made[False].trace.curves[0]) == {"epoch", "train_loss"}


@pytest.mark.parametrize(("keep", "epochs"), [(True, range(31, 201)), (False, [64])])
def test_a_tabm_of_few_rows_learns_long_only_if_held_out_rows_can_stop_it(keep, epochs):
    """30 epochs without a better score, 200 in all."""
    data = table("binary").take(torch.arange(60))
    assert len(NetModel(model="TabM", keep_best=keep).fit(data, data, seed=0).trace.curves) in epochs


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("by", [None, "metric"])
def test_the_best_epochs_weights_stay(task, by):
    data = table(task)
    metric = None if by is None else {"regression": "mae"}.get(task, "accuracy")
    net = small(epochs=6, lr=0.3, stop_by=metric).fit(data, seed=2)  # such a rate goes up and down
    out = data.take(held_out(data, seed=2))
    key = "held_out_loss" if by is None else f"held_out_{metric}"
    values = [c[key] for c in net.trace.curves]
    predicted = net.predict(out)
    if by is not None:
        wanted = min(values) if task == "regression" else max(values)
        assert get_metric(metric)(out.label, predicted) == pytest.approx(wanted)
        return
    if task == "multiclass":
        loss = -predicted[torch.arange(len(out)), out.label].log().mean()
    elif task == "regression":
        train = data.take(~held_out(data, seed=2))
        assert len(train) == len(data) - round(len(data) / 8)
        loss = ((predicted - out.label) / data.label.std(correction=0)).square().mean()
    else:
        loss = -(out.label * predicted.log() + (1 - out.label) * (1 - predicted).log()).mean()
    assert float(loss) == pytest.approx(min(values), rel=0.02 if task == "regression" else 1e-5)


def test_patience_ends_the_training():
    data = table("binary")
    long = small(epochs=12, lr=0.5).fit(data, seed=2)
    values = [c["held_out_loss"] for c in long.trace.curves]
    short = small(epochs=12, lr=0.5, patience=2).fit(data, seed=2)
    best = next(i for i in range(12) if all(v >= values[i] for v in values[i + 1 : i + 3]))
    assert best + 2 < 11  # else nothing would end
    assert [c["held_out_loss"] for c in short.trace.curves] == values[: best + 3]


def test_a_bag_is_the_mean_of_its_nets_each_with_other_rows_held_out(monkeypatch):
    held, plain = [], module.held_out
    monkeypatch.setattr(module, "held_out", lambda *a: held.append(plain(*a)) or held[-1])
    data = table("multiclass")
    bag = small(seeds=2).fit(data, seed=5)
    assert not torch.equal(*held)
    single = [small().fit(data, seed=s).predict(data) for s in (5, 5 + limits.BAG_SEEDS)]
    torch.testing.assert_close(bag.predict(data), (single[0] + single[1]) / 2)
    assert [c["seed"] for c in bag.trace.curves] == [0, 0, 1, 1]


def test_balanced_classes_weigh_alike():
    label = torch.tensor([0, 0, 0, 1, 2, 2])
    data = Rows(Table({"x": torch.zeros(6)}), "multiclass", conts=["x"], label=label, n_outputs=4)
    weight = torch.tensor([1.0, 1, 2, 3, 0.5, 0.5])
    got = small(class_weight="balanced")._row_weights(replace(data, weight=weight))
    assert got.tolist() == pytest.approx([2 / 3, 2 / 3, 4 / 3, 8 / 3, 4 / 3, 4 / 3])
    with pytest.raises(DataError, match="class_weight"):
        small(class_weight="even")


def test_epochs_are_cut_where_rows_are_many():
    data = table("binary", 80)  # 70 to train on
    for most, epochs in ((10**6, 4), (140, 2), (1, 1)):
        assert len(small(epochs=4, max_rows=most).fit(data).trace.curves) == epochs


@pytest.mark.parametrize(("n", "bs"), [(2, 1), (9, 4), (60, 10**6)])
def test_any_number_of_rows_and_any_batch(n, bs):
    data = table("regression", n)
    for options in ({}, {"options": {"layers": [4], "use_bn": True, "bn_cont": True}}):
        if bs > 1:  # batch norm wants two rows
            assert small(bs=bs, **options).fit(data, seed=1).predict(data).isfinite().all()
    assert small("RealMLP", bs=bs).fit(data, seed=1).predict(data).isfinite().all()


def plain_loss(task: str, out: np.ndarray, y: np.ndarray, weight: np.ndarray, smoothing: float) -> float:
    """The mean over rows by weight, by SciPy's functions."""
    if task == "multiclass":
        q = (1 - smoothing) * np.eye(out.shape[1])[y[:, 0].astype(int)] + smoothing / out.shape[1]
        rows = -(q * log_softmax(out, 1)).sum(1)
    elif task == "regression":
        rows = np.square(out - y).mean(1)
    else:
        b = y * (1 - smoothing) + smoothing / 2
        rows = -(b * log_expit(out) + (1 - b) * log_expit(-out)).mean(1)
    return (weight * rows).mean()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("task", TASKS)
def test_losses_are_the_formulas(task, smoothing):
    rng = np.random.default_rng(0)
    width = {"binary": 1, "multiclass": 3, "regression": 2, "multilabel": 4}[task]
    out, weight = rng.normal(size=(6, width)), rng.random(6)
    whole = rng.integers(0, 3 if task == "multiclass" else 2, (6, 1 if task == "multiclass" else width))
    y = rng.normal(size=(6, width)) if task == "regression" else whole.astype(float)
    loss = RowLoss(task, width, smoothing)
    targets = torch.from_numpy(np.concatenate([y, weight[:, None]], 1))
    smooth = 0 if task == "regression" else smoothing
    expected = plain_loss(task, out, y, weight, smooth)
    assert float(loss(torch.from_numpy(out), targets)) == pytest.approx(expected)
    members = torch.from_numpy(np.stack([out, out[::-1].copy()], 1))
    both = expected + plain_loss(task, out[::-1], y, weight, smooth)
    assert float(MeanOverMembers(loss)(members, targets)) == pytest.approx(both / 2)


def test_a_tabm_averages_probabilities_of_its_task():
    for task, combine in (("binary", "sigmoid"), ("multiclass", "softmax"), ("regression", "mean")):
        net = TabM([], 1, 2, [2], k=2)
        net.wrap_loss(RowLoss(task, 2))
        assert net.combine == combine


def test_waves_of_the_rate_by_hand():
    # log₂(1 + 15 t) is 0, 1, 2, 3, 4 at these: whole waves; half of one at 2^(i + ½)
    for t in (0, 1 / 15, 3 / 15, 7 / 15, 1):
        assert coslog(t) == pytest.approx(0, abs=1e-12)
    for i in range(4):
        assert coslog((2 ** (i + 0.5) - 1) / 15) == pytest.approx(1)
    assert coslog((2**0.25 - 1) / 15) == pytest.approx(0.5)
    assert [flat_cos(t) for t in (0, 0.3, 0.5, 0.75, 1)] == pytest.approx([1, 1, 1, 0.5, 0], abs=1e-12)


def test_parts_are_trained_at_rates_decay_and_dropout_of_the_recipe(monkeypatch):
    seen = []

    class Look(Callback):
        order = ScheduledDropout.order + 1
        run_valid = False

        def before_step(self):
            rates = [h["lr"] for h in self.opt.hypers]
            drops = [m.p for m in self.learn.model.modules() if isinstance(m, nn.Dropout)]
            decays = [h["wd"] for h in self.opt.hypers]
            scale = [n for n, p in self.learn.model.named_parameters() if any(p is q for q in self.opt.param_lists[2])]
            seen.append((self.learn.pct_train, rates, decays, drops, scale, dict(self.opt.hypers[0])))

    plain = train_real_mlp
    monkeypatch.setattr(module, "train_real_mlp", lambda *a, cbs, **k: plain(*a, cbs=[*cbs, Look()], **k))
    small("RealMLP", epochs=3).fit(table("binary"), seed=1)
    assert len(seen) == 12
    for t, rates, decays, drops, scale, first in seen:
        by_part = dict(zip(["weights", "biases", "scale", "numbers", "activations"], rates, strict=True))
        share = 0.04 * coslog(t)
        expected = {"weights": share, "biases": 0.1 * share, "scale": 6 * share, "numbers": 0.1 * share}
        assert by_part == pytest.approx({**expected, "activations": 0.1 * share})
        d = 0.02 * flat_cos(t)
        assert decays == pytest.approx([d, 0, d, d, d])
        assert drops == pytest.approx([0.0, *[0.15 * flat_cos(t)] * 2])  # the embeddings' first
        assert (first["mom"], first["sqr_mom"], first["eps"]) == (0.9, 0.95, 1e-8)
        assert scale == ["scale"]
    assert seen[0][0] == 0
    assert seen[-1][3][1] < 0.15
    trained = small("RealMLP", epochs=1).fit(table("binary"), seed=1)._nets[0].net
    assert [m.p for m in trained.modules() if isinstance(m, nn.Dropout)] == [0.0, 0.15, 0.15]


def test_amounts_have_a_recipe_of_their_own():
    made = {t: small("RealMLP").fit(table(t), seed=0)._nets[0].plan["options"].get("act") for t in TASKS}
    assert made == {"binary": None, "multiclass": None, "regression": "mish", "multilabel": None}
    shares = small("RealMLP").fit(table("binary"), seed=0)._nets[0].plan["options"]["shares"][0]
    assert shares.sum().item() == pytest.approx(1)
    assert len(shares) == 5


def test_what_cannot_be_learnt_is_named():
    data = table("binary")
    with pytest.raises(DataError, match="one class only"):
        small().fit(replace(data, weight=data.label.clone()))
    # what every estimator refuses stands in test_contract.py
    for wrong in ({"seeds": 0}, {"model": "XMLP"}, {"options": {"depth": 3}}, {"stop_by": "aucc"}):
        with pytest.raises(DataError):
            NetModel(**{"model": "TabularNet", **wrong})
    with pytest.raises(DataError, match="depth"):
        NetModel(options={"depth": 3}).fit(data)


def test_the_default_is_a_model_for_the_tables_width():
    cases = [("binary", 2, TabM), ("binary", 150, TabM), ("binary", 151, TabularNet)]
    for task, numbers, model in [*cases, ("regression", 150, RealMLP), ("regression", 151, TabularNet)]:
        columns = {str(i): torch.arange(16) % (i % 5 + 2) for i in range(numbers)}
        data = Rows(Table(columns), task, conts=list(columns), label=(torch.arange(16) % 2).double())
        net = NetModel(epochs=1, options={"layers": [4]}).fit(data)
        assert net.settings()["model"] == "auto"
        assert net._nets[0].architecture.model is model
        options = net._nets[0].architecture.options
        assert options["layers"] == [4]  # one's own over the recipe's
        assert model is not TabM or options["k"] == 8


@pytest.mark.parametrize(("task", "model"), [("binary", "RealMLP"), ("multiclass", "TabM")])
def test_a_loaded_bag_predicts_and_learns_the_same_and_a_damaged_one_is_named(task, model, tmp_path):
    net, copy = small(model, seeds=2, stop_by="auc").fit(table(task), seed=3), tmp_path / "copy"
    net.save(copy)
    other = table(task, 50, seed=2).table.with_columns({"kind": ["new", *"abcd", None] * 8 + ["a", "b"]})
    loaded = Estimator.load(copy)
    assert loaded.settings() == net.settings()
    assert torch.equal(loaded.predict(Rows(other, task)), net.predict(Rows(other, task)))
    again = loaded.fresh().fit(table(task), seed=3).predict(table(task))
    torch.testing.assert_close(again, net.predict(table(task)), rtol=0, atol=1e-6)
    about = json.loads((copy / "estimator.json").read_text())
    (copy / "estimator.json").write_text(json.dumps({**about, "own_options": ["ghost"]}))
    with pytest.raises(UnreadableFileError):
        Estimator.load(copy)
    (copy / "net_1" / "model.safetensors").write_bytes(b"x" * 100)  # its digest is others'
    with pytest.raises(UnreadableFileError):
        Estimator.load(copy)


class Own(TabularNet):
    """A net of one's own."""


def test_a_net_of_ones_own_and_a_metric_of_ones_own(tmp_path):
    data = table("binary")
    net = NetModel("own", model=Own, options={"layers": [4], "act_cls": nn.GELU}, epochs=1, bs=60).fit(data)
    net.save(tmp_path / "own")
    loaded = Estimator.load(tmp_path / "own")
    assert type(loaded._nets[0].net) is Own
    assert torch.equal(loaded.predict(data), net.predict(data))
    hits = as_metric(lambda y, p: ((p > 0.5) == y).mean(), greater_is_better=True, name="hits")
    told = small(stop_by=hits).fit(data)
    assert "held_out_hits" in told.trace.curves[0]
    told.save(tmp_path / "told")
    read = Estimator.load(tmp_path / "told")
    assert torch.equal(read.predict(data), told.predict(data))
    read.save(tmp_path / "again")  # as one read and saved again, too
    read = Estimator.load(tmp_path / "again")
    assert (read.stop_by.name, read.stop_by.greater_is_better, read.stop_by.tasks) == ("hits", True, hits.tasks)
    with pytest.raises(DataError, match="hits is a metric of one's own, and its function is not in the file"):
        read.fresh().fit(data)
    read.stop_by = hits
    assert torch.equal(read.fresh().fit(data).predict(data), told.predict(data))


def test_a_quantile_of_amounts_is_learned():
    rng = np.random.default_rng(0)
    label = torch.from_numpy(rng.gamma(2, 1.0, 600))
    rows = Rows(Table({"x": rng.normal(size=600)}), "regression", conts=["x"], label=label)
    net = small(epochs=20, bs=64)
    net.suit("pinball@0.8")
    said = net.fit(rows).predict(rows)
    assert float((label <= said).double().mean()) == pytest.approx(0.8, abs=0.06)
    outputs, targets = torch.randn(50, 1).double(), torch.randn(50, 1).double()
    each = net._head.loss().each(outputs, targets)
    rest = (targets - outputs)[:, 0]
    torch.testing.assert_close(each, torch.where(rest > 0, 0.8 * rest, -0.2 * rest))
    assert net.settings()["objective"] == "pinball@0.8"


def test_deviances_are_given_amounts_above_zero():
    data = Rows(Table({"x": [1.0, 2.0, 3.0]}), "regression", conts=["x"], label=torch.tensor([0.0, 0.0, 6.0]))
    far = torch.tensor([[-9.0], [0.0], [9.0]], dtype=torch.float64)
    assert Head.fit(data, "poisson_deviance").predict(far).tolist() == [pytest.approx(0.002), 2, 6]
    assert Head.fit(data).predict(far).tolist() == [0, 2, 6]
