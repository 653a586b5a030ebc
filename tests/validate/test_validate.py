"""Folds of groups against a plain hash, rows and targets against worked cases, and out-of-fold scores."""

import math
import threading

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import DataError, MissingColumnError
from fastrec.estimators import ColumnRanker, Ranker, Trace, XGBModel
from fastrec.table import Table, load_state, save_state
from fastrec.validate import CrossFit, ListEvents, Lists, Rows, Target, folds_digest, group_folds
from tests._core.refusals import refused
from tests.features.test_encode import fnv


def test_the_fold_is_a_hash_of_the_key():
    text, number = [f"session {i % 40} é" for i in range(100)], [str(i % 37) for i in range(100)]
    table, both = Table({"s": text, "i": np.arange(100) % 37}), list(map("\x1f".join, zip(text, number)))
    asked = ("s", text, 5, 0), ("s", text, 3, 9), (["i"], number, 4, 0), (["s", "i"], both, 4, 0)
    for key, keys, folds, seed in asked:
        assert group_folds(table, key, folds, seed=seed).tolist() == [fnv(k, folds, seed) - 1 for k in keys]


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
    refused(DataError, "row 0: there is no out-of-fold score", cross.finish)
    nine = torch.arange(9)
    refused(DataError, "row 6: .*earlier fold", lambda: cross.fold(train.take(rows), train.take(nine), nine, test))
    cross = CrossFit([Memory("net", "nan")], N, TEST)
    one, rest, two = torch.tensor([0, 1]), torch.tensor([2, 3]), np.array([2, 3])
    two.flags.writeable = False
    for error, message, call in (
        (MissingColumnError, "'user'", lambda: group_folds(Table({"k": [1, 2]}), "user")),
        (DataError, "1 folds", lambda: group_folds(Table({"k": [1, 2]}), "k", 1)),
        (DataError, "has no row", lambda: group_folds(Table({"k": [7, 7, 7, 7]}), "k", 2)),
        (DataError, "one name", lambda: CrossFit([Memory("a"), Memory("b"), Memory("a")], N, TEST)),
        (DataError, "no estimator to train", lambda: CrossFit([], N, TEST)),
        (DataError, "Memory is a class", lambda: CrossFit([Memory], N, TEST)),
        (DataError, "net of fold 0", lambda: carry_out(cross, train, test, FOLDS)),
        (DataError, "3 rows for 2 valid", lambda: cross.fold(train.take(rows), train.take(one), torch.arange(3), test)),
        (DataError, "place of a row is -1, and there", lambda: cross.fold(train.take(rows), train.take(one), [0, -1])),
        (DataError, "place of a row is 60, and there are 60", lambda: cross.fold(train, train.take(one), [0, N])),
        (DataError, "a row is 60", lambda: cross.fold(train.take(rest), train.take(one), one, train_rows=[2, N])),
    ):
        refused(error, message, call)
    CrossFit((m for m in [Memory("a")]), N, 0).fold(train.take(rest), train.take(one), [0, 1], train_rows=two)


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
def test_threads_are_halved_where_two_share_the_cores(device, rankers, threads, set_threads):
    seen: dict[str, int] = {}

    class Counting(Memory):
        def __init__(self, name, *, beside, learns):
            super().__init__(name)
            self.beside, self.learns = beside, learns

        def fit(self, train, valid=None, *, seed=0, device=None):
            seen[self.name] = torch.get_num_threads()
            return self

    set_threads(4)
    made = [Counting(n, beside=b, learns=of) for n, (b, of) in rankers.items()]
    cross = CrossFit(made, N, TEST, device=torch.device(device))
    cross.fold(lists(N), lists(N), torch.arange(N), lists(TEST))
    assert torch.get_num_threads() == 4
    assert seen == dict.fromkeys(rankers, threads)


FRAME = pd.DataFrame(
    {
        "yn": ["Y", "N", "Y", "N"],
        "flag": [True, False, True, True],
        "digit": [0, 1, 1, 0],
        "grade": [1, 2, 9, 4],
        "amount": [0.5, 1.0, 2.0, 3.0],
        "city": ["b", "a", "c", "a"],
        "many": [100, 2, 31, 44],
    }
)


TWO = Table({"x": [1.0, 2.0]})
TEXTS = [np.array(["yes", "no"]), np.array(["yes", "no"], dtype=object), ["yes", "no"]]


