"""DCNv2, DeepFM, DLRM and WideAndDeep against loops over rows, from their own weights."""

from __future__ import annotations

from functools import partial
from itertools import combinations

import numpy as np
import pytest
import torch
from fastai.tabular.model import TabularModel
from torch import nn

from fastrec.errors import DataError
from fastrec.models import DLRM, DCNv2, DeepFM, EmbeddingTables, TabularNet, WideAndDeep
from tests.models.plain import (
    DEVICE,
    NAMES,
    SIZES,
    TINY,
    assert_gradients,
    batch,
    count,
    dense_of,
    numbers,
    run,
    spread,
    vectors_of,
)

NETS = [DCNv2, DeepFM, DLRM, WideAndDeep]
# rows of the 26 tables of Criteo's Kaggle set, from the command lines published with the paper's code
CRITEO = [1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10]
CRITEO += [5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572]


# One row of each net: from its vectors of columns and lists, and its dense values (the numbers, then each vector).


def crossed(cross, x0):
    """``x0 (W x + b) + x``, layer after layer."""
    x = x0
    for layer in cross.layers:
        if isinstance(layer, nn.Linear):
            weight, bias = numbers(layer.weight), numbers(layer.bias)
        else:
            v, u = layer
            weight, bias = numbers(u.weight) @ numbers(v.weight), numbers(u.bias)
        x = x0 * (weight @ x + bias) + x
    return x


def dcn_row(net, embedded, dense, linear, *, structure="parallel", layers=(1,), **_):
    x0 = np.concatenate([*embedded, *dense])
    x = crossed(net.cross, x0)
    parallel = structure == "parallel" and layers
    return run(net.head, np.concatenate([x, run(net.deep, x0)]) if parallel else run(net.deep, x))


def deep_fm_row(net, embedded, dense, linear, **_):
    """Fields: embeddings, each number times its vector, each vector column through its map; all their pairs i < j."""
    fields = [*embedded]
    if net.n_cont:
        fields += [x * v for x, v in zip(dense[0], numbers(net.number_vectors), strict=True)]
    fields += [numbers(m.weight) @ v for m, v in zip(net.vector_maps, dense[bool(net.n_cont) :], strict=True)]
    start = linear(net.linear)
    weights = np.ones((net.emb_dim, 1)) if len(start) == 1 else numbers(net.pair_weights)
    pairs = sum(((a * b) @ weights for a, b in combinations(fields, 2)), np.zeros(len(start)))
    return run(net.squash, start + pairs + run(net.deep, np.concatenate(fields)))


def dlrm_row(net, embedded, dense, linear, *, self_interaction=False, **_):
    """Products of the vectors i > j (or i ≥ j), the top on the bottom's output and the products."""
    bottom = [run(net.bottom, np.concatenate(dense))] if dense else []
    vectors = bottom + embedded
    products = [v @ other for i, v in enumerate(vectors) for other in vectors[: i + self_interaction]]
    return run(net.top, np.concatenate([*bottom, products]))


def wide_row(net, embedded, dense, linear, **_):
    return run(net.squash, linear(net.wide) + run(net.deep, np.concatenate([*embedded, *dense])))


ROWS = {DCNv2: dcn_row, DeepFM: deep_fm_row, DLRM: dlrm_row, WideAndDeep: wide_row}


def linear_terms(row, cats, dense, lists, pool, terms):
    """One weight for each category and dense value of the row, added up."""
    total = np.zeros(terms.out_sz)
    if terms.tables is not None:
        total = total + sum(vectors_of(terms.tables, row, cats, lists, pool))
    return total + numbers(terms.dense.weight) @ np.concatenate(dense) if dense else total


