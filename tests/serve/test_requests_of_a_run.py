"""Requests to an exported ranking: which columns they may hold, what the page says of them, one context for a group."""

from __future__ import annotations

import html
import json
import re

import numpy as np
import pandas as pd
import pytest

from fastrec.competition import Competition, run_competition
from fastrec.competition.predict import SavedRun
from fastrec.competition.reading import Reading
from fastrec.errors import MissingColumnError
from fastrec.estimators import XGBRanker
from fastrec.features import DatePart, FeatureSet, GroupRank

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytest.importorskip("starlette")

from fastrec.serve import export_run, make_app
from tests.serve.server.calls import get, post, refused, scores

OF_QUERY = ["query_id", "age", "at", "member"]


class Offers(Competition):
    """Offers of a query, one of which is taken; folds are by user, of whom nothing is learned."""

    name, task = "Offers", "ranking"
    list_column, item, label, fold_key = "query_id", "offer", "taken", "user"
    plain, categories = ("price", "stock", "rating", "age", "member", "opens"), ("city",)
    reading = Reading(dates={"at": "%d/%m/%Y %H:%M"}, texts=["offer"])

    def features(self):
        return FeatureSet([GroupRank("price", by="query_id"), DatePart("at", ["hour"])])

    def models(self, *, bs):
        return [XGBRanker("xgb", rounds=20, max_depth=4)]


def offers(n, seed):
    rng = np.random.default_rng(seed)
    query = np.repeat(np.arange(n), rng.integers(2, 7, n))
    rows = len(query)
    data = pd.DataFrame({"query_id": [f"q{seed}_{q}" for q in query], "user": query // 3 + 1000 * seed})
    data["offer"] = [f"{i:05d}" for i in range(rows)]
    data["price"] = rng.integers(1, 90, rows) / 4
    data["stock"] = rng.integers(0, 50, rows)
    data["rating"] = pd.array(rng.integers(1, 6, rows), "Int64")
    data.loc[rng.random(rows) < 0.3, "rating"] = pd.NA
    data["city"] = rng.choice(["Köln", "Oslo", None], rows)
    data["opens"] = rng.choice(["7:30", "10:00"], rows)
    data["age"] = rng.integers(20, 60, n)[query]
    data["member"] = rng.choice([True, False], n)[query]
    data["at"] = pd.Series(pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 10**6, n), "min"))[query].array
    data["at"] = data["at"].dt.strftime("%d/%m/%Y %H:%M")
    data["untouched"] = rng.random(rows)
    worth = data["price"] - data["rating"].fillna(3).astype(float) * 3 + data["stock"] / 20
    worth += 4 * (data["city"] == "Oslo")
    worth += np.where(data["member"], 2, -2) * data["age"] / 40 + rng.normal(size=rows)
    data["taken"] = (worth == worth.groupby(query).transform("min")).astype(int)
    return data


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("offers")
    (folder / "data").mkdir()
    offers(150, 0).to_csv(folder / "data/train.csv", index=False)
    offers(20, 1).drop(columns="taken").to_csv(folder / "data/test.csv", index=False)
    run_competition(Offers(), folder / "data", folder / "run")
    export_run(folder / "run", folder / "out")
    return folder


@pytest.fixture(scope="module")
def app(run):
    made = make_app(run / "out")
    yield made
    made.state.service.close()


def same(app, rows, wanted):
    np.testing.assert_allclose(scores(app, {"rows": as_rows(rows)}), wanted, atol=1e-5)


@pytest.fixture(scope="module")
def saved(run):
    return SavedRun(run / "run")


@pytest.fixture(scope="module")
def asked(run):
    """The test file's columns as they are written there: text and numbers."""
    return pd.read_csv(run / "data/test.csv", dtype={"offer": str})


def as_rows(frame):
    return json.loads(frame.to_json(orient="records", force_ascii=False))


def test_columns_of_training_that_no_model_reads_are_ignored(app, saved, asked):
    one = asked[asked["query_id"] == "q1_0"]
    sent = as_rows(one.assign(taken=0))  # with the fold key, a column that nothing reads, and the label
    assert {"user", "untouched", "taken"} <= set(sent[0])
    for body in ({"rows": sent}, {"columns": {n: [r[n] for r in sent] for n in sent[0]}}):
        np.testing.assert_allclose(scores(app, body), saved.predict(one).numpy(), atol=1e-5)