def rows(task: str, label, **options) -> Rows:
    label = torch.as_tensor(label)
    return Rows(Table({"x": torch.arange(len(label)).double()}), task, label=label, conts=["x"], **options)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: rows("binary", [0.0, 1, 2, 1]), "row 2: a target is neither 0 nor 1"),
        (lambda: rows("binary", [0.0, math.nan]), "row 1: a target is missing or infinite"),
        (lambda: rows("multiclass", [0, 1, 3], n_outputs=3), "row 2: a target is no class of 0 to 2"),
        (lambda: rows("multiclass", [0, -1, 1], n_outputs=3), "row 1: a target is no class of 0 to 2"),
        (lambda: rows("regression", [0.0, 1, math.inf]), "row 2: a target is missing or infinite"),
        (lambda: rows("multilabel", [[0.0, 1], [1, 0.5]], n_outputs=2), "row 1: a target is neither 0 nor 1"),
        (lambda: rows("binary", [[0.0, 1]]), "shape"),
        (lambda: rows("multilabel", [0.0, 1], n_outputs=2), "shape"),
        (lambda: rows("regression", [0.0, 1], n_outputs=2), "shape"),
        (lambda: rows("rank", [0.0]), "task='rank' is not one of ranking, binary, multiclass, regression, multilabel"),
        (lambda: Rows(FRAME, "binary", label=FRAME.digit), "Rows was given a DataFrame, no Table. Read it: Table"),
        (lambda: XGBModel().fit(FRAME), r"XGBModel learns from Rows, not from a DataFrame. Give Rows\(Table.read"),
        *[(lambda y=y: Rows(TWO, "binary", conts=["x"], label=y), "label is of no type.*codes") for y in TEXTS],
    ],
)
def test_what_is_no_rows_is_refused(make, said):
    refused(DataError, said, make)


def test_take_keeps_rows_with_all_that_is_said_of_them():
    given = {"weight": [1.0, 2, 3], "groups": [5, 5, 7], "order": [3.0, 2, 1]}
    given = {n: torch.tensor(v) for n, v in given.items()}
    made = rows("multilabel", [[0.0, 1], [1, 0], [1, 1]], n_outputs=2, **given)
    for chosen in (torch.tensor([True, False, True]), torch.tensor([0, 2])):
        got = made.take(chosen)
        assert got.label.tolist() == [[0, 1], [1, 1]]
        assert (got.weight.tolist(), got.groups.tolist(), got.order.tolist()) == ([1, 3], [5, 7], [3, 1])
        assert (got.task, got.n_outputs, got.n_scores, len(got)) == ("multilabel", 2, 2, 2)
    assert [rows(t, x, n_outputs=n).n_scores for t, x, n in (("binary", [1.0], 1), ("multiclass", [1], 4))] == [1, 4]


@pytest.mark.parametrize(
    ("column", "task", "label", "outputs"),
    [
        ("yn", "binary", [1, 0, 1, 0], ["yn"]),
        ("flag", "binary", [1, 0, 1, 1], ["flag"]),
        ("city", "multiclass", [1, 0, 2, 0], ["a", "b", "c"]),
        ("amount", "regression", [0.5, 1, 2, 3], ["amount"]),
    ],
)
def test_what_a_target_says_by_itself(column, task, label, outputs, tmp_path):
    target = Target.fit(FRAME, column, scale="log" if column == "amount" else None)
    label = np.log(label) if column == "amount" else label
    save_state(tmp_path / "t", target.to_state())
    for one in (target, Target.from_state(load_state(tmp_path / "t"))):
        assert (one.task, one.outputs, one.encode(FRAME).tolist()) == (task, outputs, pytest.approx(label))
        assert repr(one) == repr(target)


@pytest.mark.parametrize(("column", "kind"), [("digit", "binary"), ("grade", "multiclass"), ("many", "multiclass")])
def test_whole_numbers_of_few_values_are_asked_about(column, kind):
    words = f"column '{column}'.*classes or amounts.*task='{kind}' or task='regression'"
    refused(DataError, words, lambda: Target.fit(FRAME, column))
    assert Target.fit(FRAME, column, kind).task == kind
    assert Target.fit(FRAME, column, "regression").encode(FRAME).dtype == torch.float64
    assert Target.fit(pd.DataFrame({"n": range(21)}), "n").task == "regression"  # many are amounts
    grade = Target.fit(FRAME, "grade", "multiclass")
    assert grade.encode(FRAME).tolist() == [0, 1, 3, 2]
    assert grade.decode(torch.tensor([3, 0])).to_pylist() == [9, 1]
    assert Target.fit(FRAME, ["flag", "digit"]).task == "multilabel"
    assert Target.fit(FRAME, ["amount", "grade"]).encode(FRAME).shape == (4, 2)


