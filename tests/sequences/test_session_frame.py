"""Sessions of logs and of lists: what is packed, in which order, and what odd input becomes."""

import datetime as dt
import math
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastrec.errors import DataError, DataWarning, MissingColumnError
from fastrec.sequences import (
    CoVisitation,
    NextItemNet,
    SessionFrame,
    SessionModel,
    by_session,
    by_time,
    given_split,
    leave_one_out,
    prefixes,
)
from tests._core.refusals import refused
from tests.sequences.helpers import lists_of

LOG = {
    "s": ["b", "a", "b", "a", "b"],
    "i": ["x", "y", "z", "x", "y"],
    "t": [3, 1, 1, 1, 3],
    "p": [1.0, 2.0, 3.0, 4.0, 5.0],
    "k": ["u", "v", "u", None, "w"],
}


def test_a_log_of_any_library_becomes_sessions_in_order(df_module):
    frame = SessionFrame(df_module.frame(LOG), item="i", session="s", order="t", features=["p", "k"])
    assert frame.sessions.to_arrow().to_pylist() == ["b", "a"]  # as they first appear
    assert lists_of(frame) == [["z", "x", "y"], ["y", "x"]]  # ties in t keep the order of the rows
    assert frame.times.tolist() == [1, 3, 3, 1, 1]
    assert frame.ends.tolist() == [3, 1]
    np.testing.assert_allclose(frame.sides["p"], [0, -math.sqrt(2), math.sqrt(2), -math.sqrt(0.5), math.sqrt(0.5)])
    assert frame.codings["k"].vocab.decode(frame.sides["k"]).to_pylist() == ["u", "u", "w", "v", None]


def test_a_parquet_file_of_lists_is_the_same_as_its_log(tmp_path):
    lists = [["c", "a"], [], ["b"], ["a", "a", "d"]]
    pd.DataFrame({"items": lists, "next": ["a", "b", "q", "d"]}).to_parquet(tmp_path / "train.parquet")
    frame = SessionFrame(tmp_path / "train.parquet", item="items")
    assert lists_of(frame) == lists
    log = [(s, i) for s, items in enumerate(lists) for i in items]
    other = SessionFrame(pd.DataFrame(log, columns=["s", "items"]), item="items", session="s")
    assert lists_of(other) == [items for items in lists if items]
    test = frame.new(tmp_path / "train.parquet", target="next")
    assert frame.decode(test.target).to_pylist() == ["a", "b", None, "d"]
    assert lists_of(test.with_target()) == [["c", "a", "a"], ["b"], ["b"], ["a", "a", "d", "d"]]


@given(st.lists(st.tuples(st.integers(-3, 3), st.one_of(st.none(), st.integers(-5, 5)), st.integers(0, 3)), min_size=1))
def test_a_log_equals_a_plain_loop(rows):
    table = {"s": [r[0] for r in rows], "i": pd.array([r[1] for r in rows], "Int64"), "t": [r[2] for r in rows]}
    frame = SessionFrame(pd.DataFrame(table), item="i", session="s", order="t")
    found: dict[int, list] = {}
    for s, i, t in rows:
        found.setdefault(s, []).append((t, i))
    wanted = [[i for _, i in sorted(v, key=lambda r: r[0]) if i is not None] for v in found.values()]
    assert lists_of(frame) == wanted
    assert frame.sessions.to_arrow().to_pylist() == list(found)


DAYS = ["2024-03-02", "2024-03-10", "2024-03-09"]


@pytest.mark.parametrize(
    "times", [DAYS, [f"{d}T0{i}:30:00Z" for i, d in enumerate(DAYS)], pd.Series(DAYS, dtype="category")]
)
def test_text_in_iso_is_times_in_a_log_and_in_lists(tmp_path, times):
    log = pd.DataFrame({"s": [1, 1, 1], "i": ["a", "c", "b"], "t": times})
    seconds = sorted(pd.to_datetime(log["t"].astype(str), utc=True).map(pd.Timestamp.timestamp))
    log.to_csv(tmp_path / "log.csv", index=False)
    lists = {"i": [log["i"].tolist()], "t": [log["t"].astype(str).tolist()]}
    for source, session in ((log, "s"), (tmp_path / "log.csv", "s"), (lists, None)):
        frame = SessionFrame(source, item="i", session=session, order="t")
        assert lists_of(frame) == [["a", "b", "c"]]
        assert frame.times.tolist() == seconds
    levels = pd.Categorical(["low", "high", "low"], ["low", "high"], ordered=True)  # text with an order is no time
    frame = SessionFrame(log.assign(t=levels), item="i", session="s", order="t")
    assert lists_of(frame) == [["a", "b", "c"]]
    assert frame.times is None


