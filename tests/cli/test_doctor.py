"""``fastrec doctor``: what it says is so, and a self-test that finds what is broken."""

from __future__ import annotations

import re

import pytest
import torch

from fastrec import __version__
from fastrec._core import environment
from fastrec._core.environment import PARTS, install_command, installed_version, required
from fastrec.competition import self_test as module
from fastrec.competition.self_test import SelfCheck, self_test
from fastrec.errors import DeviceError, MissingPackageError
from fastrec.features import CountEncode
from tests.cli.test_cli import invoke, refused


@pytest.fixture(scope="module")
def sound() -> list[SelfCheck]:
    return self_test(device="cpu")


def test_all_is_well_here(sound):
    assert [c.name for c in sound] == ["run", "features", "net", "xgb", "stack", "submission", "predict"]
    assert all(c.ok for c in sound), sound


def test_versions_parts_and_checks_are_printed(sound, monkeypatch):
    monkeypatch.setattr(module, "self_test", lambda **_: sound)
    code, out, _ = invoke("doctor", "--device", "cpu", columns=150)
    assert code == 0
    assert re.search(rf"fastrec +│ {re.escape(__version__)} ", out)
    for name in required():
        assert re.search(rf"│ {name} +│ {re.escape(installed_version(name))} +│.*│ ok +│", out), name
    assert re.search(rf"threads │ {torch.get_num_threads()} of torch's", out)
    assert re.search(r"│ stack +│ ok +│ auc 0\.\d{4} out of fold, 0\.\d{4} on the test", out)
    for extra in PARTS:
        there = all(installed_version(n) for n in required(extra))
        assert (install_command(extra) in out) == (not there), extra


def test_a_failed_check_and_a_package_that_is_too_old_are_an_exit_code(sound, monkeypatch):
    monkeypatch.setattr(module, "self_test", lambda **_: [SelfCheck("run", False, "it [broke]", 0.1)])
    code, out, _ = invoke("doctor", columns=150)
    assert code == 1
    assert re.search(r"│ run +│ wrong │ it \[broke\]", out)
    monkeypatch.setattr(module, "self_test", lambda **_: sound)
    monkeypatch.setattr(environment, "requires", lambda name: ["torch>=999.0", "no-such-package>=1"])
    code, out, _ = invoke("doctor", columns=150)
    assert code == 1
    assert re.search(r"│ torch +│ \S+ +│ 999\.0 +│ wrong", out)
    assert re.search(r"│ no-such-package +│ none +│ 1 +│ wrong", out)


def test_requirements_are_read_in_every_spelling(monkeypatch):
    lines = ["a>=1.2", "b (>=3)", "c >=4,<5", "d>=1.0; extra == 'x'", 'e-f (>=2) ; extra == "x"', "g==1"]
    monkeypatch.setattr(environment, "requires", lambda name: lines)
    assert required() == {"a": "1.2", "b": "3", "c": "4"}
    assert required("x") == {"d": "1.0", "e-f": "2"}
    monkeypatch.undo()
    monkeypatch.setattr(environment, "PACKAGE", "no-such-package")
    with pytest.raises(MissingPackageError, match=r"only its files are there.*pip install -e"):
        required()


def test_a_device_that_is_not_there_is_a_line():
    refused(["doctor", "--device", "abacus"], "'abacus' is not a device")
    with pytest.raises(DeviceError):
        environment.machine("abacus")


def test_what_is_broken_is_found(monkeypatch):
    """Counts off by one, and predictions of the rows in another order: both are told, the rest is looked at."""
    apply = CountEncode.apply
    monkeypatch.setattr(CountEncode, "apply", lambda self, *a: {n: v + 1 for n, v in apply(self, *a).items()})
    write = module.run_competition

    def shuffled(*arguments, **options):
        run = write(*arguments, **options)
        lines = (run / "submission.csv").read_text().splitlines()
        values = [line.split(",")[1] for line in lines[1:]]
        mixed = [f"{line.split(',')[0]},{v}" for line, v in zip(lines[1:], reversed(values), strict=True)]
        (run / "submission.csv").write_text("\n".join([lines[0], *mixed, ""]))
        return run

    monkeypatch.setattr(module, "run_competition", shuffled)
    wrong = {c.name: c.said for c in self_test(device="cpu") if not c.ok}
    assert set(wrong) == {"features", "submission", "predict"}
    assert "not the number of rows" in wrong["features"]


def test_an_error_ends_the_self_test(monkeypatch):
    def broken(*_, **__):
        raise OSError("no library of that name")

    monkeypatch.setattr(module, "run_competition", broken)
    (check,) = self_test()
    assert (check.name, check.ok, check.said) == ("run", False, "OSError: no library of that name")
