"""A run from files to a run directory: complete, repeatable, all or nothing."""

import importlib
import json
import resource
import shutil
import subprocess
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from competitions.trivago2019.competition import EVENT, ORDER, Trivago2019
from competitions.trivago2019.data import CLICK, ITEM_ACTIONS
from competitions.trivago2019.simulate import simulate
from fastrec._core import atomic as leftovers
from fastrec._core.progress import Stages
from fastrec.competition import check_submission, run_competition, run_files, score_submission
from fastrec.competition.run import check_run_folder
from fastrec.competition.table_run import check_candidates
from fastrec.errors import DataError, DataWarning, WriteError
from fastrec.estimators import NetRanker, XGBRanker
from fastrec.features import FeatureSet
from fastrec.stacking import Stack
from features import clickstream, price
from tests.files import scores_of

MODELS = ["display_order", "recency", "net", "xgb", "stack"]


class Tiny(Trivago2019):
    """The recipe with a few of its features, one epoch and a few trees."""

    plain = ("position", "is_last")
    categories = ("touch_last_action_type", "session_touch_last_action_type", "device")

    def features(self):
        keys = {"session": "session_id", "item": "item_id"}
        made = [clickstream.touches(**keys, **EVENT, order=ORDER, kinds=ITEM_ACTIONS)]
        made += [clickstream.clicks(**keys, **EVENT, order=ORDER, click=CLICK)]
        made += [price.in_list(group="list_id", price="price", position="position")]
        return FeatureSet(made, key=self.fold_key)

    def models(self, *, bs):
        return [NetRanker("net", layers=[8], epochs=1, bs=bs), XGBRanker("xgb", rounds=5, max_depth=2)]

    def stack(self):
        return Stack(rounds=5)