@pytest.mark.parametrize(("name", "meant"), [("prise", "price"), ("query_idd", "query_id"), ("zzz", None)])
def test_a_column_that_nobody_knows_is_refused(app, asked, name, meant):
    rows = [{**r, name: 1} for r in as_rows(asked.head(2))]
    said = refused(app, "/v1/score", {"rows": rows}, 422, column=name).json()["error"]
    assert f"Is '{meant}' meant" in said if meant else "meant" not in said


def test_a_column_may_be_dropped_if_training_had_missing_values_in_it(app, saved, asked):
    one = asked[asked["query_id"] == "q1_1"]
    for name in ("stock", "price", "age", "at", "member", "opens"):
        rows = as_rows(one.drop(columns=name))
        refused(app, "/v1/score", {"rows": rows}, 422, column=name)
        with pytest.raises(MissingColumnError, match=name):
            saved.predict(one.drop(columns=name))
        refused(app, "/v1/score", {"rows": [as_rows(one)[0], *rows[1:]]}, 422, row=1)
    for name in ("rating", "city"):
        same(app, one.drop(columns=name), saved.predict(one.assign(**{name: None})).numpy())


def test_nulls_and_text_of_yes_and_no_are_read_as_fastrec_predict_reads_them(app, saved, asked):
    one = asked[asked["query_id"] == "q1_1"]
    same(app, one.assign(stock=None), saved.predict(one.assign(stock=None)).numpy())
    for member in (one["member"], one["member"].astype(str), one["member"].astype(str).str.lower()):
        same(app, one.assign(member=member), saved.predict(one).numpy())


KINDS = {
    "string": ["query_id", "offer", "opens"],
    "integer": ["stock", "age"],
    "number": ["price"],
    "boolean": ["member"],
}
TYPES = {name: [kind] for kind, names in KINDS.items() for name in names}
TYPES |= {"price": ["number"], "rating": ["integer", "null"], "city": ["string", "null"], "at": ["string", "integer"]}


def body_of(app, path):
    said = get(app, "/openapi.json").json()["paths"][path]["post"]
    return said["requestBody"]["content"]["application/json"]


def test_the_page_and_openapi_say_which_columns_there_are(app):
    assert {r.path for r in app.routes} >= get(app, "/openapi.json").json()["paths"].keys()
    for path in ("/v1/score", "/v1/rank"):
        row = body_of(app, path)["schema"]["properties"]["rows"]["items"]["properties"]
        assert {n: s["type"] for n, s in row.items() if "type" in s} == TYPES
        assert row.keys() - TYPES == {"user", "untouched", "taken"}
    for path in ("/", "/docs"):
        page = get(app, path).body.decode()
        cells = re.findall(r"<tr><td>(\w+)<td>([^<]+)<td>(yes|)<td>(yes|)<td>", page)
        assert {n: bool(null) for n, _, _, null in cells} == {n: "null" in t for n, t in TYPES.items()}
        assert {n: t.split(" or ") for n, t, _, _ in cells} == {
            n: [t for t in k if t != "null"] for n, k in TYPES.items()
        }
        assert {n for n, _, required, _ in cells if required} == TYPES.keys() - {"query_id", "offer"}
        assert "Accepted and ignored: user, untouched, taken" in page
        assert "<tr><td>offer<td>string<td><td><td>The candidate&#x27;s id, which /v1/rank requires." in page
    candidates = body_of(app, "/v1/rank")["schema"]["properties"]["candidates"]
    assert candidates["items"]["required"] == ["offer"]


def test_the_examples_are_answered_and_have_the_types_that_are_told(app):
    examples = {path: body_of(app, path)["example"] for path in ("/v1/score", "/v1/rank")}
    types = {bool: "boolean", int: "integer", float: "number", str: "string"}
    for path, body in examples.items():
        assert post(app, path, body).status == 200, body
        rows = [{n: v[0] for n, v in body["columns"].items()}] if "columns" in body else body["candidates"]
        for row in rows:
            row |= body.get("context", {})
            assert row.keys() == TYPES.keys()
            assert all(types[type(v)] in TYPES[n] for n, v in row.items()), row
    assert set(examples["/v1/rank"]["context"]) == set(OF_QUERY)
    page = html.unescape(re.search(r"A body for (\S+)</h2><pre>", get(app, "/").body.decode())[1])
    assert page == "/v1/rank"