def by_hand(net, cats, conts, lists=(), vectors=(), pool="mean", **options):
    outs = []
    for row in range(len(conts if cats is None else cats)):
        embedded = vectors_of(net.embeds, row, cats, lists, pool) if net.embeds is not None else []
        dense = dense_of(net, row, conts, vectors)
        linear = partial(linear_terms, row, cats, dense, lists, pool)
        outs.append(ROWS[type(net)](net, embedded, dense, linear, **options))
    return torch.from_numpy(np.stack(outs))


def assert_by_hand(kind, sizes, n_cont, out, options, given):
    net = spread(kind(sizes, n_cont, out, cat_names=NAMES[: len(sizes)], **options))
    cats, conts, *extras = given
    n = len(options.get("list_szs", ()))
    wanted = by_hand(net, cats, conts, extras[:n], extras[n:], **options)
    assert torch.allclose(net(cats, conts, *extras).cpu(), wanted, rtol=1e-10, atol=1e-10)
    return net


COMMON = [{"use_bn": False}, {"y_range": (-1, 5)}, {"bn_cont": False}]
CROSSES = [{}, {"cross_layers": 1}, {"low_rank": 2}, {"cross_layers": 0}, {"layers": []}]
CROSSES += [{"use_bn": False}, {"bn_cont": False, "pad": False}, {"y_range": (-1, 5)}]
DOTS = [{"bottom": [12, 8], "top": [16, 8]}, {"self_interaction": True}, {"use_bn": True}, {"bn_cont": True}]
DOTS += [{"y_range": (-1, 5)}, {"bottom": [8], "top": []}, {"bottom": [9, 7, 6]}, {"emb_dim": 20}]
DOTS += [{"bottom": [9, 7, 6], "pad": False}]
FIELDS = [{}, *COMMON, {"emb_dim": 6, "pad": False}, {"emb_dim": 6}]
PAPERS = [(DCNv2, 2, {"structure": s, "layers": [12, 6], **o}) for s in ("parallel", "stacked") for o in CROSSES]
PAPERS += [(DCNv2, 1, {"structure": s, "layers": []}) for s in ("parallel", "stacked")]
PAPERS += [(DeepFM, out, {"layers": [12, 6], "emb_dim": 8, **o}) for out in (1, 3) for o in FIELDS]
PAPERS += [(DLRM, 2, o) for o in DOTS]
WIDES = [{}, *COMMON, {"pad": False}, {"layers": []}]
PAPERS += [(WideAndDeep, out, {"layers": [12, 6], **o}) for out in (1, 3) for o in WIDES]


@pytest.mark.parametrize(("kind", "out", "options"), PAPERS, ids=lambda v: getattr(v, "__name__", str(v)))
def test_it_computes_what_the_paper_says(kind, out, options):
    assert_by_hand(kind, SIZES, 3, out, options, batch())


LISTED = [(DCNv2, 3, {"layers": [6]}), (DLRM, 3, {"bottom": [8]})]
LISTED += [(DeepFM, n_cont, {"layers": [6], "emb_dim": 4}) for n_cont in (0, 3)]
LISTED += [(WideAndDeep, 3, {"layers": [6], "pool": pool}) for pool in ("mean", "sum", "max")]


@pytest.mark.parametrize(("kind", "n_cont", "options"), LISTED)
def test_lists_and_vectors_are_in_every_part(kind, n_cont, options):
    lists = {"list_szs": [(20, 4), (5, 6)], "list_names": ["seen", "tags"], "tie": {"seen": "user"}}
    given = batch(n_cont=n_cont, list_rows=(20, 5), vector_szs=(6, 2))
    net = assert_by_hand(kind, SIZES, n_cont, 2, {**options, **lists, "vector_szs": [6, 2]}, given)
    for tables in (m for m in net.modules() if isinstance(m, EmbeddingTables)):
        assert tables.table("seen").data_ptr() == tables.table("user").data_ptr()


