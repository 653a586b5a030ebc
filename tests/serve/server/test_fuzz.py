"""Whatever is sent, the answer is 4xx or right, and the server goes on; ``FUZZ=all`` sends more than 10,000 bodies."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serve.server.calls import Answer, post
from tests.serve.server.exports import by_hand, columns
from tests.serve.server.test_v1 import ARROW, stream
from tests.serve.server.test_v2 import INFER, in_binary, in_json, tensor_rows

EXAMPLES = 1500 if os.environ.get("FUZZ") == "all" else 45
fuzz = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
ROWS = columns(4)
PATHS = st.sampled_from(["/v1/score", "/v1/rank", "/v1/explain", "/v1/events", INFER])
JSON = "application/json"
KINDS = st.sampled_from([JSON, "application/vnd.apache.arrow.stream", "", "text/html;a"])
NUMBERS = st.one_of(
    st.integers(), st.sampled_from([2**63, 2**63 - 1, -(2**63), -(2**63) - 1, 2**64, 10**400, 2**53 + 1]), st.floats()
)
VALUES = st.one_of(
    st.none(), st.booleans(), NUMBERS, st.text(max_size=8), st.sampled_from(["2026-01-01", "\0", "Köln"])
)
TREES = st.recursive(
    VALUES, lambda s: st.one_of(st.lists(s, max_size=4), st.dictionaries(st.text(max_size=6), s, max_size=4))
)
WORDS = st.sampled_from(["columns", "rows", "context", "k", "inputs", "outputs", "parameters", "name", "shape", *ROWS])
JSONS = st.one_of(TREES, st.dictionaries(WORDS, TREES, max_size=4)).map(lambda body: json.dumps(body).encode())


def held(answer: Answer) -> bool:
    """Whether it was answered; what was not is refused with a text."""
    assert answer.status == 200 or 400 <= answer.status < 500, (answer.status, answer.body)
    said = answer.json() if answer.headers.get("content-type") == JSON else {}
    if answer.status != 200:
        assert type(said["error"]) is str
        assert "Traceback" not in said["error"]
        assert len(said["error"]) < 2000
    return answer.status == 200


def mutated(raw: bytes, cuts: list[tuple[int, int, bytes]]) -> bytes:
    for at, length, new in cuts:
        at %= len(raw) + 1
        raw = raw[:at] + new + raw[at + length :]
    return raw


CUT = st.tuples(st.integers(0, 10**6), st.sampled_from([0, 1, 2, 4, 8, 10**6]), st.binary(max_size=8))
TENSORS, WORDY = in_json(tensor_rows(4)), {**ROWS, "city": pa.array(ROWS["city"]).dictionary_encode()}
FORMS = {
    "columns": ("/v1/score", json.dumps({"columns": ROWS}).encode(), {}),
    "tensors": (INFER, json.dumps({"inputs": TENSORS}).encode(), {}),
    "binary tensors": (INFER, *in_binary(TENSORS, parameters={"binary_data_output": True})),
    "arrow": ("/v1/score", stream(pa.table(ROWS)), ARROW),
    "arrow of a dictionary": ("/v1/score", stream(pa.table(WORDY)), ARROW),
}


@fuzz
@given(path=PATHS, sent=st.one_of(st.tuples(KINDS, st.binary(max_size=300)), st.tuples(st.just(JSON), JSONS)))
def test_any_bytes(apps: Any, path: str, sent: tuple[str, bytes]) -> None:
    held(post(apps["ranking"], path, sent[1], {"content-type": sent[0]}))


@pytest.mark.parametrize("form", FORMS)
@fuzz
@given(cuts=st.lists(CUT, min_size=1, max_size=4))
def test_bodies_with_holes(apps: Any, form: str, cuts: list[tuple[int, int, bytes]]) -> None:
    path, whole, headers = FORMS[form]
    raw = mutated(whole, cuts)
    answer = post(apps["binary"], path, raw, headers)
    if held(answer) and "arrow" in form:  # a hole that Arrow does not see: the answer is that of what is in the body
        sent = pa.ipc.open_stream(raw).read_all().to_pydict()
        assert answer.json() == post(apps["binary"], "/v1/score", {"columns": sent}).json()


def test_huge_lists(apps: Any) -> None:
    app = apps["binary"]
    many = {str(i): [] for i in range(10**5)}
    for body in (
        {"columns": {"user": list(range(10**5))}},
        {"columns": many},
        {"rows": [{}] * 10**5},
        {"columns": ROWS, "context": many},
        {"inputs": [{"name": i, "shape": [0], "datatype": "INT64", "data": []} for i in many]},
    ):
        raw = json.dumps(body).encode()
        assert not held(post(app, "/v1/score", raw))
        assert not held(post(app, INFER, raw))
    assert not held(post(app, "/v1/score", b"[" * 10**6))
    assert not held(post(app, "/v1/score", b'{"columns": {"user": [' + b"9" * 10**6 + b"]}}"))


@pytest.fixture(autouse=True)
def still_right(apps: Any) -> Any:
    yield
    answer = post(apps["binary"], "/v1/score", {"columns": ROWS})
    np.testing.assert_allclose(answer.json()["scores"], by_hand(ROWS), atol=1e-6)
