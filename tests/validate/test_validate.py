"""Folds against a plain hash, and out-of-fold scores with a ranker that remembers what it has seen."""

import threading

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import DataError, MissingColumnError
from fastrec.estimators import ColumnRanker, Ranker, Trace
from fastrec.table import Table
from fastrec.validate import CrossFit, Lists, group_folds
from tests._core.refusals import refused


def fnv_fold(text: str, folds: int, seed: int = 0) -> int:
    """FNV-1a of 64 bits over UTF-8, its halves mixed."""
    state = 0xCBF29CE484222325 ^ seed
    for byte in text.encode():
        state = (state ^ byte) * 0x100000001B3 % 2**64
    state = (state ^ state >> 32) * 0x100000001B3 % 2**64
    return (state >> 1) % folds


def test_the_fold_is_a_hash_of_the_key():
    keys = [f"session {i % 40} é" for i in range(100)]
    table = Table({"s": keys, "i": np.arange(100) % 37})
    assert group_folds(table, "s", 5).tolist() == [fnv_fold(k, 5) for k in keys]
    assert group_folds(table, "s", 3, seed=9).tolist() == [fnv_fold(k, 3, 9) for k in keys]
    assert group_folds(table, ["i"], 4).tolist() == [fnv_fold(str(i % 37), 4) for i in range(100)]
    assert group_folds(table, ["s", "i"], 4).tolist() == [fnv_fold(f"{k}\x1f{i % 37}", 4) for i, k in enumerate(keys)]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), keys=st.lists(st.text(max_size=4), min_size=30, max_size=60, unique=True))
def test_rows_that_come_go_or_move_change_no_fold(data, keys):
    folds = dict(zip(keys, group_folds(Table({"k": keys + keys}), "k", 2).tolist(), strict=False))
    other = [*data.draw(st.permutations(keys)), "and one more"]
    got = group_folds(Table({"k": other, "x": list(range(len(other)))}), "k", 2).tolist()
    assert got[:-1] == [folds[k] for k in other[:-1]]


def test_equal_keys_have_equal_folds_in_any_type():
    n = 60
    as_text = group_folds(Table({"k": [str(i) for i in range(n)]}), "k", 5)
    forms = [np.arange(n), np.arange(n, dtype=np.float64), pd.array(range(n), dtype="Int64"), pd.Categorical(range(n))]
    for form in forms:
        assert torch.equal(group_folds(Table({"k": form}), "k", 5), as_text)
    # in a frame of any library
    df = pd.DataFrame({"s": [f"s{i % 12}" for i in range(60)], "x": 0.5}, index=range(60, 0, -1))
    assert torch.equal(group_folds(df, "s", 3), group_folds(Table.read(df), "s", 3))


class Memory(Ranker):
    """Remembers its training rows; scores how many of the scored rows it has seen, the seed and its rows' sum."""

    def __init__(self, name: str, kind: str = "seen") -> None:
        self.name, self.kind, self.trace = name, kind, Trace()
        self.rows: set[int] = set()

    def fit(self, train, valid=None, *, seed=0, device=None):
        assert not self.rows, "a model was trained twice"
        self.rows, self.seed, self.device = set(rows_of(train)), seed, device
        self.valid = set(rows_of(valid))
        self.trace = Trace(curves=[{"epoch": 0, "train_loss": float(seed)}], importance={"x": float(seed), "y": 2.0})
        return self

    def predict(self, data):
        rows = rows_of(data)
        if self.kind == "seen":
            return torch.tensor([float(r in self.rows) for r in rows], dtype=torch.float64)
        if self.kind == "nan":
            return torch.full((len(rows),), torch.nan, dtype=torch.float64)
        return torch.full((len(rows),), float(sum(self.rows)), dtype=torch.float64)

    def save(self, folder):
        pass


def rows_of(data: Lists) -> list[int]:
    return [int(v) for v in data.table["row"].number()]


