"""A registry of exports with events: what is observed reaches every version, whatever is current."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fastrec.registry import Registry
from fastrec.serve import make_app
from tests.serve.server.calls import post
from tests.serve.server.exports import by_hand, columns
from tests.serve.server.test_online import event, with_events

TOKEN = {"authorization": "Bearer t"}
USERS = [7, 2**53 + 1, 5]  # 2, 1 and no events come with the exports


def ask(app: Any) -> dict[str, Any]:
    rows = {k: v * len(USERS) for k, v in columns(1).items()}
    rows |= {"user": USERS, "at": ["2026-02-01T00:00:00"] * len(USERS)}
    answer = post(app, "/v1/score", {"columns": rows}, TOKEN)
    assert answer.status == 200, answer.body
    return {"version": answer.headers["x-model-version"], "body": answer.body, "rows": rows}


def counted(said: dict[str, Any], weights: int) -> list[float]:
    """How many events of each user the scores tell of."""
    scores = json.loads(said["body"])["scores"]
    return [round((s - h) * 1000, 2) for s, h in zip(scores, by_hand(said["rows"], weights=weights))]


def observe(app: Any, *users: int) -> None:
    answer = post(app, "/v1/events?table=log", {"rows": [event(u) for u in users]}, TOKEN)
    assert answer.status == 200, answer.body


def reload(app: Any) -> None:
    assert post(app, "/v1/reload", b"", TOKEN).status == 200


def test_a_rollback_gives_the_same_bytes_and_lacks_no_event(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    registry.promote(with_events(tmp_path / "a"))
    app = make_app(registry.folder, token="t")
    first = ask(app)
    assert counted(first, 0) == [2, 1, 0]
    observe(app, 7, 5)
    before = ask(app)
    assert counted(before, 0) == [3, 1, 1]
    registry.promote(with_events(tmp_path / "b", weights=1))  # of a log that has what was observed: it counts once
    reload(app)
    second = ask(app)
    assert (second["version"], counted(second, 1)) == ("2", [2, 1, 0])
    registry.rollback()
    reload(app)
    again = ask(app)
    assert (again["version"], again["body"]) == ("1", before["body"])
    registry.rollback()
    reload(app)
    assert ask(app)["body"] == second["body"]
    observe(app, 5, 5)  # while version 2 is current
    refused = post(app, "/v1/events?table=log", {"rows": [event(5), {"user": "x", "at": "soon"}]}, TOKEN)
    assert refused.status == 422
    assert counted(ask(app), 1) == [2, 1, 2]
    registry.promote(1)
    reload(app)
    after = ask(app)
    assert (after["version"], counted(after, 0)) == ("1", [3, 1, 3])
    app.state.service.close()
    assert (registry.version(1).export / "events").is_dir()
    app = make_app(registry.folder, token="t")  # a server that starts anew
    assert ask(app)["body"] == after["body"]
    app.state.service.close()
    fresh = Registry(tmp_path / "fresh")
    fresh.promote(registry.version(1).export)
    app = make_app(fresh.folder, token="t")
    assert ask(app)["body"] == first["body"]  # a version's own files never changed
    app.state.service.close()


def test_events_that_no_state_took_in_before_a_kill_are_taken_in(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    registry.promote(with_events(tmp_path / "a"))
    app = make_app(registry.folder, token="t")
    observe(app, 7)
    app.state.service.close()
    kept = tmp_path / "kept"
    shutil.copytree(registry.folder / "events" / "0001", kept)
    app = make_app(registry.folder, token="t")
    observe(app, 5, 5)
    observe(app, 7)
    whole = ask(app)
    app.state.service.close()
    shutil.rmtree(registry.folder / "events" / "0001")  # as if it had died between the log and the state
    shutil.copytree(kept, registry.folder / "events" / "0001")
    with (registry.folder / "events" / "observed.log").open("ab") as file:
        file.write(b"\x09\x00\x00\x00torn")
    with pytest.warns(match="cut short"):
        app = make_app(registry.folder, token="t")
    assert counted(ask(app), 0) == [4, 1, 2]
    assert ask(app)["body"] == whole["body"]
    app.state.service.close()
