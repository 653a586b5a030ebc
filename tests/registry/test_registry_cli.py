from typer.testing import CliRunner

from fastrec.cli import app
from fastrec.registry import Registry
from tests.registry.test_registry import make_export, make_run


def call(*words):
    return CliRunner().invoke(app, [str(w) for w in words])


def test_promote_roll_back_and_list(tmp_path):
    folder = tmp_path / "registry"
    done = call("promote", make_export(tmp_path / "a"), "--registry", folder, "--why", "the first")
    assert done.exit_code == 0, done.output
    assert "version 1 is current" in done.output
    assert call("promote", make_run(tmp_path / "b", "x"), "--registry", folder, "--no-export").exit_code == 0
    assert Registry(folder).current.number == 2
    assert call("rollback", "--registry", folder).exit_code == 0
    assert Registry(folder).current.number == 1
    assert call("promote", "2", "--registry", folder).exit_code == 0
    done = call("versions", "--registry", folder)
    assert done.exit_code == 0, done.output
    assert "the first" in done.output
    assert "rolled back" in done.output


def test_wrong_input_is_one_line(tmp_path):
    for words in (["rollback", "--registry", tmp_path], ["promote", tmp_path, "--registry", tmp_path / "r"]):
        done = call(*words)
        assert done.exit_code == 1
        assert done.output.startswith("error: ")
    assert not (tmp_path / "r" / "registry.json").exists()
