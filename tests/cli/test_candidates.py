"""``fastrec candidates``, ``score-candidates``: files, figures and refusals, as a person meets them."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from fastrec.retrieval import make_candidates, score_candidates
from tests.cli.test_cli import invoke
from tests.retrieval.test_given import simulated

LOG = pd.DataFrame({"user": np.repeat(np.arange(30), 5), "item": (np.arange(150) * 7) % 11})
TIMED = LOG.assign(time=np.where(LOG.index == 7, "noon", "2024-01-01"))
BY = ["--user", "user", "--item", "item"]
FEW = [*BY, "--k", 6, "--sources", "next, popular"]


def candidates(folder, log, *options):
    log.to_csv(folder / "log.csv", index=False)
    return invoke("candidates", "--events", folder / "log.csv", "--out", folder / "out", *options)


def scored(folder, lists, log, *options):
    lists.to_csv(folder / "lists.csv", index=False)
    log.to_csv(folder / "log.csv", index=False)
    files = ["--candidates", folder / "lists.csv", "--events", folder / "log.csv", "--out", folder / "out"]
    return invoke("score-candidates", *files, "--user", "who", "--item", "what", "--label", "taken", *options)


def same_files(folder, made):
    for name in ("train", "test"):
        expected, read = getattr(made, name).to_pandas(), pd.read_parquet(folder / "out" / f"{name}.parquet")
        pd.testing.assert_frame_equal(read, expected, check_dtype=False)


def test_a_log_becomes_the_files_of_a_ranking(tmp_path):
    code, said, error = candidates(tmp_path, LOG, *FEW, "--negatives", 3)
    assert (code, error.count("error")) == (0, 0)
    made = make_candidates(LOG, user="user", item="item", k=6, sources=["next", "popular"], negatives=3)
    same_files(tmp_path, made)
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


def test_given_candidates_become_the_files_of_a_ranking(tmp_path):
    lists, log = simulated(0)
    asked = lists[lists["who"].isin(["u22", "u23"])].drop(columns="taken")
    known = lists.drop(asked.index)
    asked.to_csv(tmp_path / "asked.csv", index=False)
    options = ["--kind", "act", "--target", "buy", "--rating", "stars", "--test", tmp_path / "asked.csv", "--hide", 2]
    code, said, error = scored(tmp_path, known, log, *options)
    assert (code, error.count("error")) == (0, 0)
    about = {"kind": "act", "targets": ["buy"], "rating": "stars", "test": asked, "hide": 2}
    made = score_candidates(known, log, user="who", item="what", label="taken", **about)
    same_files(tmp_path, made)
    for row in made.scores.to_arrow().to_pylist():
        assert re.search(rf"{row['score']}\W+{row['mrr']:.4f}", said)
    assert f"train {len(made.train)} candidates of 22 lists and {made.hidden} made by hiding an event" in said
    assert f"test  {len(asked)} candidates" in said
    where = "--task ranking --group list --item what --target taken --weight weight --counted counted"
    assert where in " ".join(said.split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kind", "acts"], "column 'acts'"),
        (["--target", "buy"], "kinds of events were named, and no column of kinds"),
        (["--hide", "-1"], "Invalid value for '--hide'"),
        ([], r"lists.csv', column 'what', row 144"),
    ],
)
def test_wrong_options_and_rows_are_refused(tmp_path, options, words):
    lists, log = simulated(1)
    code, said, error = scored(tmp_path, lists if options else pd.concat([lists, lists[:1]]), log, *options)
    assert code != 0
    assert words in " ".join((said + error).split())
    assert not (tmp_path / "out").exists()