@pytest.mark.parametrize(
    ("times", "row", "said"),
    [
        (["01/03/2024", "02/02/2024", "03/01/2024"], 0, "'01/03/2024' is no time"),
        (["9", "10", "11"], 0, "'9' is no time"),
        (["2024-03-01", "soon", None], 1, "'soon' is no time"),
        (["2024-03-01", None, "2024-03-02"], 1, "an event has no time"),
        (["04:49", "06:37", "05:00"], 0, "is no time"),
        ([1.0, 2.0, math.nan], 2, "an event has no time"),
        (pd.Series([1, None, 3], dtype="Int64"), 1, "an event has no time"),
        (pd.to_datetime(["2024-03-01", None, "2024-03-02"]), 1, "an event has no time"),
        (pd.Categorical(["low", "high", "low"], ["low", "high"]), 0, "'low' is no time"),
    ],
)
def test_an_order_that_is_no_time_or_is_missing_is_refused_by_row(tmp_path, times, row, said):
    log = pd.DataFrame({"s": [1, 1, 2], "i": list("abc"), "n": [1, 2, 3], "t": times})
    log.to_parquet(tmp_path / "log.parquet")
    for order in ("t", ["n", "t"]):
        with pytest.raises(DataError, match=rf"column 't', row {row}: .*{said}") as error:
            SessionFrame(tmp_path / "log.parquet", item="i", session="s", order=order)
        assert error.value.file == str(tmp_path / "log.parquet")
    log["t"] = log["t"].astype(object).where(log["t"].notna(), None)
    lists = log.groupby("s")[["i", "t"]].agg(list)
    refused(DataError, rf"column 't', row {row // 2}: .*{said}", lambda: SessionFrame(lists, item="i", order="t"))


def test_times_of_day_are_no_times(tmp_path):
    (tmp_path / "log.csv").write_text("s,i,t\n1,a,23:50\n1,b,00:10\n")
    with pytest.raises(DataError, match=r"log\.csv', column 't', row 0: '23:50:00' is no time.*2024-03-31"):
        SessionFrame(tmp_path / "log.csv", item="i", session="s", order="t")
    clocks = [None, dt.time(23, 50), dt.time(0, 10)]  # the first is of an event that has no item
    log = {"s": [1, 1, 1], "i": [None, "b", "c"], "t": clocks}
    lists = {"i": [[], [None, "b", "c"]], "t": [[], clocks]}
    made = [read(t) for read in (pd.DataFrame, pa.table, dict, pa.RecordBatch.from_pydict) for t in (log, lists)]
    pl = pytest.importorskip("polars")
    for source, session in zip([*made, pl.DataFrame(log), pl.DataFrame(lists)], ["s", None] * 5, strict=True):
        with pytest.raises(DataError, match="column 't', row 1: '23:50:00' is no time"):
            SessionFrame(source, item="i", session=session, order="t")


def test_an_enum_of_polars_is_times_or_an_order(tmp_path):
    pl = pytest.importorskip("polars")
    for values, named, times in ((["late", "early"], "bca", None), (DAYS[:2], "acb", 1709337600.0)):
        kind = pl.Enum(values[::-1] if times is None else sorted(values))
        column = pl.Series([values[0], values[1], values[0]], dtype=kind)
        log = pl.DataFrame({"s": [1, 1, 1], "i": list(named), "t": column})
        log.write_parquet(tmp_path / "log.parquet")
        lists = pl.DataFrame({"i": [list(named)], "t": pl.Series([column], dtype=pl.List(kind))})
        for source, session in ((log, "s"), (log.to_arrow(), "s"), (tmp_path / "log.parquet", "s"), (lists, None)):
            frame = SessionFrame(source, item="i", session=session, order="t")
            assert lists_of(frame) == [["c", "b", "a"] if times is None else ["a", "b", "c"]]
            assert times is None if frame.times is None else float(frame.times[0]) == times


