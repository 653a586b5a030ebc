"""The ``fastrec`` command, and a competition's file as a plain script: as a person meets them."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from fastrec import __version__
from fastrec.cli import app, load_competition
from fastrec.errors import DataError
from tests import fresh

ROOT = Path(__file__).resolve().parents[2]
TRIVAGO = ROOT / "competitions" / "trivago2019"
RECIPE = """
from competitions.trivago2019.competition import EVENT, ORDER, Trivago2019
from competitions.trivago2019.data import ITEM_ACTIONS
from fastrec.features import FeatureSet
from fastrec.estimators import NetRanker, XGBRanker
from fastrec.stacking import Stack
from features import clickstream

class Tiny(Trivago2019):
    name = "Tiny"
    plain = ("position",)
    categories = ("touch_last_action_type", "session_touch_last_action_type")

    def features(self):
        keys = {"session": "session_id", "item": "item_id"}
        made = clickstream.touches(**keys, **EVENT, order=ORDER, kinds=ITEM_ACTIONS)
        return FeatureSet([made], key=self.fold_key)

    def models(self, *, bs):
        return [MODEL]

    def stack(self):
        return Stack(rounds=2)
"""
TREES = 'XGBRanker("xgb", rounds=3, max_depth=2)'
ENDLESS = 'NetRanker("net", layers=[8], epochs=10**6, max_rows=10**12)'


def invoke(*arguments: object, columns: int = 100) -> tuple[int, str, str]:
    """The command in this process: exit code, standard output, standard error."""
    try:
        runner = CliRunner(mix_stderr=False)  # click before 8.2
    except TypeError:
        runner = CliRunner()
    done = runner.invoke(app, [str(a) for a in arguments], env={"COLUMNS": str(columns)})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def start(*arguments: object, setup: str = "") -> fresh.Forked:
    """The command in a process of its own, with ``setup`` run first."""
    interrupts = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # also where none are wanted
    code = f"{interrupts}; {setup}\nfrom fastrec.cli.app import app; app()"
    return fresh.start(code, *arguments, COLUMNS="100")


def refused(arguments: list, message: str) -> None:
    code, out, err = invoke(*arguments)
    assert (code, out, len(err.splitlines())) == (1, "", 1), err
    assert re.search(f"^error: .*{message}", err), err


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "data"
    code, out, err = invoke("simulate", TRIVAGO, "--sessions", 100, "--out", folder, "--seed", 4)
    assert code == 0
    assert "sessions 100" in out
    assert re.search(r"simulate: 100 sessions in .* sessions/s", err)
    return folder


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A workspace of its own, elsewhere, with a recipe that is quick and one that does not end."""
    root = tmp_path_factory.mktemp("workspace")
    for name, model in (("tiny", TREES), ("endless", ENDLESS)):
        (root / "competitions" / name).mkdir(parents=True)
        (root / "competitions" / name / "competition.py").write_text(RECIPE.replace("MODEL", model))
    return root / "competitions"


