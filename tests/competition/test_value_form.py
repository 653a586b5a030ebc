"""Submissions with a line per row: written, read, checked and scored, against files worked by hand."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, f1_score

from fastrec.competition import SubmissionForm, check_submission, score_submission
from fastrec.competition.scoring import Decision, Scorer
from fastrec.competition.submit import submission_values, write_submission_of
from fastrec.errors import DataError, FastrecError, MissingColumnError, SubmissionError
from fastrec.metrics import get_metric
from fastrec.table import Table
from fastrec.validate import Lists, Rows, Target

FORM = SubmissionForm(ids=("id",), values=("p",))


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_what_is_written_is_what_a_person_would_write(tmp_path):
    FORM.write(tmp_path / "s.csv", {"id": ["007", "a,b"], "x": [1, 2]}, {"p": [0.25, 1e-9]})
    assert (tmp_path / "s.csv").read_text() == 'id,p\n007,0.25\n"a,b",1e-09\n'
    form = SubmissionForm(ids=("u", "i"), values=("s",), sep="\t", decimals=3)
    form.write(tmp_path / "s.tsv", {"u": [1, 1], "i": ["x", "y"]}, {"s": torch.tensor([0.12345, 2.0])})
    assert (tmp_path / "s.tsv").read_text() == "u\ti\ts\n1\tx\t0.123\n1\ty\t2.000\n"
    FORM.write(tmp_path / "s.csv", {"id": np.zeros(0)}, {"p": np.zeros(0)})  # no rows, whatever the type of their ids
    assert (tmp_path / "s.csv").read_text() == "id,p\n"


def test_times_are_ids_too(tmp_path):
    days = pd.to_datetime(["2015-07-31", "2015-08-01"])
    FORM.write(tmp_path / "d.csv", {"id": days.to_numpy()}, {"p": [0.5, 1.0]})
    assert (tmp_path / "d.csv").read_text() == "id,p\n2015-07-31,0.5\n2015-08-01,1.0\n"
    for unit in ("s", "us", "ns"):
        FORM.write(tmp_path / "s.csv", {"id": (days + pd.Timedelta("90s")).as_unit(unit).to_numpy()}, {"p": [0.5, 1.0]})
        assert (tmp_path / "s.csv").read_text().splitlines()[1] == "2015-07-31 00:01:30,0.5"
    with pytest.raises(DataError, match="column 'id', row 1: an id is a moment with a fraction of a second"):
        FORM.write(tmp_path / "s.csv", {"id": (days + pd.to_timedelta([0, 1.5], "s")).to_numpy()}, {"p": [0.5, 1.0]})


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
@settings(max_examples=30, deadline=None)
def test_numbers_come_back_to_the_bit(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("form") / "s.csv"
    ids = [f"r{i}" for i in range(len(values))]
    FORM.write(path, {"id": ids}, {"p": values})
    table = FORM.read(path)
    assert FORM.numbers(table, "p", path).tolist() == values
    assert table["id"].to_pylist() == ids


@pytest.mark.parametrize(
    ("values", "message"),
    [({"p": [0.1, None]}, "a value is missing"), ({"p": [0.1, np.inf]}, "not finite"), ({}, "nothing was predicted")],
)
def test_no_value_is_written_that_no_competition_takes(tmp_path, values, message):
    with pytest.raises(FastrecError, match=message):
        FORM.write(tmp_path / "s.csv", {"id": ["a", "b"]}, values)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "ids", "form"),
    [
        ("id,target\n1,0\n", None, SubmissionForm(ids=("id",), values=("target",))),
        ("id;A;B\n1;0;0\n", None, SubmissionForm(ids=("id",), values=("A", "B"), sep=";")),
        ("u\ti\tscore\n1\t2\t0\n", ["u", "i"], SubmissionForm(ids=("u", "i"), values=("score",), sep="\t")),
        ("target\n0\n", None, SubmissionForm(values=("target",))),
    ],
)
def test_a_sample_says_the_form(tmp_path, text, ids, form):
    path = write(tmp_path / "sample_submission.csv", text)
    assert SubmissionForm.of_sample(path, ids=ids) == form
    with pytest.raises(MissingColumnError) as caught:
        SubmissionForm.of_sample(path, ids="nowhere")
    assert caught.value.column == "nowhere"


@pytest.mark.parametrize(
    ("text", "message", "row"),
    [
        ("id,q\na,1\nb,2\n", "the header is id,q", None),
        ("id,p\na,1\nb,2\nc,3\n", "id c is no row of sample.csv", 2),
        ("id,p\na,0.5\nb,nan\n", "'nan' is no finite number", 1),
        ("id,p\na,0.5\nb,x\n", "'x' is no finite number", 1),
    ],
)
def test_check_names_what_is_wrong(tmp_path, text, message, row):
    sample = write(tmp_path / "sample.csv", "id,p\na,0\nb,0\n")
    with pytest.raises(SubmissionError, match=message) as caught:
        check_submission(write(tmp_path / "s.csv", text), sample, FORM)
    assert caught.value.row == row


def test_check_passes_what_is_right_and_tells_of_another_order(tmp_path):
    sample = write(tmp_path / "sample.csv", "id,p\na,0\nb,0\n")
    assert str(check_submission(write(tmp_path / "s.csv", "id,p\na,1\nb,2\n"), sample, FORM)) == "ok 2 rows, 2 ids"
    other = check_submission(write(tmp_path / "o.csv", "id,p\nb,1\na,2\n"), sample, FORM)
    assert "another order" in other.warnings[0]
    strict = SubmissionForm(ids=("id",), values=("p",), probabilities=True)
    with pytest.raises(SubmissionError, match="'2' is no probability"):
        check_submission(tmp_path / "s.csv", sample, strict)

    truth = write(tmp_path / "truth.csv", "id,p\na,Y\nb,N\nc,Y\nd,N\n")
    target = Target.fit(pd.read_csv(truth), "p")

    def scored(metric, text):
        return score_submission(write(tmp_path / "s.csv", text), truth, FORM, metric=metric, target=target)

    score = scored("auc", "id,p\nd,0.8\nc,0.9\nb,0.1\na,0.3\n")
    assert score.value == 0.75  # of the four pairs (a b) (a d) (c b) (c d) one, a and d, is wrong
    assert score.lines()[-1] == "auc 0.75000"
    assert scored("auc", "id,p\nd, 0.8\nc, 0.9\nb, 0.1\na, 0.3\n").value == 0.75
    assert scored("accuracy", "id,p\na,Y\nb,N\nc,N\nd,N\n").value == 0.75
    with pytest.raises(SubmissionError, match="'Z' is no class"):
        scored("accuracy", "id,p\na,Y\nb,Z\nc,N\nd,N\n")
    with pytest.raises(SubmissionError, match=r"'' is no finite number") as caught:
        scored("auc", "id,p\na,0.9\nb,0.1\nc,\nd,0.3\n")
    assert caught.value.row == 2
    with pytest.raises(SubmissionError, match="'y' is no class"):
        scored("auc", "id,p\na,y\nb,n\nc,y\nd,n\n")
    assert check_submission(tmp_path / "s.csv", truth, FORM, metric="accuracy").warnings == ()
    told = check_submission(tmp_path / "s.csv", truth, FORM, metric="auc").warnings
    assert told == ("column 'p' holds classes, such as 'y', and auc needs a number for each row",)
    write(tmp_path / "one.csv", "id,p\na,Y\nb,Y\n")
    made = write(tmp_path / "s.csv", "id,p\na,0.2\nb,0.1\n")
    with pytest.raises(DataError, match=r"one\.csv', column 'p': auc is undefined on these rows"):
        score_submission(made, tmp_path / "one.csv", FORM, metric="auc", target=target)
    for text, column in (("id,q\na,Y\nb,N\n", "p"), ("id,p\na,Y\nb,Z\n", "p"), ("k,p\na,Y\nb,N\n", "id")):
        write(truth, text)
        with pytest.raises(FastrecError) as error:
            scored("auc", "id,p\na,0.8\nb,0.1\n")
        assert (error.value.file, error.value.column) == (str(truth), column)


@pytest.mark.parametrize("metric", ["logloss", "auc"])
@pytest.mark.parametrize(
    ("classes", "predicted", "truth", "remedy"),
    [
        ("bird cat dog", "dog cat cat bird", "dog cat bird bird", r"Form\(ids=\('id',\), values=\('bird', 'cat'"),
        ("1 2 3", "3 2 2 1", "3 2 1 1", r"values=\('1', '2', '3'\)"),
        ("no yes", "yes no no no", "yes yes no no", "the probability of 'yes' in the column 'k'"),
        ("1 2", "2 1 1 1", "2 2 1 1", "the probability of '2' in the column 'k'"),
    ],
)
def test_classes_are_scored_by_accuracy_if_the_metric_needs_probabilities(
    tmp_path, classes, predicted, truth, remedy, metric
):
    task = "binary" if len(classes.split()) == 2 else "multiclass"
    write(tmp_path / "train.csv", "k\n" + "\n".join(classes.split()))
    target = Target.fit(pd.read_csv(tmp_path / "train.csv"), "k", task)
    made, known = tmp_path / "made.csv", tmp_path / "truth.csv"
    for path, values in ((made, predicted), (known, truth)):
        write(path, "id,k\n" + "".join(f"{i},{v}\n" for i, v in zip("abcd", values.split(), strict=True)))
    score = score_submission(made, known, SubmissionForm(ids="id", values="k"), metric=metric, target=target)
    assert (score.metric, score.value) == ("accuracy", 0.75)
    assert score.others == {
        "balanced_accuracy": pytest.approx(balanced_accuracy_score(truth.split(), predicted.split())),
        "f1_macro": pytest.approx(f1_score(truth.split(), predicted.split(), average="macro")),
    }
    assert re.search(f"the submission holds classes, and {metric} needs probabilities; .*{remedy}", str(score))
    assert score.lines()[-1] == "accuracy 0.75000"


def test_scores_of_several_classes_by_their_names(tmp_path):
    truth = write(tmp_path / "truth.csv", "id,k\na,2\nb,1\nc,3\n")
    target = Target.fit(pd.read_csv(truth), "k", "multiclass")
    form = SubmissionForm(ids="id", values=("Class_3", "Class_1", "Class_2"))
    made = write(tmp_path / "s.csv", "id,Class_3,Class_1,Class_2\na,0.1,0.2,0.7\nb,0.3,0.6,0.1\nc,0.5,0.25,0.25\n")
    score = score_submission(made, truth, form, metric="logloss", target=target)
    assert score.value == pytest.approx(-np.log([0.7, 0.6, 0.5]).mean())


LISTS = SubmissionForm(ids=("u", "i"), values=("s",))


def some_lists(folder: Path) -> tuple[Path, pd.DataFrame]:
    """A submission of 30 lists, and every candidate's label in another order: as people keep it."""
    rng = np.random.default_rng(3)
    rows = pd.DataFrame({"u": np.repeat(np.arange(30), 5), "i": np.tile(list("abcde"), 30), "s": rng.permutation(150)})
    rows["clicked"] = (rng.integers(0, 5, 30)[:, None] == np.arange(5)).ravel().astype(int)
    rows[["u", "i", "s"]].to_csv(folder / "s.csv", index=False)
    return folder / "s.csv", rows.sample(frac=1.0, random_state=0)