def test_the_positive_class_can_be_named():
    target = Target.fit(FRAME, "yn", positive="N")
    assert target.encode(FRAME).tolist() == [0, 1, 0, 1]
    assert target.decode(torch.tensor([0, 1])).to_pylist() == ["Y", "N"]
    refused(DataError, r"no row has the class 'X'.*N, Y", lambda: Target.fit(FRAME, "yn", positive="X"))


@pytest.mark.parametrize(
    ("frame", "task", "message"),
    [
        ({"y": ["a", "a"]}, None, "one class only \\('a'\\)"),
        ({"y": ["a", "b", "c"]}, "binary", "3 values, not two"),
        ({"y": [None, None]}, None, "no value"),
        ({"y": ["a", "b"]}, "regression", "not a number"),
        ({"y": [0.5, np.inf]}, "regression", "row 1: the target is infinite. Give a finite number, or drop the row"),
    ],
)
def test_targets_that_no_model_can_learn_are_named(frame, task, message):
    table = pd.DataFrame(frame)
    refused(DataError, f"column 'y'.*{message}", lambda: Target.fit(table, "y", task).encode(table))


def test_rows_without_a_target_or_of_a_new_class_are_named():
    target = Target.fit(FRAME, "yn")
    other = pd.DataFrame({"yn": ["Y", None, "?"]})
    assert target.known(other).tolist() == [True, False, True]
    for row, word in ((1, "missing"), (2, "no training row has")):
        refused(DataError, f"row 1: .*{word}", lambda row=row: target.encode(other.iloc[[0, row]]))
    refused(MissingColumnError, "yn", lambda: target.encode(FRAME[["city"]]))


@given(st.lists(st.floats(0.01, 1e6), min_size=2, max_size=20), st.sampled_from(["log", "log1p", None]))
@settings(max_examples=30, deadline=None)
def test_a_scale_is_undone(values, scale):
    frame = pd.DataFrame({"y": values})
    target = Target.fit(frame, "y", "regression", scale=scale)
    label = target.encode(frame)
    oracle = {"log": np.log, "log1p": np.log1p, None: lambda v: v}[scale](np.array(values))
    np.testing.assert_allclose(label.numpy(), oracle, rtol=1e-12)
    np.testing.assert_allclose(target.restore(label).numpy(), values, rtol=1e-9)
    if scale == "log":
        refused(DataError, "row 1: 0 has no log", lambda: target.encode(pd.DataFrame({"y": [1.0, 0.0]})))
    refused(DataError, "no scale", lambda: Target.fit(FRAME, "yn", scale="log"))


class Two(Memory):
    """Predicts two numbers: its fold's number of training rows and a row's own x."""

    def fit(self, train, valid=None, *, seed=0, device=None):
        self.n = len(train)
        return self

    def predict(self, data):
        x = data.table["x"].number()
        return torch.stack([torch.full_like(x, self.n), x], 1)


def test_predictions_of_several_numbers_and_rows_that_no_fold_scores():
    data = rows("multilabel", [[0.0, 1]] * 6, n_outputs=2)
    scored = torch.tensor([False, False, True, True, True, True])
    cross = CrossFit([Two("two")], 6, 2, scored=scored)
    for inside, outside in (([2, 3], [0, 1]), ([4, 5], [0, 1, 2, 3])):
        train, valid = torch.tensor(outside), torch.tensor(inside)
        cross.fold(data.take(train), data.take(valid), valid, data.take(torch.tensor([0, 5])), train_rows=train)
    made = cross.finish()["two"]
    assert made.oof[2:].tolist() == [[2, 2], [2, 3], [4, 4], [4, 5]]
    assert made.oof[:2].isnan().all()
    assert made.test.tolist() == [[3, 0], [3, 5]]
    assert made.folds == folds_digest([torch.tensor([2, 3]), torch.tensor([4, 5])], 6)
    assert made.folds != folds_digest([torch.tensor([2, 4]), torch.tensor([3, 5])], 6)


