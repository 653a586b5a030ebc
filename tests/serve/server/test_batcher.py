"""Requests that wait together are scored together; the queue has an end, and so has patience."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastrec.errors import MissingFileError, UnreadableFileError
from fastrec.serve import Limits, Scorer
from fastrec.serve.server.batcher import Batcher, Job
from fastrec.serve.server.bodies import Body
from fastrec.serve.server.call import Refusal
from fastrec.serve.server.columns import RequestColumns
from tests.serve.server.calls import CLOSE, in_loop, post_soon, serve, until
from tests.serve.server.exports import by_hand, columns


class Gate(Scorer):
    """A real export whose batches wait until the gate is open, and are noted."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.open, self.batches = threading.Event(), []

    def score_all(self, batch: Any) -> Any:
        self.batches.append([one.rows for one in batch])
        assert self.open.wait(300)
        return super().score_all(batch)


@pytest.fixture
def gate(exports: dict[str, Path]) -> Any:
    made = Gate(exports["binary"])
    yield made
    made.open.set()


def checked(scorer: Scorer, rows: dict[str, list[Any]]) -> RequestColumns:
    return Body("columns", rows, {}).columns(scorer.spec, 10_000)


def batcher(**options: Any) -> Batcher:
    made = Batcher(**{"workers": 1, "max_rows": 100, "max_wait": 0.0, "queue_rows": 1000, **options})
    CLOSE.append(made.close)
    return made


async def submit(made: Batcher, scorer: Scorer, rows: int, seed: int = 0, timeout: float = 300) -> Any:
    return (await made.submit(Job(scorer, checked(scorer, columns(rows, seed)), timeout)))[0]


async def together(app: Any, bodies: list[Any]) -> list[Any]:
    answers = await asyncio.gather(*[post_soon(app, "/v1/score", b) for b in bodies])
    return [a.json()["scores"] for a in answers]


@in_loop
async def test_what_waits_while_the_worker_is_busy_goes_together(gate: Gate) -> None:
    made = batcher(max_rows=10)
    first = asyncio.create_task(submit(made, gate, 1))
    await until(lambda: gate.batches)
    sizes = [3, 4, 3, 2, 20, 1]
    rest = [asyncio.create_task(submit(made, gate, n, seed=n)) for n in sizes]
    await until(lambda: made.jobs_waiting == 6)
    assert made.rows_waiting == 33
    gate.open.set()
    np.testing.assert_allclose(await first, by_hand(columns(1)), atol=1e-6)
    for n, scores in zip(sizes, await asyncio.gather(*rest)):
        np.testing.assert_allclose(scores, by_hand(columns(n, n)), atol=1e-6)
    assert gate.batches == [[1], [3, 4, 3], [2], [20], [1]]  # in their order, and a large one alone
    assert made.rows_waiting == made.jobs_waiting == 0
    made = batcher()
    await asyncio.gather(*[submit(made, gate, 1) for _ in range(20)])
    assert gate.batches[5:] == [[1] * 20]  # what comes at once goes together without waiting


@in_loop
async def test_several_workers_score_at_once(gate: Gate) -> None:
    made, both = batcher(workers=2), []
    for n in (1, 2):
        both.append(asyncio.create_task(submit(made, gate, n)))
        await until(lambda n=n: len(gate.batches) == n)
    assert gate.batches == [[1], [2]]  # the second began before the first had ended
    gate.open.set()
    await asyncio.gather(*both)


@in_loop
async def test_a_batch_waits_for_more_where_it_may(gate: Gate) -> None:
    gate.open.set()
    made = batcher(max_rows=4, max_wait=60.0)
    tasks = []
    for _ in range(4):
        tasks.append(asyncio.create_task(submit(made, gate, 1)))
        await asyncio.sleep(0.02)
    await asyncio.gather(*tasks)  # full: it went without waiting for the minute to pass
    assert gate.batches == [[1, 1, 1, 1]]
    made = batcher(max_rows=4, max_wait=0.05)
    began = time.monotonic()
    await submit(made, gate, 3)
    assert time.monotonic() - began >= 0.05
    assert gate.batches[1:] == [[3]]


@in_loop
async def test_who_is_not_answered_in_time_is_told_and_taken_out(gate: Gate) -> None:
    made = batcher()
    job = Job(gate, checked(gate, columns(1)), 300)
    being_scored = asyncio.create_task(made.submit(job))
    await until(lambda: gate.batches)
    made._give_up(job)  # as its alarm does: a real one might ring before a slow machine has begun to score
    waiting = asyncio.create_task(submit(made, gate, 2, timeout=0.05))
    for task in (being_scored, waiting):
        with pytest.raises(Refusal) as error:
            await task
        assert error.value.status == 504
    assert made.jobs_waiting == made.rows_waiting == 0
    gate.open.set()
    assert len(await submit(made, gate, 3)) == 3
    assert gate.batches == [[1], [3]]  # what nobody waits for is not scored


@in_loop
async def test_a_bad_value_harms_no_other_request_of_its_batch(gate: Gate) -> None:
    gate.open.set()
    made = batcher()
    bad = {**columns(3), "user": [1, "no", 3]}
    tasks = [submit(made, gate, 2, seed=1), made.submit(Job(gate, checked(gate, bad), 10)), submit(made, gate, 4)]
    good, refused, other = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.column, refused.row) == (422, "user", 1)
    np.testing.assert_allclose(good, by_hand(columns(2, 1)), atol=1e-6)
    np.testing.assert_allclose(other, by_hand(columns(4)), atol=1e-6)
    assert gate.batches[0] == [2, 3, 4]


