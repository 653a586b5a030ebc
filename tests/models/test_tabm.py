"""TabM's members against plain perceptrons; piecewise-linear vectors, bins and ModernNCA's neighbours against loops."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.losses import BCEWithLogitsLossFlat, CrossEntropyLossFlat, MSELossFlat
from fastai.tabular.core import Categorify, TabularPandas
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.estimators import NetModel
from fastrec.losses import BCE, ListwiseSoftmax
from fastrec.models import MeanOverMembers, ModernNCA, PiecewiseLinear, TabM, bins_of
from fastrec.models.tabm import EnsembleLinear
from fastrec.table import Table
from fastrec.tabular import ParquetFrame, TabularFrame
from fastrec.training import rec_learner
from fastrec.validate import Rows
from tests.models.plain import DEVICE, assert_gradients, stirred, to_device

SIZES = [(6, 4), (9, 8)]
BINS = [torch.tensor([-1.0, 0.0, 1.0]), torch.tensor([-2.0, 2.0]), torch.tensor([0.0, 0.3, 0.6, 0.9])]


def batch(b=7, n_cont=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    cats = torch.stack([torch.randint(0, n, (b,), generator=g) for n, _ in SIZES], 1)
    return to_device(cats, torch.randn(b, n_cont, generator=g))


def plain_members(net, cats, conts):
    """Every member as the multi-layer perceptron that it is."""
    tables = [net.embeds.table(str(i)) for i in range(len(SIZES))]
    numbers = conts if net.numbers is None else net.numbers(conts)
    x = torch.cat([*(t[codes] for t, codes in zip(tables, cats.T, strict=True)), numbers], 1)
    members = []
    for i in range(net.k):
        h = x
        for layer in net.layers:
            if isinstance(layer, nn.Linear):
                h = h @ layer.weight.T + layer.bias
            elif isinstance(layer, nn.ReLU | nn.Softplus):
                h = layer(h)
            elif layer.s is None:
                h = (h * layer.r[i]) @ layer.weight.T + layer.bias
            else:
                h = (h * layer.r[i]) @ layer.weight.T * layer.s[i] + layer.bias[i]
        members.append(h @ net.heads.weight[i] + net.heads.bias[i])
    return torch.stack(members, 1)


@pytest.mark.parametrize("variant", ["mini", "full"])
@pytest.mark.parametrize("bins", [None, BINS])
def test_every_member_equals_a_plain_perceptron(variant, bins):
    net = stirred(TabM(SIZES, 3, 2, [5, 4, 3], k=3, variant=variant, bins=bins, d_embedding=2, ps=0, act_cls=nn.ReLU()))
    cats, conts = batch()
    wanted = plain_members(net, cats, conts)
    assert net(cats, conts).shape == (7, 3, 2)
    assert torch.allclose(net(cats, conts), wanted, rtol=1e-4, atol=1e-5)
    net.eval()
    assert torch.allclose(net(cats, conts), wanted.mean(1), rtol=1e-4, atol=1e-5)


def test_predictions_are_means_of_probabilities():
    net = stirred(TabM(SIZES, 3, 4, [5], k=3, ps=0, combine="softmax")).eval()
    cats, conts = batch()
    members = plain_members(net, cats, conts)
    assert torch.allclose(net(cats, conts).softmax(-1), members.softmax(-1).mean(1), atol=1e-6)
    net.combine = "sigmoid"
    assert torch.allclose(net(cats, conts).sigmoid(), members.sigmoid().mean(1), atol=1e-6)
    net.heads.bias.data += 200  # probabilities that float32 calls 1
    assert net(cats, conts).isfinite().all()
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        assert net(cats, conts).dtype == torch.float32
    net.combine, net.squeeze = "mean", TabM(SIZES, 3, 4, [5], y_range=(-1, 3)).squeeze
    assert torch.allclose(net(cats, conts), torch.full((7, 4), 3.0, device=DEVICE), atol=1e-3)


def test_members_differ_from_the_start_and_scales_are_signs():
    for variant in ("mini", "full"):
        net = TabM(SIZES, 3, 1, [16, 16], k=8, variant=variant, ps=0)
        first = net.layers[0]
        assert first.r.abs().eq(1).all()
        assert 0.2 < first.r.gt(0).float().mean() < 0.8
        hidden = net.layers(torch.randn(5, 15))
        assert all((hidden[:, 0] - hidden[:, i]).abs().max() > 1e-3 for i in range(1, 8))
        if variant == "full":
            assert first.s.eq(1).all()
            assert net.layers[2].r.eq(1).all()
            assert net.layers[2].s.eq(1).all()
            assert first.bias.eq(first.bias[0]).all()


@pytest.mark.parametrize("variant", ["mini", "full"])
def test_gradients_are_right(variant):
    net = TabM(SIZES, 3, 1, [4, 3], k=2, variant=variant, bins=BINS, d_embedding=2, ps=0, act_cls=nn.Softplus)
    net = stirred(net.double())
    for training in (True, False):
        assert_gradients(net.train(training), *batch(4))


@pytest.mark.parametrize(
    ("loss", "outputs", "combine"),
    [
        (CrossEntropyLossFlat(), 3, "softmax"),
        (CrossEntropyLossFlat(weight=torch.tensor([1.0, 2.0, 0.5])), 3, "softmax"),
        (BCE(smoothing=0.1), 1, "sigmoid"),
        (BCEWithLogitsLossFlat(), 1, "sigmoid"),
        (MSELossFlat(), 1, None),
        (nn.functional.mse_loss, 1, None),
        (ListwiseSoftmax(), 1, None),
    ],
)
def test_the_loss_is_the_mean_of_the_members(loss, outputs, combine):
    torch.manual_seed(0)
    pred = torch.randn(6, 4, outputs, requires_grad=True)
    targets = torch.tensor([0, 1, 2, 1, 0, 2]) if outputs == 3 else torch.tensor([0.0, 1, 1, 0, 0, 1])[:, None]
    if isinstance(loss, ListwiseSoftmax):
        targets = torch.tensor([[0, 3], [1, 3], [1, 5], [0, 5], [0, 5], [1, 9]])
    wanted = torch.stack([loss(pred[:, i], targets) for i in range(4)]).mean()
    net = TabM(SIZES, 3, outputs, [4])
    wrapped = net.wrap_loss(loss)
    assert net.combine == combine
    assert wrapped(pred, targets).item() == pytest.approx(wanted.item(), rel=1e-6)
    assert wrapped(pred[:, 0], targets).item() == pytest.approx(loss(pred[:, 0], targets).item(), rel=1e-6)
    assert net.wrap_loss(wrapped).loss is loss
    kept = TabM(SIZES, 3, outputs, [4], combine="mean")
    kept.wrap_loss(loss)
    assert kept.combine == "mean"


def test_the_wrapped_loss_acts_as_its_own():
    wrapped = MeanOverMembers(BCE())
    for one in (wrapped, pickle.loads(pickle.dumps(wrapped)), copy.deepcopy(wrapped)):
        assert one.n_out == 1
    assert wrapped.activation(torch.zeros(1, 1)).item() == 0.5
    wrapped.reduction = "none"
    assert wrapped.loss.reduction == "none"
    assert not hasattr(MeanOverMembers(nn.functional.mse_loss), "reduction")


NUMBERS = torch.randn(10, 1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (partial(TabM, SIZES, 3, 1, k=0), "0 members"),
        (partial(TabM, SIZES, 3, 1, layers=[]), "0 layers"),
        (partial(TabM, SIZES, 3, 1, variant="tiny"), "'tiny'"),
        (partial(TabM, SIZES, 3, 1, combine="median"), "'median'"),
        (partial(TabM, SIZES, 3, 1, bins=BINS[:2]), "bins of 2 columns for 3"),
        (partial(TabM, SIZES, 3, 1, ps=[0.1, 0.2, 0.3]), "3 dropouts for 2 layers"),
        (partial(PiecewiseLinear, []), "0 columns"),
        (partial(PiecewiseLinear, [torch.tensor([1.0])]), "column 0 are"),
        (partial(PiecewiseLinear, [torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.0])]), "column 1 are"),
        (partial(PiecewiseLinear, [torch.tensor([0.0, math.inf])]), "column 0 are"),
        (partial(bins_of, NUMBERS, 0), "n_bins=0"),
        (partial(bins_of, NUMBERS, by="tree"), "one target for each of 10 rows"),
        (partial(bins_of, NUMBERS, by="tree", y=torch.zeros(10, 2)), r"not \[10, 2\]"),
        (partial(bins_of, torch.tensor([[math.nan]]), names=["price"]), "(?=.*'price').*no finite number"),
    ],
)
def test_bad_options_are_refused(call, words):
    with pytest.raises(DataError, match=words):
        call()


@pytest.mark.parametrize(
    ("numbers", "k", "width", "d", "bins"),
    [(3, 32, 256, 16, 48), (20, 32, 256, 16, 48), (25, 24, 192, 12, 38), (93, 16, 128, 4, 16), (400, 16, 128, 4, 16)],
)
def test_sizes_go_by_the_count_of_numbers(numbers, k, width, d, bins):
    df = pd.DataFrame(np.random.default_rng(0).normal(size=(120, numbers)), columns=[f"x{i}" for i in range(numbers)])
    df["y"] = df.x0 > 0
    dls = TabularFrame(df, [], [], list(df.columns[:-1]), "y").dataloaders(bs=32)
    net = rec_learner(dls, TabM).model
    assert net.k == k
    assert [m.weight.shape[0] for m in net.layers if hasattr(m, "weight")] == [width, width]
    assert net.numbers.d_embedding == d
    assert net.numbers.left.shape[1] == bins
    own = rec_learner(dls, TabM, k=3, layers=[8], d_embedding=2, bins=bins_of(dls, 5)).model
    assert (own.k, own.layers[0].weight.shape[0], own.numbers.d_embedding) == (3, 8, 2)
    assert own.numbers.left.shape[1] == 5


@pytest.mark.parametrize("rows", [1, 3, 4, 9])
def test_few_rows_and_many_go_other_ways_to_the_same_numbers(rows):
    torch.manual_seed(0)
    layer, x = EnsembleLinear(5, 4, 3, signs=True, outputs=True), torch.randn(rows, 5, requires_grad=True)
    torch.nn.init.normal_(layer.s)
    torch.nn.init.normal_(layer.r)
    want = torch.stack([(x * layer.r[i]) @ layer.weight.T * layer.s[i] + layer.bias[i] for i in range(3)], 1)
    torch.testing.assert_close(layer(x), want)
    pull = torch.randn(rows, 3, 4)
    for p in (x, *layer.parameters()):
        (a,), (b,) = (torch.autograd.grad((out * pull).sum(), p, retain_graph=True) for out in (layer(x), want))
        torch.testing.assert_close(a, b)


# ---- piecewise-linear vectors of numbers, and their bins


def loop_encode(x, edges):
    """A number's encoding by the paper's equation 1, bin by bin; the first and the last bin have no end."""
    shares = [(x - low) / (high - low) for low, high in itertools.pairwise(edges)]
    last = len(shares) - 1
    return [s if (t == 0 and s < 0) or (t == last and s > 1) else min(max(s, 0.0), 1.0) for t, s in enumerate(shares)]


EDGES = [torch.tensor([-1.0, 0.0, 0.5, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([0.0, 1e-3, 10.0])]


@settings(max_examples=30, deadline=None)
@given(
    edges=st.lists(st.integers(-40, 40), min_size=2, max_size=7, unique=True),
    xs=st.lists(st.integers(-100, 100), min_size=1, max_size=8),
)
def test_the_encoding_equals_a_loop(edges, xs):
    edges = [e / 4 for e in sorted(edges)]
    values = [x / 8 for x in xs]
    got = PiecewiseLinear([torch.tensor(edges), torch.tensor([0.0, 1.0])]).encode(torch.tensor([values, values]).T)
    assert got[:, 0].tolist() == [pytest.approx(loop_encode(v, edges), abs=1e-5) for v in values]
    assert got[:, 1, 0].tolist() == values  # one bin: the number itself, without end on either side
    assert got[:, 1, 1:].abs().sum() == 0


@pytest.mark.parametrize("activation", [False, True])
@pytest.mark.parametrize("straight", [False, True])
def test_the_vectors_equal_a_loop(activation, straight):
    torch.manual_seed(0)
    net = PiecewiseLinear(EDGES, 5, activation=activation, straight=straight)
    torch.nn.init.normal_(net.weight)
    x = torch.randn(11, 3) * 2
    wanted = net.bias.repeat(11, 1, 1)
    for i, row in enumerate(x.tolist()):
        for c, edges in enumerate(EDGES):
            code = torch.tensor(loop_encode(row[c], edges.tolist()))
            wanted[i, c] += code @ net.weight[c, : len(code)] + (row[c] * net.slope[c] if straight else 0)
    if activation:
        wanted = wanted.clamp(min=0)
    assert net.embedding_dim == 15
    assert torch.allclose(net(x), wanted.flatten(1), rtol=1e-4, atol=1e-4)


def test_vectors_start_as_a_straight_line():
    straight, plain = PiecewiseLinear(EDGES, 5), PiecewiseLinear(EDGES, 5, straight=False)
    x = torch.tensor([[-3.0, 0.0, 0.5], [5.0, 7.0, 20.0]])
    line = (x[..., None] * straight.slope + straight.bias).flatten(1)
    assert torch.allclose(straight(x), line)  # nothing but a straight line at first
    assert plain.weight[1, 1:].abs().sum() == 0  # weights of bins that the column has not
    assert plain.weight[1, 0].abs().min() > 0


def test_large_numbers_keep_their_digits():
    code = PiecewiseLinear([torch.tensor([1.6e7, 1.6e7 + 3, 1.6e7 + 6])]).encode(torch.tensor([[1.6e7 + 4]]))
    assert code[0, 0].tolist() == pytest.approx([1, 1 / 3])


def test_quantile_bins_hold_equal_shares():
    x = torch.randn(4001, 2, generator=torch.Generator().manual_seed(0))
    for c, edges in enumerate(bins_of(x, 8)):
        values = sorted(x[:, c].tolist())
        assert edges.tolist() == pytest.approx([values[round(i * 4000 / 8)] for i in range(9)], abs=1e-6)
    assert [len(e) for e in bins_of(torch.tensor([[1.0], [1], [1], [1], [1], [2], [3]]), 4)] == [3]


def test_columns_of_few_values_and_missing_ones():
    x = torch.tensor([[0.0, 7.0, math.nan], [1.0, 7.0, 2.0], [1.0, 7.0, math.inf], [0.0, 7.0, 4.0]])
    assert [e.tolist() for e in bins_of(x, 2)] == [[0, 0.5, 1], [6.5, 7.5], [2, 3, 4]]
    assert bins_of(torch.tensor([[3e9], [3e9]]))[0].diff().item() > 0


def test_tree_bins_split_where_the_target_changes():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, 3000)
    y = (x > 3).astype(int) + (x > 7)
    column = torch.from_numpy(x[:, None])
    for target in (y, y * 1.5):  # classes, amounts
        (edges,) = bins_of(column, 3, by="tree", y=torch.from_numpy(target))
        assert edges.tolist() == pytest.approx([x.min(), 3, 7, x.max()], abs=0.02)
    (sampled,) = bins_of(column, 3, by="tree", y=torch.from_numpy(y), max_rows=1000)
    assert sampled[1:3].tolist() == pytest.approx([3, 7], abs=0.1)
    tree = DecisionTreeClassifier(max_leaf_nodes=6, min_samples_leaf=100, random_state=0)
    noisy = rng.random(3000) < 0.2 + 0.6 * (np.sin(x) > 0)
    splits = tree.fit(x[:, None], noisy).tree_
    (edges,) = bins_of(column, 6, by="tree", y=torch.from_numpy(noisy), min_leaf=100)
    assert edges[1:-1].tolist() == pytest.approx(sorted(t for t in splits.threshold if t != -2), abs=1e-5)


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(1)
    df = pd.DataFrame({"x": rng.normal(size=500), "z": rng.integers(0, 3, 500) * 1.0, "c": rng.choice(list("ab"), 500)})
    df["y"] = ((df.x > 0.5) ^ (df.c == "a")).astype(int)
    df.loc[400:, "x"] += 100  # rows that are not trained on
    return df


def test_bins_of_loaders_of_every_kind(frame, tmp_path):
    splits = (range(400), range(400, 500))
    wanted = bins_of(torch.tensor(frame[["x", "z"]].to_numpy()[:400], dtype=torch.float32), 5)
    names = {"cat_names": ["c"], "cont_names": ["x", "z"], "y_names": "y"}
    ours = TabularFrame(frame, [Categorify], **names, splits=splits).dataloaders(bs=64)
    stock = TabularPandas(frame, [Categorify], **names, splits=tuple(map(list, splits))).dataloaders(bs=64)
    for i in range(0, 400, 100):
        frame[i : i + 100].to_parquet(tmp_path / f"{i}.parquet")
    stream = ParquetFrame(sorted(tmp_path.glob("*.parquet")), [Categorify], **names).dataloaders(bs=64)
    for dls in (ours, stock, stream):
        found = bins_of(dls, 5)
        assert [e.tolist() for e in found] == [e.tolist() for e in wanted]
        tree = bins_of(dls, 4, by="tree", min_leaf=20)
        assert all(e[-1] < 99 for e in tree)
        assert len(tree[0]) == 5
    some, again = (bins_of(ours, 5, max_rows=50)[0].tolist() for _ in range(2))
    assert len(some) == 6
    assert some != wanted[0].tolist()
    assert some == again


def neighbours(y, n_cont=3, **options):
    """A net of the training rows ``batch(len(y), seed=5)``."""
    torch.manual_seed(0)
    known = [*batch(len(y), n_cont, seed=5), y.to(DEVICE)]
    return ModernNCA(SIZES, n_cont, options.pop("out", 1), known=known, width=8, **options).to(DEVICE).eval()


def plain_mean(rows, others, values, own=False):
    """Each row's mean of values, by a loop."""
    made = []
    for i, row in enumerate(rows.double()):
        near = torch.stack([-(row - o).norm() for o in others.double()])
        near[i] = -torch.inf if own else near[i]
        made.append(near.softmax(0) @ values.double())
    return torch.stack(made)


