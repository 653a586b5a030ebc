from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.version import Version

import fastrec
from fastrec._core import atomic as leftovers
from fastrec._core import fresh_process
from fastrec._core.device import resolve_device
from fastrec._core.environment import (
    PACKAGE,
    PARTS,
    install_command,
    installed_version,
    is_older,
    machine,
    required,
    write_own_wheel,
)
from fastrec.errors import DeviceError
from tests._core.refusals import refused

PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_requirements_and_optional_parts_are_the_projects():
    extras = PROJECT["optional-dependencies"]
    for extra, lines in {"": PROJECT["dependencies"], **{e: extras[e] for e in PARTS}}.items():
        floors = {r.name: str(r.specifier).removeprefix(">=") for r in map(Requirement, lines)}
        assert required(extra) == floors, extra
    assert PROJECT["name"] == PACKAGE
    assert set(extras) - set(PARTS) == {"bench", "dev", "docs", "test"}  # a developer's own
    assert install_command("trees") == "pip install 'fastrec-tabular[trees]'"
    assert installed_version("no-such-package-of-anybody") is None
    assert Version(installed_version("torch")).public == Version(torch.__version__).public  # some builds name theirs
    assert not is_older("0.1", "")


@example([2], [2, 0, 0], "+cpu")
@example([2, 0], [2], "")
@given(*[st.lists(st.integers(0, 12), min_size=1, max_size=3)] * 2, st.sampled_from(["", "+cpu", "+cu130"]))
def test_versions_compare_as_packaging_has_it(a, b, local):
    one, other = (".".join(map(str, v)) for v in (a, b))
    assert is_older(one + local, other) == (Version(one) < Version(other))


def test_the_machine_in_words():
    found = machine("cpu")
    assert found["device"] == "cpu"
    assert found["threads"].startswith(f"{torch.get_num_threads()} of torch's")
    assert re.fullmatch(r"[\d.]+ .iB free of [\d.]+ .iB", found["memory"])
    with pytest.raises(DeviceError):
        machine("abacus")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return write_own_wheel(tmp_path_factory.mktemp("wheel"))


def test_a_wheel_of_its_own_files(wheel, tmp_path):
    home = Path(fastrec.__file__).parent
    assert wheel.name == f"fastrec_tabular-{fastrec.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        content = {n: archive.read(n) for n in archive.namelist()}
    about = f"fastrec_tabular-{fastrec.__version__}.dist-info"
    source = {f"fastrec/{p.relative_to(home).as_posix()}": p.read_bytes() for p in home.rglob("*.py")}
    assert source.items() <= content.items()
    assert any(n.startswith("fastrec/report/templates/") for n in content)
    assert not any("__pycache__" in n for n in content)
    record = list(csv.reader(content[f"{about}/RECORD"].decode().splitlines()))
    assert {r[0] for r in record} == set(content)
    for name, said, size in record[:-1]:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content[name]).digest()).rstrip(b"=").decode()
        assert (said, int(size)) == (f"sha256={digest}", len(content[name]))
    assert write_own_wheel(tmp_path).read_bytes() == wheel.read_bytes()  # the same files give the same bytes


def test_pip_installs_the_wheel(wheel, tmp_path):
    command = [sys.executable, "-m", "pip", "install", "-q", "--isolated", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*command, "--target", str(tmp_path), str(wheel)], check=True, capture_output=True)
    code = "import sys; sys.path.insert(0, sys.argv[1]); import fastrec, importlib.metadata as m; "
    code += "print(fastrec.__file__); print(*m.requires('fastrec-tabular'), sep='\\n')"
    done = subprocess.run([sys.executable, "-I", "-c", code, str(tmp_path)], check=True, capture_output=True, text=True)
    file, *requires = done.stdout.splitlines()
    assert Path(file) == tmp_path / "fastrec" / "__init__.py"
    said = {str(Requirement(r)) for r in requires}
    wanted = {str(Requirement(r)) for r in PROJECT["dependencies"]}
    for extra in PARTS:
        optional = PROJECT["optional-dependencies"][extra]
        wanted |= {str(Requirement(f"{r}; extra == '{extra}'")) for r in optional}
    assert said == wanted


HAS_CUDA = torch.cuda.is_available()


def test_named_devices_and_the_environments_where_nothing_is_said(monkeypatch):
    assert resolve_device("auto").type == ("cuda" if HAS_CUDA else "cpu")
    monkeypatch.delenv("FASTREC_DEVICE", raising=False)
    assert resolve_device() == torch.device("cpu")
    for said, found in (("", "cpu"), ("auto", "auto")):
        monkeypatch.setenv("FASTREC_DEVICE", said)
        assert resolve_device() == resolve_device(found)
    monkeypatch.setenv("FASTREC_DEVICE", "no such thing")
    assert resolve_device("cpu") == resolve_device(torch.device("cpu")) == torch.device("cpu")
    refused(DeviceError, "no such thing", lambda: resolve_device())


def test_what_is_no_device_and_devices_that_are_not_there():
    for device in ("", "gpu", "cuda:x", "CPU ", 1.5, ["cpu"]):
        refused(DeviceError, "is not a device", lambda d=device: resolve_device(d))
    if HAS_CUDA:
        assert resolve_device("cuda:0") == torch.device("cuda:0")
        assert resolve_device("cuda") == torch.zeros(1, device="cuda").device
        refused(DeviceError, "CUDA devices", lambda: resolve_device(f"cuda:{torch.cuda.device_count()}"))
    for device in () if HAS_CUDA else ("cuda", "cuda:0", torch.device("cuda")):
        refused(DeviceError, r"'cuda' was asked for.*device='auto'", lambda d=device: resolve_device(d))
    for device in ("meta",) if torch.backends.mps.is_available() else ("meta", "mps"):
        refused(DeviceError, "not usable here", lambda d=device: resolve_device(d))


# A command's process replaced by itself: the same number, another memory, and its folder found again
CODE = """
import os, sys
from pathlib import Path
from fastrec._core import fresh_process
from fastrec._core.atomic import working_folder

fresh_process.owns_process()
made = fresh_process.continued_in()
with working_folder(Path(sys.argv[1]) / "work", made=made) as folder:
    said = [*(folder / "said").read_text().split(), str(os.getpid())] if made else [str(os.getpid())]
    (folder / "said").write_text(" ".join(said))
    assert fresh_process._SETTING not in os.environ
    if len(said) < 3:
        fresh_process.begin_anew(folder)
    print(*said, *sys.argv[1:])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes begin anew on Linux")
def test_a_process_finds_its_folder_again_and_tidies_it_up_at_the_end(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, "-c", CODE, str(tmp_path), "an option with spaces"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        said, _ = child.communicate(timeout=120)
    assert child.returncode == 0
    assert said == f"{child.pid} {child.pid} {child.pid} {tmp_path} an option with spaces\n"
    assert not any(tmp_path.iterdir())


def test_a_folder_is_taken_up_once_and_only_with_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = os.open(tmp_path, os.O_RDONLY)
    known = {f"{lock} {tmp_path}": tmp_path, f"{lock} {tmp_path.parent}": None, f"9999 {tmp_path}": None}
    for told, found in known.items():
        monkeypatch.setenv(fresh_process._SETTING, told)
        assert fresh_process.continued_in() == found
        assert fresh_process.continued_in() is None
    os.close(leftovers.locks.pop(tmp_path))
    assert not fresh_process.may_begin_anew()  # only a command's process is replaced
