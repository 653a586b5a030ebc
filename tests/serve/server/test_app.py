"""What is the same for every address: tokens, errors, health, what is counted, what the server says of itself."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fastrec.errors import MissingFileError
from fastrec.serve import Limits, make_app
from tests.serve.server.calls import Answer, get, in_loop, post, post_soon, refused, request, scores, serve
from tests.serve.server.exports import by_hand, columns, write_export

ROWS = {"columns": columns(3)}


def test_health_and_readiness(exports: dict[str, Path]) -> None:
    app = serve(exports["binary"])
    for path in ("/health", "/ready", "/v2/health/live", "/v2/health/ready"):
        assert get(app, path).status == 200
    app.state.service.stopping = True
    assert get(app, "/health").status == 200
    assert get(app, "/ready").status == get(app, "/v2/health/ready").status == 503
    assert post(app, "/v1/score", ROWS).status == 200  # what still comes is answered


def test_the_token_is_asked_for_everywhere_but_for_health(exports: dict[str, Path]) -> None:
    app = serve(exports["binary"], token="s3cret")
    gets = ("/metrics", "/openapi.json", "/", "/v2", "/v2/models/Toy", "/v2/models/Toy/ready")
    posts = ("/v1/score", "/v1/rank", "/v1/explain", "/v1/events", "/v1/reload", "/v2/models/Toy/infer")
    for sent in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic s3cret"}, {"authorization": "s3cret"}):
        for path in gets:
            assert get(app, path, sent).status == 401, path
        for path in posts:
            answer = post(app, path, ROWS, sent)
            assert answer.status == 401, path
            assert answer.headers["www-authenticate"] == "Bearer"
    for path in ("/health", "/ready", "/v2/health/live", "/v2/health/ready"):
        assert get(app, path).status == 200
    right = {"authorization": "Bearer s3cret"}
    assert post(app, "/v1/score", ROWS, right).status == 200
    assert get(app, "/metrics", right).status == 200


def test_other_addresses_and_methods(apps: Any, tmp_path: Path) -> None:
    with pytest.raises(MissingFileError):
        make_app(tmp_path / "nothing")
    assert post(apps["binary"], "/v1/reload", b"").status == 403  # without a token nobody reloads
    lost, method = get(apps["binary"], "/v1/nothing"), get(apps["binary"], "/v1/score")
    assert (lost.status, lost.json()) == (404, {"error": "there is no such address"})
    assert method.status == 405
    assert "error" in method.json()


@pytest.mark.parametrize("sent", ["0", "-5", "soon", "1.5", "9" * 30, ""])
def test_a_deadline_that_is_no_number(apps: Any, sent: str) -> None:
    refused(apps["binary"], "/v1/score", ROWS, 400, "x-timeout-ms", headers={"x-timeout-ms": sent})


def test_a_failure_of_the_server_says_nothing_of_its_inside(exports: Any, caplog: pytest.LogCaptureFixture) -> None:
    app = serve(exports["binary"])

    def fail(feeds: Any) -> Any:
        raise RuntimeError("secret")

    app.state.service.scorer.run = fail
    assert "secret" not in refused(app, "/v1/score", ROWS, 500).json()["error"]
    assert "secret" in caplog.text


def samples(text: str) -> dict[str, float]:
    """The lines of Prometheus' text form, each checked by its grammar."""
    label = r'[a-z_]+="(?:[^"\\\n]|\\["\\n])*"'
    line = re.compile(rf"([a-z_]+(?:\{{{label}(?:,{label})*\}})?) ([0-9.e+-]+|\+Inf)")
    found = {}
    for one in text.splitlines():
        if one.startswith("#"):
            assert re.fullmatch(r"# (HELP [a-z_]+ .+|TYPE [a-z_]+ (counter|gauge|histogram))", one), one
            continue
        match = line.fullmatch(one)
        assert match, one
        assert match[1] not in found
        found[match[1]] = float(match[2])
    return found


