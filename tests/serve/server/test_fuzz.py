"""Whatever is sent, the answer is 4xx or right, and the server goes on.

Some 300 bodies in the usual run; ``FUZZ=all`` sends more than 10,000.
"""

from __future__ import annotations

import json
import math
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
KINDS = st.sampled_from(["application/json", "application/vnd.apache.arrow.stream", "", "text/html;a"])
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


def held(answer: Answer) -> bool:
    """Whether it was answered; what was not is refused with a text."""
    assert answer.status == 200 or 400 <= answer.status < 500, (answer.status, answer.body)
    said = answer.json() if answer.headers.get("content-type") == "application/json" else {}
    if answer.status != 200:
        assert type(said["error"]) is str
        assert "Traceback" not in said["error"]
        assert len(said["error"]) < 2000
    return answer.status == 200


def mutated(raw: bytes, cuts: list[tuple[int, int, bytes]]) -> bytes:
    """Some pieces replaced by others."""
    for at, length, new in cuts:
        at %= len(raw) + 1
        raw = raw[:at] + new + raw[at + length :]
    return raw


CUT = st.tuples(st.integers(0, 10**6), st.sampled_from([0, 1, 2, 4, 8, 10**6]), st.binary(max_size=8))
CUTS = st.lists(CUT, min_size=1, max_size=4)


@fuzz
@given(path=PATHS, kind=KINDS, raw=st.binary(max_size=300))
def test_any_bytes(apps: Any, path: str, kind: str, raw: bytes) -> None:
    held(post(apps["ranking"], path, raw, {"content-type": kind}))


@fuzz
@given(path=PATHS, body=st.one_of(TREES, st.dictionaries(WORDS, TREES, max_size=4)))
def test_any_json(apps: Any, path: str, body: Any) -> None:
    held(post(apps["ranking"], path, json.dumps(body).encode()))


@fuzz
@given(path=st.sampled_from(["/v1/score", INFER]), cuts=CUTS, kind=st.sampled_from(["json", "octet-stream"]))
def test_json_with_holes(apps: Any, path: str, cuts: list[tuple[int, int, bytes]], kind: str) -> None:
    body = {"columns": ROWS} if path == "/v1/score" else {"inputs": in_json(tensor_rows(4))}
    raw = mutated(json.dumps(body).encode(), cuts)
    held(post(apps["binary"], path, raw, {"content-type": f"application/{kind}"}))


def is_good(name: str, value: Any) -> bool:
    """Whether a value of JSON fits its column, in plain Python."""
    if value is None or value != value:
        return name != "mobile"
    if name in ("city", "mobile"):
        return type(value) is (str if name == "city" else bool)
    if name in ("user", "at", "seen"):
        whole = type(value) is float and value.is_integer() and abs(value) < 2**53
        return whole or (type(value) is int and -(2**63) <= value < 2**63)
    return type(value) in (int, float, bool) and (type(value) is float or -(10**300) < value < 10**300)


@fuzz
@given(
    name=st.sampled_from(sorted(ROWS)),
    # blank text is missing and text of digits a number or a time, as tests/serve/server/test_values.py has it
    values=st.lists(
        VALUES.filter(lambda v: type(v) is not str or (v.strip() and not any(map(str.isdigit, v)))),
        min_size=3,
        max_size=5,
    ),
    rows=st.booleans(),
)
def test_odd_values_are_refused_or_scored_as_by_hand(apps: Any, name: str, values: list[Any], rows: bool) -> None:
    body = {**ROWS, name: values}
    as_rows = rows and len(values) == 4
    sent = {"rows": [dict(zip(body, row)) for row in zip(*body.values())]} if as_rows else {"columns": body}
    answered = held(answer := post(apps["binary"], "/v1/score", json.dumps(sent).encode()))
    if len(values) != 4:
        assert not answered
        return
    # beyond 64 bits orjson makes floats of integers, which fit columns of floats alone
    assert answered == all(is_good(name, v) for v in values), (name, values, answer.body)
    if not answered or not (
        name in ("user", "city") or all(type(v) in (str, type(None)) or abs(v) < 1e6 for v in values)
    ):
        return
    plain = {k: [None if isinstance(v, float) and math.isnan(v) else v for v in c] for k, c in body.items()}
    plain["at"] = [v / 1e6 if type(v) in (int, float) else v for v in plain["at"]]
    np.testing.assert_allclose(answer.json()["scores"], by_hand(plain), atol=1e-5)


@fuzz
@given(cuts=CUTS)
def test_arrow_with_holes(apps: Any, cuts: list[tuple[int, int, bytes]]) -> None:
    raw = mutated(stream(pa.table(ROWS)), cuts)
    answer = post(apps["binary"], "/v1/score", raw, ARROW)
    if held(answer):  # a hole that Arrow does not see: then the answer is that of what is in the body
        sent = pa.ipc.open_stream(raw).read_all().to_pydict()
        assert answer.json() == post(apps["binary"], "/v1/score", json.dumps({"columns": sent}).encode()).json()


@fuzz
@given(end=st.integers(0, 10**6), flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 7)), max_size=6))
def test_arrow_that_ends_early_or_has_other_bits(apps: Any, end: int, flips: list[tuple[int, int]]) -> None:
    raw = bytearray(stream(pa.table({**ROWS, "city": pa.array(ROWS["city"]).dictionary_encode()})))
    for at, bit in flips:
        raw[at % len(raw)] ^= 1 << bit
    held(post(apps["binary"], "/v1/score", bytes(raw[: end % (2 * len(raw))]), ARROW))


@fuzz
@given(cuts=CUTS, length=st.one_of(st.none(), st.integers(-1, 10**4), st.text("0123456789x", max_size=5)))
def test_binary_tensors_with_holes(apps: Any, cuts: list[tuple[int, int, bytes]], length: Any) -> None:
    raw, headers = in_binary(in_json(tensor_rows(4)), parameters={"binary_data_output": True})
    if length is not None:
        headers = {**headers, "inference-header-content-length": str(length)}
    held(post(apps["binary"], INFER, mutated(raw, cuts), headers))


def test_huge_lists(apps: Any) -> None:
    app = apps["binary"]
    for body in (
        {"columns": {"user": list(range(10**5))}},
        {"columns": {str(i): [] for i in range(10**5)}},
        {"rows": [{}] * 10**5},
        {"rows": [{str(i): i for i in range(10**5)}]},
        {"columns": ROWS, "context": {str(i): i for i in range(10**4)}},
        {"inputs": [{"name": str(i), "shape": [0], "datatype": "INT64", "data": []} for i in range(10**4)]},
    ):
        raw = json.dumps(body).encode()
        assert not held(post(app, "/v1/score", raw))
        assert not held(post(app, INFER, raw))
    assert not held(post(app, "/v1/score", b"[" * 10**6))
    assert not held(post(app, "/v1/score", b'{"columns": {"user": [' + b"9" * 10**6 + b"]}}"))


@pytest.fixture(autouse=True)
def still_right(apps: Any) -> Any:
    """After all of it the server scores as before."""
    yield
    answer = post(apps["binary"], "/v1/score", {"columns": ROWS})
    np.testing.assert_allclose(answer.json()["scores"], by_hand(ROWS), atol=1e-6)