@pytest.mark.parametrize("times", [[2.0, None, 1.0], [2, None, 1], ["2024-03-02", "", "2024-03-01"]])
def test_events_that_are_dropped_need_no_time(times):
    times = pd.Series(times, dtype="Int64") if isinstance(times[0], int) else times
    log = pd.DataFrame(
        {"s": [1, 1, 1], "i": ["a", None, "b"], "t": times, "what": [None, None, None], "x": ["a", "b", "c"]}
    )
    for more in ({}, {"virtual": "what"}):
        frame = SessionFrame(log, item="i", session="s", order="t", target="x", **more)
        assert frame.decode(frame.values).to_pylist() == ["b", "a"]
        assert frame.decode(frame.target).to_pylist() == ["a"]
    lists = pd.DataFrame({"i": [["a", None, "b"]], "t": [[t if t is not pd.NA else None for t in log["t"]]]})
    assert lists_of(SessionFrame(lists, item="i", order="t")) == [["b", "a"]]
    with pytest.raises(DataError, match="column 't', row 1: "):
        SessionFrame(log.assign(what=[None, "shoes", None]), item="i", session="s", order="t", virtual="what")


def test_unseen_items_are_dropped_or_kept_as_unknown():
    train = pd.DataFrame({"items": [[1, 2], [3, 2]]})
    test = pd.DataFrame({"items": [[9, 2, None], [9]], "y": [3, 9]})
    with pytest.warns(DataWarning, match=r"no item of 1 of 2 sessions is known to the model \(such as session 1\)"):
        dropped = SessionFrame(train, item="items").new(test, target="y")
    assert lists_of(dropped) == [[2], []]
    assert dropped.target.tolist() == [3, 0]
    with pytest.warns(DataWarning, match="no item of 1 of 2"):
        kept = SessionFrame(train, item="items", unknown="keep").new(test)
    assert lists_of(kept) == [[None, 2], [None]]
    assert SessionFrame({"items": [[], []]}, item="items").lengths.tolist() == [0, 0]


def test_times_and_ids_of_another_kind_than_those_learned_from_are_refused(tmp_path):
    logs = {"numbers": [2, 1], "times": ["2024-03-02", "2024-03-01"]}
    logs = {n: pd.DataFrame({"s": [1, 1], "i": ["a", "b"], "t": t}) for n, t in logs.items()}
    for name, other in zip(logs, list(logs)[::-1], strict=True):
        logs[other].to_csv(tmp_path / "test.csv", index=False)
        train = SessionFrame(logs[name], item="i", session="s", order="t")
        assert lists_of(train.new(logs[name])) == [["b", "a"]]
        for known in (train, SessionFrame.of_form(train.form(), train.items), train.new(logs[name].iloc[:0])):
            with pytest.raises(DataError, match=rf"test.csv', column 't': holds {other}.* but {name}.*Give {name}"):
                known.new(tmp_path / "test.csv")
    known = SessionFrame({"s": [1, 1], "i": [44, 45]}, item="i", session="s")
    with pytest.raises(DataError, match=r"test.csv', column 'i': holds text here, but whole numbers before. Give"):
        known.new(tmp_path / "test.csv")


def test_sessions_without_a_known_item_are_told_of_once_a_call():
    model = CoVisitation().fit(SessionFrame({"items": [[1, 2], [3, 2]]}, item="items"))
    asked = SessionFrame({"items": [[9, 8], [], [2], [7]]}, item="items")  # an empty session is nothing to tell of
    with pytest.warns(DataWarning, match="no item of 2 of 4 sessions") as told:
        model.recommend(asked, 2)
    assert len(told) == 1
    assert told[0].filename == __file__


