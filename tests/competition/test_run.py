"""A run from files to a run directory: complete, repeatable, all or nothing."""

import importlib
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


def test_the_same_seed_gives_the_same_bytes_in_the_place_of_an_earlier_run(made, data, tmp_path):
    shutil.copytree(made, tmp_path / "again")
    (tmp_path / "again" / "submission.csv").write_text("of another seed")
    again = quiet_run(Tiny(), data, tmp_path / "again", seed=3, bs=500)
    assert [p.name for p in tmp_path.iterdir()] == ["again"]
    assert (again / "submission.csv").read_bytes() == (made / "submission.csv").read_bytes()
    assert scores_of(again)["oof"] == scores_of(made)["oof"]
    for part in ("test/net.parquet", "oof/xgb.parquet"):
        assert pq.read_table(again / part).equals(pq.read_table(made / part))


@pytest.fixture
def kept(made, tmp_path):
    """A copy of a finished run, which must stay as it is when a later one does not come to its end."""
    out = shutil.copytree(made, tmp_path / "kept")
    before = contents(out)
    yield out
    assert contents(out) == before
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]  # no half run beside it


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
    recipe = Tiny()
    recipe.models = lambda bs: [XGBRanker("xgb", rounds=rounds, max_depth=4)]
    recipe.stack = lambda: Stack(rounds=2)
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
