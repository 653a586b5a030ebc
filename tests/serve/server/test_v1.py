"""Our own addresses: bodies in three forms, ranks, errors that name column and row."""

from __future__ import annotations

import asyncio
import json
import shutil
from itertools import combinations
from math import factorial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastrec._core import limits
from fastrec.serve import Limits
from fastrec.serve.server.bodies import columns_of_arrays
from fastrec.serve.server.spec import read_spec
from tests.serve.server.calls import get, post, refused, request, scores, serve
from tests.serve.server.exports import by_hand, columns, write_export

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


def stream(table: pa.Table, chunk: int | None = 3, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=chunk)
    return sink.getvalue().to_pybytes()


def as_rows(rows: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(rows, values)) for values in zip(*rows.values())]


def test_three_forms_of_a_body_give_one_answer(apps: Any) -> None:
    for n in (50, 2000):  # the second has more than 64 KB in each form: it is read beside the loop
        rows = columns(n)
        by_arrow, charset = stream(pa.table(rows)), {"content-type": "Application/JSON; charset=utf-8"}
        assert (len(by_arrow) > 64 * 1024) == (n == 2000)
        bodies = [({"columns": rows}, None), ({"rows": as_rows(rows)}, None), (by_arrow, ARROW)]
        answers = [post(apps["binary"], "/v1/score", *sent) for sent in [*bodies, ({"columns": rows}, charset)]]
        for answer in answers:
            assert answer.status == 200, answer.body
            assert answer.headers["content-type"] == "application/json"
            assert answer.json() == answers[0].json()
        np.testing.assert_allclose(answers[0].json()["scores"], by_hand(rows), atol=1e-6)


def test_a_column_that_rows_lack_and_nan_are_missing(apps: Any) -> None:
    rows = columns(4)
    some = [{k: v for k, v in r.items() if k in ("mobile", "price")} for r in as_rows(rows)]
    blank = {**rows, **{k: [None] * 4 for k in ("city", "user", "ratio", "at", "seen")}}
    np.testing.assert_allclose(scores(apps["binary"], {"rows": some}), by_hand(blank), atol=1e-6)
    rows = {**columns(3), "price": [float("nan"), None, 50.0]}
    raw = json.dumps({"columns": rows}).encode()
    assert b"NaN" in raw  # which is no JSON, but what Python writes
    wanted = by_hand({**rows, "price": [None, None, 50.0]})
    np.testing.assert_allclose(scores(apps["binary"], raw), wanted, atol=1e-6)


def test_several_scores_a_row_come_with_their_classes_and_have_no_order(apps: Any, tmp_path: Path) -> None:
    refused(apps["multiclass"], "/v1/rank", {"columns": GOOD}, 422)
    rows = columns(3)
    answer = post(apps["multiclass"], "/v1/score", {"columns": rows}).json()
    assert answer["classes"] == ["no", "yes"]
    np.testing.assert_allclose(np.array(answer["scores"])[:, 1], by_hand(rows), atol=1e-6)
    # one score of two classes is that of the second
    app = serve(write_export(tmp_path / "export", classes=["no", "yes"]))
    assert list(post(app, "/v1/score", {"columns": columns(2)}).json()) == ["scores"]


def test_no_rows(apps: Any) -> None:
    for body in ({"rows": []}, {"columns": {name: [] for name in columns(1)}}):
        assert post(apps["binary"], "/v1/score", body).json() == {"scores": []}
    assert post(apps["ranking"], "/v1/rank", {"rows": []}).json() == {"ids": [], "scores": [], "positions": []}


def test_rank_gives_the_best_k_and_equal_ones_by_position(apps: Any) -> None:
    def ranked(body: Any, query: str = "", headers: Any = None) -> Any:
        return post(apps["ranking"], f"/v1/rank{query}", body, headers).json()

    twice, ids = {k: v + v for k, v in columns(8).items()}, [2**60 + i for i in range(16)]
    rows, values = {**twice, "item_id": ids}, np.round(by_hand(twice), 5)
    wanted = sorted(range(16), key=lambda i: (-values[i], i))
    answer = ranked({"columns": rows, "k": 100})
    assert (answer["positions"], answer["ids"]) == (wanted, [ids[i] for i in wanted])
    np.testing.assert_allclose(answer["scores"], values[wanted] + 1600, atol=1e-5)
    few = ranked({"columns": rows, "k": 3})
    assert few == ranked(stream(pa.table(rows)), "?k=3", ARROW) == {k: v[:3] for k, v in answer.items()}
    assert ranked({"columns": twice})["ids"] == wanted
    others = {k: v for k, v in rows.items() if k != "city"}  # context holds for every row
    plain = ranked({"columns": {**others, "city": ["Oslo"] * 16}})
    assert ranked({"context": {"city": "Oslo"}, "columns": others}) == plain


