"""A server of a registry: promotions and rollbacks under way, a canary, and who answered."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastrec.errors import DataError
from fastrec.registry import Registry
from fastrec.registry.registry import STATE
from fastrec.serve import make_app
from fastrec.serve.server.call import Limits, Refusal
from fastrec.serve.server.versions import Canary, takes_canary
from tests.serve.server.calls import get, in_loop, post, post_soon, refused, serve, until
from tests.serve.server.exports import by_hand, columns, event, with_events, write_export
from tests.serve.server.test_v2 import in_json, tensor_rows

ROWS = columns(2)
TOKEN = {"authorization": "Bearer t"}


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Version 2 is current."""
    found = Registry(tmp_path / "registry")
    for k in (0, 1):
        found.promote(write_export(tmp_path / f"export{k}", weights=k))
    return found


async def watched(service: Any, do: Callable[[], Awaitable[Any]]) -> Any:
    watching = asyncio.create_task(service.watch())
    made = await asyncio.wait_for(do(), 300)
    assert not watching.done(), watching
    watching.cancel()
    return made


@in_loop
async def test_promotions_are_taken_over_and_no_request_is_lost(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastrec._core.limits.REGISTRY_POLL", 0.005)
    app = serve(registry.folder, limits=Limits(workers=2))
    known = {str(k + 1): by_hand(ROWS, weights=k) for k in (0, 1)}

    async def run() -> list[Any]:
        asked: list[asyncio.Task[Any]] = []
        for _ in range(4):
            number = registry.rollback().number
            while app.state.service.scorer.version != number:
                asked += [asyncio.create_task(post_soon(app, "/v1/score", {"columns": ROWS})) for _ in range(5)]
                await asyncio.sleep(0.002)
            asked.append(asyncio.create_task(post_soon(app, "/v1/score", {"columns": ROWS})))
            await asked[-1]  # surely by the new version
        return await asyncio.gather(*asked)

    seen = set()
    for answer in await watched(app.state.service, run):
        assert answer.status == 200, answer.body
        version = answer.headers["x-model-version"]
        assert answer.json()["scores"] == pytest.approx(known[version], abs=1e-6)
        seen.add(version)
    assert seen == {"1", "2"}


@in_loop
async def test_what_a_watch_cannot_load_or_read_is_said_once_and_it_goes_on(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fastrec._core.limits.REGISTRY_POLL", 0.002)
    service = serve(registry.folder).state.service
    broken, reloads, state = write_export(tmp_path / "broken"), service.metrics.reloads, registry.folder / STATE
    (broken / "model.onnx").write_bytes(b"half a file")
    registry.promote(broken)

    def write(raw: bytes) -> None:
        (tmp_path / "state").write_bytes(raw)
        (tmp_path / "state").replace(state)  # as a whole

    async def run() -> None:
        await until(lambda: "failed" in str(reloads._values))
        await asyncio.sleep(0.05)
        assert (service.scorer.version, reloads._values) == (2, {("failed",): 1})
        good = state.read_bytes()
        write(b"{")
        await until(lambda: "cannot be read" in caplog.text)
        await asyncio.sleep(0.05)
        with pytest.raises(Refusal, match="the old export goes on"):
            await service.reload()
        write(good)
        registry.promote(1)
        await until(lambda: service.scorer.version == 1)

    await watched(service, run)
    assert caplog.text.count("the registry cannot be read") == 1


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
        protocol = {"id": i, "inputs": in_json(tensor_rows(1))}
        by_protocol = post(app, f"/v2/models/{name}/infer", protocol)
        said[i] = {a.headers["x-model-version"] for a in (by_header, by_body, by_protocol)}
        weights = 0 if said[i] == {"1"} else 1
        assert by_body.json()["scores"] == pytest.approx(by_hand(ROWS, weights=weights), abs=1e-6)
    own = Canary(1, 0.3)
    assert said == {i: {"1" if takes_canary(i, own) else "2"} for i in ids[:40]}
    assert post(app, "/v1/score", {"columns": ROWS}).headers["x-model-version"] == "2"


def test_what_cannot_be_served_is_said(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no version 9"):
        make_app(registry.folder, canary=Canary(9, 0.1))
    with pytest.raises(DataError, match="no versions for a canary"):
        make_app(tmp_path / "export0", canary=Canary(1, 0.1))
    # made from events, of which it has no state
    tables = {"tables": {"log": {"columns": {}}}, "history": False}
    registry.promote(write_export(tmp_path / "export", made="ratio", events=tables))
    run, state = tmp_path / "run", registry.folder / STATE
    run.mkdir()
    (run / "decision.json").write_text("{}")
    for change, says in (
        (lambda: None, "have nothing to make them"),
        (lambda: registry.promote(run), "version 4 has no export"),
        (lambda: state.write_text("{}"), "no version of the registry is current"),
    ):
        change()
        with pytest.raises(DataError, match=says):
            make_app(registry.folder)
    for text in ("7", "x=0.1", "7=0", "7=1.5"):
        with pytest.raises(DataError):
            Canary.read(text)
    assert Canary.read("7=0.05") == Canary(7, 0.05)


USERS = [7, 2**53 + 1, 5]  # 2, 1 and no events come with the exports


def ask(app: Any, weights: int = 0) -> tuple[str, bytes, list[float]]:
    rows = {k: v * len(USERS) for k, v in columns(1).items()}
    rows |= {"user": USERS, "at": ["2026-02-01T00:00:00"] * len(USERS)}
    answer = post(app, "/v1/score", {"columns": rows}, TOKEN)
    assert answer.status == 200, answer.body
    more = np.subtract(answer.json()["scores"], by_hand(rows, weights=weights)) * 1000
    return answer.headers["x-model-version"], answer.body, more.round(2).tolist()


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
    assert first[2] == [2, 1, 0]
    observe(app, 7, 5)
    before = ask(app)
    assert before[2] == [3, 1, 1]
    registry.promote(with_events(tmp_path / "b", weights=1))  # of a log that has what was observed: it counts once
    reload(app)
    second = ask(app, 1)
    assert second[::2] == ("2", [2, 1, 0])
    registry.rollback()
    reload(app)
    assert ask(app) == ("1", *before[1:])
    registry.rollback()
    reload(app)
    assert ask(app, 1) == second
    observe(app, 5, 5)  # while version 2 is current
    refused(app, "/v1/events?table=log", {"rows": [event(5), {"user": "x", "at": "soon"}]}, 422, headers=TOKEN)
    assert ask(app, 1)[2] == [2, 1, 2]
    registry.promote(1)
    reload(app)
    after = ask(app)
    assert after[::2] == ("1", [3, 1, 3])
    assert 'fastrec_answers_total{version="2",status="200"} 3' in get(app, "/metrics", TOKEN).body.decode()
    app.state.service.close()
    assert (registry.version(1).export / "events").is_dir()
    assert ask(serve(registry.folder, token="t")) == after  # a server that starts anew
    fresh = Registry(tmp_path / "fresh")
    fresh.promote(registry.version(1).export)
    assert ask(serve(fresh.folder, token="t"))[1] == first[1]  # a version's own files never changed


def test_events_that_no_state_took_in_before_a_kill_are_taken_in(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    registry.promote(with_events(tmp_path / "a"))
    app, state = make_app(registry.folder, token="t"), registry.folder / "events" / "0001"
    observe(app, 7)
    app.state.service.close()
    kept = shutil.copytree(state, tmp_path / "kept")
    app = make_app(registry.folder, token="t")
    observe(app, 5, 5)
    observe(app, 7)
    whole = ask(app)
    app.state.service.close()
    shutil.rmtree(state)  # as if it had died between the log and the state
    shutil.copytree(kept, state)
    with (registry.folder / "events" / "observed.log").open("ab") as file:
        file.write(b"\x09\x00\x00\x00torn")
    with pytest.warns(match="cut short"):
        app = serve(registry.folder, token="t")
    assert ask(app) == whole
    assert whole[2] == [4, 1, 2]
