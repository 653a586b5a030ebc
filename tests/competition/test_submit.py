"""Submissions: bytes written, every way to fail the check, and the official score worked by hand."""

import csv
import os
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from fastrec._core import limits
from fastrec.competition import SubmissionForm, check_submission, score_submission, write_submission
from fastrec.errors import (
    DataError,
    FastrecError,
    MissingColumnError,
    MissingFileError,
    SubmissionError,
    UnreadableFileError,
)

ROOT = Path(__file__).resolve().parents[2]
HEADER = "user_id,session_id,timestamp,step,item_recommendations"
TEST = """user_id,session_id,timestamp,step,action_type,reference,platform,city,impressions,prices
u1,s1,100,1,interaction item image,5,UK,"Paisley, United Kingdom",,
u1,s1,110,2,clickout item,7,UK,"Paisley, United Kingdom",7|8,10|20
u1,s1,120,3,clickout item,,UK,"Paisley, United Kingdom",5|6|7,10|20|30
u2,s2,130,1,search for item,,UK,Oslo,,
u2,s2,140,2,clickout item,,UK,Oslo,9|8,5|6
007,s3,150,1,clickout item,,DE,Köln,4,1
"""
TRUTH = """user_id,session_id,timestamp,step,reference,impressions
u1,s1,120,3,6,5|6|7
u2,s2,140,2,9,9|8
007,s3,150,1,4,4
"""
GOOD = ["u1,s1,120,3,7 5 6", "u2,s2,140,2,9 8", "007,s3,150,1,4"]


@pytest.fixture
def files(tmp_path):
    """Write a submission beside the small test file and ground truth; returns the three paths."""

    def write(rows=GOOD, *, header=HEADER, test=TEST, truth=TRUTH):
        paths = [tmp_path / name for name in ("submission.csv", "test.csv", "ground_truth.csv")]
        for path, text in zip(paths, ("\n".join([header, *rows, ""]), test, truth)):
            path.write_text(text, encoding="utf-8")
        return paths

    return write


KEYS = {"user_id": ["u1", "u2", "007"], "session_id": ["s1", "s2", "s3"]}
KEYS |= {"timestamp": [120, 140, 150], "step": [3, 2, 1]}
LISTS = ["7 5 6", "9 8", "4"]


@pytest.mark.parametrize(
    "frame", [dict, pd.DataFrame, pl.DataFrame, pa.table, lambda keys: pd.DataFrame(keys).astype(str)]
)
@pytest.mark.parametrize(
    "lists",
    [
        LISTS,
        pa.array(LISTS, pa.large_string()),
        pd.Series(LISTS, index=[5, 1, 2]),
        pl.Series(LISTS),
        np.array(LISTS, object),
        [[7, 5, 6], [9, 8], [4]],
        [["7", "5", "6"], ["9", "8"], ["4"]],
        pa.array([[7, 5, 6], [9, 8], [4]], pa.large_list(pa.int32())),
    ],
)
def test_written_bytes(tmp_path, frame, lists, monkeypatch):
    monkeypatch.setattr(limits, "CSV_ROWS", 2)  # rows are written in blocks
    path = tmp_path / "deep" / "submission.csv"
    write_submission(path, frame({"other": [1.5, 2.5, 3.5], **KEYS}), lists)
    assert path.read_bytes() == ("\n".join([HEADER, *GOOD]) + "\n").encode()
    assert os.listdir(path.parent) == ["submission.csv"]


def test_only_values_that_need_quotes_get_them(tmp_path):
    path = tmp_path / "s.csv"
    users = ["a,b", 'say "hi"', "two\nlines", "Köln", " plain ", "lone\rreturn"]
    form = SubmissionForm(ids=("user",), items="items", item_sep=";", max_items=2)
    write_submission(path, {"user": users}, ["1;2"] * 6, form)
    quoted = ['"a,b"', '"say ""hi"""', '"two\nlines"', "Köln", " plain ", '"lone\rreturn"']
    assert path.read_bytes().decode() == "user,items\n" + "".join(f"{user},1;2\n" for user in quoted)
    truth = tmp_path / "t.csv"
    pd.DataFrame({"user": users, "reference": 2}).to_csv(truth, index=False, quoting=csv.QUOTE_ALL)
    assert score_submission(path, truth, form).value == 1 / 2


