"""``fastrec serve`` as a process: signals, sockets, load."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("uvicorn")
from fastrec.cli import app
from fastrec.retrieval import Recommender, Seen
from fastrec.sequences import CoVisitation, SessionFrame
from tests import fresh
from tests.bench.load_server import measure
from tests.serve.server.exports import by_hand, columns, write_export


@dataclass
class Served:
    """A server in a process of its own."""

    process: Any
    url: str
    folder: Path
    token: str | None = None

    def text(self, path: str, body: Any = None) -> bytes:
        request = urllib.request.Request(self.url + path, None if body is None else json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        if self.token is not None:
            request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.read()

    def ask(self, path: str, body: Any = None) -> Any:
        return json.loads(self.text(path, body))

    def metrics(self) -> str:
        return self.text("/metrics").decode()


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Served]]:
    """Starts servers, and stops what is left of them."""
    running = []

    def begin(folder: Path, *options: str, token: str | None = None) -> Served:
        words = ["serve", folder, "--port", "0", *options]
        process = fresh.start("from fastrec.cli import app; app()", *words, FASTREC_TOKEN=token or "")
        running.append(process)
        line = process.stdout.readline()
        assert line.startswith("listening at "), line
        return Served(process, line.split()[-1], folder, token)

    yield begin
    for process in running:
        process.kill()
        with process:  # waits, and closes its pipes
            pass


@pytest.fixture(scope="module")
def served(start: Callable[..., Served], tmp_path_factory: pytest.TempPathFactory) -> Served:
    return start(write_export(tmp_path_factory.mktemp("served") / "export"), token="s3cret")


def test_it_answers_at_the_loopback_address_and_wants_its_token(served: Served) -> None:
    assert served.url.startswith("http://127.0.0.1:")
    rows = columns(5)
    np.testing.assert_allclose(served.ask("/v1/score", {"columns": rows})["scores"], by_hand(rows), atol=1e-6)
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(served.url + "/v1/score", b"{}", timeout=120)
    assert error.value.code == 401
    error.value.close()


def test_a_saved_recommender_is_served(start: Callable[..., Served], tmp_path: Path) -> None:
    log = SessionFrame({"items": [["a", "b"], ["a", "b"], ["a", "c"]]}, item="items")
    Recommender(CoVisitation(before=0.0), filters=[Seen()]).fit(log).save(tmp_path / "shop")
    served = start(tmp_path / "shop")
    assert served.ask("/v1/recommend", {"items": ["a"], "k": 2})["ids"] == ["b", "c"]


def test_the_open_inference_protocol_with_tritons_own_client(served: Served) -> None:
    try:
        import tritonclient.http as triton
    except (ImportError, RuntimeError) as error:  # RuntimeError: installed without its [http]
        pytest.skip(f"tritonclient[http] is not installed: {error}")
    from tests.serve.server.test_v2 import in_json, scores_of, tensor_rows

    rows = tensor_rows(6)
    client = triton.InferenceServerClient(served.url.removeprefix("http://"))
    headers = {"Authorization": "Bearer s3cret"}
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("Toy", headers=headers)
    assert client.get_model_metadata("Toy", headers=headers)["platform"] == "onnxruntime_onnx"
    kinds = {"INT64": np.int64, "FP64": np.float64, "FP32": np.float32, "BYTES": object, "BOOL": bool}
    for binary in (True, False):
        inputs = []
        for one in in_json(rows):
            made = triton.InferInput(one["name"], one["shape"], one["datatype"])
            made.set_data_from_numpy(np.array(one["data"], kinds[one["datatype"]]), binary_data=binary)
            inputs.append(made)
        for outputs in (None, [triton.InferRequestedOutput("score", binary_data=binary)]):
            # a copy: the client writes a header of its own into what it is given
            result = client.infer("Toy", inputs, outputs=outputs, request_id="7", headers=dict(headers))
            np.testing.assert_allclose(result.as_numpy("score"), scores_of(rows), atol=1e-6)
            assert result.get_response()["id"] == "7"
    client.close()


def test_load_is_sent_as_asked_for(served: Served) -> None:
    options = {"token": "s3cret", "seconds": 0.25}
    rounds = measure(served.url, rates=[40, 80], rows=3, **options)
    assert [(r["rate"], r["requests"], r["failed"]) for r in rounds] == [(40, 10, 0), (80, 20, 0)]
    for one in rounds:
        assert 0 < one["p50"] <= one["p90"] <= one["p99"] <= one["slowest"]
    with pytest.raises(SystemExit, match="load is sent to no other"):
        measure("http://10.0.0.1:80", rates=[1], **options)


def until(ready: Callable[[], Any], times: int = 6000) -> None:
    for _ in range(times):
        if ready():
            return
        time.sleep(0.02)
    raise AssertionError("it never came")


def test_sighup_reloads_without_losing_a_request(served: Served) -> None:
    rows, done = columns(2), threading.Event()
    known = [by_hand(rows, weights=w) for w in (0, 1)]
    answers: list[list[float]] = []

    def ask() -> None:
        while not done.is_set():
            answers.append(served.ask("/v1/score", {"columns": rows})["scores"])

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask) for _ in range(3)]
        try:
            write_export(served.folder, weights=1)
            served.process.send_signal(signal.SIGHUP)
            until(lambda: answers and answers[-1] == pytest.approx(known[1], abs=1e-6))
        finally:
            done.set()
        for one in asking:
            one.result()  # raises what a request raised
    assert served.ask("/v1/score", {"columns": rows})["scores"] == pytest.approx(known[1], abs=1e-6)
    assert all(any(a == pytest.approx(k, abs=1e-6) for k in known) for a in answers)
    (served.folder / "model.onnx").write_bytes(b"half a file")
    served.process.send_signal(signal.SIGHUP)  # cannot be loaded: the old one goes on
    until(lambda: 'fastrec_reloads_total{outcome="failed"} 1' in served.metrics())
    assert served.ask("/v1/score", {"columns": rows})["scores"] == pytest.approx(known[1], abs=1e-6)


def test_sigterm_finishes_what_was_accepted(start: Callable[..., Served], tmp_path: Path) -> None:
    served = start(write_export(tmp_path / "export"), "--workers", "1", "--max-wait", "2000", "--batch-rows", "1000")
    host, port = served.url.removeprefix("http://").split(":")
    rows = columns(4)
    connections = [http.client.HTTPConnection(host, int(port), timeout=120) for _ in range(6)]
    for one in connections:
        one.request("POST", "/v1/score", json.dumps({"columns": rows}), {"Content-Type": "application/json"})
    with contextlib.suppress(AssertionError):  # all six wait for the batch to become full
        until(lambda: "fastrec_queue_requests 6" in served.metrics(), times=100)
    served.process.send_signal(signal.SIGTERM)
    for one in connections:
        answer = one.getresponse()
        assert answer.status == 200
        np.testing.assert_allclose(json.loads(answer.read())["scores"], by_hand(rows), atol=1e-6)
        one.close()
    assert served.process.wait(120) == 0
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{served.url}/health", timeout=60)


@pytest.mark.parametrize(
    ("export", "token", "says"),
    [
        ("nowhere", None, "there is no such file"),
        ("nowhere", "nothing", "there is no such file"),
        ("binary", "nothing", "cannot be read"),
        ("binary", "empty", "no token"),
        ("binary", "lines", "no token"),
    ],
)
def test_errors_are_one_line(exports: dict[str, Path], tmp_path: Path, export: str, token: Any, says: str) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "lines").write_text("a\nb")
    more = [] if token is None else ["--token-file", str(tmp_path / token)]
    made = CliRunner().invoke(app, ["serve", str(exports.get(export, tmp_path / export)), *more])
    assert made.exit_code == 1
    assert says in made.output
    assert made.output.count("\n") == 1
