"""``fastrec serve`` as a process: signals, sockets, kills; heads and bodies that are too large or too slow."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("uvicorn")
pytest.importorskip("httptools")
import uvicorn

from fastrec.cli import app
from fastrec.serve import Limits, make_app
from fastrec.serve.server.protocols import bounded
from tests import fresh
from tests.bench.load_server import measure
from tests.serve.server.exports import by_hand, columns, event, with_events, write_export


@dataclass
class Served:
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


def test_sighup_reloads(served: Served) -> None:
    rows = columns(2)
    wanted = pytest.approx(by_hand(rows, weights=1), abs=1e-6)
    write_export(served.folder, weights=1)
    served.process.send_signal(signal.SIGHUP)
    until(lambda: served.ask("/v1/score", {"columns": rows})["scores"] == wanted)
    (served.folder / "model.onnx").write_bytes(b"half a file")
    served.process.send_signal(signal.SIGHUP)  # cannot be loaded: the old one goes on
    until(lambda: 'fastrec_reloads_total{outcome="failed"} 1' in served.metrics())
    assert served.ask("/v1/score", {"columns": rows})["scores"] == wanted


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
        ("stateless", None, "events"),
        ("binary", "nothing", "cannot be read"),
        ("binary", "empty", "no token"),
        ("binary", "lines", "no token"),
    ],
)
def test_errors_are_one_line(exports: dict[str, Path], tmp_path: Path, export: str, token: Any, says: str) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "lines").write_text("a\nb")
    made_of = {"tables": {"log": {"columns": {}}}, "history": False}
    write_export(tmp_path / "stateless", made="ratio", events=made_of)
    more = [] if token is None else ["--token-file", str(tmp_path / token)]
    made = CliRunner().invoke(app, ["serve", str(exports.get(export, tmp_path / export)), *more])
    assert made.exit_code == 1
    assert says in made.output
    assert made.output.count("\n") == 1


def counts(served: Served, users: list[int | None]) -> list[float]:
    rows = {k: v * len(users) for k, v in columns(1).items()}
    rows |= {"user": users, "at": ["2026-02-01T00:00:00"] * len(users)}
    scores = served.ask("/v1/score", {"columns": rows})["scores"]
    return [round((s - h) * 1000, 2) for s, h in zip(scores, by_hand(rows))]


def test_what_was_acknowledged_is_there_after_a_kill(start: Callable[..., Served], tmp_path: Path) -> None:
    export = with_events(tmp_path / "export")
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
        except (OSError, http.client.HTTPException):  # it was killed, perhaps in the midst of an answer
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


@pytest.fixture(scope="module")
def url(exports: dict[str, Path]) -> Iterator[str]:
    app = make_app(exports["binary"], limits=Limits(timeout=0.5))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", ws="none", http=bounded(0.5)))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def sent(url: str, *parts: bytes) -> tuple[int, dict[str, Any]]:
    """What a server answers to bytes as they are: its status and its JSON; the connection is closed by it."""
    host, port = url.removeprefix("http://").split(":")
    said = b""
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        with contextlib.suppress(ConnectionError):  # it may be gone before all is sent
            for part in parts:
                connection.sendall(part)
                time.sleep(0.01)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65536):
                said += part
    head, _, body = said.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def test_the_head_of_a_request_has_a_bound(url: str) -> None:
    begin, end = b"GET /health HTTP/1.1\r\nHost: x\r\n", b"Connection: close\r\n\r\n"
    assert sent(url, begin + b"X: " + b"a" * 60_000 + b"\r\n" + end) == (200, {"live": True})
    for raw in (
        begin + b"X: " + b"a" * 70_000 + b"\r\n" + end,
        begin + b"".join(b"X%d: a\r\n" % i for i in range(200)) + end,
        b"GET /health?" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n" + end,
    ):
        status, said = sent(url, raw)
        assert (status, "65536 bytes" in said["error"]) == (431, True)
    megabyte = b"a" * 2**20
    assert sent(url, begin + b"X: ", *[megabyte] * 3)[0] == 431  # it has no end
    assert sent(url, begin) == (408, {"error": "the head did not come within 0.5 s"})
    assert sent(url, b"\x16\x03\x01\x02\x00") == (400, {"error": "this is no request of HTTP"})
    post = b"POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    assert sent(url, post + b"Content-Length: 10\r\n\r\n{")[0] == 408
    with pytest.raises(IndexError):  # the answer is not there yet: the connection is closed
        sent(url, post + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nX: ", *[megabyte] * 3)


def test_bodies_in_many_small_chunks_are_read(url: str) -> None:
    rows = json.dumps({"columns": columns(200)}).encode()
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)
    headers = {"Content-Type": "application/json"}
    for _ in range(2):  # the second on the same connection
        chunks = (rows[i : i + 2] for i in range(0, len(rows), 2))  # most of what is sent is no body
        connection.request("POST", "/v1/score", chunks, headers, encode_chunked=True)
        assert len(json.loads(connection.getresponse().read())["scores"]) == 200
    connection.close()
