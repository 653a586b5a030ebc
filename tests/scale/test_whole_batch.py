import pytest
import torch

from fastrec.estimators.net import WeightedListLoss
from fastrec.losses import ListwiseSoftmax


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