def test_features_of_lists_follow_their_items_and_bad_ones_are_named():
    table = {"items": [["a", None], ["b"]], "price": [[1.0, 5.0], [3.0]], "t": [[2, 1], [1]]}
    frame = SessionFrame(table, item="items", features=["price"], order="t")
    assert lists_of(frame) == [["a"], ["b"]]
    np.testing.assert_allclose(frame.sides["price"], [(1 - 3) / math.sqrt(8 / 3), 0.0], atol=1e-6)
    for words, source, options in (
        ("not as long", {**table, "price": [[1.0], [3.0]]}, {"item": "items", "features": ["price"]}),
        ("one value a row", {**table, "price": [1.0, 3.0]}, {"item": "items", "features": ["price"]}),
        ("no column says which session", LOG, {"item": "i"}),
        ("belongs to no session", {"s": [1.0, None], "i": [1, 2]}, {"item": "i", "session": "s"}),
        ("'j'", LOG, {"item": "j", "session": "s"}),
    ):
        refused((DataError, MissingColumnError), words, lambda s=source, o=options: SessionFrame(s, **o))


def test_a_table_of_items_is_laid_out_by_code():
    about = pd.DataFrame({"i": ["z", "x", "none"], "brand": ["A", "B", "A"], "v": [1.0, 3.0, 2.0]})
    frame = SessionFrame(pd.DataFrame(LOG), item="i", session="s", item_table=about)
    assert frame.items.classes == ["#na#", "x", "y", "z"]
    assert frame.item_sides["brand"].tolist() == [0, 2, 0, 1]
    np.testing.assert_allclose(frame.item_sides["v"], [0, math.sqrt(1.5), 0, -math.sqrt(1.5)], atol=1e-6)
    with pytest.raises(DataError, match="several rows"):
        SessionFrame(pd.DataFrame(LOG), item="i", session="s", item_table=pd.concat([about, about]))


def test_recoding_keeps_what_is_known():
    frame = SessionFrame({"items": [["a", "b"], ["c"]], "y": ["c", "a"]}, item="items", target="y")
    other = SessionFrame({"items": [["b", "d", "c"]]}, item="items")
    moved = frame.recode(other.items)
    assert lists_of(moved) == [["b"], ["c"]]
    assert moved.target.tolist() == [2, 0]
    assert frame.recode(frame.items) is frame


def test_splits_equal_plain_loops():
    lists = [[1, 2, 3], [4], [], [5, 6]]
    frame = SessionFrame({"items": lists, "id": list("abcd")}, item="items", session="id")
    train, valid = leave_one_out(frame)
    assert lists_of(train) == [[1, 2], [4], [], [5]]
    assert lists_of(valid) == [[1, 2], [5]]
    assert frame.decode(valid.target).to_pylist() == [3, 6]
    assert valid.sessions.to_arrow().to_pylist() == ["a", "d"]
    asked = prefixes(frame)
    assert lists_of(asked) == [[1], [1, 2], [5]]
    assert frame.decode(asked.target).to_pylist() == [2, 3, 6]
    assert asked.sessions.to_arrow().to_pylist() == ["a", "a", "d"]
    assert [lists_of(p) for p in by_time(frame, 0.25)] == [[[1, 2, 3], [4], []], [[5, 6]]]
    log = {"s": [0, 1, 1, 2], "i": [1, 2, 3, 4], "t": [5, 1, 9, 7]}  # by the last event
    timed = SessionFrame(log, item="i", session="s", order="t")
    assert [lists_of(p) for p in by_time(timed, 0.3)] == [[[1], [4]], [[2, 3]]]
    a, b = given_split(frame, torch.tensor([True, False, False, True]))
    assert (lists_of(a), lists_of(b)) == ([[4], []], [[1, 2, 3], [5, 6]])
    a, b = by_session(frame, 0.5, seed=3)
    assert sorted(lists_of(a) + lists_of(b)) == sorted(lists)
    assert len(a) == len(b) == 2
    refused(DataError, "share", lambda: by_time(frame, 1.0))
    refused(DataError, "mask", lambda: given_split(frame, torch.tensor([1])))


