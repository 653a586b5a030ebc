from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.tabular.core import Categorify, TabularPandas
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeClassifier

from fastrec.errors import DataError
from fastrec.models import PiecewiseLinear, bins_of
from fastrec.tabular import ParquetFrame, TabularFrame


def loop_encode(x, edges):
    """A number's encoding by the paper's equation 1, bin by bin."""
    steps = len(edges) - 1
    out = []
    for t in range(1, steps + 1):
        low, high = edges[t - 1], edges[t]
        if x < low and t > 1:
            out.append(0.0)
        elif x >= high and t < steps:
            out.append(1.0)
        else:
            out.append((x - low) / (high - low))
    return out


BINS = [torch.tensor([-1.0, 0.0, 0.5, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([0.0, 1e-3, 10.0])]


@settings(max_examples=60, deadline=None)
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
    net = PiecewiseLinear(BINS, 5, activation=activation, straight=straight)
    torch.nn.init.normal_(net.weight)
    x = torch.randn(11, 3) * 2
    wanted = torch.zeros(11, 3, 5)
    for i in range(11):
        for c, edges in enumerate(BINS):
            code = loop_encode(x[i, c].item(), edges.tolist())
            vector = sum(e * net.weight[c, t] for t, e in enumerate(code)) + net.bias[c]
            if straight:
                vector = vector + x[i, c] * net.slope[c]
            wanted[i, c] = vector.clamp(min=0) if activation else vector
    assert net.embedding_dim == 15
    assert torch.allclose(net(x), wanted.flatten(1), rtol=1e-4, atol=1e-4)


def test_parameter_count_and_what_it_starts_from():
    straight, plain = PiecewiseLinear(BINS, 5), PiecewiseLinear(BINS, 5, straight=False)
    assert sum(p.numel() for p in straight.parameters()) == 3 * 3 * 5 + 3 * 5 + 3 * 5
    assert sum(p.numel() for p in plain.parameters()) == 3 * 3 * 5 + 3 * 5
    x = torch.tensor([[-3.0, 0.0, 0.5], [5.0, 7.0, 20.0]])
    line = (x[..., None] * straight.slope + straight.bias).flatten(1)
    assert torch.allclose(straight(x), line)  # nothing but a straight line at first
    assert plain.weight[1, 1:].abs().sum() == 0  # weights of bins that the column has not
    assert plain.weight[1, 0].abs().min() > 0


def test_gradients_are_right():
    torch.manual_seed(0)
    net = PiecewiseLinear(BINS, 3).double()
    torch.nn.init.normal_(net.weight)
    names = [n for n, _ in net.named_parameters()]

    def f(x, *params):
        return torch.func.functional_call(net, dict(zip(names, params, strict=True)), (x,))

    inputs = (torch.randn(6, 3).double().requires_grad_(), *(p.detach().requires_grad_() for p in net.parameters()))
    assert torch.autograd.gradcheck(f, inputs)


def test_a_state_dict_carries_the_bins():
    a, b = PiecewiseLinear(BINS, 4), PiecewiseLinear([2 * e + 1 for e in BINS], 4)
    torch.nn.init.normal_(a.weight)
    b.load_state_dict(a.state_dict())
    x = torch.randn(5, 3)
    assert torch.equal(a(x), b(x))


def test_large_numbers_keep_their_digits():
    edges = torch.tensor([1.6e7, 1.6e7 + 3, 1.6e7 + 6])
    code = PiecewiseLinear([edges]).encode(torch.tensor([[1.6e7 + 4]]))
    assert code[0, 0].tolist() == pytest.approx([1, 1 / 3])


def test_quantile_bins_hold_equal_shares():
    x = torch.randn(4001, 2, generator=torch.Generator().manual_seed(0))
    for c, edges in enumerate(bins_of(x, 8)):
        values = sorted(x[:, c].tolist())
        assert edges.tolist() == pytest.approx([values[round(i * 4000 / 8)] for i in range(9)], abs=1e-6)
    assert [len(e) for e in bins_of(torch.tensor([[1.0], [1], [1], [1], [1], [2], [3]]), 4)] == [3]


def test_columns_of_few_values_and_missing_ones():
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[0.0, 7.0, nan], [1.0, 7.0, 2.0], [1.0, 7.0, inf], [0.0, 7.0, 4.0]])
    assert [e.tolist() for e in bins_of(x, 2)] == [[0, 0.5, 1], [6.5, 7.5], [2, 3, 4]]
    assert bins_of(torch.tensor([[3e9], [3e9]]))[0].diff().item() > 0
    with pytest.raises(DataError, match=r"no finite number.*'price'|'price'.*no finite number"):
        bins_of(torch.tensor([[nan]]), names=["price"])


def test_tree_bins_split_where_the_target_changes():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, 3000)
    y = (x > 3).astype(int) + (x > 7)
    (edges,) = bins_of(torch.from_numpy(x[:, None]), 3, by="tree", y=torch.from_numpy(y))
    assert edges.tolist() == pytest.approx([x.min(), 3, 7, x.max()], abs=0.02)
    (edges,) = bins_of(torch.from_numpy(x[:, None]), 3, by="tree", y=torch.from_numpy(y * 1.5))
    assert edges.tolist() == pytest.approx([x.min(), 3, 7, x.max()], abs=0.02)
    sampled = bins_of(torch.from_numpy(x[:, None]), 3, by="tree", y=torch.from_numpy(y), max_rows=1000)[0]
    assert sampled[1:3].tolist() == pytest.approx([3, 7], abs=0.1)
    tree = DecisionTreeClassifier(max_leaf_nodes=6, min_samples_leaf=100, random_state=0)
    noisy = rng.random(3000) < 0.2 + 0.6 * (np.sin(x) > 0)
    splits = tree.fit(x[:, None], noisy).tree_
    (edges,) = bins_of(torch.from_numpy(x[:, None]), 6, by="tree", y=torch.from_numpy(noisy), min_leaf=100)
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
    assert len(bins_of(ours, 5, max_rows=50)[0]) == 6
    assert bins_of(ours, 5, max_rows=50)[0].tolist() != wanted[0].tolist()
    assert bins_of(ours, 5, max_rows=50)[0].tolist() == bins_of(ours, 5, max_rows=50)[0].tolist()


def test_bad_settings_are_refused():
    x = torch.randn(10, 1)
    for call, words in [
        (lambda: PiecewiseLinear([]), "0 columns"),
        (lambda: PiecewiseLinear([torch.tensor([1.0])]), "column 0 are"),
        (lambda: PiecewiseLinear([torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.0])]), "column 1 are"),
        (lambda: PiecewiseLinear([torch.tensor([0.0, math.inf])]), "column 0 are"),
        (lambda: bins_of(x, 0), "n_bins=0"),
        (lambda: bins_of(x, by="tree"), "one target for each of 10 rows"),
        (lambda: bins_of(x, by="tree", y=torch.zeros(10, 2)), r"not \[10, 2\]"),
    ]:
        with pytest.raises(DataError, match=words):
            call()
