"""A next-item run's directory: predicted from, gone on with after a kill, listed, compared; its submission checked."""

import json
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from fastrec.cli import app
from fastrec.competition import (
    NextItemCompetition,
    SubmissionForm,
    check_submission,
    compare_runs,
    list_runs,
    predict_run,
    run_competition,
    score_submission,
)
from fastrec.competition.forms.lists import write_items
from fastrec.competition.predict import write_layout
from fastrec.competition.run import load_competition
from fastrec.errors import (
    DataError,
    DataWarning,
    MissingColumnError,
    MissingFileError,
    SubmissionError,
    UnreadableFileError,
)
from fastrec.sequences import CoVisitation, NextItemNet, PopularItems
from fastrec.table import Vocab
from tests.files import scores_of

# some sessions hold no item that the model knows
pytestmark = pytest.mark.filterwarnings("ignore:no item of")

IDS = [f"é{i}" for i in range(40)]


class Walks(NextItemCompetition):
    name, k, minutes = "Walks", 5, 3.0

    def models(self, *, bs):
        return {"net": NextItemNet(width=8, tokens=256, epochs=2), "near": CoVisitation(), "popular": PopularItems()}


class Near(Walks):
    def models(self, *, bs):
        return {"near": CoVisitation(before=0.0)}


class Events(Walks):
    items, session, order, k = "what", "who", "when", 3

    def models(self, *, bs):
        return {"near": CoVisitation(before=0.0)}