def test_lists_in_one_body_are_scored_apart(apps: Any) -> None:
    rows = columns(4)
    by_list = scores(apps["ranking"], {"columns": {**rows, "list_id": [5, 5, 9, 5]}})
    np.testing.assert_allclose(by_list, by_hand(rows) + np.array([300, 300, 100, 300]), atol=1e-5)
    table = pa.table({**rows, "list_id": pa.array(["x", "x", "y", "x"]).dictionary_encode()})
    assert scores(apps["ranking"], stream(table), ARROW) == by_list


GOOD = columns(3)
BAD: list[tuple[Any, int, str | None, int | None]] = [
    # body, status, column, row
    (b"{", 400, None, None),
    (b"[1]", 400, None, None),
    (b"[" * 100_000, 400, None, None),
    (b"[NaN," + b"[" * 100_000, 400, None, None),
    (b'{"rows": [{"city": "\\ud800", "price": NaN}]}', 400, None, None),
    ({}, 422, None, None),
    ({"columns": GOOD, "rows": []}, 422, None, None),
    ({"columns": GOOD, "k": 3}, 422, None, None),  # k is of rank
    ({"columns": []}, 422, None, None),
    ({"columns": {"city": "Oslo"}}, 422, "city", None),
    ({"columns": {**GOOD, "price": [1.0, 2.0]}}, 422, "price", None),
    ({"columns": {**GOOD, "no such": [1, 2, 3]}}, 422, "no such", None),
    ({"columns": {k: v for k, v in GOOD.items() if k != "user"}}, 422, "user", None),
    ({"columns": {**GOOD, "user": [1, 2.5, 3]}}, 422, "user", 1),
    ({"columns": {**GOOD, "mobile": [True, True, None]}}, 422, "mobile", 2),
    ({"columns": {**GOOD, "at": ["2026-01-01", "soon", None]}}, 422, "at", 1),
    ({"rows": {}}, 422, None, None),
    ({"rows": [3]}, 422, None, 0),
    ({"rows": [{**as_rows(GOOD)[0], "x": 1}]}, 422, "x", None),
    ({"rows": [as_rows(GOOD)[0], {k: v for k, v in as_rows(GOOD)[1].items() if k != "mobile"}]}, 422, "mobile", 1),
    ({"context": 5, "columns": GOOD}, 422, None, None),
    ({"context": {"city": "Oslo"}, "columns": GOOD}, 422, "city", None),
]


@pytest.mark.parametrize(("body", "status", "column", "row"), BAD)
def test_a_bad_body_is_told_its_column_and_row(apps: Any, body: Any, status: int, column: Any, row: Any) -> None:
    refused(apps["binary"], "/v1/score", body, status, column=column, row=row)


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/v1/rank", {"columns": GOOD, "k": 0}, "k is '0'"),
        ("/v1/rank", {"columns": GOOD, "k": True}, "k is 'True'"),
        ("/v1/rank?k=many", {"columns": GOOD}, "k is 'many'"),
        ("/v1/rank", {"columns": {**GOOD, "list_id": [1, 1, 2]}}, "there are 2 lists"),
        ("/v1/score", {"columns": {**GOOD, "list_id": [1, None, 2]}}, "no id of a list"),
        ("/v1/events", {"columns": {}}, "takes no events"),
    ],
)
def test_what_cannot_be_ranked(apps: Any, path: str, body: Any, says: str) -> None:
    refused(apps["ranking"], path, body, 404 if path == "/v1/events" else 422, says)


def test_other_content_types_are_refused(apps: Any) -> None:
    for name, value in (("type", ""), ("type", "text/plain"), ("encoding", "gzip")):
        refused(apps["binary"], "/v1/score", {"columns": GOOD}, 415, headers={f"content-{name}": value})