@pytest.mark.parametrize(
    ("change", "lists", "error", "words"),
    [
        ({"step": None}, LISTS, MissingColumnError, "column 'step'"),
        ({"step": [1.0, 2.0, 3.0]}, LISTS, DataError, "column 'step': ids are double"),
        ({"step": [1, None, 3]}, LISTS, DataError, "column 'step', row 1: an id is missing"),
        ({}, LISTS[:2], DataError, "lengths differ"),
        ({}, ["1", None, "2"], DataError, "row 1: a list, or an id in it, is missing"),
        ({}, [[1], [2, None], [3]], DataError, "row 1: a list, or an id in it, is missing"),
        ({}, [[1.5], [2.5], [3.5]], DataError, "ids are double"),
        ({}, [["1 2"], ["2"], ["3"]], DataError, "an id holds ' '"),
        ({}, [1, 2, 3], DataError, "lists are int64"),
        ({}, ["1", "", "3"], SubmissionError, "row 1: the list is empty"),
        ({}, [[1], [], [3]], SubmissionError, "row 1: the list is empty"),
        ({}, ["1", "2", "3 3"], SubmissionError, "row 2: id '3' is listed twice"),
        ({}, ["1", " ".join(map(str, range(26))), "3"], SubmissionError, "row 1: the list has 26 ids, more than 25"),
        (
            {name: [values[0]] * 3 for name, values in KEYS.items()},
            LISTS,
            SubmissionError,
            "row 1: user_id u1, session_id s1, timestamp 120, step 3 stands in an earlier row too .2 such rows in all",
        ),
    ],
)
def test_a_submission_that_would_fail_is_not_written(tmp_path, change, lists, error, words):
    path = tmp_path / "s.csv"
    path.write_text("before")
    keys = {name: values for name, values in {**KEYS, **change}.items() if values is not None}
    with pytest.raises(error, match=words):
        write_submission(path, keys, lists)
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["s.csv"]


LEFT_OUT = "warning: 3 impressions in 2 rows are not listed: an answer among them scores 0"


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        (GOOD, ["ok 3 rows, 6 ids"]),
        (GOOD[::-1], ["ok 3 rows, 6 ids"]),
        (["u1,s1,120,3,6", "u2,s2,140,2,8", "007,s3,150,1,4"], [LEFT_OUT, "ok 3 rows, 3 ids"]),
    ],
)
def test_good_rows_pass_in_any_order_and_left_out_candidates_are_a_warning(files, rows, lines):
    submission, test, _ = files(rows)
    report = check_submission(submission, test)
    assert (report.rows, len(report.warnings), report.lines()) == (3, len(lines) - 1, lines)


KEY_COLUMNS = "user_id, session_id, timestamp, step"
LONG = " ".join(map(str, range(26)))


