from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fastrec.errors import DataError
from fastrec.models import DLRM
from tests.models.plain import NAMES, SIZES, TINY, assert_gradients, batch, count, dense_of, run, spread, vectors_of

# rows of the 26 tables of Criteo's Kaggle set, from the command lines published with the paper's code
CRITEO = [1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10]
CRITEO += [5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572]


def by_hand(net, cats, conts, lists=(), vectors=(), *, self_interaction=False):
    """For each row: its vectors, their products i > j (or i ≥ j), the top on the bottom's output and the products."""
    outs = []
    for row in range(len(conts if cats is None else cats)):
        dense = dense_of(net, row, conts, vectors)
        bottom = [run(net.bottom, np.concatenate(dense))] if dense else []
        found = bottom + (vectors_of(net.embeds, row, cats, lists) if net.embeds is not None else [])
        products = []
        for i in range(len(found)):
            for j in range(i + self_interaction):
                products.append(sum(a * b for a, b in zip(found[i], found[j], strict=True)))
        outs.append(run(net.top, np.concatenate([*bottom, products])))
    return torch.from_numpy(np.stack(outs))


@pytest.mark.parametrize(
    "options",
    [
        {"bottom": [12, 8], "top": [16, 8]},
        {"self_interaction": True},
        {"use_bn": True},
        {"bn_cont": True},
        {"y_range": (-1, 5)},
        {"bottom": [8], "top": []},
        {"bottom": [9, 7, 6]},
        {"bottom": [9, 7, 6], "pad": False},
        {"emb_dim": 20},
    ],
    ids=str,
)
def test_it_computes_what_the_paper_says(options):
    net = spread(DLRM(SIZES, 3, 2, cat_names=NAMES, **options))
    cats, conts = batch()
    own = by_hand(net, cats, conts, self_interaction=options.get("self_interaction", False))
    assert torch.allclose(net(cats, conts), own, rtol=1e-10, atol=1e-10)


def test_lists_are_fields_and_vectors_dense_values():
    lists = {"list_szs": [(20, 4), (5, 4)], "list_names": ["seen", "tags"], "tie": {"seen": "user"}}
    net = spread(DLRM(SIZES, 3, 1, cat_names=NAMES, vector_szs=[6, 2], bottom=[8], **lists))
    cats, conts, seen, tags, one, two = batch(list_rows=(20, 5), vector_szs=(6, 2))
    own = by_hand(net, cats, conts, (seen, tags), (one, two))
    assert torch.allclose(net(cats, conts, seen, tags, one, two), own, rtol=1e-10, atol=1e-10)
    assert net.embeds.table("seen").data_ptr() == net.embeds.table("user").data_ptr()


def test_one_kind_of_column_will_do():
    cats, conts = batch()
    net = spread(DLRM(SIZES, 0, 1, cat_names=NAMES))
    assert net.bottom is None
    assert torch.allclose(net(cats), by_hand(net, cats, None), rtol=1e-10)
    net = spread(DLRM([], 3, 1))
    assert torch.allclose(net(None, conts), by_hand(net, None, conts), rtol=1e-10)
    net = spread(DLRM(SIZES[:1], 0, 1, self_interaction=True, cat_names=NAMES[:1]))
    assert torch.allclose(net(cats[:, :1]), by_hand(net, cats[:, :1], None, self_interaction=True), rtol=1e-10)


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
def test_tables_are_as_wide_as_the_bottoms_last_layer(options, width, bottom):
    net = DLRM(SIZES, 3, 1, **options)
    assert {s.width for s in net.embeds.slices} == {width}
    assert len(net.embeds.weights) == 1
    assert [m.out_features for m in net.bottom.modules() if isinstance(m, nn.Linear)] == bottom


def test_parameter_count_is_the_published_one():
    with torch.device("meta"):  # 2 GB of weights that nobody needs
        net = DLRM([(n, 1) for n in CRITEO], 13, 1, bottom=[512, 256, 64, 16], top=[512, 256])
    bottom = (13 * 512 + 512) + (512 * 256 + 256) + (256 * 64 + 64) + (64 * 16 + 16)
    products = 27 * 26 // 2
    top = ((products + 16) * 512 + 512) + (512 * 256 + 256) + (256 + 1)
    assert count(net) == sum(CRITEO) * 16 + bottom + top == 540_677_217  # the paper's section 5.2: some 540 M


def test_parameter_count_with_all_options():
    net = DLRM(SIZES, 3, 2, bottom=[12, 8], top=[16], self_interaction=True, use_bn=True, vector_szs=[5])
    products = 4 * 5 // 2
    bottom = 8 * 12 + 2 * 12 + 12 * 8 + 2 * 8  # linear layers before a batch norm have no bias
    top = (8 + products) * 16 + 2 * 16 + 16 * 2 + 2
    assert count(net) == 37 * 8 + 2 * 3 + 2 * 5 + bottom + top


def test_gradients_are_right():
    net = DLRM(TINY, 2, 2, bottom=[3, 2], top=[3], act_cls=nn.Softplus, self_interaction=True, pad=False)
    assert_gradients(net, *batch(5, 2, sizes=TINY))


def test_tables_start_as_published():
    torch.manual_seed(0)
    net = DLRM([(100, 1), (2500, 1)], 1, 1, cat_names=["a", "b"])
    for name, bound in {"a": 0.1, "b": 0.02}.items():
        table = net.embeds.table(name)
        assert 0.98 * bound < table.abs().max() <= bound
        assert table.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)


def test_bad_configurations_are_refused():
    for bottom, emb_dim in (([], None), ([64, 16], 8), ([], 8), ([8], 0)):
        with pytest.raises(DataError, match="does not end with"):
            DLRM(SIZES, 3, 1, bottom=bottom, emb_dim=emb_dim)
    with pytest.raises(DataError, match="no pair"):
        DLRM(SIZES[:1], 0, 1)
    with pytest.raises(DataError, match="without any input"):
        DLRM([], 0, 1)
    with pytest.raises(DataError, match="3 dropouts for 2 layers"):
        DLRM(SIZES, 1, 1, top=[8, 4], ps=[0.1, 0.2, 0.3])
