"""A server of a registry: promotions and rollbacks under way, a canary, and who answered."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastrec.errors import DataError
from fastrec.registry import Registry
from fastrec.serve import make_app
from fastrec.serve.server.call import Limits, Refusal
from fastrec.serve.server.versions import Canary, takes_canary
from tests.serve.server.calls import get, post, post_soon, serve
from tests.serve.server.exports import by_hand, columns, write_export
from tests.serve.server.test_online import event, with_events

ROWS = columns(2)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Version 2 is current."""
    found = Registry(tmp_path / "registry")
    for k in (0, 1):
        found.promote(write_export(tmp_path / f"export{k}", weights=k))
    return found


def test_a_registry_is_served_and_the_answer_says_by_which_version(registry: Registry) -> None:
    app = serve(registry.folder, token="t")
    right = {"authorization": "Bearer t"}
    answer = post(app, "/v1/score", {"columns": ROWS}, right)
    assert answer.json()["scores"] == pytest.approx(by_hand(ROWS, weights=1), abs=1e-6)
    assert answer.headers["x-model-version"] == "2"
    registry.rollback()
    assert post(app, "/v1/reload", b"", right).status == 200
    answer = post(app, "/v1/score", {"columns": ROWS}, right)
    assert answer.json()["scores"] == pytest.approx(by_hand(ROWS, weights=0), abs=1e-6)
    assert answer.headers["x-model-version"] == "1"
    assert 'fastrec_answers_total{version="2",status="200"} 1' in get(app, "/metrics", right).body.decode()


def test_an_export_of_its_own_says_the_beginning_of_its_hash(apps: Any) -> None:
    answer = post(apps["binary"], "/v1/score", {"columns": ROWS})
    assert answer.headers["x-model-version"] == apps["binary"].state.service.scorer.spec.version[:12]


