"""``fastrec script``: one file that gives the run's submission without a network, from a bare ``python -I``."""

import ast
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrec._core.environment import installed_version, write_own_wheel
from fastrec.cli import load_competition
from fastrec.competition import SubmissionForm, check_submission, offline_script, write_script
from fastrec.competition.offline_script import _literal
from fastrec.errors import (
    DataError,
    DataWarning,
    MissingFileError,
    MissingPackageError,
    UnreadableFileError,
    WriteError,
)  # fmt: skip
from tests import fresh
from tests.files import write_csv

ROOT = Path(__file__).resolve().parents[2]
OTHER = "999.1"  # no version that is installed: the script takes the wheel, which is this tree's code
CONNECT = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"
WORKSPACE = {
    "competitions/tiny/competition.py": '''
from pathlib import Path
import sys

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fastrec.competition import Competition
from fastrec.estimators import XGBModel
from fastrec.features import FeatureSet, TargetEncode
from fastrec.stacking import Stack
from competitions.tiny import columns
from .own.deep import TREES


class Tiny(Competition):
    """A backslash \\\\ and both kinds of quotation marks: \'\'\' in this one."""

    name, task, target, metric, ids = "Tiny", "binary", "y", "auc", ("id",)

    def load(self, data, *, rows, device):
        from features.reading import read

        return read(data, rows, device)

    def features(self):
        return FeatureSet([columns.doubled, TargetEncode("city", "y")], key="id")

    def models(self, *, bs):
        return [XGBModel("xgb", **TREES)]

    def stack(self):
        return Stack(rounds=2)
''',
    "competitions/tiny/columns.py": """
from fastrec.features import feature


@feature(inputs=["x"], outputs=["doubled"])
def doubled(x):
    return 2 * x
""",
    "competitions/tiny/own/__init__.py": "ROUNDS = 12\n",
    "competitions/tiny/own/deep.py": "from . import ROUNDS\nTREES = {'rounds': ROUNDS, 'subsample': 0.5, "
    "'early_stopping_rounds': None}\n",
    "competitions/tiny/simulate.py": "raise RuntimeError('nobody imports it')\n",
    "features/reading.py": "from fastrec.competition import read_folder\n\n\n"
    "def read(data, rows, device):\n    return read_folder(data, rows=rows, device=device)\n",
    "features/unused.py": "1 / 0\n",
}


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root / "competitions" / "tiny"


def write_data(folder: Path) -> Path:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"id": range(260), "x": rng.normal(size=260), "city": rng.choice(list("abc"), 260)})
    frame["y"] = (frame.x + (frame.city == "a") + rng.normal(size=260) > 0).astype(int)
    return write_csv(folder, train=frame[:200], test=frame[200:].drop(columns="y"))