@pytest.mark.parametrize("kind", NETS)
def test_one_kind_of_column_will_do(kind):
    cats, conts = batch()
    options = {} if kind is DLRM else {"layers": [6]}
    net = assert_by_hand(kind, SIZES, 0, 1, options, (cats, None))
    assert kind is not DLRM or net.bottom is None
    assert_by_hand(kind, [], 3, 1, options, (None, conts))
    if kind is DLRM:
        assert_by_hand(DLRM, SIZES[:1], 0, 1, {"self_interaction": True}, (cats[:, :1], None))


SMOOTH = [(DCNv2, 2, {"layers": [3], "cross_layers": 2, **o}) for o in ({}, {"structure": "stacked", "low_rank": 2})]
SMOOTH += [(DeepFM, out, {"layers": [3], "emb_dim": 2}) for out in (1, 2)]
SMOOTH += [(DLRM, 2, {"bottom": [3, 2], "top": [3], "self_interaction": True}), (WideAndDeep, 2, {"layers": [3]})]


@pytest.mark.parametrize(("kind", "out", "options"), SMOOTH)
def test_gradients_are_right(kind, out, options):
    net = spread(kind(TINY, 2, out, act_cls=nn.Softplus, pad=False, **options))
    assert_gradients(net, *batch(5, 2, sizes=TINY))


def test_weights_of_dlrm_are_as_many_as_published():
    with torch.device("meta"):  # 2 GB of weights that nobody needs
        net = DLRM([(n, 1) for n in CRITEO], 13, 1, bottom=[512, 256, 64, 16], top=[512, 256])
    bottom = (13 * 512 + 512) + (512 * 256 + 256) + (256 * 64 + 64) + (64 * 16 + 16)
    products = 27 * 26 // 2
    top = ((products + 16) * 512 + 512) + (512 * 256 + 256) + (256 + 1)
    assert count(net) == sum(CRITEO) * 16 + bottom + top == 540_677_217  # the paper's section 5.2: some 540 M


# ---- the nets' own


@pytest.mark.parametrize(
    ("options", "width", "bottom"),
    [
        ({}, 16, [64, 16]),
        ({"bottom": [32, 12]}, 12, [32, 12]),
        ({"bottom": [32, 10]}, 12, [32, 12]),
        ({"bottom": [32, 10], "pad": False}, 10, [32, 10]),
        ({"emb_dim": 8}, 8, [64, 8]),
        ({"emb_dim": 6, "bottom": [6]}, 8, [8]),
    ],
)
def test_dlrms_tables_are_as_wide_as_the_bottoms_last_layer(options, width, bottom):
    net = DLRM(SIZES, 3, 1, **options)
    assert {s.width for s in net.embeds.slices} == {width}
    assert len(net.embeds.weights) == 1
    assert [m.out_features for m in net.bottom.modules() if isinstance(m, nn.Linear)] == bottom


def test_dlrms_tables_start_as_published():
    torch.manual_seed(0)
    net = DLRM([(100, 1), (2500, 1)], 1, 1, cat_names=["a", "b"])
    for name, bound in {"a": 0.1, "b": 0.02}.items():
        table = net.embeds.table(name)
        assert 0.98 * bound < table.abs().max() <= bound
        assert table.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)


def test_deep_fms_fields_are_of_one_width_and_several_outputs_differ_in_pairs():
    torch.manual_seed(0)
    for options, width in (({"emb_dim": 6, "pad": False}, 6), ({"emb_dim": 6}, 8)):
        assert {s.width for s in DeepFM(SIZES, 3, 1, **options).embeds.slices} == {width}
    net = DeepFM(SIZES, 3, 4, emb_dim=16)
    assert len({tuple(column) for column in net.pair_weights.T.tolist()}) == 4
    assert net.pair_weights.abs().eq(1).all()
    assert DeepFM(SIZES, 3, 1).pair_weights is None