def mean_reciprocal_rank(rows: pd.DataFrame) -> float:
    place = rows.groupby("u")["s"].rank(ascending=False)
    return float((1 / place[rows["clicked"] == 1]).mean())


@pytest.mark.parametrize("kind", [int, float, bool])
@pytest.mark.parametrize("label", ["clicked", "taken", None])
def test_lists_are_scored_by_the_label_of_the_truth(tmp_path, kind, label):
    made, rows = some_lists(tmp_path)
    for name in ("truth.csv", "truth.parquet"):
        truth = rows.astype({"clicked": kind})[["u", "i", "clicked"]]
        truth.to_csv(tmp_path / name, index=False) if name.endswith("csv") else truth.to_parquet(tmp_path / name)
        score = score_submission(made, tmp_path / name, LISTS, metric="mrr", target=None, label=label)
        assert score.value == pytest.approx(mean_reciprocal_rank(rows))
        assert score.lines() == ["rows 150", "relevant: clicked above 0", f"mrr {score.value:.5f}"]
    rows[rows["clicked"] == 1][["u", "i"]].to_csv(tmp_path / "pairs.csv", index=False)
    pairs = score_submission(made, tmp_path / "pairs.csv", LISTS, metric="mrr", target=None, label=label)
    assert (pairs.value, pairs.lines()[1]) == (score.value, "relevant: every line of the truth")