def test_repeated_folds_give_a_row_the_mean_and_no_fold_trains_on_a_row_that_it_scores():
    data = rows("regression", [0.0] * 4)
    cross = CrossFit([Two("two")], 4, 0, repeated=True)
    every = torch.arange(4)
    words, one = "row 1: fold 0 is trained on a row that it scores", every[1:2]
    refused(DataError, words, lambda: cross.fold(data, data.take(one), one, train_rows=every))
    for inside in ([0, 1], [2, 3], [0], [1, 2, 3]):
        valid = torch.tensor(inside)
        train = every[~torch.isin(every, valid)]
        cross.fold(data.take(train), data.take(valid), valid, train_rows=train)
    assert cross.finish()["two"].oof[:, 0].tolist() == [2.5, 1.5, 1.5, 1.5]


# ``ListEvents``: which events were before each list, against a loop


NAMES = {"lists": "g", "session": "s", "order": ["t", "step"], "item": "item"}


def tables(seed: int, lists: int = 12, events: int = 40) -> tuple[Table, Table]:
    """Lists of two candidates, and a log in no order; some sessions have no event, some events no session."""
    rng = np.random.default_rng(seed)
    session, t, step = rng.integers(0, 6, lists), rng.integers(0, 5, lists), rng.integers(0, 3, lists)
    names = np.array(list("abcdef"))
    shown = {"g": np.sort(rng.choice(100, lists, replace=False)), "s": names[session], "t": t, "step": step}
    candidates = Table({n: np.repeat(v, 2) for n, v in shown.items()} | {"item": rng.integers(0, 9, 2 * lists)})
    log = {"s": rng.choice(np.array([*"bcdefg", None]), events), "item": rng.integers(0, 9, events)}
    log |= {"t": rng.integers(0, 5, events), "step": rng.integers(0, 3, events), "kind": rng.choice(["x", "y"], events)}
    return candidates, Table({**log, "number": np.arange(events, dtype=float)})


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000))
def test_a_list_has_the_events_of_its_session_that_are_strictly_before(seed):
    candidates, log = tables(seed)
    made = ListEvents.before(candidates, log, **NAMES, cats=["kind"], conts=["number"], time="t")
    shown, events = candidates.to_pandas().drop_duplicates("g"), log.to_pandas()
    at = made.of(torch.tensor(shown.g.to_numpy()))
    for (_, one), place in zip(shown.iterrows(), at.tolist(), strict=True):
        own = events[events.s == one.s]
        own = own[(own.t < one.t) | ((own.t == one.t) & (own.step < one.step))]
        expected = own.sort_values(["t", "step"], kind="stable").number.tolist()
        got = made.log["number"].values[made.starts[place] : made.ends[place]].tolist()
        assert got == expected
        assert float(made.moments[place]) == one.t


def test_some_lists_have_the_same_events_and_text_names_them_as_well():
    candidates, log = tables(0)
    numbers = candidates["g"].integer()
    text = candidates.with_columns({"g": [f"list {100 - g:03d}" for g in numbers.tolist()]})
    events, known = (ListEvents.before(t, log, **NAMES) for t in (text, candidates))
    rows = Lists(candidates, numbers, label=torch.zeros(len(candidates)), events=known)
    assert rows.take(torch.arange(4)).events is known
    assert rows.with_table(candidates).events is known
    part = text.take(torch.arange(6, 16))  # lists are found by any part of their table
    at, known_at = events.of(part["g"].group_numbers()), known.of(numbers[6:16])
    assert torch.equal(events.ends[at] - events.starts[at], known.ends[known_at] - known.starts[known_at])


def test_what_is_not_known_is_named():
    candidates, log = tables(0)
    events = ListEvents.before(candidates, log, **NAMES)
    refused(DataError, "before the list 1000", lambda: events.of(torch.tensor([1000])))
    refused(MissingColumnError, "the log lack it", lambda: ListEvents.before(candidates, log, **NAMES, cats=["colour"]))
    with pytest.raises(MissingColumnError, match="candidates lack it"):
        ListEvents.before(candidates.drop(["step"]), log, **NAMES)
    refused(DataError, "without an order", lambda: ListEvents.before(candidates, log, **{**NAMES, "order": []}))
    none = ListEvents.before(candidates, log.take(torch.arange(0)), **NAMES)
    assert (none.starts == none.ends).all()