def quiet_run(recipe, data, out, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return run_competition(recipe, data, out, device="cpu", stages=Stages(quiet=True), **options)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("competition") / "data"
    simulate(150, folder, seed=2)
    return folder


@pytest.fixture(scope="module")
def made(data, tmp_path_factory):
    return quiet_run(Tiny(), data, tmp_path_factory.mktemp("runs") / "first", seed=3, bs=500, command="the command")


@pytest.fixture(scope="module")
def found(data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return Tiny().load(data, rows=None, device=torch.device("cpu"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# ---------------------------------------------------------------------------------------------------- what a run holds


def test_the_run_directory_is_complete(made):
    names = {"config.json", "curves.json", "features", "importance.json", "lists.parquet", "models", "oof", "stack"}
    names |= {"decision.json", "folds.parquet", "permutation.json", "sample.parquet", "sample_labelled.parquet"}
    assert {p.name for p in made.iterdir()} == names | {"report.html", "scores.json", "submission.csv", "test"}
    for split in ("oof", "test"):
        assert sorted(p.stem for p in (made / split).iterdir()) == sorted(MODELS)
    for name in set(MODELS) - {"stack"}:
        assert sorted(p.name for p in (made / "models" / name).iterdir()) == [f"fold{k}" for k in range(5)]
    page = (made / "report.html").read_text()
    assert "<html" in page
    assert f"Run {made.name} " in page
    assert ".part" not in page
    kinds = {p.suffix for p in made.rglob("*") if p.is_file()}
    assert kinds == {".json", ".parquet", ".csv", ".html", ".safetensors", ".ubj"}  # and no pickle


def test_config_tells_how_it_was_made(made, data):
    config = json.loads((made / "config.json").read_text())
    assert config["competition"] == Trivago2019.name
    wanted = {"seed": 3, "bs": 500, "device": "cpu", "data": data.name, "command": "the command", "folds": 5}
    assert {n: config[n] for n in wanted} == wanted
    assert config["versions"]["torch"] == torch.__version__
    assert config["git_revision"] == run_files.git_revision(Tiny)
    assert {"position", "is_last", "device", "touch_steps", "price_over_mean"} <= set(config["features"])


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_the_revision_is_that_of_the_recipes_repository(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))  # a repository around it is none of its own
    (tmp_path / "recipe_of_mine.py").write_text("class Recipe: ...")
    monkeypatch.syspath_prepend(tmp_path)
    recipe = importlib.import_module("recipe_of_mine").Recipe
    assert run_files.git_revision(recipe) is None  # no repository holds it
    git = ["git", "-C", tmp_path, "-c", "user.name=me", "-c", "user.email=me@example.com"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    whole = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    revision = run_files.git_revision(recipe)
    assert len(revision) >= 7
    assert whole.startswith(revision)


def test_scores_have_the_documented_form_and_are_the_official_ones(made, data):
    scores = scores_of(made)
    assert scores["metric"] == "mrr"
    assert list(scores["models"]) == list(scores["oof"]) == MODELS
    assert all(0 < v <= 1 for part in ("models", "oof") for v in scores[part].values())
    assert 0 < scores["oracle"] <= 1
    assert set(scores["seconds"]) == {"read", "features", "models", "stack", "permutation", "write"}
    assert set(scores["stack_tried"]) >= {"xgb_ranker", "blend"}
    assert scores["oof"]["stack"] == pytest.approx(max(scores["stack_tried"].values()), abs=1e-12)
    assert check_submission(made / "submission.csv", data / "test.csv").warnings == ()
    official = score_submission(made / "submission.csv", data / "ground_truth.csv")
    assert scores["models"]["stack"] == pytest.approx(official.value, abs=1e-12)
    lists = pq.read_table(made / "lists.parquet").to_pandas().query("split == 'test'")
    assert sorted(lists.rr_stack) == pytest.approx(sorted(official.per_row.reciprocal_rank), abs=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_out_of_fold_scores_give_the_reported_figure(made, found, model):
    """By a plain loop over the written scores: last clicks only, ties by place in the list."""
    lists: dict[int, list] = {}
    for row in pq.read_table(made / "oof" / f"{model}.parquet").to_pylist():
        lists.setdefault(row["list_id"], []).append(row)
    last = dict(zip(found.train["list_id"].integer().tolist(), found.train["is_last"].integer().tolist()))
    assert list(lists) == list(last)
    gains = []
    for number, rows in lists.items():
        assert len({row["fold"] for row in rows}) == 1
        ranked = sorted(rows, key=lambda row: -row["score"])
        if last[number]:
            gains.append(next((1 / (k + 1) for k, row in enumerate(ranked) if row["clicked"]), 0.0))
    assert len(gains) < len(lists)  # earlier clicks of a session are not counted
    folds = pq.read_table(made / "oof" / f"{model}.parquet").to_pandas()["fold"]
    session = found.train["session_id"].to_arrow().to_pandas()
    assert folds.groupby(session).nunique().max() == 1  # each session is in one fold
    assert sorted(folds.unique()) == [0, 1, 2, 3, 4]
    assert scores_of(made)["oof"][model] == pytest.approx(sum(gains) / len(gains), abs=1e-12)


# ---------------------------------------------------------------------------------------------------------- repeating


def test_the_same_seed_gives_the_same_bytes_in_the_place_of_an_earlier_run(made, data, tmp_path):
    shutil.copytree(made, tmp_path / "again")
    (tmp_path / "again" / "submission.csv").write_text("of another seed")
    again = quiet_run(Tiny(), data, tmp_path / "again", seed=3, bs=500)
    assert [p.name for p in tmp_path.iterdir()] == ["again"]
    assert (again / "submission.csv").read_bytes() == (made / "submission.csv").read_bytes()
    assert scores_of(again)["oof"] == scores_of(made)["oof"]
    for part in ("test/net.parquet", "oof/xgb.parquet"):
        assert pq.read_table(again / part).equals(pq.read_table(made / part))


def test_without_an_answer_no_test_score_is_given(data, tmp_path):
    for name in ("train.csv", "test.csv"):
        (tmp_path / name).symlink_to(data / name)
    out = quiet_run(Tiny(), tmp_path, tmp_path / "out", rows=800)
    scores = scores_of(out)
    assert (scores["models"], scores["oracle"]) == ({}, None)
    assert list(scores["oof"]) == MODELS
    assert len(check_submission(out / "submission.csv", data / "test.csv").warnings) == 0
    assert json.loads((out / "config.json").read_text())["rows"] == 800
    lists = pq.read_table(out / "lists.parquet").to_pandas().query("split == 'test'")
    assert lists.rr_stack.isna().all()


# ------------------------------------------------------------------------------------------------------ all or nothing


@pytest.fixture
def kept(made, tmp_path):
    """A copy of a finished run, which must stay as it is when a later one does not come to its end."""
    out = shutil.copytree(made, tmp_path / "kept")
    before = contents(out)
    yield out
    assert contents(out) == before
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]  # no half run beside it


class Cheap(Tiny):
    """Trees alone; what goes wrong, goes wrong where ``breaks`` says."""

    breaks = None

    def models(self, *, bs):
        return [Breaking(self.breaks)]

    def stack(self):
        return Stack(rounds=2)


class Breaking(XGBRanker):
    def __init__(self, breaks) -> None:
        super().__init__("xgb", rounds=2, max_depth=2)
        self.breaks = breaks

    def settings(self):
        return {"breaks": None}  # an exception is no JSON value

    def fit(self, *args, **options):
        if self.breaks and self.breaks[0] == "fit":
            raise self.breaks[1]
        return super().fit(*args, **options)

    def save(self, folder):
        super().save(folder)
        if self.breaks and self.breaks[0] == "save":
            raise self.breaks[1]


@pytest.mark.parametrize(
    ("where", "error"), [("fit", RuntimeError("broken")), ("save", KeyboardInterrupt())], ids=["error", "Ctrl-C"]
)
def test_a_run_that_breaks_off_leaves_nothing(where, error, data, kept):
    recipe = Cheap()
    recipe.breaks = (where, error)
    with pytest.raises(type(error)):
        quiet_run(recipe, data, kept)


@contextmanager
def disk_with_room_for(size: int):
    """No file can grow above ``size`` bytes: what a full disk looks like to who writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(("rounds", "size"), [(2, 3_000), (60, 20_000)])  # many: trees larger than all other files
def test_a_full_disk_leaves_the_earlier_run(rounds, size, data, kept):
    recipe = Cheap()
    recipe.models = lambda bs: [XGBRanker("xgb", rounds=rounds, max_depth=4)]
    with disk_with_room_for(size), pytest.raises(WriteError, match="could not be written") as caught:
        quiet_run(recipe, data, kept)
    assert str(kept) in str(caught.value)
    assert "untouched" in str(caught.value)


def test_a_place_that_holds_something_else_or_cannot_be_written_to_is_refused_at_once(data, tmp_path):
    with leftovers.alone_at(tmp_path / "run"), pytest.raises(WriteError, match="another process is writing here"):
        quiet_run(Tiny(), data, tmp_path / "run")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="something that is not a run"):
        quiet_run(Tiny(), data, tmp_path)
    with pytest.raises(DataError, match="a file, not a run directory"):
        quiet_run(Tiny(), data, tmp_path / "notes.txt")
    with pytest.raises(WriteError, match="not a folder to write to"):
        check_run_folder(tmp_path / "notes.txt" / "run")
    check_run_folder(tmp_path / "new" / "deep" / "run")
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_test_lists_that_cannot_be_submitted_are_refused_before_training(found):
    check_candidates(Tiny(), found)
    row = int((found.test["list_id"].integer()[1:] == found.test["list_id"].integer()[:-1]).nonzero()[0]) + 1
    rows = torch.arange(len(found.test))
    rows[row] = row - 1
    with pytest.raises(DataError, match="twice") as caught:
        check_candidates(Tiny(), replace(found, test=found.test.take(rows)))
    assert (caught.value.column, caught.value.row) == ("item_id", row)
    with pytest.raises(DataError, match="targets"):
        check_candidates(Tiny(), replace(found, targets=found.targets.take(torch.arange(3))))


def test_too_few_sessions_are_refused(data, tmp_path):
    for name in ("train.csv", "test.csv"):
        lines = (data / name).read_text().splitlines(keepends=True)
        (tmp_path / name).write_text("".join([lines[0], *[s for s in lines[1:] if CLICK in s][-2:]]))
    with pytest.raises(DataError, match=r"fold \d of 5 has no row|nothing to rank"):
        quiet_run(Cheap(), tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