def test_arrow_that_is_malformed_or_does_not_fit(apps: Any) -> None:
    def no(body: pa.Table | bytes, status: int = 422, **where: Any) -> None:
        raw = body if isinstance(body, bytes) else stream(body)
        refused(apps["binary"], "/v1/score", raw, status, headers=ARROW, **where)

    broken = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff"))  # no UTF-8
    no(pa.table({**{k: v[:1] for k, v in GOOD.items()}, "city": broken}), 400)
    good = stream(pa.table(GOOD))
    for raw in (b"", b"\0" * 100, good[:100], good[: len(good) // 2], good[:-200], json.dumps(GOOD).encode()):
        no(raw, 400)
    no(pa.table({**GOOD, "user": [1.5, 2.5, 3.5]}), column="user")
    no(pa.table({**GOOD, "city": [b"a", b"b", b"c"]}), column="city")
    no(pa.table({**GOOD, "user": pa.array([1, 2, 2**64 - 1], pa.uint64())}), column="user", row=2)
    no(pa.table([pa.array([1]), pa.array([2])], names=["user", "user"]), column="user")
    nothing = pa.table({k: pa.nulls(3) for k in GOOD if k != "mobile"} | {"mobile": [True] * 3})
    assert len(scores(apps["binary"], stream(nothing), ARROW)) == 3


def test_bodies_and_requests_have_bounds(exports: Any) -> None:
    app = serve(exports["binary"], limits=Limits(max_rows=10, max_body=4000))
    score = "/v1/score"
    assert len(scores(app, {"columns": columns(10)})) == 10
    for body in ({"columns": columns(11)}, {"rows": as_rows(columns(11))}, {"rows": [0] * 11}, b" " * 5000):
        refused(app, score, body, 413)
    kind = {"content-type": "application/json"}
    in_parts = asyncio.run(request(app, "POST", score, [b" " * 1000] * 5, kind))  # its length is not announced
    announced = asyncio.run(request(app, "POST", score, b"", {**kind, "content-length": "5000"}))
    assert in_parts.status == announced.status == 413
    assert get(app, "/health").status == 200
    # rows of all batches count
    app = serve(exports["binary"], limits=Limits(max_rows=10))
    assert len(scores(app, stream(pa.table(columns(10))), ARROW)) == 10  # batches of 3
    refused(app, score, stream(pa.table(columns(11))), 413, headers=ARROW)
    raw = bytearray(stream(pa.table(columns(11))))
    at = raw.index((3).to_bytes(8, "little"))
    raw[at : at + 8] = (-(2**40)).to_bytes(8, "little", signed=True)  # a batch that makes room for others
    assert post(app, score, bytes(raw), ARROW).status in (400, 413)
    empty = pa.table({k: pa.nulls(10**9) for k in GOOD})  # a few hundred bytes stand for a million missing values
    refused(app, score, stream(empty, None), 413, headers=ARROW)


@pytest.mark.parametrize("how", ["zstd", "lz4"])
def test_compressed_arrow_is_refused_before_it_is_unpacked(apps: Any, how: str) -> None:
    bomb = stream(pa.table({"user": np.zeros(2**24, np.int64)}), None, compression=how)  # 128 MB
    before = pa.total_allocated_bytes()
    refused(apps["binary"], "/v1/score", bomb, 415, "compressed", headers=ARROW)
    assert pa.total_allocated_bytes() - before < 2**20


def views(text: str, rows: int) -> pa.Array:
    """Text that is in a body once, and that every row is a view of."""
    one = pa.array([text], pa.string_view()).buffers()
    buffers = [None, pa.py_buffer(one[1].to_pybytes()[:16] * rows), *one[2:]]
    return pa.Array.from_buffers(pa.string_view(), rows, buffers)


def codes(values: pa.Array, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), values)


def test_what_unpacks_to_more_than_a_body_may_have_is_refused(exports: Any) -> None:
    app = serve(exports["binary"], limits=Limits(max_body=10_000, max_rows=50))

    def body(city: pa.Array) -> bytes:
        return stream(pa.table({**columns(40), "city": city}), None)

    for city in (views("q" * 100, 40), codes(pa.array(["q" * 100]), 40)):
        assert len(scores(app, body(city), ARROW)) == 40
    lists = pa.ListArray.from_arrays([0] * 40 + [40], codes(pa.array(["q" * 300]), 40))
    nulls = pa.ListArray.from_arrays([0] * 40 + [10**9], pa.nulls(10**9))
    for city in (views("q" * 300, 40), codes(pa.array(["q" * 300]), 40), lists, nulls):
        assert len(body(city)) < 10_000
        refused(app, "/v1/score", body(city), 413, "unpacks to more than 10000 bytes", headers=ARROW)
    for odd in (pa.array([[1] * 100]), pa.array(["q"], pa.string_view())):
        refused(app, "/v1/score", body(codes(odd, 40)), 422, headers=ARROW, column="city")


@pytest.fixture
def explained(tmp_path: Path) -> dict[str, Any]:
    made = {}
    for task in ("binary", "multiclass"):
        folder = write_export(tmp_path / task, task=task)
        arrays = columns_of_arrays(read_spec(folder), columns(3, seed=9)).arrays()
        pq.write_table(pa.table(arrays), folder / "background.parquet")
        made[task] = serve(folder)
    return made


def test_contributions_are_those_of_enumeration(explained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ENUMERATED_COLUMNS", 7)
    rows, background, names = columns(2), columns(3, seed=9), list(columns(1))
    answer = post(explained["binary"], "/v1/explain", {"rows": as_rows(rows)}).json()
    assert list(answer["contributions"]) == names
    for i in range(2):

        def value(own: set[str], i: int = i) -> float:
            mixed = {n: [rows[n][i]] * 3 if n in own else background[n] for n in names}
            return float(np.mean(by_hand(mixed)))

        for name in names:
            others, total = [n for n in names if n != name], 0.0
            for size in range(7):
                share = factorial(size) * factorial(6 - size) / factorial(7)
                for subset in combinations(others, size):
                    total += share * (value({*subset, name}) - value(set(subset)))
            assert answer["contributions"][name][i] == pytest.approx(total, abs=1e-6)
        assert answer["base"][i] == pytest.approx(value(set()), abs=1e-6)
    np.testing.assert_allclose(answer["predictions"], by_hand(rows), atol=1e-6)


def test_contributions_add_up_to_the_score_of_a_class(explained: Any) -> None:
    rows, app = columns(4), explained["multiclass"]
    score = np.array(scores(app, {"columns": rows}))
    for body, at, query in (({"of": "yes"}, [1] * 4, ""), ({}, score.argmax(1), ""), ({}, [0] * 4, "?of=no")):
        answer = post(app, f"/v1/explain{query}", {"columns": rows, **body}).json()
        assert answer["classes"] == [["no", "yes"][c] for c in at]
        total = np.sum([*answer["contributions"].values(), answer["base"]], axis=0)
        np.testing.assert_allclose(total, answer["predictions"], atol=1e-9)
        np.testing.assert_allclose(answer["predictions"], score[np.arange(4), at], atol=1e-6)
    assert post(app, "/v1/explain", {"columns": columns(0)}).json()["predictions"] == []


def test_each_of_two_classes_is_explained(explained: Any, tmp_path: Path) -> None:
    folder = write_export(tmp_path / "two", classes=["no", "yes"])
    shutil.copy(tmp_path / "binary" / "background.parquet", folder)
    app, rows = serve(folder), columns(4)
    usual, yes, no = (post(app, f"/v1/explain{of}", {"columns": rows}).json() for of in ("", "?of=yes", "?of=no"))
    assert usual == yes == post(explained["binary"], "/v1/explain", {"columns": rows}).json()
    for name, values in yes["contributions"].items():
        np.testing.assert_allclose(no["contributions"][name], -np.array(values), atol=1e-12)
    for name in ("base", "predictions"):
        np.testing.assert_allclose(np.array(no[name]) + yes[name], 1, atol=1e-12)


def test_what_is_not_explained_is_said(explained: Any, apps: Any, tmp_path: Path) -> None:
    rows = columns(2)
    folder = write_export(tmp_path / "several", task="multiclass", classes=None)
    shutil.copy(tmp_path / "multiclass" / "background.parquet", folder)
    several = serve(folder)
    for app, body, headers, status, text in (
        (apps["ranking"], {"columns": {**rows, "list_id": [1, 1]}}, {}, 422, "no rows to compare with"),
        (several, {"columns": rows}, {}, 422, "has several targets"),
        (explained["binary"], {"columns": rows, "of": "no"}, {}, 422, "of is 'no', which has no score of its own"),
        (explained["multiclass"], {"columns": rows, "of": ["no"]}, {}, 422, "There are no, yes"),
        (explained["binary"], {"columns": {**rows, "price": ["a", 1.0]}}, {}, 422, "price"),
        (explained["binary"], {"columns": columns(20_000)}, {}, 413, "20000 rows"),
        (explained["binary"], {"columns": columns(900)}, {"x-timeout-ms": "200"}, 504, "no answer within 0.2 s"),
    ):
        refused(app, "/v1/explain", body, status, text, headers=headers)
    assert "/v1/explain" not in get(apps["ranking"], "/openapi.json").json()["paths"]
    described = get(explained["multiclass"], "/openapi.json").json()["paths"]["/v1/explain"]["post"]
    assert "of" in described["requestBody"]["content"]["application/json"]["schema"]["properties"]
