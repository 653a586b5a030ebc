"""Who has how many threads: half of them only while two train side by side, and only on a CPU."""

from __future__ import annotations

import pytest
import torch

from fastrec._core.progress import Stages
from fastrec.competition import run_competition
from fastrec.errors import DataError
from fastrec.estimators import Ranker, Trace, XGBModel
from fastrec.features import FeatureSet, feature
from fastrec.stacking import Stack
from fastrec.table import Table
from fastrec.validate import CrossFit, Lists, Rows
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


def four_folds(rows=40):
    """Rows of a noisy line in four folds: of each ``train``, ``valid``, ``valid_rows``, ``train_rows``."""
    x = torch.linspace(-2, 2, rows)
    data = Rows(Table({"x": x}), "regression", conts=["x"], label=x.double().sin())
    for k in range(4):
        valid = torch.arange(k, rows, 4)
        train = (torch.arange(rows) % 4 != k).nonzero().squeeze(1)
        yield data.take(train), data.take(valid), valid, train


def test_folds_side_by_side_are_those_one_after_the_other():
    one, several = (CrossFit([XGBModel("xgb", rounds=8)], 40, 0, seed=3) for _ in range(2))
    for train, valid, rows, train_rows in four_folds():
        one.fold(train, valid, rows, train_rows=train_rows)
    several.side_by_side(four_folds(), 2)
    a, b = one.finish()["xgb"], several.finish()["xgb"]
    assert torch.equal(a.oof, b.oof)
    assert (a.folds, len(a.models), a.importance) == (b.folds, len(b.models), b.importance)


def test_no_more_rows_wait_than_folds_are_trained():
    begun, done = [], []

    class Watching(Counting):
        def fit(self, train, valid=None, *, seed=0, device=None):
            super().fit(train, valid, seed=seed, device=device)
            done.append(seed)
            return self

        def predict(self, data):
            return torch.zeros(len(data), dtype=torch.float64)

    def sides():
        for k, side in enumerate(four_folds()):
            assert k - len(done) < 2
            begun.append(k)
            yield side

    CrossFit([Watching("one", beside=True)], 40, 0).side_by_side(sides(), 2)
    assert begun == [0, 1, 2, 3]
    assert sorted(done) == [0, 1, 2, 3]
    assert SEEN["one"] == {2}  # of four threads


def test_an_error_of_one_fold_side_by_side_is_raised():
    class Failing(Counting):
        def fit(self, train, valid=None, *, seed=0, device=None):
            raise DataError(f"fold {seed}", remedy="None")

    with pytest.raises(DataError, match="fold 0"):
        CrossFit([Failing("one", beside=True)], 40, 0).side_by_side(four_folds(), 2)
    first, *_ = four_folds()
    with pytest.raises(DataError, match="earlier fold"):
        CrossFit([Counting("one", beside=True)], 40, 0).side_by_side([first, first], 3)
