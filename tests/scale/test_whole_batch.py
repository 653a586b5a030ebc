"""What several processes need of single ones: losses whose parts make one mean, rows that can be sent."""

import pickle

import pandas as pd
import pytest
import torch

from fastrec.estimators.net import WeightedListLoss
from fastrec.losses import ListwiseSoftmax
from fastrec.table import Table
from fastrec.validate import Lists


def targets(weighted: bool) -> torch.Tensor:
    torch.manual_seed(0)
    lists = torch.arange(60) // 4
    label = torch.nn.functional.one_hot(torch.randint(0, 4, (15,)), 4).flatten().double()
    label[lists % 5 == 2] = 0  # lists without a click count nothing
    columns = [label, lists.double()]
    return torch.stack([*columns, (1 + lists % 3).double()] if weighted else columns, 1)


@pytest.mark.parametrize(("loss", "weighted"), [(ListwiseSoftmax(), False), (WeightedListLoss(), True)])
@pytest.mark.parametrize("cut", [4, 12, 28, 48])
def test_the_means_of_two_parts_make_the_whole_batchs(loss, weighted, cut):
    y, scores = targets(weighted), torch.randn(60, 1, generator=torch.Generator().manual_seed(1))
    parts = [(scores[:cut], y[:cut]), (scores[cut:], y[cut:])]
    shares = torch.stack([loss.denominator(b) for _, b in parts]).double()
    means = torch.stack([loss(a, b) for a, b in parts]).double()
    assert float((means * shares).sum() / shares.sum()) == pytest.approx(float(loss(scores, y)), rel=1e-6)


def test_rows_come_out_of_a_pickle_as_they_were():
    df = pd.DataFrame({"x": [1.5, None, 3], "city": ["a", None, "b"], "tags": [["u"], [], ["v", "u"]]})
    df["day"] = pd.to_datetime(["2024-01-01", None, "2024-03-01"])
    rows = Lists(Table.read(df), torch.tensor([0, 0, 4]), ["city"], ["x"], torch.tensor([1.0, 0, 1]))
    again = pickle.loads(pickle.dumps(rows))
    assert again.table.to_arrow().equals(rows.table.to_arrow())
    assert (again.cats, again.conts, again.task) == (["city"], ["x"], "ranking")
    assert torch.equal(again.groups, rows.groups)
    assert torch.equal(again.table["city"].coded().codes, rows.table["city"].coded().codes)