@pytest.mark.parametrize("combine", ["mean", "sigmoid", "softmax"])
def test_scores_are_means_over_the_training_rows(combine, monkeypatch):
    g = torch.Generator().manual_seed(2)
    classes = torch.randint(0, 3, (30,), generator=g).to(DEVICE)
    amounts, labels = torch.randn(30, 2, generator=g).to(DEVICE), (classes > 1).float()
    y = {"mean": amounts, "sigmoid": labels, "softmax": classes}[combine]
    values = {"mean": y, "sigmoid": y[:, None], "softmax": torch.eye(3, device=DEVICE)[classes]}[combine]
    net = neighbours(y, out=values.shape[1], combine=combine)
    with torch.no_grad():
        found, rows, others = net(*batch()), net.vectors(*batch()), net.vectors(*batch(30, seed=5))
    wanted, whole = plain_mean(rows, others, values), found
    found = {"mean": found, "sigmoid": found.sigmoid(), "softmax": found.softmax(1)}[combine]
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-4)
    monkeypatch.setattr(limits, "NEIGHBOUR_PAIRS", 60)  # two rows at once
    with torch.no_grad():
        torch.testing.assert_close(net(*batch()), whole)
        net.first.weight.mul_(2)
        found = net(*batch())
    assert not torch.isclose(found, whole).all()
    torch.testing.assert_close(net(*batch()), found)  # with gradients nothing is remembered