def test_promotions_are_taken_over_and_no_request_is_lost(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastrec._core.limits.REGISTRY_POLL", 0.005)
    app = serve(registry.folder, limits=Limits(workers=2))
    service = app.state.service
    known = {str(k + 1): by_hand(ROWS, weights=k) for k in (0, 1)}

    async def run() -> list[Any]:
        watching = asyncio.create_task(service.watch())
        asked: list[asyncio.Task[Any]] = []
        for _ in range(4):
            number = registry.rollback().number
            while service.scorer.version != number:
                asked += [asyncio.create_task(post_soon(app, "/v1/score", {"columns": ROWS})) for _ in range(5)]
                await asyncio.sleep(0.002)
            asked.append(asyncio.create_task(post_soon(app, "/v1/score", {"columns": ROWS})))
            await asked[-1]  # surely by the new version
        watching.cancel()
        return await asyncio.gather(*asked)

    answers = asyncio.run(asyncio.wait_for(run(), 300))
    seen = set()
    for answer in answers:
        assert answer.status == 200, answer.body
        version = answer.headers["x-model-version"]
        assert answer.json()["scores"] == pytest.approx(known[version], abs=1e-6)
        seen.add(version)
    assert seen == {"1", "2"}


def test_a_version_that_cannot_be_served_changes_nothing(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastrec._core.limits.REGISTRY_POLL", 0.005)
    app = serve(registry.folder)
    broken = write_export(tmp_path / "broken")
    (broken / "model.onnx").write_bytes(b"half a file")
    registry.promote(broken)

    async def run() -> None:
        watching = asyncio.create_task(app.state.service.watch())
        while "failed" not in str(app.state.service.metrics.reloads._values):
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        watching.cancel()

    asyncio.run(asyncio.wait_for(run(), 300))
    assert app.state.service.metrics.reloads._values == {("failed",): 1}  # said once
    assert post(app, "/v1/score", {"columns": ROWS}).headers["x-model-version"] == "2"


def test_what_a_watch_cannot_read_is_said_once_and_it_goes_on(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fastrec._core.limits.REGISTRY_POLL", 0.002)
    app = serve(registry.folder)
    service = app.state.service
    current, left = service.source.current, [PermissionError("no right")] * 5

    def read() -> Any:
        if left:
            raise left.pop()
        return current()

    monkeypatch.setattr(service.source, "current", read)
    registry.rollback()

    async def run() -> None:
        watching = asyncio.create_task(service.watch())
        while service.scorer.version != 1:
            assert not watching.done(), watching
            await asyncio.sleep(0.002)
        watching.cancel()

    asyncio.run(asyncio.wait_for(run(), 300))
    assert [r.getMessage() for r in caplog.records if "cannot be read" in r.getMessage()] == [
        "the registry cannot be read: no right"
    ]
    left.append(PermissionError("no right"))
    with pytest.raises(Refusal, match="the old export goes on"):
        asyncio.run(service.reload())


def test_an_export_with_events_but_no_state_is_refused(tmp_path: Path) -> None:
    folder = write_export(tmp_path / "export", events={"tables": {"log": {"columns": {}}}, "history": False})
    said = json.loads((folder / "serving.json").read_text())
    next(i for i in said["inputs"] if i["name"] == "ratio")["made"] = True
    (folder / "serving.json").write_text(json.dumps(said))
    registry = Registry(tmp_path / "registry")
    registry.promote(folder)
    with pytest.raises(DataError, match="have nothing to make them"):
        make_app(registry.folder)


def test_a_canary_takes_a_stable_share_of_the_ids(registry: Registry) -> None:
    ids = [f"request {k}" for k in range(20_000)]
    some = {share: {i for i in ids if takes_canary(i, Canary(7, share))} for share in (0.05, 0.3)}
    for share, taken in some.items():
        assert abs(len(taken) / len(ids) - share) < 4 * np.sqrt(share * (1 - share) / len(ids))
    assert some[0.05] < some[0.3]
    assert some[0.3] != {i for i in ids if takes_canary(i, Canary(8, 0.3))}

    app = serve(registry.folder, canary=Canary(1, 0.3))
    said, name = {}, app.state.service.scorer.spec.name
    for i in ids[:40]:
        by_header = post(app, "/v1/score", {"columns": ROWS}, {"x-request-id": i})
        by_body = post(app, "/v1/score", {"columns": ROWS, "request_id": i})
        protocol = {"id": i, "inputs": _tensors()}
        by_protocol = post(app, f"/v2/models/{name}/infer", protocol)
        said[i] = {a.headers["x-model-version"] for a in (by_header, by_body, by_protocol)}
        weights = 0 if said[i] == {"1"} else 1
        assert by_body.json()["scores"] == pytest.approx(by_hand(ROWS, weights=weights), abs=1e-6)
    own = Canary(1, 0.3)
    assert said == {i: {"1" if takes_canary(i, own) else "2"} for i in ids[:40]}
    assert post(app, "/v1/score", {"columns": ROWS}).headers["x-model-version"] == "2"


def _tensors() -> list[dict[str, Any]]:
    kinds = {"city": "BYTES", "user": "INT64", "price": "FP64", "mobile": "BOOL"}
    values = {"city": ["Oslo"], "user": [7], "price": [1.0], "mobile": [True]}
    return [{"name": n, "datatype": k, "shape": [1], "data": values[n]} for n, k in kinds.items()]


def test_what_cannot_be_served_is_said(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no version 9"):
        make_app(registry.folder, canary=Canary(9, 0.1))
    with pytest.raises(DataError, match="no versions for a canary"):
        make_app(tmp_path / "export0", canary=Canary(1, 0.1))
    run = tmp_path / "run"
    run.mkdir()
    (run / "decision.json").write_text("{}")
    registry.promote(run)
    with pytest.raises(DataError, match="version 3 has no export"):
        make_app(registry.folder)
    state = json.loads((registry.folder / "registry.json").read_text())
    (registry.folder / "registry.json").write_text(json.dumps({**state, "current": None}))
    with pytest.raises(DataError, match="no version of the registry is current"):
        make_app(registry.folder)
    for text in ("7", "x=0.1", "7=0", "7=1.5"):
        with pytest.raises(DataError):
            Canary.read(text)
    assert Canary.read("7=0.05") == Canary(7, 0.05)


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
