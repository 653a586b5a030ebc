"""The Open Inference Protocol, as its text and Triton's clients write it."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest

from tests.serve.server.calls import Answer, get, in_loop, post, post_soon, refused
from tests.serve.server.exports import INPUTS, INT_MISSING, by_hand, columns

NAMES = {"int64": "INT64", "float64": "FP64", "float32": "FP32", "string": "BYTES", "bool": "BOOL"}
DTYPES = {"INT64": "<i8", "INT16": "<i2", "FP64": "<f8", "FP32": "<f4", "FP16": "<f2", "BOOL": "?"}
INFER = "/v2/models/Toy/infer"


def tensor_rows(rows: int) -> dict[str, list[Any]]:
    """Rows as tensors can hold them: no nulls, times as integers."""
    made = columns(rows)
    made["at"] = [1_767_225_600_000_000 + i for i in range(rows)]
    made["user"] = [INT_MISSING if v is None else v for v in made["user"]]
    made["city"] = [v or "" for v in made["city"]]
    made["price"] = [float("nan") if v is None else v for v in made["price"]]
    return made


def scores_of(rows: dict[str, list[Any]]) -> list[float]:
    plain = {**rows, "at": [v / 1e6 for v in rows["at"]]}
    plain["user"] = [None if v == INT_MISSING else v for v in rows["user"]]
    plain["price"] = [None if v != v else v for v in rows["price"]]
    return by_hand(plain)


def in_json(rows: dict[str, list[Any]], shape: Any = lambda n: [n]) -> list[dict[str, Any]]:
    kinds = {i["name"]: NAMES[i["type"]] for i in INPUTS}
    return [{"name": k, "shape": shape(len(v)), "datatype": kinds[k], "data": v} for k, v in rows.items()]


def packed(datatype: str, values: list[Any]) -> bytes:
    if datatype != "BYTES":
        return np.array(values).astype(DTYPES[datatype]).tobytes()
    raw = [v.encode() for v in values]
    return b"".join(struct.pack("<I", len(v)) + v for v in raw)


def in_binary(inputs: list[dict[str, Any]], but: Any = (), **fields: Any) -> tuple[bytes, dict[str, str]]:
    """A body with its tensors (``but`` some) behind the JSON, and the header that says where they begin."""
    heads, tails = [one for one in inputs if one["name"] in but], []
    for one in (one for one in inputs if one["name"] not in but):
        tails.append(packed(one["datatype"], one["data"]))
        kept = {k: v for k, v in one.items() if k != "data"}
        heads.append({**kept, "parameters": {"binary_data_size": len(tails[-1])}})
    head = json.dumps({"inputs": heads, **fields}).encode()
    kind = {"content-type": "application/octet-stream", "inference-header-content-length": str(len(head))}
    return head + b"".join(tails), kind


def test_metadata(apps: Any) -> None:
    app = apps["binary"]
    server, said = get(app, "/v2").json(), get(app, "/v2/models/Toy").json()
    assert (server["name"], server["extensions"]) == ("fastrec", ["binary_tensor_data"])
    assert said == get(app, "/v2/models/Toy/versions/1").json()
    assert {i["name"]: i["datatype"] for i in said["inputs"]} == {i["name"]: NAMES[i["type"]] for i in INPUTS}
    assert said["outputs"] == [{"name": "score", "datatype": "FP64", "shape": [-1]}]
    assert said["versions"] == ["1"]
    assert get(app, "/v2/models/Toy/ready").status == 200
    for path in ("/v2/models/Other", "/v2/models/Toy/versions/2", "/v2/models/Other/ready"):
        assert get(app, path).status == 404
    ranking = get(apps["ranking"], "/v2/models/Toy").json()
    assert {"name": "list_id", "datatype": "INT64", "shape": [-1]} in ranking["inputs"]
    assert get(apps["multiclass"], "/v2/models/Toy").json()["outputs"][0]["shape"] == [-1, 2]


def score_of(app: Any, body: Any, headers: dict[str, str] | None = None) -> dict[str, Any]:
    answer = post(app, INFER, body, headers)
    assert answer.status == 200, answer.body
    (score,) = answer.json()["outputs"]
    return score


def test_tensors_in_json(apps: Any) -> None:
    rows = tensor_rows(9)
    body = {"id": "a7", "inputs": in_json(rows)}
    assert b"NaN" in json.dumps(body).encode()  # as Triton's client writes it
    said = post(apps["binary"], INFER, body).json()
    assert (said["id"], said["model_name"], said["model_version"]) == ("a7", "Toy", "1")
    (score,) = said["outputs"]
    assert (score["name"], score["datatype"], score["shape"]) == ("score", "FP64", [9])
    np.testing.assert_allclose(score["data"], scores_of(rows), atol=1e-6)
    flat = in_json(rows, lambda n: [n, 1])
    nested = [{**one, "data": [[v] for v in one["data"]]} for one in flat]
    assert score_of(apps["binary"], {"inputs": nested}) == score_of(apps["binary"], {"inputs": flat}) == score


def read_binary(answer: Answer) -> tuple[dict[str, Any], bytes]:
    end = int(answer.headers["inference-header-content-length"])
    return json.loads(answer.body[:end]), answer.body[end:]


def test_tensors_in_binary(apps: Any) -> None:
    app, rows = apps["binary"], tensor_rows(9)
    plain = score_of(app, {"inputs": in_json(rows)})["data"]
    for fields in ({}, {"outputs": [{"name": "score", "parameters": {"binary_data": False}}]}):
        assert score_of(app, *in_binary(in_json(rows), **fields))["data"] == plain
    answer = post(app, INFER, *in_binary(in_json(rows), parameters={"binary_data_output": True}))
    assert answer.headers["content-type"] == "application/octet-stream"
    head, tail = read_binary(answer)
    size = {"binary_data_size": 72}
    assert head["outputs"] == [{"name": "score", "datatype": "FP64", "shape": [9], "parameters": size}]
    assert np.frombuffer(tail, "<f8").tolist() == plain
    asked = [{"name": "score", "parameters": {"binary_data": True}}]
    _, tail = read_binary(post(app, INFER, {"inputs": in_json(rows), "outputs": asked}))
    assert np.frombuffer(tail, "<f8").tolist() == plain


def test_mixed_tensors_and_narrow_types(apps: Any) -> None:
    rows = {**tensor_rows(4), "user": [1, 2, 3, 4], "price": [1.5, 2.5, 60.0, 70.0]}
    rows["ratio"] = np.array(rows["ratio"], "<f2").tolist()
    narrow = {"user": "INT16", "price": "FP32", "ratio": "FP16"}
    inputs = [{**one, "datatype": narrow.get(one["name"], one["datatype"])} for one in in_json(rows)]
    score = score_of(apps["binary"], *in_binary(inputs, but=rows.keys() - narrow))
    np.testing.assert_allclose(score["data"], scores_of(rows), atol=1e-6)


def test_several_scores_and_lists(apps: Any) -> None:
    rows = tensor_rows(3)
    score = score_of(apps["multiclass"], {"inputs": in_json(rows)})
    assert score["shape"] == [3, 2]
    np.testing.assert_allclose(np.reshape(score["data"], (3, 2))[:, 1], scores_of(rows), atol=1e-6)
    listed = [*in_json(rows), {"name": "list_id", "datatype": "INT64", "shape": [3], "data": [4, 5, 4]}]
    for sent in (({"inputs": listed},), in_binary(listed)):
        data = score_of(apps["ranking"], *sent)["data"]
        np.testing.assert_allclose(data, scores_of(rows) + np.array([200, 100, 200]), atol=1e-5)


ONE = in_json(tensor_rows(2))


def changed(name: str, **change: Any) -> dict[str, Any]:
    return {"inputs": [{**one, **change} if one["name"] == name else one for one in ONE]}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "no list of inputs"),
        ([], "no list of inputs"),
        ({"inputs": [3]}, "no object with a name"),
        ({"inputs": [*ONE, ONE[0]]}, "two inputs have this name"),
        ({"inputs": ONE[1:]}, "the column is missing"),
        ({"inputs": [*ONE, {"name": "x", "shape": [2], "datatype": "FP64", "data": [1, 2]}]}, "no such column"),
        *((changed("user", shape=shape), "its shape is") for shape in (None, [], [-1], [True], [1, 2])),
        (changed("user", shape=[3], data=[1, 2, 3]), "another input has 2"),
        (changed("user", shape=[2], data=[1]), "its shape says 2"),
        (changed("user", data=None), "neither data nor"),
        *((changed("user", datatype=kind), "which is unknown") for kind in ("INT128", ["INT64"])),
        (changed("user", data=[1, "two"]), "row 1"),
        *((changed("user", parameters={"binary_data_size": n}), "0 bytes are left") for n in (16, -1)),
        (changed("user", parameters={"binary_data_size": 0}), "data and binary_data_size"),
        ({"inputs": ONE, "outputs": [{"name": "other"}]}, "no output 'other'"),
        ({"inputs": ONE, "outputs": 3}, "no list of objects"),
        ({"inputs": [{**one, "shape": [10**9]} for one in ONE]}, "no more than 10000"),
    ],
)
def test_what_is_refused(apps: Any, body: Any, says: str) -> None:
    answer = post(apps["binary"], INFER, body)
    assert 400 <= answer.status < 500
    assert says in answer.json()["error"]


@pytest.mark.parametrize(
    ("datatype", "raw", "says"),
    [
        ("INT64", b"\0" * 15, "are not 2 values"),
        ("BYTES", b"\xff\xff\xff\xffab", "ends too early"),
        ("BYTES", b"\1\0\0", "no texts"),
        ("BYTES", b"\1\0\0\0a", "not 2 texts"),
        ("BYTES", b"\1\0\0\0\xff\0\0\0\0", "no texts"),
    ],
)
def test_binary_tensors_that_are_refused(apps: Any, datatype: str, raw: bytes, says: str) -> None:
    one = {"name": "user", "shape": [2], "datatype": datatype, "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [one]}).encode()
    header = {"inference-header-content-length": str(len(head))}
    refused(apps["binary"], INFER, head + raw, 400, says, headers=header, column="user")


@pytest.mark.parametrize("length", ["", "x", "-1", "1" * 30, "1000000"])
def test_the_header_that_says_where_the_tensors_begin(apps: Any, length: str) -> None:
    name = "inference-header-content-length"
    refused(apps["binary"], INFER, {"inputs": ONE}, 400, name, headers={name: length})
    body, kind = in_binary(ONE)
    refused(apps["binary"], INFER, body + b"x", 400, "belong to no input", headers=kind)


@in_loop  # one loop, as a server has: the first request may still be scored when the second comes
async def test_a_deadline_of_the_protocol(apps: Any) -> None:
    for microseconds, status in ((1, 504), (10_000_000, 200)):
        body = {"inputs": ONE, "parameters": {"timeout": microseconds}}
        assert (await post_soon(apps["binary"], INFER, body)).status == status