def test_what_is_counted(tmp_path: Path) -> None:
    app = serve(write_export(tmp_path / "export", name='A "name" \\ with\nall'))
    version = app.state.service.scorer.spec.version
    for rows in (1, 3, 300):
        answer = post(app, "/v1/score", {"columns": columns(rows)})
        assert (answer.status, answer.headers["x-model-version"]) == (200, version[:12])
    assert post(app, "/v1/score", b"{").status == 400
    answer = get(app, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = samples(answer.body.decode())
    assert found['fastrec_requests_total{path="/v1/score",status="200"}'] == 3
    assert found['fastrec_requests_total{path="/v1/score",status="400"}'] == 1
    assert found['fastrec_request_seconds_count{path="/v1/score"}'] == 4
    assert found["fastrec_rows_total"] == 304
    assert found["fastrec_batch_rows_sum"] == 304
    buckets = {b: found[f'fastrec_batch_rows_bucket{{le="{b}"}}'] for b in ("1", "4", "256", "1024", "+Inf")}
    assert list(buckets.values()) == [1, 2, 2, 3, 3]
    assert found["fastrec_queue_rows"] == found["fastrec_queue_requests"] == 0
    assert found[f'fastrec_model_info{{name="A \\"name\\" \\\\ with\\nall",version="{version}"}}'] == 1


def test_the_page_shows_names_as_text_and_fetches_nothing_from_elsewhere(tmp_path: Path) -> None:
    app = serve(write_export(tmp_path / "export", name="<script>alert(1)</script>"))
    answer = get(app, "/")
    assert answer.headers["content-type"].startswith("text/html")
    assert re.findall(rb"""(?:src|href)\s*=\s*["']?([^"'\s>]*)""", answer.body) == [b"openapi.json", b"metrics"]
    assert b"&lt;script&gt;alert(1)&lt;/script&gt;" in answer.body
    assert b"<script" not in answer.body
    seconds = app.state.service.metrics.seconds  # it tells how long answers took
    for took in [0.002] * 90 + [0.02] * 9 + [0.2]:
        seconds.see(took, "/v1/score")
    assert [seconds.within(share)["/v1/score",] for share in (0.5, 0.99)] == [(100, 0.0025), (100, 0.025)]
    assert b"<tr><td>/v1/score<td>100<td>2.5 ms<td>25 ms" in get(app, "/docs").body


RIGHT = {"authorization": "Bearer t"}


def test_a_reload_puts_the_new_export_in_the_old_ones_place_unless_it_fails(tmp_path: Path) -> None:
    folder, rows = write_export(tmp_path / "export"), columns(5)
    app = serve(folder, token="t")
    assert scores(app, {"columns": rows}, RIGHT) == pytest.approx(by_hand(rows), abs=1e-6)
    write_export(folder, weights=1)
    answer = post(app, "/v1/reload", b"", RIGHT)
    assert answer.json() == {"version": json.loads((folder / "serving.json").read_text())["model"]["sha256"]}
    after = scores(app, {"columns": rows}, RIGHT)
    assert after == pytest.approx(by_hand(rows, weights=1), abs=1e-6)
    (folder / "model.onnx").write_bytes(b"half a file")
    refused(app, "/v1/reload", b"", 500, "SHA-256", headers=RIGHT)
    assert scores(app, {"columns": rows}, RIGHT) == after
    shutil.rmtree(folder)
    refused(app, "/v1/reload", b"", 500, headers=RIGHT)
    assert scores(app, {"columns": rows}, RIGHT) == after
    counted = samples(get(app, "/metrics", RIGHT).body.decode())
    assert counted['fastrec_reloads_total{outcome="failed"}'] == 2


async def silent(app: Any, part: bytes, client: str = "127.0.0.1", *, ends: str = "silent") -> Answer:
    """A body of which one part comes, and never the next: the client is silent, or gone."""
    return await request(
        app, "POST", "/v1/score", [part], {"content-type": "application/json"}, client=client, ends=ends
    )


def test_the_deadline_holds_while_a_body_is_read_and_who_hangs_up_stops_nothing(exports: dict[str, Path]) -> None:
    app = serve(exports["binary"], limits=Limits(timeout=0.05))
    assert asyncio.run(silent(app, b"{", ends="gone")).status == 400
    answer = asyncio.run(silent(app, b"{"))
    assert (answer.status, answer.headers["connection"]) == (408, "close")
    assert answer.json() == {"error": "the body did not come within 0.05 s"}


@pytest.mark.parametrize("patience", [0.0, 1e9])
@in_loop
async def test_silent_clients_do_not_shut_others_out(
    exports: dict[str, Path], monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    monkeypatch.setattr("fastrec._core.limits.SLOW_BODY", patience)
    app = serve(exports["binary"], limits=Limits(timeout=600, max_body=1000))
    good = json.dumps({"columns": columns(1)}).encode().ljust(900)
    waiting = [asyncio.create_task(silent(app, b" " * 990, client)) for client in ("192.0.2.1", "127.0.0.1") * 8]
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # each has sent its part
    same = await post_soon(app, "/v1/score", good)
    other = asyncio.create_task(silent(app, good, "192.0.2.2"))
    await asyncio.sleep(0.01)
    done = [t.result() for t in waiting if t.done()]
    if patience:  # whose share is full is refused
        assert same.status == 503
        assert not done
        assert other.result().status == 503  # as is everybody where all is full
    else:
        assert same.status == 200
        assert [d.status for d in done] == [408]
        assert b"while others waited" in done[0].body
        assert not other.done()  # it is being read
    await ended(*waiting, other)
    assert (await post_soon(app, "/v1/score", good)).status == 200


async def ended(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@in_loop
async def test_a_client_may_fill_its_own_share_alone(exports: dict[str, Path]) -> None:
    app = serve(exports["binary"], limits=Limits(timeout=600, max_body=1000))
    waiting = [asyncio.create_task(silent(app, b" " * 990, "192.0.2.1")) for _ in range(20)]
    await asyncio.sleep(0.01)
    assert [t.result().status for t in waiting if t.done()] == [503] * 12
    assert (await post_soon(app, "/v1/score", ROWS)).status == 200
    await ended(*waiting)
