"""Trees of lists that are read a part at a time: those of all lists at once."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from fastrec.errors import DataError
from fastrec.estimators import XGBRanker
from fastrec.scale import fit_on_parts
from fastrec.table import Table
from fastrec.validate import Lists

TREES = {"rounds": 6, "max_depth": 3, "nthread": 1, "subsample": 1.0, "colsample_bytree": 1.0}


def lists(count, seed, names="abcd"):
    """Lists of five, of columns with few values: bins do not depend on how rows come."""
    g = torch.Generator().manual_seed(seed)
    n = 5 * count
    x, city = torch.randint(0, 9, (n,), generator=g), torch.randint(0, len(names), (n,), generator=g)
    score = x + 2.0 * (city == 1) + 3 * torch.rand(n, generator=g)
    label = torch.zeros(count, 5).scatter_(1, score.reshape(count, 5).argmax(1, keepdim=True), 1.0).flatten()
    table = Table({"x": x.double(), "city": [names[c] for c in city.tolist()]})
    weight = torch.where(torch.arange(n) // 5 % 2 == 0, 1.0, 0.5)
    return Lists(table, torch.arange(n) // 5, ["city"], ["x"], label=label, weight=weight)


@pytest.mark.parametrize("objective", ["rank:ndcg", "binary:logistic"])
def test_parts_grow_the_trees_of_the_whole(tmp_path, objective):
    whole = lists(120, 0)
    cuts = [torch.arange(a * 5, b * 5) for a, b in ((0, 50), (50, 51), (51, 120))]
    whole.label[cuts[1]] = 0  # of the second part no list teaches anything
    expected = XGBRanker("a", objective=objective, **TREES).fit(whole)
    got = fit_on_parts(
        XGBRanker("a", objective=objective, **TREES), [partial(whole.take, c) for c in cuts], tmp_path / "cache"
    )
    new = lists(30, 1, "abce")  # one value that training has not
    assert got.predict(new).tolist() == pytest.approx(expected.predict(new).tolist(), abs=1e-5)
    assert len(set(got.predict(new).tolist())) > 5
    got.save(tmp_path / "saved")
    assert torch.equal(XGBRanker.load(tmp_path / "saved").predict(new), got.predict(new))


def test_what_cannot_be_grown_is_refused(tmp_path):
    whole = lists(10, 0)
    with pytest.raises(DataError, match="stops early"):
        fit_on_parts(XGBRanker("a", early_stopping_rounds=3), [lambda: whole], tmp_path)
    whole.label[:] = 0
    with pytest.raises(DataError, match="no list to learn from"):
        fit_on_parts(XGBRanker("a"), [lambda: whole], tmp_path)