def test_lines_without_a_partner_are_counted(tmp_path):
    made, rows = some_lists(tmp_path)
    known = rows[rows["u"] < 24]
    alone = int(((known["i"] == "b") & (known["clicked"] == 0)).sum())
    lists = "6 of 30 lists of the submission are not in the truth, and do not count"
    lines = f"{alone} lines of the submission are not in the truth, and count as irrelevant"
    more = "7 lines of the truth are not in the submission: relevant ones count as not found"
    for truth, said in (
        (known, [lists]),
        (known[(known["i"] != "b") | (known["clicked"] == 1)], [lists, lines]),
        (pd.concat([rows, rows[:7].assign(i="z", clicked=0)]), [more]),
        (known[known["clicked"] == 1].drop(columns="clicked"), [lists]),
    ):
        truth.drop(columns="s").to_csv(tmp_path / "truth.csv", index=False)
        score = score_submission(made, tmp_path / "truth.csv", LISTS, metric="mrr", target=None, label="clicked")
        assert score.value == pytest.approx(mean_reciprocal_rank(rows[rows["u"].isin(truth["u"])]))
        assert score.lines()[1:-2] == [f"unmatched: {s}" for s in said]
    rows.assign(u=rows["u"] + 100).drop(columns="s").to_csv(tmp_path / "truth.csv", index=False)
    with pytest.raises(SubmissionError, match=r"u 1\d\d has no line \(150 such in all\)"):
        score_submission(made, tmp_path / "truth.csv", LISTS, metric="mrr", target=None, label="clicked")