@pytest.mark.parametrize(
    ("rows", "row", "column", "words"),
    [
        (GOOD[:2], None, KEY_COLUMNS, "row 5 of test.csv has no row here: user_id 007, .*step 1 .1 missing in all"),
        ([], None, KEY_COLUMNS, "row 2 of test.csv has no row here: user_id u1, .*3 missing in all"),
        ([*GOOD, "u1,s1,110,2,7 8"], 3, KEY_COLUMNS, "timestamp 110, step 2 is not a target of test.csv"),
        ([*GOOD[:2], "7,s3,150,1,4"], 2, KEY_COLUMNS, "user_id 7, .* is not a target"),
        (["u1,s1,120.0,3,7", *GOOD[1:]], 0, KEY_COLUMNS, "timestamp 120.0, step 3 is not a target"),
        ([*GOOD, GOOD[0], GOOD[1]], 3, KEY_COLUMNS, "user_id u1.* stands in an earlier row too .2 such rows in all"),
        ([*GOOD[:2], f"007,s3,150,1,{LONG}"], 2, "item_recommendations", "26 ids, more than 25"),
        ([GOOD[0], "u2,s2,140,2,9 8 9", GOOD[2]], 1, "item_recommendations", "id '9' is listed twice"),
        ([GOOD[0], "u2,s2,140,2,9 7", "007,s3,150,1,3"], 1, "item_recommendations", "id '7' is not among .*2 such"),
        ([GOOD[0], "u2,s2,140,2,09 8", GOOD[2]], 1, "item_recommendations", "id '09' is not among the impressions"),
        ([GOOD[0], "u2,s2,140,2,", "007,s3,150,1,"], 1, "item_recommendations", "the list is empty .2 such"),
        ([GOOD[0], "u2,s2,140,2,9  8", GOOD[2]], 1, "item_recommendations", "the list holds an empty id"),
        ([GOOD[0], "u2,s2,140,2,9 8 ", GOOD[2]], 1, "item_recommendations", "the list holds an empty id"),
        ([GOOD[0], "u2,s2,140,2,9|8", GOOD[2]], 1, "item_recommendations", "id '9|8' is not among"),
    ],
)
def test_every_way_to_fail_names_file_column_row_and_remedy(files, rows, row, column, words):
    submission, test, truth = files(rows)
    with pytest.raises(SubmissionError, match=words) as caught:
        check_submission(submission, test)
    error = caught.value
    assert (error.file, error.column, error.row) == (str(submission), column, row)
    assert error.remedy
    if column == KEY_COLUMNS:  # another set of rows is not scored
        with pytest.raises(SubmissionError, match=r"has no row here|is not a target|stands in an earlier row"):
            score_submission(submission, truth)


def test_columns_in_another_order_are_refused_by_the_check_alone(files):
    submission, test, truth = files([f"{row},1" for row in GOOD], header=f"{HEADER},more")
    for column in ("more", None):
        with pytest.raises(SubmissionError, match=r"the header is .*Write exactly user_id,session_id") as caught:
            check_submission(submission, test)
        assert caught.value.column == column
        assert score_submission(submission, truth).value == pytest.approx((1 / 3 + 1 + 1) / 3)
        frame = pd.read_csv(submission, dtype=str).drop(columns="more", errors="ignore")
        frame[frame.columns[::-1]].to_csv(submission, index=False, lineterminator="\r\n")


@pytest.mark.parametrize("which", ["submission", "test", "truth"])
@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (None, MissingFileError, "there is no such file"),
        (b"", UnreadableFileError, "the file is empty"),
        ("folder", UnreadableFileError, "it is not a file"),
        (b"user_id,session_id,timestamp\n1,2,3\n", MissingColumnError, "column 'step': the column is not in the file"),
        (b"user_id,user_id\n1,2\n", UnreadableFileError, "column 'user_id': the column stands twice"),
        (b"user_id,session_id\n1,2,3\n", UnreadableFileError, "it cannot be read as CSV"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\xff\xfe", FastrecError, "submission.csv|test.csv|ground_truth.csv"),
    ],
)
def test_bad_files_are_named(files, which, content, error, words):
    paths = dict(zip(("submission", "test", "truth"), files()))
    path = paths[which]
    if content is None or content == "folder":
        path.unlink()
        if content:
            path.mkdir()
    else:
        path.write_bytes(content)
    use, other = (score_submission, "truth") if which == "truth" else (check_submission, "test")
    with pytest.raises(error, match=words) as caught:
        use(paths["submission"], paths[other])
    assert caught.value.file == str(path)
    assert caught.value.remedy


TWICE = r"row \d: user_id u\d, .* stands in an earlier row too"


