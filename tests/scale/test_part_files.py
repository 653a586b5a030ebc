from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

dask = pytest.importorskip("dask")

import fastrec.features as ff  # noqa: E402
from fastrec.features._dask.files import PartFiles, spilled  # noqa: E402
from fastrec.table import Table  # noqa: E402

PARTS = 3


def rows(n, seed):
    """Candidates: lists of four, of users who have several; those of a user are in one part."""
    rng = np.random.default_rng(seed)
    lists = np.arange(n) // 4 + 1000 * seed
    user = lists % 7
    frame = pd.DataFrame({"list_id": lists, "user": [f"u{u}" for u in user], "item": rng.integers(0, 6, n)})
    frame["price"], frame["clicked"] = rng.gamma(2, 50, n).round(), (rng.random(n) < 0.3).astype(float)
    frame["time"], frame["part"] = rng.integers(0, 50, n), user % (PARTS - 1)  # the last part holds no rows
    return frame.sort_values("part", kind="stable").reset_index(drop=True)


def in_files(frame, folder, together):
    folder.mkdir()
    for k in range(PARTS):
        part = frame[frame["part"] == k].drop(columns="part")
        pq.write_table(pa.Table.from_pandas(part, preserve_index=False), folder / f"{k}.parquet")
    return PartFiles(sorted(folder.iterdir()), together)


def features():
    touch = ff.History("user", order="time", table="log", stats=["count", "since"], name="touch")
    pair = ff.History(["user", "item"], order="time", table="log", stats=["count"], name="pair")
    everyone = ff.History("item", order="time", table="log", stats=["count"], name="all")
    return ff.FeatureSet(
        [
            touch, pair, everyone,
            ff.GroupRank("price", by="list_id"),
            ff.GroupRank(everyone, by="list_id"),
            ff.GroupStats("touch_count", by="list_id", over="group", stats=["mean"]),
            ff.GroupStats("price", by="item", stats="mean", scope="all"),
            ff.CountEncode("item", scope="all"),
            ff.TargetEncode("item", "clicked", smooth=2),
            ff.JoinTable("items", on="item", columns="stars"),
        ],
        key="list_id",
    )  # fmt: skip


@pytest.mark.parametrize("spill", [False, True])
def test_what_lies_together_is_not_shuffled_and_the_values_are_those_of_memory(tmp_path, caplog, spill):
    train, test, log = rows(120, 1), rows(60, 2), rows(80, 3)
    items = pd.DataFrame({"item": range(6), "stars": [3.0, 4, 5, 1, 2, 3]})
    here = {"log": log.drop(columns="part"), "items": items}
    whole, parted = features(), features()
    expected = whole.fit_transform(train.drop(columns="part"), tables=here, unlabeled=test.drop(columns="part"))
    new = whole.transform(test.drop(columns="part"), tables=here)
    files = {n: in_files(f, tmp_path / n, ["user", "list_id"]) for n, f in (("train", train), ("test", test))}
    there = {"log": in_files(log, tmp_path / "log", ["user"]), "items": items}
    caplog.set_level(logging.INFO, "fastrec.features")

    def compare(folder=None):
        made = parted.fit_transform(files["train"], tables=there, unlabeled=files["test"])
        assert folder is None or any(folder.iterdir())  # what was shuffled waits there
        same(expected, made, whole.outputs)
        same(new, parted.transform(files["test"], tables=there), whole.outputs)

    if spill:
        with spilled(tmp_path / "waiting") as folder:
            compare(folder)
        assert not any((tmp_path / "waiting").iterdir())
    else:
        with dask.config.set(scheduler="synchronous"):
            compare()
    shuffled = {r.getMessage().split(" for ")[0] for r in caplog.records}
    assert shuffled == {"rows are shuffled by item"}


def same(expected, made, outputs):
    got = pa.concat_tables(dask.compute(*made.to_delayed())).to_pandas()
    assert list(got) == made.columns == list(expected)
    for name in outputs:
        x, y = expected[name].astype("float64").tolist(), got[name].astype("float64").tolist()
        assert y == pytest.approx(x, nan_ok=True, abs=1e-12), name


def test_a_table_whose_part_is_what_the_rows_of_that_part_need(tmp_path):
    train, log = rows(80, 1), rows(80, 3)
    words = pd.DataFrame({"item": range(6), "words": [["a"], ["a", "b"], ["b"], ["c", "a"], ["d"], ["b", "d"]]})
    frame, other = in_files(train, tmp_path / "train", ["user"]), in_files(log, tmp_path / "log", ["user"])
    similar = ff.JaccardToHistory("user", item="item", properties="words", order="time", table="log", items="words")
    expected = similar.fit_transform(train, tables={"log": log, "words": words})
    mine = PartFiles(in_files(words.assign(part=0), tmp_path / "words", []).files[:1] * PARTS, ["user"])
    with dask.config.set(scheduler="synchronous"):
        same(expected.drop(columns="part"), similar.fit_transform(frame, tables={"log": other, "words": mine}),
             similar.outputs)  # fmt: skip


def test_a_log_that_is_parted_otherwise_is_shuffled_with_the_rows(tmp_path, caplog):
    train, log = rows(80, 1), rows(80, 3)
    frame = in_files(train, tmp_path / "train", ["user", "list_id"])
    other = PartFiles(in_files(log, tmp_path / "log", ["user"]).files[:2], ["user"])
    caplog.set_level(logging.INFO, "fastrec.features")
    touch = ff.History("user", order="time", table="log", stats=["count"], name="touch")
    expected = touch.fit_transform(Table.read(train), tables={"log": log})["touch_count"].number().tolist()
    with dask.config.set(scheduler="synchronous"):
        made = touch.fit_transform(frame, tables={"log": other})
        got = pa.concat_tables(dask.compute(*made.to_delayed()))["touch_count"].to_pylist()
    assert got == expected
    assert "rows are shuffled by user for touch_count" in caplog.text
