"""``fastrec score-candidates``: files, figures and refusals, as a person meets them."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from fastrec.retrieval import score_candidates
from tests.cli.test_cli import invoke
from tests.retrieval.test_given import simulated

BY = ["--user", "who", "--item", "what", "--label", "taken"]


def scored(folder, lists, log, *options):
    lists.to_csv(folder / "lists.csv", index=False)
    log.to_csv(folder / "log.csv", index=False)
    files = ["--candidates", folder / "lists.csv", "--events", folder / "log.csv", "--out", folder / "out"]
    return invoke("score-candidates", *files, *BY, *options)


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
    for name in ("train", "test"):
        expected, read = getattr(made, name).to_pandas(), pd.read_parquet(tmp_path / "out" / f"{name}.parquet")
        pd.testing.assert_frame_equal(read, expected, check_dtype=False)
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
    ],
)
def test_wrong_options_are_refused(tmp_path, options, words):
    code, said, error = scored(tmp_path, *simulated(1), *options)
    assert code != 0
    assert words in " ".join((said + error).split())
    assert not (tmp_path / "out").exists()


def test_wrong_rows_are_named_by_their_file(tmp_path):
    lists, log = simulated(2)
    code, said, error = scored(tmp_path, pd.concat([lists, lists[:1]]), log)
    assert code == 1
    assert "lists.csv" in said + error
    assert "row 144" in said + error