@pytest.mark.parametrize(
    ("which", "text", "words"),
    [
        ("test", "\n".join([*TEST.splitlines()[:3], ""]), "no row with action_type 'clickout item' and reference ''"),
        ("test", TEST + TEST.splitlines()[5] + "\n", TWICE),
        ("truth", TRUTH.splitlines()[0] + "\n", "a header and no rows"),
        ("truth", TRUTH.replace("2,9,9|8", "2,,9|8"), "column 'reference', row 1: no answer"),
        ("truth", TRUTH + TRUTH.splitlines()[1] + "\n", TWICE),
    ],
)
def test_a_test_file_or_truth_without_rows_or_with_one_twice_is_named(files, which, text, words):
    submission, test, truth = files(**{which: text})
    with pytest.raises(DataError, match=words) as caught:
        check_submission(submission, test) if which == "test" else score_submission(submission, truth)
    assert caught.value.file == str(test if which == "test" else truth)


@pytest.mark.parametrize(
    ("rows", "ranks"),
    [
        (GOOD, [3, 1, 1]),
        (GOOD[::-1], [3, 1, 1]),
        (["u1,s1,120,3,5 6 7", "u2,s2,140,2,8 9", "007,s3,150,1,4"], [2, 2, 1]),
        (["u1,s1,120,3,5 7", "u2,s2,140,2,8 9", "007,s3,150,1,4"], [0, 2, 1]),  # the answer is missing
        (["u1,s1,120,3,6 5 6", "u2,s2,140,2,8 9", "007,s3,150,1,4"], [0, 2, 1]),  # listed twice
        (["u1,s1,120,3,5 5 6", "u2,s2,140,2,", "007,s3,150,1,04"], [3, 0, 0]),  # another id twice; empty; not the id
    ],
)
def test_official_rule_by_hand(files, rows, ranks):
    submission, _, truth = files(rows)
    report = score_submission(submission, truth)
    expected = [1 / rank if rank else 0.0 for rank in ranks]
    assert report.value == pytest.approx(sum(expected) / 3)
    assert report.rows == 3
    assert report.per_row["rank"].tolist() == ranks
    assert report.per_row["reciprocal_rank"].tolist() == expected
    assert report.per_row["user_id"].tolist() == ["u1", "u2", "007"]
    assert report.lines()[-1] == f"mrr {sum(expected) / 3:.5f}"
    assert str(report).splitlines()[:3] == ["rows 3", f"first {ranks.count(1)}", f"not_counted {ranks.count(0)}"]


def test_display_order_on_the_real_files(tmp_path):
    data = Path(os.environ.get("FASTREC_DATA", ROOT / ".." / "shared" / "data")) / "trivago2019"
    if not (data / "ground_truth.csv").exists():
        pytest.skip(f"no real files in {data}: set FASTREC_DATA")
    rows = pd.read_csv(data / "test.csv", dtype=str, keep_default_na=False)
    targets = rows[(rows["action_type"] == "clickout item") & (rows["reference"] == "")]
    path = tmp_path / "submission.csv"
    write_submission(path, targets, targets["impressions"].str.split("|"))
    report = check_submission(path, data / "test.csv")
    assert (report.rows, report.warnings) == (len(targets), ())
    score = score_submission(path, data / "ground_truth.csv")
    assert score.value == pytest.approx(0.502, abs=5e-4)


FORMULAS = ["=1+1", "+3", "-4", "@now", '=HYPERLINK("http://x")']


def test_ids_that_look_like_formulas_stay_what_they_are(files, tmp_path):
    quoted = "|".join(FORMULAS).replace('"', '""')
    test = TEST.replace("5|6|7,10|20|30", f'"{quoted}",1|2|3|4|5').replace("u1,s1,120", "=u1,s1,120")
    submission, test_file, _ = files(test=test)
    lists = [" ".join(FORMULAS), *LISTS[1:]]
    write_submission(submission, {**KEYS, "user_id": ["=u1", "u2", "007"]}, lists)
    assert submission.read_text().splitlines()[1].startswith("=u1,s1,120,3,")
    assert check_submission(submission, test_file).lines() == ["ok 3 rows, 8 ids"]
    for changed in ("2", "'=1+1", " =1+1", "\t=1+1"):  # by a spreadsheet, or by one who feared it
        damaged = tmp_path / "damaged.csv"
        damaged.write_text(submission.read_text().replace("=1+1", changed))
        with pytest.raises(SubmissionError):
            check_submission(damaged, test_file)