def lists(n: int, start: int = 0) -> Lists:
    rows = torch.arange(start, start + n)
    return Lists(Table({"row": rows}), rows // 3, conts=["row"], label=(rows % 3 == 0).double())


def carry_out(cross: CrossFit, train: Lists, test: Lists, folds: torch.Tensor) -> None:
    for k in range(int(folds.max()) + 1):
        inside = folds == k
        cross.fold(train.take(~inside), train.take(inside), inside.nonzero().squeeze(1), test)


N, TEST = 60, 9
FOLDS = (torch.arange(N) // 3 * 7) % 4


def test_every_score_is_by_the_model_that_did_not_see_its_fold():
    train, test, cpu = lists(N), lists(TEST, start=300), torch.device("cpu")
    told: list[int] = []
    rankers = [Memory("seen"), Memory("sum", "sum"), ColumnRanker("rule", ["row"])]
    cross = CrossFit(rankers, N, TEST, seed=10, device=cpu, advance=told.append)
    carry_out(cross, train, test, FOLDS)
    assert told == [int((k != FOLDS).sum()) for k in range(4) for _ in range(2)]  # of rows that models were trained on
    done = cross.finish()
    del done["rule"]
    assert done["seen"].oof.tolist() == [0.0] * N
    others = [sum(r for r in range(N) if FOLDS[r] != k) for k in range(4)]
    assert done["sum"].oof.tolist() == [others[k] for k in FOLDS.tolist()]
    assert done["sum"].test.tolist() == [sum(others) / 4] * TEST
    for made in done.values():  # all rankers on the same folds, each fold by a model and a seed of its own
        for k, model in enumerate(made.models):
            assert model.valid == {r for r in range(N) if FOLDS[r] == k}
            assert model.rows == set(range(N)) - model.valid
            assert (model.seed, model.device) == (10 + k, cpu)
        assert made.curves == [{"fold": k, "epoch": 0, "train_loss": 10.0 + k} for k in range(4)]
        assert made.importance == {"x": 11.5, "y": 2.0}
    assert cross.models[0].rows == set()  # what was given stays untrained
    again = cross.finish()["sum"]
    assert torch.equal(done["sum"].test, again.test)
    assert done["sum"].importance == again.importance


def test_a_row_in_no_fold_or_in_two_is_named():
    train, test = lists(N), lists(TEST)
    cross = CrossFit([Memory("a")], N, TEST)
    rows = torch.arange(6, N)
    cross.fold(train.take(torch.arange(6)), train.take(rows), rows, test)
    with pytest.raises(DataError, match="no out-of-fold score") as caught:
        cross.finish()
    assert caught.value.row == 0
    with pytest.raises(DataError, match="earlier fold") as caught:
        cross.fold(train.take(rows), train.take(torch.arange(9)), torch.arange(9), test)
    assert caught.value.row == 6
    cross = CrossFit([Memory("net", "nan")], N, TEST)
    one, rest, two = torch.tensor([0, 1]), torch.tensor([2, 3]), np.array([2, 3])
    two.flags.writeable = False
    for error, message, call in (
        (MissingColumnError, "'user'", lambda: group_folds(Table({"k": [1, 2]}), "user")),
        (DataError, "1 folds", lambda: group_folds(Table({"k": [1, 2]}), "k", 1)),
        (DataError, "has no row", lambda: group_folds(Table({"k": [7, 7, 7, 7]}), "k", 2)),
        (DataError, "one name", lambda: CrossFit([Memory("a"), Memory("b"), Memory("a")], N, TEST)),
        (DataError, "net of fold 0", lambda: carry_out(cross, train, test, FOLDS)),
        (DataError, "3 rows for 2 valid", lambda: cross.fold(train.take(rows), train.take(one), torch.arange(3), test)),
        (DataError, "place of a row is -1, and there", lambda: cross.fold(train.take(rows), train.take(one), [0, -1])),
        (DataError, "place of a row is 60, and there are 60", lambda: cross.fold(train, train.take(one), [0, N])),
        (DataError, "a row is 60", lambda: cross.fold(train.take(rest), train.take(one), one, train_rows=[2, N])),
    ):
        refused(error, message, call)
    CrossFit([], N, 0).fold(train.take(rest), train.take(one), [0, 1], train_rows=two)


def test_models_that_have_not_begun_do_not_begin_after_a_failure():
    begun, failed = threading.Event(), threading.Event()

    class Beside(Memory):
        beside = True

        def fit(self, *args, **options):
            trained.append(self.name)
            begun.set()
            failed.wait(20)
            return super().fit(*args, **options)

        def __deepcopy__(self, memo):
            return self

    class Failing(Memory):
        def fit(self, *args, **options):
            assert begun.wait(20)
            threading.Timer(0.2, failed.set).start()
            raise KeyboardInterrupt

    trained: list[str] = []
    cross = CrossFit([Failing("own"), Beside("first"), Beside("second")], N, TEST)
    with pytest.raises(KeyboardInterrupt):
        carry_out(cross, lists(N), lists(TEST), FOLDS)
    assert trained == ["first"]


@pytest.mark.parametrize(
    ("device", "rankers", "threads"),
    [
        ("cpu", {"net": (False, True), "trees": (True, True)}, 2),
        ("cpu", {"net": (False, True)}, 4),
        ("cpu", {"trees": (True, True)}, 4),
        ("cpu", {"rule": (False, False), "trees": (True, True)}, 4),
        ("cuda", {"net": (False, True), "trees": (True, True)}, 4),  # one after the other there
    ],
)
def test_threads_are_halved_where_two_share_the_cores(device, rankers, threads):
    seen: dict[str, int] = {}

    class Counting(Memory):
        def __init__(self, name, *, beside, learns):
            super().__init__(name)
            self.beside, self.learns = beside, learns

        def fit(self, train, valid=None, *, seed=0, device=None):
            seen[self.name] = torch.get_num_threads()
            return self

    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        made = [Counting(n, beside=b, learns=of) for n, (b, of) in rankers.items()]
        cross = CrossFit(made, N, TEST, device=torch.device(device))
        cross.fold(lists(N), lists(N), torch.arange(N), lists(TEST))
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)
    assert seen == dict.fromkeys(rankers, threads)
