from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fastrec.errors import DataError
from fastrec.models import TabularNet, WideAndDeep
from tests.models.plain import (
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


def linear_terms(terms, row, cats, dense, lists=(), pool="mean"):
    """One weight for each category and dense value of the row, added up."""
    total = np.zeros(terms.out_sz)
    for weights in vectors_of(terms.tables, row, cats, lists, pool) if terms.tables is not None else []:
        total = total + weights
    for i, x in enumerate(dense):
        total = total + numbers(terms.dense.weight)[:, i] * x
    return total


def by_hand(net, cats, conts, lists=(), vectors=(), pool="mean"):
    outs = []
    for row in range(len(conts if cats is None else cats)):
        dense = np.concatenate([np.zeros(0), *dense_of(net, row, conts, vectors)])
        embedded = vectors_of(net.embeds, row, cats, lists, pool) if net.embeds is not None else []
        deep = run(net.deep, np.concatenate([*embedded, dense]))
        outs.append(run(net.squash, linear_terms(net.wide, row, cats, dense, lists, pool) + deep))
    return torch.from_numpy(np.stack(outs))


@pytest.mark.parametrize("out", [1, 3])
@pytest.mark.parametrize(
    "options",
    [{}, {"use_bn": False}, {"y_range": (-1, 5)}, {"bn_cont": False}, {"pad": False}, {"layers": []}],
    ids=str,
)
def test_it_computes_what_the_paper_says(out, options):
    net = spread(WideAndDeep(SIZES, 3, out, cat_names=NAMES, **({"layers": [12, 6]} | options)))
    cats, conts = batch()
    assert torch.allclose(net(cats, conts), by_hand(net, cats, conts), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("pool", ["mean", "sum", "max"])
def test_lists_and_vectors_are_in_both_parts(pool):
    lists = {"list_szs": [(20, 4), (5, 6)], "list_names": ["seen", "tags"], "tie": {"seen": "user"}, "pool": pool}
    net = spread(WideAndDeep(SIZES, 3, 2, layers=[6], cat_names=NAMES, vector_szs=[6], **lists))
    cats, conts, seen, tags, vector = batch(list_rows=(20, 5), vector_szs=(6,))
    own = by_hand(net, cats, conts, (seen, tags), [vector], pool)
    assert torch.allclose(net(cats, conts, seen, tags, vector), own, rtol=1e-10, atol=1e-10)
    assert net.wide.tables.table("seen").data_ptr() == net.wide.tables.table("user").data_ptr()


def test_one_kind_of_column_will_do():
    cats, conts = batch()
    net = spread(WideAndDeep(SIZES, 0, 1, layers=[6], cat_names=NAMES))
    assert torch.allclose(net(cats), by_hand(net, cats, None), rtol=1e-10)
    net = spread(WideAndDeep([], 3, 1, layers=[6]))
    assert torch.allclose(net(None, conts), by_hand(net, None, conts), rtol=1e-10)


def test_parameter_count_is_the_deep_parts_and_a_weight_for_each_category_and_number():
    for out in (1, 3):
        net = WideAndDeep(SIZES, 3, out, layers=[16, 8], vector_szs=[5])
        deep = TabularNet(SIZES, 3, out, [16, 8], vector_szs=[5])
        assert count(net) == count(deep) + (sum(n for n, _ in SIZES) + 3 + 5) * out


def test_gradients_are_right():
    net = WideAndDeep(TINY, 2, 2, layers=[3], act_cls=nn.Softplus, pad=False)
    assert_gradients(net, *batch(5, 2, sizes=TINY))


def test_bad_configurations_are_refused():
    with pytest.raises(DataError, match="without any input"):
        WideAndDeep([], 0, 1)
    with pytest.raises(DataError, match="1 dropouts for 2 layers"):
        WideAndDeep(SIZES, 1, 1, layers=[8, 4], ps=[0.1])