@pytest.fixture(scope="module")
def script_run(data, tmp_path_factory):
    """The real recipe as a plain script, from another folder, with a path relative to it."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    command = [sys.executable, str(TRIVAGO / "competition.py"), "--data", str(data), "--out", "made", "--rows", "250"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=elsewhere, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return elsewhere / "made", done.stdout, done.stderr


def test_the_command_is_there_without_its_script():
    command = [sys.executable, "-m", "fastrec", "--version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert __version__ in done.stdout


def test_help_version_and_a_command_that_is_not_there():
    code, out, _ = invoke("--help")
    assert code == 0
    for word in ("run", "simulate", "check", "score", "report"):
        assert re.search(rf"^│ {word} +[A-Z]", out, re.M), word
    assert "Traceback" not in out
    assert invoke("--version")[:2] == (0, f"fastrec {__version__}\n")
    code, _, err = invoke("ruin")
    assert (code, "No such command" in err) == (2, True)


@pytest.mark.parametrize("command", typer.main.get_command(app).commands)
def test_help_of_each(command):
    code, out, _ = invoke(command, "--help")
    assert (code, "`" in out) == (0, False)  # marks of the source are not shown


def test_the_plain_script_makes_a_run(script_run):
    folder, out, err = script_run
    assert {p.name for p in folder.iterdir()} >= {"config.json", "scores.json", "submission.csv", "report.html"}
    for stage in ("read", "features", "models", "stack"):
        assert re.search(rf"^{stage}: [\d,]+ rows in [\d.]+ s \([\d,]+ rows/s\)$", err, re.M), stage
    assert re.search(r"^ stack +0\.\d{4}", out, re.M)
    assert out.splitlines()[-2:] == ["submission made/submission.csv", "report made/report.html"]
    assert json.loads((folder / "config.json").read_text())["command"].startswith("competition.py --data ")


def test_check_score_and_report_of_a_run(script_run, data):
    folder, _, _ = script_run
    code, out, _ = invoke("check", folder / "submission.csv", data / "test.csv")
    assert (code, out.splitlines()[-1].split()[0]) == (0, "ok")
    code, out, _ = invoke("score", folder / "submission.csv", data / "ground_truth.csv")
    scores = json.loads((folder / "scores.json").read_text())
    assert (code, out.splitlines()[-1]) == (0, f"mrr {scores['models']['stack']:.5f}")
    page = (folder / "report.html").read_bytes()
    (folder / "report.html").unlink()
    code, out, _ = invoke("report", folder)  # it is written anew
    assert code == 0
    assert re.search(r"^ stack +0\.\d{4}", out, re.M)
    assert (folder / "report.html").read_bytes() == page


def test_run_of_a_workspace_elsewhere(workspace, data, tmp_path):
    code, out, err = invoke("run", workspace / "tiny", "--data", data, "--out", tmp_path / "a", "--rows", 900)
    assert code == 0, err
    assert out.splitlines()[-2:] == [f"submission {tmp_path}/a/submission.csv", f"report {tmp_path}/a/report.html"]
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert (config["competition"], config["rows"]) == ("Tiny", 900)


def test_odd_data_is_told_of_in_a_line(workspace, data, tmp_path):
    for file in data.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with (tmp_path / "train.csv").open("a") as train:
        train.write("u,new,1541000000,1,strange action,,DE,Berlin,mobile,,,\n" * 2)
    code, _, err = invoke("run", workspace / "tiny", "--data", tmp_path, "--out", tmp_path / "run")
    assert code == 0
    assert re.search(r"^warning: .*train\.csv: unknown action type 'strange action'", err, re.M)
    assert re.search(r"^warning: .*train\.csv: 2 rows share session and step", err, re.M)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run {trivago} --data {here}/no --out {here}/o", "/no': there is no such folder"),
        ("run {trivago} --data {here} --out {here}/o", r"train\.csv': there is no such file"),
        ("run {trivago} --data {data} --out {here}", "something that is not a run"),
        ("run {trivago} --data {data} --out {here}/o --device tpu?", "is not a device"),
        ("run {here}/nothing --data {data} --out {here}/o", r"nothing/competition\.py': there is no such file"),
        ("run {here} --data {data} --out {here}/o", "holds 0 subclasses of Competition"),
        ("check {here}/s.csv {data}/test.csv", r"s\.csv': there is no such file"),
        ("score {here}/s.csv {data}/ground_truth.csv", r"s\.csv': there is no such file"),
        ("report {here}/r", "r'"),
        ("tries {here}/r", "no such folder"),
        ("lb {here} 0.5", r"scores\.json"),
        ("simulate {trivago} --sessions 3 --out {here}/o", "at least 100, not 3"),
        ("simulate {trivago} --sessions 100 --out {here}", r"competition\.py"),
        ("simulate {here} --sessions 100 --out {here}/o", r"simulate\.py': there is no such file"),
    ],
)
def test_what_cannot_be_done_is_told_of_in_a_line_and_nothing_is_written(data, file, command, said):
    file.write_text("x = 1\n")  # the folder holds something, and no recipe
    refused(command.format(trivago=TRIVAGO, here=file.parent, data=data).split(), said)
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_that_is_not_there(tmp_path, data):
    refused(["run", TRIVAGO, "--data", data, "--out", tmp_path / "o", "--device", "cuda"], "finds no CUDA device")


@pytest.fixture
def file(tmp_path):
    (tmp_path / "a" / tmp_path.name).mkdir(parents=True)  # a folder is a module's name: each test has its own
    return tmp_path / "a" / tmp_path.name / "competition.py"


def test_a_recipe_with_a_mistake_can_be_mended(file):
    file.write_text(RECIPE.replace("MODEL", TREES) + "\nclass Second(Tiny):\n    pass\n")
    with pytest.raises(DataError, match="2 subclasses"):
        load_competition(file.parent)
    file.write_text("import no_such_module\n")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError):
            load_competition(file.parent)
    file.write_text(RECIPE.replace("MODEL", TREES))
    assert load_competition(file.parent).name == "Tiny"


def test_an_edited_recipe_is_read_again(file):
    text = RECIPE.replace("MODEL", TREES)
    file.write_text(text)
    first = type(load_competition(file.parent))
    assert type(load_competition(file.parent)) is first  # as it was: the same class
    for name in ("Tony", "Timy"):  # of one length, in one second
        file.write_text(text.replace('name = "Tiny"', f'name = "{name}"'))
        again = load_competition(file.parent)
        assert again.name == name
        assert f'name = "{name}"' in inspect.getsource(type(again))


@pytest.mark.parametrize("resume", [True, False])
def test_ctrl_c_leaves_no_half_of_a_run(workspace, data, tmp_path, resume):
    words = [] if resume else ["--no-resume"]
    running = start("run", workspace / "endless", "--data", data, "--out", tmp_path / "out", *words)
    for line in running.stderr:
        if line.startswith("features:"):
            break
    time.sleep(1)  # into the training that does not end
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 130
    kept = "the same command goes on from what is finished" if resume else "nothing was written"
    assert err.splitlines()[-1] == f"stopped; {kept}"
    assert "Traceback" not in err
    assert out == ""
    assert [p.name for p in tmp_path.iterdir()] == ([".out.parts"] if resume else [])


@pytest.mark.parametrize(("command", "size"), [("simulate", 2_000), ("simulate", 40_000), ("run", 5_000)])
def test_a_full_disk_is_a_line(workspace, data, tmp_path, command, size):
    """No file can grow above ``size`` bytes."""
    setup = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))"
    words = {"simulate": [TRIVAGO, "--sessions", 100], "run": [workspace / "tiny", "--data", data, "--no-resume"]}
    running = start(command, *words[command], "--out", tmp_path / "out", setup=setup)
    _, err = running.communicate(timeout=120)
    assert running.returncode == 1
    assert command == "run" or len(err.splitlines()) == 1
    assert re.match(r"error: file .*/out.*could not be written", err.splitlines()[-1])
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", ["MemoryError('no room for 7 columns')", "RuntimeError('std::bad_alloc')"])
def test_too_little_memory_is_told_of_in_a_line(workspace, data, tmp_path, error):
    """Reading runs out of memory: the line names the stage, and nothing is left."""
    folder = workspace / f"short_{error[:6]}"
    folder.mkdir()
    text = (workspace / "tiny" / "competition.py").read_text()
    load = f"    def load(self, *a, **k):\n        raise {error}\n\n"
    (folder / "competition.py").write_text(text.replace("    def stack(", f"{load}    def stack("))
    code, out, err = invoke("run", folder, "--data", data, "--out", tmp_path / "out")
    assert code == 1
    assert out == ""
    said = error.split("'")[1]
    assert err.splitlines()[-1] == (
        f"error: out of memory in the stage 'read' ({said}); nothing was written. Give fewer rows, or more memory."
    )
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
