from __future__ import annotations

import re
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from fastrec._core import progress
from fastrec._core.progress import Stages, summary


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=clock))
    return clock


def shown(*, terminal: bool, quiet: bool = False, width: int = 100) -> tuple[Stages, StringIO]:
    file = StringIO()
    console = Console(file=file, force_terminal=terminal, width=width, color_system=None, _environ={"TERM": "xterm"})
    return Stages(console=console, quiet=quiet), file


def test_seconds_of_a_stage_add_up_and_messages_are_whole_lines_of_standard_error(clock, capsys):
    stages, file = shown(terminal=False, width=20)
    for seconds in (2.0, 3.5):
        with stages.stage("read"):
            clock.now += seconds
    with stages.stage("write"):
        clock.now += 1.0
        with stages.stage("inner"):
            clock.now += 0.25
    assert stages.seconds == {"read": 5.5, "inner": 0.25, "write": 1.25}
    stages.say("one line " * 12)
    Stages().say("hello")
    assert file.getvalue().endswith("\n" + "one line " * 12 + "\n")
    assert capsys.readouterr() == ("", "hello\n")


def test_without_a_terminal_plain_lines_at_most_every_ten_seconds(clock):
    stages, file = shown(terminal=False)
    stages.say("[hello] /there")
    with stages.stage("train", 400, unit="rows") as advance:
        for seconds in (4.0, 4.0, 4.0, 1.0, 12.0):
            clock.now += seconds
            advance(50)
    with stages.stage("read", unit="files") as advance:  # without a known end
        clock.now += 20.0
        advance(3000)
        clock.now += 10.0
        advance(0)
    assert file.getvalue().splitlines() == [
        "[hello] /there",
        "  train: 150 of 400 rows (12 rows/s, 20 s left)",
        "  train: 250 of 400 rows (10 rows/s, 15 s left)",
        "train: 250 rows in 25.0 s (10 rows/s)",
        "  read: 3,000 files (150 files/s)",
        "  read: 3,000 files (100 files/s)",
        "read: 3,000 files in 30.0 s (100 files/s)",
    ]
    with stages.stage("read", 10) as advance:
        clock.now += 20.0
        advance(30)  # more than was announced
    assert ", 0 s left" in file.getvalue()
    assert (summary(None, "rows", 0.04), summary(0, "rows", 1.0)) == ("0.0 s", "1.0 s")
    assert summary(5, "rows", 0.0).startswith("5 rows in 0.0 s (")


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def test_in_a_terminal_bars_with_rows_rate_and_time_left(clock):
    stages, file = shown(terminal=True, width=140)
    with stages.stage("train", 2000) as advance:
        clock.now += 2.0
        advance(1500)
    text = file.getvalue()
    assert "\x1b[" in text  # it is drawn anew in place
    assert re.search(r"train .*━.* 75% 1,500 rows, 750 rows/s \S+ left \S+", plain(text))
    assert plain(text).rstrip("\r\n").endswith("train: 1,500 rows in 2.0 s (750 rows/s)")
    stages, file = shown(terminal=True)
    with stages.stage("[red]fold[/red] [1/5]", 1) as advance:
        advance(1)
    bar, summary_line = plain(file.getvalue()).split("[red]fold[/red] [1/5]: ")
    assert "[red]fold[/red] [1/5]" in bar  # names with brackets are shown as they are
    assert summary_line.startswith("1 rows in")


@pytest.mark.parametrize("terminal", [False, True])
def test_quiet_shows_nothing_and_times_all(terminal, clock):
    stages, file = shown(terminal=terminal, quiet=True)
    with stages.stage("read", 10) as advance:
        stages.below = "xgb 0.9"
        clock.now += 30.0
        advance(10)
    stages.say("hello")
    assert file.getvalue() == ""
    assert stages.seconds == {"read": 30.0}
    assert not stages.has_bars


@pytest.mark.parametrize("terminal", [False, True])
def test_an_error_passes_through_and_the_next_stage_works(terminal, clock):
    stages, file = shown(terminal=terminal)

    def interrupted() -> None:
        with stages.stage("read", 10) as advance:
            advance(1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "read" not in stages.seconds
    assert "read: " not in plain(file.getvalue())
    with stages.stage("read"):
        clock.now += 1.0
    assert stages.seconds == {"read": 1.0}
    assert "\x1b[?25h" in file.getvalue() or not terminal  # the cursor is back


def test_of_stages_inside_each_other_the_outermost_has_a_bar_and_what_is_below_it(clock):
    stages, file = shown(terminal=True)
    with stages.stage("models", 2) as outer:
        stages.below = "xgb 0.9"
        for _ in range(2):
            with stages.stage("inner", 5) as inner:
                clock.now += 11.0
                inner(5)
            outer(1)
        assert stages.below == "xgb 0.9"
    text = plain(file.getvalue())
    assert re.search(r"models .*\n.*xgb 0\.9", text.replace("\r", ""))
    assert text.count("inner: 5 rows in 11.0 s") == 2
    assert "inner: 5 of 5 rows" in text  # a plain line, above the outer stage's bar
    with stages.stage("stack", 1) as advance:
        advance(1)
    later = plain(file.getvalue())[len(text) :]
    assert re.search(r"stack .*━", later)  # bars come back
    assert "xgb" not in later