def test_a_truth_that_tells_no_line_from_another_is_refused(tmp_path):
    made, rows = some_lists(tmp_path)
    path = tmp_path / "truth.csv"
    for truth, message in (
        (rows.assign(clicked=0), "no line of the submission is relevant"),
        (rows.assign(clicked=1), "every line of the submission is relevant"),
        (rows.drop(columns="clicked"), "every line of the submission is relevant"),
        (rows.assign(clicked=["x", *rows["clicked"][1:]]), "'x' is no label"),
        (rows.assign(clicked=[None, *rows["clicked"][1:]]), "'' is no label"),
        (pd.concat([rows, rows[:1]]), "stands in an earlier row too"),
    ):
        truth.drop(columns="s").to_csv(path, index=False)
        with pytest.raises(DataError, match=message) as caught:
            score_submission(made, path, LISTS, metric="mrr", target=None, label="clicked")
        assert caught.value.file == str(path)


@pytest.mark.parametrize(
    ("frame", "task", "prediction", "form", "made"),
    [
        (["N", "Y"], None, [0.2, 0.9], ("p",), {"p": [0.2, 0.9]}),
        (["N", "Y"], None, [0.25, 0.5], ("N", "Y"), {"N": [0.75, 0.5], "Y": [0.25, 0.5]}),
        (["a", "b", "c"], None, [[0.1, 0.2, 0.7]], ("k",), {"k": ["c"]}),
        ([1, 2, 3], "multiclass", [[0.1, 0.2, 0.7]], ("C_3", "C_1", "C_2"), {"C_3": [0.7], "C_1": [0.1], "C_2": [0.2]}),
        ([1.5, 2.5], None, [3.5], ("y",), {"y": [3.5]}),
    ],
)
def test_values_of_every_task(frame, task, prediction, form, made):
    target = Target.fit(pd.DataFrame({"t": frame}), "t", task)
    values = submission_values(SubmissionForm(values=form), target, torch.tensor(prediction).double(), Decision())
    got = {n: (v.to_pylist() if hasattr(v, "to_pylist") else np.round(v, 6).tolist()) for n, v in values.items()}
    assert got == made
    abc = Target.fit(pd.DataFrame({"t": ["a", "b", "c"]}), "t")
    with pytest.raises(DataError, match="2 value columns, 3 values"):
        submission_values(SubmissionForm(values=("x", "y")), abc, torch.ones(1, 3).double(), Decision())


def test_classes_are_made_by_thresholds_learned_out_of_fold():
    label = torch.tensor([0.0, 0, 0, 0, 1, 1])
    oof = torch.tensor([0.1, 0.05, 0.12, 0.2, 0.3, 0.4]).double()  # no row is above .5: F1 would be 0
    target = Target.fit(pd.DataFrame({"t": ["N", "Y"]}), "t")
    scorer = Scorer(get_metric("f1"), target)
    decision = Decision.learn(scorer, label, oof)
    assert 0.2 <= decision.threshold < 0.3
    values = submission_values(SubmissionForm(values=("t",)), target, oof, decision)
    assert values["t"].to_pylist() == ["N", "N", "N", "N", "Y", "Y"]
    rows = Rows(Table({"x": label}), "binary", label=label)
    assert scorer(rows, oof) == 0.0
    assert scorer(rows, oof, decision=decision) == 1.0
    assert scorer(rows, oof, folds=torch.tensor([0, 1, 0, 1, 0, 1])) > 0.6
    assert Decision.learn(Scorer(get_metric("auc"), target), label, oof) == Decision()


def test_lists_are_written_best_first_and_cut(tmp_path):
    table = Table({"u": torch.tensor([1, 1, 1, 2, 2]), "i": torch.tensor([7, 8, 9, 7, 9])})
    rows = Lists(table, table["u"].integer())
    form = SubmissionForm(ids=("u", "i"), values=("score",), sep="\t", max_items=2, decimals=1)
    scores = torch.tensor([0.1, 0.9, 0.5, 0.3, 0.4]).double()
    options = {"target": None, "decision": Decision(), "keys": table, "item": "i"}
    write_submission_of(tmp_path / "s.tsv", rows, scores, form=form, **options)
    assert (tmp_path / "s.tsv").read_text() == "u\ti\tscore\n1\t8\t0.9\n1\t9\t0.5\n2\t9\t0.4\n2\t7\t0.3\n"
