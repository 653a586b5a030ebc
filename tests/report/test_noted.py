"""Leaderboard scores noted beside runs: kept whole, listed, drawn over the runs of a folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fastrec._core.digests import file_digest
from fastrec.competition import list_runs
from fastrec.errors import DataError, DataWarning, MissingFileError, UnreadableFileError
from fastrec.report import note_leaderboard, write_report
from fastrec.report.data import noted_runs, noted_score

TITLE = "Out of fold and on the leaderboard"


def make_run(folder: Path, oof: float, *, competition: str = "a", metric: str = "auc") -> Path:
    folder.mkdir(parents=True)
    scores = {"metric": metric, "task": "binary", "models": {}, "oof": {"stack": oof, "one": oof - 0.01}}
    (folder / "scores.json").write_text(json.dumps(scores))
    (folder / "config.json").write_text(json.dumps({"competition": competition}))
    (folder / "submission.csv").write_text(f"id,p\n1,{oof}\n")
    return folder


def test_a_score_is_noted_with_its_submission_and_replaced(tmp_path):
    run = make_run(tmp_path / "one", 0.8)
    assert noted_score(run) is None
    path = note_leaderboard(run, 0.7)
    note_leaderboard(run, 0.79)
    assert noted_score(run) == 0.79
    assert json.loads(path.read_text())["submission"] == file_digest(run / "submission.csv")
    assert [p.name for p in run.iterdir() if "leaderboard" in p.name] == ["leaderboard.json"]


def test_what_is_no_score_or_no_run_is_refused(tmp_path):
    run = make_run(tmp_path / "one", 0.8)
    with pytest.raises(DataError, match="nan is no score"):
        note_leaderboard(run, float("nan"))
    with pytest.raises(MissingFileError, match=r"scores\.json"):
        note_leaderboard(tmp_path, 0.5)
    (run / "leaderboard.json").write_text("{}")
    with pytest.raises(UnreadableFileError, match="fastrec lb RUN SCORE"):
        noted_score(run)


def test_runs_are_listed_with_their_noted_scores(tmp_path):
    first, second = make_run(tmp_path / "one", 0.8), make_run(tmp_path / "two", 0.9)
    note_leaderboard(first, 0.75)
    found = {r.name: r.leaderboard for r in list_runs(tmp_path)}
    assert found == {"one": 0.75, "two": None}
    assert [r.name for r in noted_runs(second)] == ["one"]


def test_only_runs_of_one_competition_and_metric_are_beside_each_other(tmp_path):
    runs = [
        make_run(tmp_path / "a1", 0.8),
        make_run(tmp_path / "a2", 0.7),
        make_run(tmp_path / "b", 0.9, competition="b"),
        make_run(tmp_path / "c", 0.9, metric="logloss"),
    ]
    for i, run in enumerate(runs):
        note_leaderboard(run, 0.5 + i / 10)
    (tmp_path / "no run").mkdir()
    (tmp_path / "no run" / "leaderboard.json").write_text("{}")
    assert [(r.name, r.oof, r.leaderboard) for r in noted_runs(runs[0])] == [("a2", 0.7, 0.6), ("a1", 0.8, 0.5)]


def test_the_report_draws_them_from_two_on(tmp_path):
    runs = [make_run(tmp_path / f"run{i}", 0.8 + i / 100) for i in range(3)]
    note_leaderboard(runs[0], 0.78)
    assert TITLE not in write_report(runs[0]).read_text()
    note_leaderboard(runs[1], 0.80)
    note_leaderboard(runs[2], 0.77)
    page = write_report(runs[0]).read_text()
    section = page[page.index(TITLE) :]
    assert "3 runs of this folder" in section
    # 0 to 1 rises on both, 0 to 2 and 1 to 2 fall on the leaderboard
    assert "Of 3 pairs of runs both put 1 in the same order" in section
    assert "between −0.0500 and −0.0100" in section
    svg = re.search(r"<svg.*?</svg>", section, flags=re.S).group()
    dots = re.findall(r"<circle[^>]*>", svg)
    assert len(dots) == 3
    across = [float(re.search(r'cx="([\d.]+)"', d).group(1)) for d in dots]
    up = [float(re.search(r'cy="([\d.]+)"', d).group(1)) for d in dots]
    assert across == sorted(across)
    assert up[1] < up[0] < up[2]  # .80 is drawn above .78, and .78 above .77
    assert ["--c0" in d for d in dots] == [True, False, False]  # the page's own run


def test_another_runs_damage_costs_no_report(tmp_path):
    runs = [make_run(tmp_path / f"run{i}", 0.8 + i / 100) for i in range(3)]
    for run in runs:
        note_leaderboard(run, 0.7)
    (runs[2] / "leaderboard.json").write_text("{")
    with pytest.warns(DataWarning, match="run2"):
        page = write_report(runs[0]).read_text()
    assert "2 runs of this folder" in page