@in_loop
async def test_requests_to_two_exports_do_not_mix(exports: dict[str, Path], gate: Gate) -> None:
    gate.open.set()
    made, other = batcher(), Gate(exports["binary"])
    other.open.set()
    await asyncio.gather(*[submit(made, s, 1) for s in (gate, gate, other, other, gate)])
    assert (gate.batches, other.batches) == ([[1, 1], [1]], [[1, 1]])


def test_lists_of_several_requests_stay_apart(exports: dict[str, Path]) -> None:
    app = serve(exports["ranking"], limits=Limits(workers=1))
    bodies = [{**columns(n, n)} for n in (2, 3, 4)]
    bodies[1]["list_id"] = [7, 8, 7]
    said = asyncio.run(together(app, [{"columns": b} for b in bodies]))
    for n, scores, more in zip((2, 3, 4), said, [[200, 200], [200, 100, 200], [400] * 4]):
        np.testing.assert_allclose(scores, np.array(by_hand(columns(n, n))) + more, atol=1e-5)
    assert "fastrec_batch_requests_sum 3.0" in app.state.service.metrics.text()
    assert "fastrec_batch_requests_count 1\n" in app.state.service.metrics.text()


def test_bodies_of_all_forms_share_a_batch(exports: dict[str, Path]) -> None:
    app, rows = serve(exports["binary"], limits=Limits(workers=1)), columns(3)
    without = {k: v for k, v in rows.items() if k != "ratio"}
    as_rows = [dict(zip(rows, values)) for values in zip(*rows.values())]
    bodies = [{"columns": rows}, {"columns": without}, {"rows": as_rows}, {"columns": rows}]
    for scores, sent in zip(asyncio.run(together(app, bodies)), (rows, without, rows, rows)):
        np.testing.assert_allclose(scores, by_hand(sent), atol=1e-6)
    assert "fastrec_batch_requests_count 1\n" in app.state.service.metrics.text()


@in_loop
async def test_a_deadline_in_the_header_and_a_full_queue_over_http(exports: dict[str, Path], gate: Gate) -> None:
    app, body = serve(exports["binary"], limits=Limits(workers=1, queue_rows=1)), {"columns": columns(2)}
    app.state.service.scorer = gate  # an empty queue takes any
    first = asyncio.create_task(post_soon(app, "/v1/score", body))
    await until(lambda: gate.batches)  # the worker is busy, however long the next one's 20 ms are
    late = await post_soon(app, "/v1/score", body, {"x-timeout-ms": "20"})
    assert (late.status, late.json()["error"]) == (504, "there was no answer within 0.02 s")
    waiting = asyncio.create_task(post_soon(app, "/v1/score", body))
    await until(lambda: app.state.service.batcher.jobs_waiting == 1)
    full = await post_soon(app, "/v1/score", body)
    assert full.status == 503
    assert int(full.headers["retry-after"]) >= 1
    gate.open.set()
    assert [(await a).status for a in (first, waiting)] == [200, 200]


@in_loop
async def test_bytes_that_wait_have_a_bound_too(exports: dict[str, Path], gate: Gate) -> None:
    app = serve(exports["binary"], limits=Limits(workers=1, max_body=1000))
    app.state.service.scorer = gate
    body = json.dumps({"columns": columns(1)}).encode().ljust(900)
    waiting = [asyncio.create_task(post_soon(app, "/v1/score", body)) for _ in range(8)]
    await until(lambda: sum(map(sum, gate.batches)) + app.state.service.batcher.jobs_waiting == 8)
    full = await post_soon(app, "/v1/score", body)  # 8,100 bytes
    assert (full.status, full.headers["retry-after"]) == (503, "1")
    gate.open.set()
    assert [a.status for a in await asyncio.gather(*waiting)] == [200] * 8
    assert (await post_soon(app, "/v1/score", body)).status == 200


def test_arrays_of_another_shape_are_refused(exports: dict[str, Path]) -> None:
    with pytest.raises(Refusal, match=r"column 'city': its shape is \(3, 1\)"):
        Scorer(exports["binary"]).score({**columns(3), "city": np.array([["a"]] * 3)})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 2}, "format is 2"),
        ({"model": {"file": "../model.onnx", "sha256": ""}}, "no plain name"),
        ({"model": {"file": "model.onnx", "sha256": "0" * 64}}, "SHA-256"),
        ({"inputs": []}, "does not fit"),
        ({"inputs": [{"name": "a", "type": "int32"}]}, "type 'int32'"),
        ({"inputs": [{"name": "a", "type": "int64"}] * 2}, "two inputs have one name"),
        ({"inputs": [{"name": "a", "type": "int64", "missing": "no"}]}, "missing value 'no'"),
        ({"inputs": [{"name": "a", "type": "int64", "required": False}]}, "left out, but has no missing value"),
        ({"inputs": [{"name": "a", "type": "string", "time": {"unit": "us"}}]}, "is a time of type"),
        ({"outputs": [{"name": "other", "type": "float64", "width": 1}]}, "no such output"),
        ({"outputs": []}, "no output at all"),
        ({"outputs": 3}, "its form is not that of an export"),
    ],
)
def test_an_export_that_does_not_fit_is_named(exports: dict[str, Path], tmp_path: Path, change: Any, says: str) -> None:
    folder = shutil.copytree(exports["binary"], tmp_path / "export")
    said = json.loads((folder / "serving.json").read_text())
    (folder / "serving.json").write_text(json.dumps({**said, **change}))
    with pytest.raises(UnreadableFileError, match=says):
        Scorer(folder)


def test_files_that_are_not_there_or_damaged(exports: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(exports["binary"], tmp_path / "export")
    (folder / "model.onnx").unlink()
    with pytest.raises(MissingFileError, match="graph"):
        Scorer(folder)
    (folder / "serving.json").write_bytes(b"{")
    with pytest.raises(UnreadableFileError, match="no JSON"):
        Scorer(folder)
