"""``fastrec candidates``: files, figures and refusals, as a person meets them."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from fastrec.retrieval import make_candidates
from tests.cli.test_cli import invoke

LOG = pd.DataFrame({"user": np.repeat(np.arange(30), 5), "item": (np.arange(150) * 7) % 11})
TIMED = LOG.assign(time=np.where(LOG.index == 7, "noon", "2024-01-01"))
BY = ["--user", "user", "--item", "item"]
FEW = [*BY, "--k", 6, "--sources", "next, popular"]


def candidates(folder, log, *options):
    log.to_csv(folder / "log.csv", index=False)
    return invoke("candidates", "--events", folder / "log.csv", "--out", folder / "out", *options)


def test_a_log_becomes_the_files_of_a_ranking(tmp_path):
    code, said, error = candidates(tmp_path, LOG, *FEW, "--negatives", 3)
    assert (code, error.count("error")) == (0, 0)
    made = make_candidates(LOG, user="user", item="item", k=6, sources=["next", "popular"], negatives=3)
    for name in ("train", "test"):
        expected, read = getattr(made, name).to_pandas(), pd.read_parquet(tmp_path / "out" / f"{name}.parquet")
        pd.testing.assert_frame_equal(read, expected, check_dtype=False)
    for row in made.recall.to_arrow().to_pylist():
        figures = rf"{row['recall']:.4f}\W+{row['gain']:.4f}\W+{row['candidates']:.0f}\b"
        assert re.search(rf"{row['source']}\W+{figures}", said)
    count = made.train.to_pandas()["user"].nunique()
    assert f"{len(made.train)} candidates of {count} of 30 groups: {made.found:.1%} have a positive" in said
    assert "no item" not in said + error
    assert f"test  {len(made.test)} candidates of 30 groups" in said
    assert "0.0% of positives are repeats: a group's own items are no candidates" in said
    assert "--task ranking --group user --item item --target label" in said


def test_events_without_an_item_are_counted(tmp_path):
    code, said, error = candidates(tmp_path, LOG.assign(item=LOG["item"].where(LOG.index % 50 != 7)), *FEW)
    assert (code, "3 events have no item, and are left out" in said + error) == (0, True)


def test_a_column_of_kinds_is_named(tmp_path):
    log = LOG.assign(what=np.where(LOG.index % 3 == 0, "skip", "play"), note=[f"n{i}" for i in LOG.index])
    log["device"] = np.where(LOG["user"] % 2, "desk", "phone")  # one for a user: no kind of an event
    code, out, error = candidates(tmp_path, log, *FEW)
    assert code == 0
    said = [line for line in (out + error).splitlines() if line.startswith("column")]
    options = "--kind what --target play"
    assert said == [f"column 'what' has the values play, skip: give {options} if only some are to be predicted"]
    code, out, error = candidates(tmp_path, log, *FEW, "--kind", "what", "--target", "play", "--target", "skip")
    assert (code, "column 'what'" in out + error) == (0, False)


@pytest.mark.parametrize(
    ("log", "options", "words"),
    [
        (LOG, ["--user", "user", "--item", "thing"], "log.csv', column 'thing'"),
        (LOG[:0], BY, "log.csv', column 'item': the log has no event. Give"),
        (LOG, ["--item", "item"], "error: a group is a user or a session. Name one"),
        (TIMED, [*BY, "--time", "time"], "log.csv', column 'time', row 7: 'noon' is no time. Write"),
        (LOG.assign(time="04:49"), [*BY, "--time", "time"], "column 'time', row 0: '04:49:00' is no time. W"),
        (LOG.assign(user=LOG["user"].where(LOG.index != 7)), BY, "log.csv', column 'user', row 7: a row belongs to no"),
        (LOG.drop_duplicates("user"), BY, "log.csv', column 'user': no 'user' has two"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(tmp_path, log, options, words):
    code, _, error = candidates(tmp_path, log, *options)
    assert code == 1
    assert words in error
    assert len([line for line in error.splitlines() if line.startswith("error")]) == 1
    assert not (tmp_path / "out").exists()