def test_in_training_a_row_is_predicted_from_all_others_of_its_batch():
    y = torch.randint(0, 2, (12,), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    net = neighbours(y.float()).train()
    loss = net.wrap_loss(CrossEntropyLossFlat())
    net.combine, net.out_sz = "softmax", 2
    vectors = net(*batch(12, seed=5)).detach()
    p = plain_mean(vectors, vectors, torch.eye(2, device=DEVICE)[y], own=True)
    torch.testing.assert_close(loss(vectors, y).double(), -p[range(12), y].log().mean(), atol=1e-5, rtol=1e-4)
    assert net.eval()(*batch(4)).shape == (4, 2)


def test_what_neighbours_need():
    with pytest.raises(DataError, match="width 0"):
        ModernNCA(SIZES, 1, 1, known=[], width=0)
    with pytest.raises(DataError, match="known holds"):
        ModernNCA(SIZES, 1, 1, known=batch(n_cont=3))
    with pytest.raises(DataError, match="combine="):
        neighbours(torch.zeros(9)).wrap_loss(ListwiseSoftmax())
    with pytest.raises(DataError, match="3 outputs and 1 targets"):
        neighbours(torch.zeros(9), out=3)(*batch())


def rings(n, seed):
    """Rows whose class is the ring they lie in."""
    x = np.random.default_rng(seed).uniform(-2, 2, (n, 2))
    table = Table({"a": x[:, 0], "b": x[:, 1], "c": np.where(x[:, 0] > 0, "u", "v")})
    label = torch.tensor((np.hypot(*x.T) * 1.5).astype(int) % 2 * 1.0)
    return Rows(table, "binary", cats=["c"], conts=["a", "b"], label=label)


def test_neighbours_learn_are_saved_and_start_anew_with_other_rows(tmp_path):
    train, other = rings(900, 0), rings(300, 1)
    model = NetModel("near", model="ModernNCA", lr=5e-3, bs=256, epochs=25, keep_best=False).fit(train, seed=0)
    found = model.predict(other)
    assert ((found > 0.5) == (other.label > 0.5)).double().mean() > 0.9
    model.save(tmp_path / "near")
    assert torch.equal(NetModel.load(tmp_path / "near").predict(other), found)
    later = NetModel("near", model="ModernNCA", epochs=1, keep_best=False)
    later.start_from(model)
    later.fit(rings(900, 2), seed=0)
    known = [m.nets[0].known_cont for m in (model, later)]
    assert known[0].shape == known[1].shape  # the new net knows its own rows
    assert not torch.isclose(known[0], known[1]).all(1).any()


def test_neighbours_count_by_their_weights():
    train, other = rings(400, 3), rings(100, 4)
    weights = torch.where(train.label > 0, 1.0, 1e-6).double()
    model = NetModel("near", model="ModernNCA", epochs=2).fit(replace(train, weight=weights), seed=0)
    assert model.predict(other).min() > 0.99  # without weights .3 to .7
