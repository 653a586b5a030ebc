"""Who has how many threads: half of them only while two train side by side, and only on a CPU."""

import pytest
import torch

from fastrec._core.progress import Stages
from fastrec.competition import run_competition
from fastrec.estimators import Ranker, Trace
from fastrec.features import FeatureSet, feature
from fastrec.stacking import Stack
from fastrec.table import Table
from fastrec.validate import CrossFit, Lists
from tests.competition.test_form import Baskets

SEEN: dict[str, set[int]] = {}


class Counting(Ranker):
    """Notes the threads that it may use."""

    def __init__(self, name, *, beside, learns=True):
        self.name, self.beside, self.learns, self.trace = name, beside, learns, Trace()

    def fit(self, train, valid=None, *, seed=0, device=None):
        SEEN.setdefault(self.name, set()).add(torch.get_num_threads())
        return self

    def predict(self, data):
        return data.table["price"].number().cpu().double()

    def settings(self):
        return {"name": self.name, "beside": self.beside}


@pytest.fixture(autouse=True)
def four():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    SEEN.clear()
    yield
    assert torch.get_num_threads() == 4
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("device", "rankers", "threads"),
    [
        ("cpu", [Counting("net", beside=False), Counting("trees", beside=True)], {2}),
        ("cpu", [Counting("net", beside=False)], {4}),
        ("cpu", [Counting("trees", beside=True)], {4}),
        ("cpu", [Counting("rule", beside=False, learns=False), Counting("trees", beside=True)], {4}),
        ("cuda", [Counting("net", beside=False), Counting("trees", beside=True)], {4}),  # one after the other there
    ],
)
def test_threads_are_halved_where_two_share_the_cores(device, rankers, threads):
    lists = Lists(Table({"price": [1.0, 2.0]}), torch.zeros(2, dtype=torch.int64), label=torch.tensor([0.0, 1.0]))
    cross = CrossFit(rankers, 2, 2, device=torch.device(device))
    cross.fold(lists, lists, torch.arange(2), lists)
    assert [SEEN[r.name] for r in rankers] == [threads] * len(rankers)
    assert torch.get_num_threads() == 4


@feature(inputs=["price"], outputs=["doubled"])
def doubled(price):
    SEEN.setdefault("features", set()).add(torch.get_num_threads())
    return price * 2


class Noting(Baskets):
    def features(self):
        return FeatureSet([doubled], key="basket")

    def baselines(self):
        return []

    def models(self, *, bs):
        return [Counting("net", beside=False), Counting("trees", beside=True)]

    def stack(self):
        class Level2(Stack):
            def fit(self, *given, **options):
                SEEN.setdefault("stack", set()).add(torch.get_num_threads())
                return super().fit(*given, **options)

        return Level2(rounds=1)


def test_features_and_stack_of_a_run_have_all_threads(tmp_path):
    run_competition(Noting(), tmp_path, tmp_path / "run", device="cpu", stages=Stages(quiet=True))
    expected = {"features": {4}, "stack": {4}, "net": {2}, "trees": {2}}
    assert dict(SEEN) == expected