def of_query(frame):
    """A body of ``/v1/rank``: the query's columns once, the offers' own each."""
    rows = as_rows(frame)
    context = {n: rows[0][n] for n in OF_QUERY}
    return {"context": context, "candidates": [{n: v for n, v in r.items() if n not in OF_QUERY} for r in rows]}


def test_one_context_and_many_candidates_are_ranked_as_the_run_ranks_them(app, saved, asked):
    def ranked(body):
        answer = post(app, "/v1/rank", body)
        assert answer.status == 200, answer.body
        return answer.json()

    for _, one in asked.groupby("query_id"):
        wanted = saved.predict(one).numpy()
        order = np.argsort(-wanted, kind="stable")
        said = ranked(of_query(one))
        assert said["ids"] == one["offer"].to_numpy()[order].tolist()
        assert said["positions"] == order.tolist()
        np.testing.assert_allclose(said["scores"], wanted[order], atol=1e-5)
        assert ranked({**of_query(one), "k": 2}) == {n: v[:2] for n, v in said.items()}
    # a context without the group, and candidates without a context
    body = of_query(one)
    del body["context"]["query_id"]
    assert ranked(body) == ranked({"candidates": as_rows(one)}) == said


def changed(body, **changes):
    """The body with another second candidate; a column of None is left out."""
    first, second, *more = body["candidates"]
    second = {n: v for n, v in {**second, **changes}.items() if v is not None}
    return {**body, "candidates": [first, second, *more]}


def unnamed(body):
    return {**body, "candidates": [{n: v for n, v in c.items() if n != "offer"} for c in body["candidates"]]}


NO_NUMBER = "not a number (float64). Send a number (float64)."
NO_GROUP = [
    (lambda b: {**b, "candidates": []}, "there are no candidates", None, None),
    (lambda b: {**b, "candidates": {}}, "no list of objects", None, None),
    (lambda b: {**b, "candidates": [*b["candidates"], 5]}, "is no object", None, -1),
    (lambda b: {**b, "rows": []}, "has rows and candidates. Send one of columns, rows, candidates", None, None),
    (lambda b: {"context": b["context"]}, "has no rows. Send one of columns, rows, candidates", None, None),
    (lambda b: {**b, "context": [1]}, "context is no object", None, None),
    (lambda b: changed(b, age=30), "in context and in a candidate", "age", 1),
    (lambda b: changed(b, offer="00019"), "has the item '00019'. Send each item once", "offer", 1),
    (lambda b: changed(b, offer=None), "no id of an item", "offer", 1),
    (lambda b: {**b, "candidates": b["candidates"] * 2}, "earlier", "offer", -1),
    (unnamed, "the candidates lack their ids", "offer", None),
    (lambda b: changed(b, price=None), "does not have this column. Send a number (float64), or null.", "price", 1),
    (lambda b: changed(b, price="soon"), "'soon' is no number, which the column is", "price", 1),
    (lambda b: changed(b, price=[1]), f"[1] is a list, {NO_NUMBER}", "price", 1),
    (lambda b: changed(b, colour="red"), "no such column. Leave it out; the model takes query_id, o", "colour", None),
    (lambda b: {**b, "context": {**b["context"], "colour": 1}}, "the model has no such column", "colour", None),
]


@pytest.mark.parametrize(("change", "says", "column", "row"), NO_GROUP)
def test_what_is_no_group_of_candidates(app, asked, change, says, column, row):
    one = asked[asked["query_id"] == "q1_4"]
    assert one["offer"].iloc[0] == "00019"
    refused(app, "/v1/rank", change(of_query(one)), 422, says, column=column, row=len(one) if row == -1 else row)


def test_candidates_are_of_rank_alone(app, asked):
    refused(app, "/v1/score", of_query(asked.head(1)), 422, "unknown field 'candidates'")
