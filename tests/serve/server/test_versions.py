"""A server of a registry: promotions and rollbacks under way, a canary, and who answered."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastrec.errors import DataError
from fastrec.registry import Registry
from fastrec.serve import make_app
from fastrec.serve.server.call import Limits, Refusal
from fastrec.serve.server.versions import Canary, takes_canary
from tests.serve.server.calls import get, post, post_soon
from tests.serve.server.exports import by_hand, columns, write_export

ROWS = columns(2)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Version 2 is current."""
    found = Registry(tmp_path / "registry")
    for k in (0, 1):
        found.promote(write_export(tmp_path / f"export{k}", weights=k))
    return found


def test_a_registry_is_served_and_the_answer_says_by_which_version(registry: Registry) -> None:
    app = make_app(registry.folder, token="t")
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
    app.state.service.close()


def test_an_export_of_its_own_says_the_beginning_of_its_hash(apps: Any) -> None:
    answer = post(apps["binary"], "/v1/score", {"columns": ROWS})
    assert answer.headers["x-model-version"] == apps["binary"].state.service.scorer.spec.version[:12]


def test_promotions_are_taken_over_and_no_request_is_lost(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastrec._core.limits.REGISTRY_POLL", 0.005)
    app = make_app(registry.folder, limits=Limits(workers=2))
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
    service.close()


def test_a_version_that_cannot_be_served_changes_nothing(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastrec._core.limits.REGISTRY_POLL", 0.005)
    app = make_app(registry.folder)
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
    app.state.service.close()


def test_what_a_watch_cannot_read_is_said_once_and_it_goes_on(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fastrec._core.limits.REGISTRY_POLL", 0.002)
    app = make_app(registry.folder)
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
    service.close()


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

    app = make_app(registry.folder, canary=Canary(1, 0.3))
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
    app.state.service.close()


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
