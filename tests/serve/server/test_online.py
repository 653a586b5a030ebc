"""``fastrec serve`` with a real state of events, killed in the middle of taking some in."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

pytest.importorskip("fastrec.serve.online")

from fastrec.cli import app
from fastrec.features import FeatureSet, History
from fastrec.serve.online import write_online_state
from tests.serve.server.exports import by_hand, columns, write_export
from tests.serve.server.test_process import Served, start  # noqa: F401 - a fixture

COUNT = "seen_count"


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return with_events(tmp_path / "export")


def with_events(folder: Path, *, weights: int = 0) -> Path:
    """The toy whose score has a thousandth of the number of a user's earlier events more."""
    at = {"unit": "us", "zone": None}
    log = {"user": {"type": "int64"}, "at": {"type": "int64", "time": at}}
    tables = {"tables": {"log": {"columns": log}}, "history": False}
    write_export(folder, weights=weights, extra=[COUNT], made=COUNT, events=tables)
    events = pd.DataFrame({"user": [7, 7, 2**53 + 1], "at": pd.to_datetime(["2026-01-01"] * 3).astype("M8[us]")})
    features = FeatureSet([History("user", order="at", table="log", stats="count", name="seen")])
    features.fit(events, tables={"log": events})
    features.save(folder / "features")
    write_online_state(folder / "events", features, {"log": events})
    return folder


def counts(served: Served, users: list[int | None]) -> list[float]:
    """How many events of each user the scores tell of."""
    rows = {k: v * len(users) for k, v in columns(1).items()}
    rows |= {"user": users, "at": ["2026-02-01T00:00:00"] * len(users)}
    scores = served.ask("/v1/score", {"columns": rows})["scores"]
    return [round((s - h) * 1000, 2) for s, h in zip(scores, by_hand(rows))]


def event(user: int) -> dict[str, Any]:
    return {"user": user, "at": "2026-01-02T00:00:00"}


def test_what_was_acknowledged_is_there_after_a_kill(export: Path, start: Callable[..., Served]) -> None:  # noqa: F811
    served = start(export)
    assert counts(served, [7, 2**53, 2**53 + 1, 8, None]) == [2, 0, 1, 0, 0]
    served.ask("/v1/events", {"table": "log", "rows": [event(7), event(2**53)]})
    assert counts(served, [7, 2**53, 2**53 + 1]) == [3, 1, 1]
    acknowledged = 0

    def send() -> None:
        nonlocal acknowledged
        try:
            while True:
                acknowledged += served.ask("/v1/events", {"table": "log", "rows": [event(8)]})["events"]
        except OSError:  # it was killed
            pass

    sending = threading.Thread(target=send)
    sending.start()
    while acknowledged < 20 and sending.is_alive():
        time.sleep(0.005)
    served.process.send_signal(signal.SIGKILL)
    sending.join()
    served.process.wait()
    found = counts(start(export), [7, 2**53, 8])
    assert found[:2] == [3, 1]
    assert acknowledged <= found[2] <= acknowledged + 1  # the last may have been kept without being acknowledged


def test_an_export_without_its_state_is_named(export: Path) -> None:
    shutil.rmtree(export / "events")
    made = CliRunner().invoke(app, ["serve", str(export)])
    assert made.exit_code == 1
    assert "events" in made.output