@pytest.mark.parametrize(
    ("kind", "sizes", "n_cont", "options", "words"),
    [
        (DCNv2, SIZES, 3, {"structure": "beside"}, "'beside'"),
        (DCNv2, SIZES, 3, {"low_rank": 0}, "rank 0"),
        (DeepFM, SIZES, 1, {"emb_dim": 0}, "width 0"),
        (DLRM, SIZES, 3, {"bottom": []}, "does not end with"),
        (DLRM, SIZES, 3, {"bottom": [64, 16], "emb_dim": 8}, "does not end with"),
        (DLRM, SIZES, 3, {"bottom": [], "emb_dim": 8}, "does not end with"),
        (DLRM, SIZES, 3, {"bottom": [8], "emb_dim": 0}, "does not end with"),
        (DLRM, SIZES[:1], 0, {}, "no pair"),
        (DLRM, SIZES, 1, {"top": [8, 4], "ps": [0.1]}, "1 dropouts for 2 layers"),
        *(
            (kind, SIZES, 1, {"layers": [8, 4], "ps": [0.1]}, "1 dropouts for 2")
            for kind in (DCNv2, DeepFM, WideAndDeep, TabularNet)
        ),
        *((kind, [], 0, {}, "without any input") for kind in (*NETS, TabularNet)),
    ],
)
def test_bad_configurations_are_refused(kind, sizes, n_cont, options, words):
    with pytest.raises(DataError, match=words):
        kind(sizes, n_cont, 1, **options)


# Tabular net


TABULAR_NET_SIZES = [(10, 4), (7, 8), (20, 4), (5, 12)]


def twins(sizes=TABULAR_NET_SIZES, n_cont=3, out=2, layers=(16, 8), **options):
    """fastai's model and ours with its weights, the tables drawn wide so that differences would show."""
    torch.manual_seed(0)
    theirs = TabularModel(sizes, n_cont, out, list(layers), **options)
    ours = TabularNet(sizes, n_cont, out, layers, **options)
    rest = {k: v for k, v in theirs.state_dict().items() if not k.startswith("embeds.")}
    assert not ours.load_state_dict(rest, strict=False).unexpected_keys
    for i, e in enumerate(theirs.embeds):
        nn.init.normal_(e.weight)
        ours.embeds.load_table(str(i), e.weight)
    return theirs.to(DEVICE), ours.to(DEVICE)


def assert_same_training_step(theirs, ours, cats, conts):
    outs = []
    for net in (theirs, ours):
        torch.manual_seed(1)  # dropout's masks
        out = net(cats, conts)
        (out * torch.linspace(-1, 1, out.numel(), device=DEVICE).view_as(out)).sum().backward()
        outs.append(out)
    assert torch.allclose(*outs, rtol=1e-6, atol=1e-6)
    mine = dict(ours.named_parameters())
    for name, p in theirs.named_parameters():
        if name.startswith("embeds."):
            s = ours.embeds.slices[int(name.split(".")[1])]
            grad = ours.embeds.weights[s.group].grad[s.start : s.stop]
        else:
            grad = mine[name].grad
        assert torch.allclose(p.grad, grad, rtol=1e-5, atol=1e-6), name
    theirs.eval(), ours.eval()
    assert torch.allclose(theirs(cats, conts), ours(cats, conts), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"y_range": (-1, 5)},
        {"use_bn": False},
        {"bn_final": True},
        {"bn_cont": False},
        {"lin_first": False},
        {"ps": 0.3, "embed_p": 0.2},
        {"ps": [0.1, 0.5]},
        {"act_cls": nn.GELU()},
        {"layers": ()},
        {"n_cont": 0, "bn_cont": False},
        {"sizes": []},
    ],
    ids=str,
)
def test_same_numbers_as_fastai(options):
    cats, conts = batch(16, sizes=TABULAR_NET_SIZES)
    if options.get("sizes") == []:
        cats = torch.empty(16, 0, dtype=torch.long, device=DEVICE)
    assert_same_training_step(*twins(**options), cats, None if options.get("n_cont") == 0 else conts.float())
