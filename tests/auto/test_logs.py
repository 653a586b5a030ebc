"""A log beside the candidates: its columns are found, features are those of plain loops, none is of the future."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.auto import Fit, logs, new_competition, rankings
from fastrec.auto.columns import Files, look_at, read_files
from fastrec.auto.features import asked_for
from fastrec.auto.problem import LogColumns, Problem
from fastrec.auto.trial import QuickTrial
from fastrec.auto.understand import understand
from fastrec.cli import load_competition
from fastrec.competition import run_competition
from fastrec.competition.predict import predict_run
from fastrec.competition.reading import in_one_unit
from fastrec.errors import DataError, MissingColumnError, MissingFileError
from fastrec.estimators import XGBRanker
from fastrec.features import FeatureSet, JoinTable
from fastrec.table import Table

C, KINDS = 5, ["view", "click", "filter"]


def world(sessions: int, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Sessions of users: events, some at one moment, and now and then a list; one touched before is mostly clicked."""
    rng = np.random.default_rng(seed)
    rows, events, lists = [], [], 0
    for s in range(sessions):
        at, owner, seen = int(rng.integers(1_000, 2_000)), {"session_id": f"s{s}", "user_id": s % (sessions // 2)}, []
        for step in range(int(rng.integers(3, 15))):
            at += int(rng.integers(0, 3))
            about = {**owner, "ts": at, "step": step}
            kind = KINDS[min(int(rng.integers(0, 4)), 2)]
            if rng.random() < 0.35:
                items = rng.choice(12, C, replace=False)
                chosen = next((i for i in reversed(seen) if i in items), items[0]) if rng.random() < 0.8 else items[0]
                for i in items:
                    told = {"item_id": int(i), "price": float(i % 5 + rng.integers(0, 3)), "clicked": int(i == chosen)}
                    rows.append({"list": lists, **about, **told})
                events.append({**about, "item_id": int(chosen), "kind": "click"})
                lists += 1
            else:
                item = None if kind == "filter" else int(rng.integers(0, 12))
                events.append({**about, "item_id": item, "kind": kind})
            seen += [events[-1]["item_id"]]
    log = pd.DataFrame(events)
    return pd.DataFrame(rows), log.astype({"item_id": "Int64"}).sample(frac=1, random_state=0, ignore_index=True)


ROWS, LOG = world(24)


def features_of(order: list[str]) -> FeatureSet:
    train, side = (pa.Table.from_pandas(t, preserve_index=False) for t in (ROWS, LOG))
    made = LogColumns("log", ["session_id", "user_id"], order, "kind", KINDS, KINDS[:2])
    shared = ["session_id", "user_id", "ts", "step"]
    problem = Problem(
        Files(Path(), {}, {"train": train}, {"log": side}), look_at(train, ["clicked"]), ["clicked"], "ranking", "mrr",
        lists="list", item="item_id", shared=shared, log=made,
    )  # fmt: skip
    trial = QuickTrial(problem, [], 60.0)
    own = [make for name, make in logs.ideas(problem) if (name, make) not in rankings.IDEAS]
    made = {repr(f): f for make in own for f in make(problem, trial)}
    return FeatureSet(list(made.values()), key="list")


def loops(rows: pd.DataFrame, log: pd.DataFrame, order: list[str]) -> pd.DataFrame:
    """All features by plain loops over lists, rows and events."""
    events, made = log.to_dict("records"), []
    nan = float("nan")

    def over(values, what):
        known = [v for v in values if v == v]
        return what(known) if known else nan

    for _, part in rows.groupby("list", sort=False):
        lines = part.to_dict("records")
        now, columns = lines[0], [{"cumcount_list": i} for i in range(len(lines))]

        def before(test, by=order, now=now):
            found = [e for e in events if test(e) and tuple(e[o] for o in by) < tuple(now[o] for o in by)]
            return sorted(found, key=lambda e: tuple(e[o] for o in by))

        def ages(found, word, column, now=now, kinds=("count", "since")):
            told = {
                "count": len(found), "since": now["ts"] - found[-1]["ts"] if found else nan,
                "since_first": now["ts"] - found[0]["ts"] if found else nan,
                "steps": now[order[-1]] - found[-1][order[-1]] if found else nan,
            }  # fmt: skip
            column.update({f"{word}_{k}": told[k] for k in kinds})

        for owner in ("session_id", "user_id"):
            word, age = f"{owner}_item_id", "steps" if len(order) > 1 else "since"
            all_ = before(lambda e, o=owner, now=now: e[o] == now[o])
            about = [e for e in all_ if not pd.isna(e["item_id"])]
            for line, column in zip(lines, columns, strict=True):
                own = [e for e in about if e["item_id"] == line["item_id"]]
                ages(own, word, column, kinds=("count", "since", "since_first", *(["steps"] if age == "steps" else [])))
                for k in KINDS[:2]:
                    ages([e for e in own if e["kind"] == k], f"{word}_{k}", column)
                column[f"{word}_share"] = len(own) / len(all_) if all_ else nan
                column[f"{word}_is_last"] = about[-1]["item_id"] == line["item_id"] if about else False
                ages(all_, owner, column, kinds=("count", "since", "since_first"))
                for k in KINDS:
                    ages([e for e in all_ if e["kind"] == k], f"{owner}_{k}", column)
                column[f"{owner}_pace"] = column[f"{owner}_since_first"] / len(all_) if all_ else nan
            age_of = [c[f"{word}_{age}"] for c in columns]
            place = [i if a == a else nan for i, a in enumerate(age_of)]
            recent = sorted((a, i) for i, a in enumerate(age_of) if a == a)
            last = [recent[n][1] if len(recent) > n else nan for n in range(3)]
            stats = {"min": over(place, min), "max": over(place, max), "mean": over(place, np.mean)}
            for i, (line, column) in enumerate(zip(lines, columns, strict=True)):
                column[f"rank_{word}_{age}__list"] = 1 + sum(a < age_of[i] for a in age_of) if place[i] == i else nan
                column[f"{owner}_place_touched"] = place[i]
                column[f"count_{owner}_place_touched__list"] = len(recent)
                for s, v in stats.items():
                    column[f"{s}_{owner}_place_touched__list"], column[f"{owner}_place_from_{s}"] = v, i - v
                for n in range(3):
                    column[f"{owner}_place_from_last{n + 1}"] = i - last[n]
                column[f"{owner}_place_from_above"] = i - over(place[:i], max)
                column[f"{owner}_place_from_below"] = i - over(place[i + 1 :], min)
                touched = over([p["price"] for p, a in zip(lines, age_of, strict=True) if a == a], np.mean)
                for w, v in (("last", lines[last[0]]["price"] if recent else nan), ("touched", touched)):
                    column[f"price_minus_{owner}_{w}"] = line["price"] - v
                    column[f"price_over_{owner}_{w}"] = line["price"] / v if v else nan
        for line, column in zip(lines, columns, strict=True):
            own = before(lambda e, i=line["item_id"]: not pd.isna(e["item_id"]) and e["item_id"] == i, order[:1])
            column["item_id_count"] = len(own)
            for k in KINDS[:2]:
                column[f"item_id_{k}_count"] = n = sum(e["kind"] == k for e in own)
                column[f"item_id_{k}_share"] = n / len(own) if own else nan
        made += columns
    return pd.DataFrame(made, dtype="float64")


@pytest.mark.parametrize("order", [["ts"], ["ts", "step"]])
def test_features_are_those_of_plain_loops(order):
    features = features_of(order)
    made, expected = features.fit_transform(ROWS, tables={"log": LOG}), loops(ROWS, LOG, order)
    names = set(features.outputs)
    wider = [n for n in expected if n in names or "user_id" not in n]  # of the wider owner events on the item alone
    assert names >= set(wider)
    assert len([n for n in names if "user_id" in n]) >= 10
    for name in sorted(wider):
        np.testing.assert_allclose(made[name].astype("float64"), expected[name], rtol=1e-9, err_msg=name)


@pytest.fixture(scope="module")
def fitted() -> dict[int, tuple[FeatureSet, pd.DataFrame]]:
    """Of one column of order and of two: fitted features, and what they are with the log as it is."""
    made = {len(order): features_of(order).fit(ROWS, tables={"log": LOG}) for order in (["ts"], ["ts", "step"])}
    return {n: (features, features.transform(ROWS, tables={"log": LOG})) for n, features in made.items()}


@given(st.integers(0, ROWS["list"].max()), st.sampled_from(KINDS), st.integers(0, C - 1), st.integers(0, 30))
@settings(max_examples=20, deadline=None)
def test_no_event_of_the_future_moves_a_feature(fitted, which, kind, place, later):
    """Neither a later event of the owner on the item, nor the very click to predict at the list's own moment."""
    rows = ROWS[ROWS["list"] == which]
    planted = rows.iloc[[place]].assign(kind=kind)[LOG.columns]
    planted = planted.assign(ts=planted["ts"] + later, step=planted["step"] + later)
    log = pd.concat([LOG, planted.astype(LOG.dtypes)], ignore_index=True)
    old = ROWS[ROWS["ts"] <= planted["ts"].iloc[0]]
    # of one moment the owner's earlier steps alone are the past
    old = {1: old, 2: old[(old["ts"] < planted["ts"].iloc[0]) | (old["step"] <= planted["step"].iloc[0])]}
    for n, (features, before) in fitted.items():
        after = features.transform(ROWS, tables={"log": log})
        index = old[n].index
        pd.testing.assert_frame_equal(before.loc[index], after.loc[index], check_exact=True)


def test_an_event_of_the_past_moves_features():
    """So the test above would see one."""
    early = ROWS[ROWS["list"] == 3].iloc[[2]].assign(kind="click")[LOG.columns].astype(LOG.dtypes)
    log = pd.concat([LOG, early.assign(ts=early["ts"] - 1, step=-1)], ignore_index=True)
    before, after = (features_of(["ts"]).fit_transform(ROWS, tables={"log": t}) for t in (LOG, log))
    moved = (before != after) & ~(before.isna() & after.isna())
    assert moved.loc[ROWS["list"] == 3].any().sum() > 30


# Which columns are what


def found(tmp_path: Path, log: pd.DataFrame = LOG, rows: pd.DataFrame = ROWS, **asked: object) -> Problem:
    rows.to_parquet(tmp_path / "train.parquet", index=False)
    log.to_parquet(tmp_path / "events.parquet", index=False)
    asked = {"target": "clicked", "group": "list", "item": "item_id", **asked}
    return understand(read_files(tmp_path, "events.parquet"), **asked)


MANY, MANY_LOG = world(60, seed=1)


def test_owner_order_and_kind_are_found(tmp_path):
    made = found(tmp_path, MANY_LOG, MANY)
    log = made.log
    assert (log.table, log.owners, log.order, log.kind) == ("events", ["session_id", "user_id"], ["ts", "step"], "kind")
    assert log.kinds == MANY_LOG["kind"].value_counts().index.tolist()
    assert set(log.of_items) == {"view", "click"}
    (said,) = [d.why for d in made.decisions if d.what == "log"]
    begins = MANY_LOG.groupby("session_id")["ts"].min()
    lists = MANY.drop_duplicates("list")
    assert f"{(lists['session_id'].map(begins) < lists['ts']).mean():.0%} of the lists" in said
    # an owner may be told, and a log have no kinds
    log = found(tmp_path, MANY_LOG.drop(columns=["kind", "step"]), MANY, owner="user_id").log
    assert (log.owners, log.order, log.kind, log.kinds) == (["user_id"], ["ts"], None, [])
    # kinds may be numbers and categories
    numbers = MANY_LOG["kind"].map({k: i for i, k in enumerate(KINDS)}).astype("Int64").where(MANY_LOG.index % 9 > 0)
    for kind in (numbers, MANY_LOG["kind"].astype("category")):
        log = found(tmp_path, MANY_LOG.assign(kind=kind), MANY).log
        assert log.kinds == [str(k) for k in kind.value_counts().index]
    # numbers may be narrower in one of the tables
    more = MANY_LOG.tail(3).assign(user_id=70_000, item_id=80_000, session_id="other")
    rows = MANY.astype({"user_id": "int16", "item_id": "int16"})
    assert found(tmp_path, pd.concat([MANY_LOG, more]), rows).log.owners == ["session_id", "user_id"]
    # a number that counts no steps is no order
    log = MANY_LOG.assign(step=np.random.default_rng(0).integers(0, 9, len(MANY_LOG)))
    assert found(tmp_path, log, MANY).log.order == ["ts"]


def test_events_are_never_joined_as_they_stand(tmp_path):
    """A time, or an owner, that no two events share is a key of any other table, but would bring later events."""
    log = MANY_LOG.drop_duplicates("ts").assign(amount=1.0)
    problem = found(tmp_path, log, MANY)
    assert not [f for family in asked_for(problem) for f in family.features if isinstance(f, JoinTable)]
    problem.log = None
    assert [f for family in asked_for(problem) for f in family.features if isinstance(f, JoinTable)]


@pytest.mark.parametrize(
    ("change", "asked", "said"),
    [
        (lambda f: f.drop(columns="ts"), {}, "share no column of times"),
        (lambda f: f.drop(columns="ts"), {"time": "ts"}, "'ts': the log lacks the candidates' time. There are sess"),
        (lambda f: f.drop(columns="item_id"), {}, "'item_id': the log lacks the candidates' item"),
        (lambda f: f.rename(columns={"item_id": "reference"}), {}, "lacks the candidates' item. Rename 'reference'"),
        (
            lambda f: f.assign(item_id=f["item_id"].astype("string")),
            {},
            "'item_id': the item is of type int64 among the candidates, and .*string in the log. Write the ids",
        ),
        (lambda f: f.assign(item_id=f["item_id"] + 500), {}, "'item_id': no value is in both: 3 among the c"),
        (lambda f: f.drop(columns=["session_id", "user_id"]), {}, "no column says whose the events are. Give"),
        (
            lambda f: f.drop(columns="user_id").assign(session_id="x" + f["session_id"]),
            {},
            "'session_id': no column says whose the events are: it is in both, and no value",
        ),
        (lambda f: f, {"owner": "who"}, "'who': the train rows lack it"),
        (lambda f: f.assign(price=3.0), {"owner": "price"}, "it has several values in a list"),
        (lambda f: f, {"owner": "price"}, "'price': the log lacks the candidates' owner"),
        (lambda f: f.assign(ts=f["ts"] + 5_000), {}, "'ts': no event of a session_id is before its list.*Give"),
        (lambda f: f.assign(ts=f["ts"] * 1_000), {}, "'ts': no event .* Give both one unit: one may be in sec"),
        (lambda f: f.assign(ts=pd.to_datetime(f["ts"], unit="s")), {}, "'ts': the time is of type int64 .*to_datetime"),
        (lambda f: f.assign(ts=f["ts"].where(f.index != 7)), {}, "'ts', row 7: the event has no time"),
    ],
)  # fmt: skip
def test_a_log_that_does_not_fit_is_refused(tmp_path, change, asked, said):
    with pytest.raises((DataError, MissingColumnError), match=said):
        found(tmp_path, change(MANY_LOG), MANY, **asked)


def test_times_of_two_units_or_in_one_list_are_refused(tmp_path):
    rows, log = (t.assign(ts=pd.to_datetime(t["ts"], unit="s").dt.as_unit("us")) for t in (MANY, MANY_LOG))
    assert found(tmp_path, log, rows).log is not None
    said = r"of type timestamp\[us\] among the candidates, and timestamp\[ms\].*dt.as_unit"
    with pytest.raises(DataError, match=said):
        found(tmp_path, log.assign(ts=log["ts"].dt.as_unit("ms")), rows)
    with pytest.raises(DataError, match="several times"):
        found(tmp_path, MANY_LOG, MANY.assign(ts=MANY["ts"] + MANY.index), time="ts")


def test_a_log_elsewhere_and_one_of_no_ranking_are_refused(tmp_path):
    found(tmp_path)
    with pytest.raises(DataError, match=r"owner='user_id' says whose the events of a log are.*Give the log"):
        understand(read_files(tmp_path / "train.parquet"), target="clicked", owner="user_id")
    with pytest.raises(DataError, match="log= is of a ranking, and the task is binary"):
        found(tmp_path, group=None, item=None, task="binary")
    (tmp_path / "more").mkdir()
    (tmp_path / "events.parquet").rename(tmp_path / "more" / "events.parquet")
    said = r"events.parquet': the log is not in the folder of the candidates. Put it there"
    with pytest.raises(MissingFileError, match=said):
        read_files(tmp_path, tmp_path / "more" / "events.parquet")


# The whole


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A folder as ``fit`` leaves it, of candidates and a log, with a quick model."""
    where = tmp_path_factory.mktemp("fit")
    (where / "data").mkdir()
    MANY[MANY["list"] < 150].to_parquet(where / "data" / "train.parquet", index=False)
    MANY[MANY["list"] >= 150].drop(columns="clicked").to_parquet(where / "data" / "test.parquet", index=False)
    MANY_LOG.to_parquet(where / "data" / "log.parquet", index=False)
    asked = {"target": "clicked", "group": "list", "item": "item_id", "log": "log.parquet"}
    made = new_competition(where / "competitions" / "mine", where / "data", seconds=8, **asked)
    recipe = load_competition(made.folder)
    recipe.models = lambda *, bs: [XGBRanker("xgb", rounds=20, max_depth=3)]
    run_competition(recipe, where / "data", where / "run")
    return where


def test_a_log_pays_and_candidates_are_predicted_with_the_one_that_is_given(whole, tmp_path):
    """What was touched last is mostly clicked: a plain loop over recency, and the run, beside chance."""
    text = (whole / "competitions" / "mine" / "competition.py").read_text()
    assert 'table="log"' in text
    assert "# the log log: " in text
    assert max(map(len, text.splitlines())) <= 200
    fitted, rows = Fit(whole), MANY[MANY["list"] >= 150].drop(columns="clicked")
    assert fitted.score > 0.75  # at random: .457
    with_own, without = fitted.predict(rows), fitted.predict(rows, log=MANY_LOG[:0])
    np.testing.assert_array_equal(fitted.predict(rows, log=MANY_LOG), with_own)
    assert np.abs(without - with_own).max() > 0.1
    MANY_LOG.to_csv(tmp_path / "events.csv", index=False)
    np.testing.assert_allclose(fitted.predict(rows, log=tmp_path / "events.csv"), with_own)
    np.testing.assert_array_equal(fitted.predict(rows, form="ranks"), fitted.predict(rows, form="ranks", log=MANY_LOG))
    # The same events again, later than all lists, are no part of what is known.
    future = pd.concat([MANY_LOG, MANY_LOG.assign(ts=MANY_LOG["ts"] + 10_000)], ignore_index=True)
    np.testing.assert_array_equal(fitted.predict(rows, log=future), with_own)


def test_times_of_a_file_and_of_a_frame_may_have_other_units():
    """Parquet has no seconds, CSV has them: exact in the finer unit, and left alone where that cannot hold them."""
    times = pd.to_datetime(["1969-12-31 23:59:59", None, "2026-01-01 00:00:00"])
    tables = [Table.read(pd.DataFrame({"t": times.as_unit(u), "x": [1, 2, 3]})) for u in ("s", "us", "ms")]
    for table in in_one_unit(tables):
        assert table["t"].unit == "us"
        np.testing.assert_array_equal(pd.Series(table["t"].to_arrow().to_pandas()), times)
    far = Table.read(pd.DataFrame({"t": pd.to_datetime(["9999-01-01"]).as_unit("s")}))
    kept, _ = in_one_unit([far, Table.read(pd.DataFrame({"t": times[:1].as_unit("ns")}))])
    assert kept["t"].unit == "s"


def test_files_are_predicted_with_the_log_beside_them(whole, tmp_path):
    for name in ("test", "log"):
        shutil.copy(whole / "data" / f"{name}.parquet", tmp_path)
    made = predict_run(whole / "run", tmp_path, tmp_path / "out.csv")
    assert made.read_bytes() == (whole / "run" / "submission.csv").read_bytes()
    (tmp_path / "log.parquet").unlink()
    with pytest.raises(MissingFileError, match="the run reads a table 'log', which is not there"):
        predict_run(whole / "run", tmp_path, tmp_path / "out.csv")