def test_some_prefixes_of_a_session_without_end():
    lists = [list(range(5)), [7], [], [3, 4, 5], list(range(100_000))]
    frame = SessionFrame({"items": lists}, item="items")
    short = frame.take(torch.arange(4))
    few = prefixes(short, last=3, longest=2)
    assert lists_of(few) == [[2, 3], [3], [3, 4]]
    assert few.decode(few.target).to_pylist() == [4, 4, 5]
    every, some = prefixes(short), prefixes(short, drawn=4, seed=3)
    rows = torch.randperm(6, generator=torch.Generator().manual_seed(3))[:4].sort().values
    assert lists_of(some) == lists_of(every.take(rows))
    assert torch.equal(some.target, every.target[rows])
    ends = prefixes(frame, last=2, longest=3)  # all of them would be 5,000,000,000 events
    assert lists_of(ends) == [[99_995, 99_996, 99_997], [99_996, 99_997, 99_998]]


def visits() -> pd.DataFrame:
    """Looks at items, and between them searches and pages, which have none."""
    return pd.DataFrame(
        {
            "s": [1, 1, 1, 1, 2, 2, 2],
            "t": [0, 1, 2, 3, 0, 1, 2],
            "item": pd.array([7, None, 5, None, None, 7, None], dtype="Int64"),
            "what": [None, "shoes", "ignored: it has an item", "page 2", "shoes", None, None],
        }
    )


def test_events_without_an_item_become_virtual_ones():
    frame = SessionFrame(visits(), item="item", session="s", order="t", virtual="what")
    assert frame.items.reserved == ("#na#", "virtual: page 2", "virtual: shoes")
    named = [[frame.items.classes[c] for c in frame.values[a:b]] for a, b in pairwise(frame.offsets.tolist())]
    assert named == [[7, "virtual: shoes", 5, "virtual: page 2"], ["virtual: shoes", 7]]  # the last says nothing
    assert frame.times.tolist() == [0, 1, 2, 3, 0, 1]
    assert frame.decode(frame.values).to_pylist() == [7, None, 5, None, None, 7]
    later = frame.new(visits().assign(what=["a", "hats", "b", "shoes", "page 2", None, None]))
    named = [[frame.items.classes[c] for c in later.values[a:b]] for a, b in pairwise(later.offsets.tolist())]
    assert named == [[7, 5, "virtual: shoes"], ["virtual: page 2", 7]]  # hats were never searched for: left out
    without = SessionFrame(visits(), item="item", session="s", order="t")
    assert without.values.tolist() == [2, 1, 2]
    assert without.recode(frame.items).values.tolist() == [4, 3, 4]


def test_virtual_items_are_read_and_never_recommended(tmp_path):
    rng = np.random.default_rng(0)
    wished = rng.integers(0, 4, 200)  # a search says which item is looked at next
    log = pd.DataFrame({"s": np.repeat(np.arange(200), 3), "t": np.tile(np.arange(3), 200)})
    items = np.stack([rng.integers(0, 9, 200), np.full(200, -1), wished], 1).ravel()
    log["item"] = pd.array(np.where(items < 0, None, items), dtype="Int64")
    log["search"] = np.where(log["t"] == 1, np.repeat(wished, 3).astype(str), None)
    columns = {"item": "item", "session": "s", "order": "t"}
    frame = SessionFrame(log, **columns, virtual="search")
    asked = frame.new(log[log["t"] < 2])
    for model in (CoVisitation(), NextItemNet("GRU4Rec", width=16, epochs=12, half=False)):
        model.fit(frame)
        best, _ = model.recommend(asked, 9)
        assert set(best.unique().tolist()) <= {0, *range(len(frame.items.reserved), len(frame.items))}
        right = torch.from_numpy(wished) + len(frame.items.reserved)
        assert float((best[:, 0] == right).double().mean()) > 0.9
    model.save(tmp_path / "net")
    again = SessionModel.load(tmp_path / "net")
    assert torch.equal(again.recommend(asked, 3)[0], best[:, :3])
    read = SessionFrame.of_form(frame.form(), frame.items).new(log[log["t"] < 2])
    assert torch.equal(read.values, asked.values)