def walks(n: int, seed: int) -> list[list[str]]:
    draws = np.random.default_rng(seed)
    starts, lengths, steps = draws.integers(40, size=n), draws.integers(2, 9, size=n), draws.integers(1, 3, size=n)
    return [[IDS[(s + i * step) % 40] for i in range(m)] for s, m, step in zip(starts, lengths, steps)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("walks")
    pd.DataFrame({"items": walks(400, 0)}).to_parquet(folder / "train.parquet")
    test = walks(60, 1)
    items = [w[:-1] if i != 3 else [] for i, w in enumerate(test)]
    pd.DataFrame({"items": items, "target": [w[-1] for w in test]}).to_parquet(folder / "test.parquet")
    return folder


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    return run_competition(Walks(), data, tmp_path_factory.mktemp("runs") / "walks", resume=True)


@pytest.fixture(scope="module")
def near(data, run):
    return run_competition(Near(), data, run.parent / "near")


def test_predictions_of_the_run_directory_are_its_submission(run, data, tmp_path):
    moved = shutil.copytree(run, tmp_path / "moved")
    made = predict_run(moved, data, tmp_path / "again.csv")
    assert made.read_bytes() == (run / "submission.csv").read_bytes()
    test = pd.read_parquet(data / "test.parquet").iloc[10:20]
    test[["items"]].to_parquet(tmp_path / "some.parquet")
    some = predict_run(moved, tmp_path / "some.parquet", tmp_path / "some.csv")
    assert some.read_text().split("\n")[1:] == [*(run / "submission.csv").read_text().split("\n")[11:21], ""]


def test_what_cannot_be_predicted_is_named(run, data, tmp_path):
    with pytest.raises(MissingFileError, match=r"test\.parquet"):
        predict_run(run, tmp_path, tmp_path / "p.csv")
    odd = shutil.copytree(run, tmp_path / "odd")
    config = json.loads((odd / "config.json").read_text())
    (odd / "config.json").write_text(json.dumps({**config, "submission": {"sep": 5}}))
    with pytest.raises(UnreadableFileError, match="settings"):
        predict_run(odd, data, tmp_path / "p.csv")
    (tmp_path / "test.parquet").write_bytes(b"")
    with pytest.raises(UnreadableFileError, match=r"test\.parquet"):
        predict_run(run, tmp_path, tmp_path / "p.csv")
    with pytest.raises(DataError, match="no_such_module"):
        predict_run(run, data, tmp_path / "p.csv", trust=["no_such_module"])
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize("command", [["try", "--on", "RUN", "--drop", "items"], ["select", "RUN"]])
def test_ideas_are_tried_on_runs_over_a_table_alone(run, command):
    done = CliRunner().invoke(app, [str(run) if word == "RUN" else word for word in command])
    assert done.exit_code == 1
    assert "it is no run over a table" in done.output


def test_a_log_is_read_by_the_run_as_by_the_recipe(tmp_path):
    rows = [(f"s{s % 60}", 2**60 + (s % 60 + i) % 9, i) for i in (3, 1, 2, 0) for s in range(60)]
    log = pd.DataFrame(rows, columns=["who", "what", "when"])
    log.to_csv(tmp_path / "train.csv", index=False)
    known = log[log["when"] < 3]
    known.assign(target=[2**60 + (int(w[1:]) + 3) % 9 for w in known["who"]]).to_csv(tmp_path / "test.csv", index=False)
    made = run_competition(Events(), tmp_path, tmp_path / "run")
    again = predict_run(made, tmp_path / "test.csv", tmp_path / "again.csv")
    assert again.read_bytes() == (made / "submission.csv").read_bytes()
    form = Events().submission
    said = score_submission(made / "submission.csv", tmp_path / "test.csv", form)
    assert said.others["hr@3"] == pytest.approx(scores_of(made)["hr@3"])
    assert said.others["hr@3"] > 0.9
    truth = pd.read_csv(tmp_path / "test.csv").groupby("who")["target"].first().rename("what").reset_index()
    truth.sample(frac=1.0, random_state=0).to_csv(tmp_path / "answers.csv", index=False)
    named = score_submission(made / "submission.csv", tmp_path / "answers.csv", form)
    assert named.lines() == said.lines()
    with pytest.raises(MissingColumnError, match=r"train.csv.*'target'.*names no item that followed.*'who', 'what'"):
        score_submission(made / "submission.csv", tmp_path / "train.csv", form)
    assert str(check_submission(made / "submission.csv", tmp_path / "test.csv", form)).endswith("ok 60 rows, 180 ids")
    lines = (made / "submission.csv").read_text().splitlines()
    (tmp_path / "other.csv").write_text("\n".join([lines[0], *lines[:0:-1]]) + "\n")
    other = check_submission(tmp_path / "other.csv", tmp_path / "test.csv", form)
    assert other.warnings == ("the sessions are in another order than in test.csv",)
    who, what = lines[1].split(",")
    turned = f"{who},{' '.join(what.split(' ')[::-1])}"
    (tmp_path / "other.csv").write_text("\n".join([lines[0], *lines[:1:-1], turned]) + "\n")
    ranks = score_submission(tmp_path / "other.csv", tmp_path / "test.csv", form).per_row["rank"]
    assert ranks.tolist() == [3, *said.per_row["rank"].tolist()[1:]]
    assert said.per_row["rank"][0] == 1
    for wrong, problem in (([*lines, lines[1]], "stands in an earlier row"), (lines[:-1], "has no row here")):
        (tmp_path / "other.csv").write_text("\n".join(wrong) + "\n")
        with pytest.raises(SubmissionError, match=problem):
            check_submission(tmp_path / "other.csv", tmp_path / "test.csv", form)


def test_check_and_score_know_the_form(run, data):
    command = CliRunner()
    said = command.invoke(app, ["check", str(run / "submission.csv"), str(data / "test.parquet")])
    assert said.output.splitlines()[-1] == "ok 60 rows, 300 ids"
    said = command.invoke(app, ["score", str(run / "submission.csv"), str(data / "test.parquet")])
    scores = scores_of(run)
    assert said.output.splitlines()[-1] == f"mrr@5 {scores['mrr@5']:.5f}"
    assert f"ndcg@5 {scores['ndcg@5']:.5f}" in said.output
    assert f"hr@5 {scores['hr@5']:.5f}" in said.output


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: t.replace("items", "answer", 1), "column 'items'"),
        (lambda t: t + "a b\n", "it has 61 rows, test.parquet has 60"),
        (lambda t: t.replace(t.split("\n")[5], "a b c d e f"), "row 4: the list has 6 ids, more than 5"),
    ],
)
def test_a_wrong_submission_is_refused(run, data, tmp_path, change, problem):
    (tmp_path / "wrong.csv").write_text(change((run / "submission.csv").read_text()))
    for look in (check_submission, score_submission):
        with pytest.raises((SubmissionError, MissingColumnError), match=problem) as error:  # as of any lists
            look(tmp_path / "wrong.csv", data / "test.parquet", Walks().submission)
        assert "wrong.csv" in str(error.value)


