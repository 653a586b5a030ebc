"""HTTP on a socket: heads and bodies that are too large or too slow, refused in JSON."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("httptools")
import uvicorn

from fastrec.serve import Limits, make_app
from fastrec.serve.server.protocols import bounded
from tests.serve.server.exports import columns

SECONDS = 0.5


@pytest.fixture(scope="module")
def url(exports: dict[str, Path]) -> Iterator[str]:
    """A server in a thread of its own."""
    app = make_app(exports["binary"], limits=Limits(timeout=SECONDS))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", ws="none", http=bounded(SECONDS)))
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