def alone(script: Path, *arguments: object, options: tuple[str, ...] = (), network: list[str] = ()) -> tuple:
    """The script in a bare Python of its own: exit code, standard output, standard error."""
    command = [*network, sys.executable, "-I", *options, str(script), *map(str, arguments)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=script.parent, timeout=300)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def no_network() -> list[str]:
    command = ["unshare", "-rn"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody make a process without a network")
    done = subprocess.run([*command, sys.executable, "-I", "-c", CONNECT], capture_output=True, text=True)
    assert "unreachable" in done.stderr
    return command


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return lay_out(tmp_path_factory.mktemp("workspace"), WORKSPACE)


@pytest.fixture(scope="module")
def recipe(tiny):
    return type(load_competition(tiny))


def kernel(folder: Path, recipe: type, out: Path, monkeypatch) -> Path:
    monkeypatch.setattr(offline_script, "__version__", OTHER)
    script = write_script(folder, recipe, out, wheels=False, seed=7)
    (script.parent / "wheels").mkdir()
    write_own_wheel(script.parent / "wheels", version=OTHER)
    return script


def test_the_script_gives_the_runs_submission_without_a_network(tiny, recipe, no_network, tmp_path, monkeypatch):
    if installed_version("spacy") is None:
        pytest.skip("fastai requires spacy: without a network pip finds none")
    data = write_data(tmp_path / "data")
    words = ["run", tiny, "--data", data, "--out", tmp_path / "run", "--seed", "7"]
    fresh.run("from fastrec.cli import app; app()", *words)
    script = kernel(tiny, recipe, tmp_path / "kernel", monkeypatch)
    elsewhere = tmp_path / "elsewhere"  # nothing of the workspace is to be found from there
    shutil.move(tiny.parents[1], elsewhere)
    try:
        code, out, err = alone(script, "--data", data, "--out", tmp_path / "submission.csv", network=no_network)
    finally:
        shutil.move(elsewhere, tiny.parents[1])
    assert code == 0, err
    assert f"installing fastrec-tabular {OTHER}\n" in err
    assert (tmp_path / "submission.csv").read_bytes() == (tmp_path / "run" / "submission.csv").read_bytes()
    assert re.search(r"^xgb auc 0\.\d{5} out of fold$", out, re.M)
    form = SubmissionForm(ids=("id",), values=("y",))
    assert check_submission(tmp_path / "submission.csv", data / "test.csv", form).rows == 60
    assert {p.name for p in tmp_path.iterdir()} == {"data", "kernel", "run", ".run.parts", "submission.csv"}


def test_what_a_recipe_imports_is_in_the_script_and_nothing_else(tiny, recipe, tmp_path):
    script = write_script(tiny, recipe, tmp_path / "kernel", wheels=False)
    tree = ast.parse(script.read_text(encoding="utf-8"))
    found = [n for n in tree.body if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)]
    values = {n.targets[0].id: n.value for n in found}
    modules = ast.literal_eval(values["MODULES"])
    wanted = {
        "competitions.tiny.competition": "competitions/tiny/competition.py",
        "competitions.tiny.columns": "competitions/tiny/columns.py",
        "competitions.tiny.own": "competitions/tiny/own/__init__.py",
        "competitions.tiny.own.deep": "competitions/tiny/own/deep.py",
        "features.reading": "features/reading.py",
    }
    assert modules == {name: WORKSPACE[file] for name, file in wanted.items()}
    assert ast.literal_eval(values["RECIPE"]) == ("competitions.tiny.competition", "Tiny")
    assert ast.get_docstring(tree).startswith("Tiny: ")


@given(st.text(st.sampled_from(["'", '"', "\\", "\n", "a", "é", "\r", "\0", "{"]), max_size=12))
def test_any_text_is_written_so_that_python_reads_it(text):
    assert ast.literal_eval(_literal(text)) == text


def test_real_recipes_modules_are_those_that_importing_them_loads():
    code = (
        "import sys; from fastrec.cli import load_competition; load_competition({0!r}); "
        "print(*sorted(n for n, m in sys.modules.items() if str(getattr(m, '__file__', '')).startswith({1!r})))"
    )
    for name in ("rossmann", "trivago2019"):
        folder = ROOT / "competitions" / name
        loaded = fresh.run(code.format(str(folder), f"{ROOT}{os.sep}")).split()
        own = {n for n in loaded if n.startswith(("competitions", "features"))}
        found = offline_script.recipe_sources(folder)
        assert own <= set(found.modules)
        assert found.entry in own


def test_other_libraries_of_a_recipe_are_named(tmp_path):
    text = "import os, yaml, sklearn.linear_model\nfrom fastrec import errors\nimport nowhere_to_be_found\n"
    found = offline_script.recipe_sources(lay_out(tmp_path, {"competitions/tiny/competition.py": text}))
    assert found.others == {"yaml", "sklearn", "nowhere_to_be_found"}
    assert [d.lower() for d in found.distributions] == ["pyyaml", "scikit-learn"]


