"""``fastrec try``, ``tries``, ``select``, ``lb`` and ``runs`` as a person types them."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fastrec.cli import app
from fastrec.report.data import noted_score
from fastrec.trials import list_tries
from tests.trials import planted


def invoke(*arguments: object) -> tuple[int, str, str]:
    try:
        runner = CliRunner(mix_stderr=False)  # click before 8.2
    except TypeError:
        runner = CliRunner()
    done = runner.invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Path:
    return planted.make_run(tmp_path_factory.mktemp("shop"), planted.Shop, planted.rows(800))


def test_an_idea_is_tried_and_shown_in_the_list(shop, tmp_path):
    (tmp_path / "idea.py").write_text("def h_again(df):\n    return df.h\n")
    code, out, _ = invoke("try", tmp_path / "idea.py", "--on", shop, "--data", shop.parent / "data")
    assert code == 0
    assert out.startswith("better: + h_again\n  auc out of fold 0.")
    assert "model boosted" in out
    code, out, _ = invoke("try", "--on", shop, "--drop", "x", "--drop", "city", "--model", "boosted", "--full")
    assert code == 0
    assert out.startswith("worse: - x, - city")
    (tmp_path / "leak.py").write_text("def rate(df):\n    return df.groupby('shop').bought.transform('mean')\n")
    code, out, _ = invoke("try", tmp_path / "leak.py", "--on", shop)
    assert code == 0
    assert out.startswith("leak: + rate\n  rate: ")
    code, out, _ = invoke("tries", shop)
    assert code == 0
    lines = [line for line in out.splitlines() if "│" in line]
    assert len(lines) == len(list_tries(shop)) == 3
    assert all(v in line for v, line in zip(("better", "worse", "leak"), lines, strict=True))
    assert "idea.py" in lines[0]
    assert "- x, - city" in lines[1]
    assert "earlier run" not in out


def test_errors_are_one_line(shop, tmp_path):
    (tmp_path / "idea.py").write_text("def f(:\n")
    for arguments, said in (
        (("try", tmp_path / "idea.py", "--on", shop), "line 1 is no Python"),
        (("try", "--on", shop), "nothing to try"),
        (("try", tmp_path / "idea.py", "--on", tmp_path), "config.json"),
        (("tries", tmp_path / "nowhere"), "no such folder"),
        (("lb", tmp_path, "0.5"), "scores.json"),
        (("select", shop, "--method", "guess"), "no method 'guess'"),
    ):
        code, out, err = invoke(*arguments)
        assert (code, out) == (1, "")
        assert err.startswith("error: ")
        assert said in err
        assert len(err.splitlines()) == 1


def test_columns_are_weighed(shop):
    code, out, _ = invoke("select", shop)
    assert code == 0
    assert out.splitlines()[-1] == "kept 1 of 4: x"
    code, out, _ = invoke("select", shop, "--method", "permutation", "--model", "stump")
    assert code == 0
    assert "auc lost" in out


def test_a_leaderboard_score_is_noted_and_listed(shop):
    code, out, _ = invoke("lb", shop, "0.7312")
    assert code == 0
    assert noted_score(shop) == 0.7312
    assert "report" in out
    code, out, _ = invoke("runs", shop.parent)
    assert code == 0
    assert "0.73120" in out