def test_short_lists_are_warned_of_and_an_empty_one_is_written_as_a_line(tmp_path):
    form = SubmissionForm(items="items", max_items=3, candidates=None, answer="target")
    best = torch.tensor([[1, 2, 0], [0, 0, 0], [2, 1, 0]])
    write_items(form, tmp_path / "s.csv", Vocab(pa.array(["x", "=y"])), best)
    assert pd.read_csv(tmp_path / "s.csv", keep_default_na=False)["items"].tolist() == ["x =y", "", "=y x"]
    write_items(form, tmp_path / "s.csv", Vocab(pa.array(["x", "=y"])), best[[0, 2]])
    pd.DataFrame({"items": [["x"], ["x"]], "target": ["=y", None]}).to_parquet(tmp_path / "t.parquet")
    short = check_submission(tmp_path / "s.csv", tmp_path / "t.parquet", form)
    assert short.warnings == ("2 lists have fewer than 3 ids",)
    with pytest.raises(DataError, match=r"row 1: no answer"):
        score_submission(tmp_path / "s.csv", tmp_path / "t.parquet", form)
    form = SubmissionForm(ids=("session",), items="items", candidates=None, answer="target")
    pd.DataFrame({"session": ["a", "b"], "items": ["x", "y"]}).to_csv(tmp_path / "s.csv", index=False)
    for session, row in (
        (["a", "a", "b"], "'target', row 2: no answer"),  # the truth has several rows of a session
        (["a", "b", None], "'session', row 2: a row"),
    ):
        pd.DataFrame({"session": session, "target": ["x", "y", None]}).to_parquet(tmp_path / "t.parquet")
        with pytest.raises(DataError, match=row):
            score_submission(tmp_path / "s.csv", tmp_path / "t.parquet", form)


def test_runs_are_listed_and_compared(run, near):
    listed = {r.name: r for r in list_runs(run.parent)}
    scores = scores_of(run)
    assert listed["walks"].metric == "mrr@5"
    assert listed["walks"].score == scores["oof"]["blend"]
    assert listed["near"].interval[0] < listed["near"].score < listed["near"].interval[1]
    all_, *by = compare_runs(run, near, by="length")
    held = pq.read_table(near / "next_items.parquet").to_pandas().query("split == 'oof'")
    assert all_.rows == len(held) == sum(c.rows for c in by)
    assert all_.b == pytest.approx(held["rr_near"].mean()) == listed["near"].score
    assert all_.a == pytest.approx(listed["walks"].score)
    alone = compare_runs(run, near, model="near")[0]
    assert alone.a == pytest.approx(scores["oof"]["near"])
    tested = pq.read_table(run / "next_items.parquet").to_pandas().query("split == 'test'")
    assert tested["rr_blend"].mean() == pytest.approx(scores["mrr@5"])
    assert tested["target"].tolist() == [w[-1] for w in walks(60, 1)]


def test_finished_parts_are_used_again(run, data, monkeypatch):
    before = {f: (run / f).read_bytes() for f in ("submission.csv", "next_items.parquet")}
    fits = []
    for kind in (NextItemNet, CoVisitation, PopularItems):
        monkeypatch.setattr(kind, "_fit", lambda self, *a, **k: fits.append(type(self)))
    run_competition(Walks(), data, run, resume=True)
    assert fits == []
    assert scores_of(run)["reused"] == 4  # weights, and each model on all sessions
    for name, content in before.items():
        assert (run / name).read_bytes() == content


def test_a_damaged_part_and_other_settings_are_made_anew(data, tmp_path):
    def fitted(recipe, **options):
        return scores_of(run_competition(recipe, data, tmp_path / "run", resume=True, **options))["reused"]

    assert fitted(Near()) == 0
    assert fitted(Near()) == 2
    assert fitted(Near(), seed=1) == 0
    assert fitted(Near(), seed=1, rows=300) == 0
    for place in (tmp_path / ".run.parts").glob("model-CoVisitation-*"):
        (place / "state" / "state.safetensors").write_bytes(b"odd")
    with pytest.warns(DataWarning, match="cannot be read"):
        assert fitted(Near(), seed=1, rows=300) == 1


def test_a_layout_of_other_files_can_be_predicted(tmp_path):
    recipe = load_competition("competitions/movielens")
    lines_of = {"train_input": "1 2 3\n2 3 4 1\n", "test_input": "1 2 3\n2 3 4 1\n", "test_output": "4\n5\n"}
    for name, text in lines_of.items():
        (tmp_path / f"gsasrec_{name}.txt").write_text(text)
    train, _ = recipe.read(tmp_path, None)
    assert train.decode(train.values).to_pylist() == [1, 2, 3, 2, 3, 4, 1]
    (made,) = write_layout(recipe, tmp_path, tmp_path / "layout")
    found = pd.read_parquet(made)
    assert [list(v) for v in found["items"]] == [[1, 2, 3], [2, 3, 4, 1]]
    assert found["target"].iloc[0] == 4
    assert pd.isna(found["target"].iloc[1])  # nobody saw it
    assert write_layout(recipe, tmp_path, tmp_path / "layout") == [made]  # an earlier layout is replaced
    before = sorted(tmp_path.rglob("*"))
    for out in (tmp_path, tmp_path / "gsasrec_test_output.txt"):
        with pytest.raises(DataError, match="would be replaced whole"):
            write_layout(recipe, tmp_path, out)
    assert sorted(tmp_path.rglob("*")) == before