def test_the_end_of_what_pip_says_is_shown(recipe, tmp_path, monkeypatch, capsys):
    folder = lay_out(tmp_path, {"competitions/tiny/competition.py": "import os\n"})
    pip = tmp_path / "python"
    pip.write_text(
        "#!/bin/sh\nfor i in 1 2 3 4 5 6 7 8 9; do echo WARNING: Retrying a connection >&2; done\n"
        "echo ReadTimeoutError: Read timed out. >&2\nexit 2\n"
    )
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    with pytest.raises(MissingPackageError, match=r"could not download the wheels \(WARNING.*Read timed out\.\)"):
        write_script(folder, recipe, tmp_path / "kernel")
    assert "pip downloads" in capsys.readouterr().err
    assert not (tmp_path / "kernel").exists()
    monkeypatch.undo()
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(tmp_path)), ("CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(f"PIP_{name}", value)
    with pytest.raises(MissingPackageError, match=r"could not download the wheels.*--no-wheels"):
        write_script(folder, recipe, tmp_path / "kernel")


def test_files_beside_a_recipe_are_warned_of(recipe, tmp_path):
    text = "from pathlib import Path\nCITIES = Path(__file__).with_name('cities.json')\n"
    folder = lay_out(tmp_path, {"competitions/tiny/competition.py": text})
    with pytest.warns(DataWarning, match=r"competitions\.tiny\.competition asks for its __file__"):
        write_script(folder, recipe, tmp_path / "kernel", wheels=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not offline_script.recipe_sources(ROOT / "competitions" / "census").beside


def test_out_of_time_nothing_is_written(tiny, recipe, tmp_path):
    script = write_script(tiny, recipe, tmp_path / "kernel", wheels=False, minutes=0.0001)
    # the folder goes while the process is at work, and what fails by that is not its last word
    gone = "        shutil.rmtree(folder, ignore_errors=True)"
    text = script.read_text()
    assert text.count(gone) == 1
    script.write_text(text.replace(gone, f"        for _ in range(3000):\n    {gone}\n            time.sleep(0.001)"))
    code, _, err = alone(script, "--data", write_data(tmp_path / "data"), "--out", tmp_path / "submission.csv")
    assert (code, err.splitlines()[-1]) == (3, "error: out of time after 0.0001 minutes; nothing was written")
    assert not (tmp_path / "submission.csv").exists()


def test_errors_of_the_script_are_a_line(tiny, recipe, tmp_path):
    script = write_script(tiny, recipe, tmp_path / "kernel", wheels=False)
    code, _, err = alone(script, "--data", tmp_path / "none")
    assert (code, err.splitlines()[-1].split(":")[0]) == (1, "error")
    assert "there is no such folder" in err
    code, _, err = alone(script, "--data", tmp_path, options=("-S",))  # no installed package is to be seen
    problem = f"error: fastrec is not installed, and there is no folder of wheels: {script.parent}/wheels\n"
    assert (code, err) == (1, problem)
    code, _, err = alone(script, "--data", tmp_path, "--minutes", "-1")
    assert (code, "is no time" in err) == (2, True)
    code, _, err = alone(script, "--data", tmp_path, "--out", tmp_path / "no" / "s.csv")
    assert (code, "there is no such folder" in err) == (2, True)


def test_what_cannot_be_written_is_refused(recipe, tmp_path):
    with pytest.raises(MissingFileError, match="there is no such file"):
        write_script(tmp_path, recipe, tmp_path / "kernel", wheels=False)
    broken = lay_out(tmp_path, {"competitions/tiny/competition.py": "def (\n"})
    with pytest.raises(UnreadableFileError, match="no Python module"):
        write_script(broken, recipe, tmp_path / "kernel", wheels=False)
    with pytest.raises(DataError, match="0 minutes is no time"):
        write_script(broken, recipe, tmp_path / "kernel", wheels=False, minutes=0)
    with pytest.raises(WriteError, match="other things"):
        write_script(broken, recipe, tmp_path / "competitions", wheels=False)
    assert not (tmp_path / "kernel").exists()
