"""``/v1/recommend``: a saved recommender, a run for next items and its export, against the models; odd bodies."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fastrec.cli import app as cli
from fastrec.competition import Competition, NextItemCompetition, SavedRun, run_competition
from fastrec.competition.next_items import SavedNextItems
from fastrec.errors import DataError, UnreadableFileError
from fastrec.estimators import XGBModel, XGBRanker
from fastrec.registry import Registry
from fastrec.retrieval import Candidates, InSegment, Recommender, RepeatedItems, SegmentPopularity
from fastrec.sequences import CoVisitation, NextItemNet, PopularItems, SessionFrame, prefixes
from fastrec.serve import Canary, Limits, NextItemGraph, export_next_items, make_app
from fastrec.serve.server.recommend import open_model
from fastrec.stacking import Stack
from fastrec.table import Table
from tests.serve.server.calls import get, post, post_soon, refused, serve
from tests.serve.server.test_fuzz import TREES, fuzz, held
from tests.serve.server.test_v1 import ARROW, stream
from tests.serve.test_next_items import kinds  # noqa: F401 - a fixture

# some sessions hold no item that the model knows
pytestmark = pytest.mark.filterwarnings("ignore:no item of")

IDS = [f"é{i}" for i in range(12)]
PATH = "/v1/recommend"


class Small(NextItemCompetition):
    name, k, minutes = "Small", 4, 2.0

    def models(self, *, bs):
        return {"net": NextItemNet(width=8, epochs=1, max_len=6), "near": CoVisitation(), "popular": PopularItems()}


def walks(n: int) -> list[list[int]]:
    return [[2**60 + (s * 5 + i) % 12 for i in range(2 + s % 4)] for s in range(n)]


def shop_of(ids: list[str]) -> tuple[Recommender, SessionFrame]:
    rows = [(s, ids[(s * 5 + i) % 12], "dé" if s % 2 else "fr") for s in range(90) for i in range(2 + s % 3)]
    log = SessionFrame(pd.DataFrame(rows, columns=["s", "item", "land"]), item="item", session="s", features=["land"])
    sources = Candidates({"of": SegmentPopularity("land"), "near": CoVisitation(), "own": RepeatedItems()}, 9)
    return Recommender(sources, filters=[InSegment("land", {"fr": ids[:6]})], ranker=XGBModel(rounds=4)).fit(log), log


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recommend")
    pd.DataFrame({"items": walks(120)}).to_parquet(folder / "train.parquet")
    pd.DataFrame({"items": walks(9)}).to_parquet(folder / "test.parquet")
    run = run_competition(Small(), folder, folder / "run")
    shop_of(IDS)[0].save(folder / "shop")
    return {"run": run, "net": export_next_items(run, folder / "net").folder, "shop": folder / "shop"}


@pytest.fixture(scope="module")
def served(folders):
    made = {kind: make_app(folder) for kind, folder in folders.items()}
    yield made
    for app in made.values():
        app.state.service.close()


def asked(app: Any, body: Any, **options: Any) -> Any:
    answer = post(app, PATH, body, **options)
    assert answer.status == 200, answer.body
    return answer.json()


def sessions(*items: Any, **more: Any) -> dict[str, Any]:
    return {"sessions": [{"items": i, **more} for i in items]}


def by_shop(shop: Recommender, log: SessionFrame, items: list[str], land: str | None, k: int) -> dict[str, list]:
    made = log.new(pd.DataFrame({"s": 0, "item": pd.Series(items, dtype=str), "land": pd.Series([land] * len(items))}))
    if not len(made):
        return {"ids": [], "scores": []}
    found = shop.recommend(made, k).to_arrow()
    return {"ids": found["item"].to_pylist(), "scores": found["score"].to_pylist()}


def test_a_recommender_answers_as_it_does_in_python(served):
    shop, log = shop_of(IDS)
    sessions = [([IDS[1], "no", IDS[3]], "fr"), ([IDS[2]], "dé"), ([IDS[7], IDS[7]], None), ([IDS[4]], "xx")]
    alone = [asked(served["shop"], {"items": i, "context": {"land": w}, "k": 3}) for i, w in sessions]
    assert alone == [by_shop(shop, log, i, w, 3) for i, w in sessions]
    assert set(alone[0]["ids"]) <= set(IDS[:6])
    body = {"sessions": [{"items": i, "context": {"land": w}} for i, w in sessions], "k": 3}
    assert asked(served["shop"], body) == {"sessions": alone}
    assert asked(served["shop"], {"sessions": []}) == {"sessions": []}
    several = pa.table({"items": [i for i, _ in sessions], "land": [w for _, w in sessions]})
    assert asked(served["shop"], stream(several), headers=ARROW)["sessions"][1]["ids"][:3] == alone[1]["ids"]
    assert post(served["shop"], f"{PATH}?k=3", stream(several), ARROW).json() == {"sessions": alone}


def test_a_run_and_its_export_answer_as_they_do_in_python(served, folders):
    saved, graph = SavedNextItems(folders["run"]), NextItemGraph(folders["net"])
    sessions = [*walks(9), [], [2**60 + 3, 5, 2**60 + 4], [1], [2**60 + 2] * 300]
    body = {"sessions": [{"items": s} for s in sessions]}
    kind = pa.list_(pa.int64())
    frame = SessionFrame(pa.table({"items": pa.array(sessions, kind)}), item="items", items=saved.blend.items)
    items, _ = saved.recommend(frame)
    said = asked(served["run"], body)["sessions"]
    assert [s["ids"] for s in said] == [saved.blend.items.decode(row).to_pylist() for row in items]
    by_net = asked(served["net"], body)["sessions"]
    assert [s["ids"] for s in by_net] == [ids for ids, _ in graph.recommend(sessions, 4)]
    for kind_, answers in (("run", said), ("net", by_net)):
        for one, answer in zip(sessions[:3], answers, strict=False):
            alone = asked(served[kind_], {"items": one})
            assert alone["ids"] == answer["ids"]
            np.testing.assert_allclose(alone["scores"], answer["scores"], atol=1e-5)
        assert len(asked(served[kind_], {"items": [1], "k": 10**6})["ids"]) == 12
        assert asked(served[kind_], {"items": [float(2**40)]})["ids"] == asked(served[kind_], {"items": []})["ids"]


def test_a_net_with_times_and_kinds_is_served_with_them(kinds, tmp_path):  # noqa: F811
    saved = SavedNextItems(kinds)
    with torch.no_grad():  # after one epoch they are next to nothing
        for model in saved.blend.models.values():
            torch.nn.init.normal_(model.model.readers[0].weight[1:])
            torch.nn.init.normal_(model.model.bias.tables["time"].weight)
    saved.blend.save(kinds / "models" / "blend")
    frame, log = saved.read(kinds.parent / "test.parquet"), pd.read_parquet(kinds.parent / "test.parquet")
    log["at"] = (log["at"] - pd.Timestamp(0)) / pd.Timedelta("1s")
    names = {"item": "items", "at": "times", "type": "type", "shop": "shop", "price": "price"}
    own = [{to: s[n].tolist() for n, to in names.items()} for _, s in log.groupby("s", sort=False)]
    at = max(range(len(own)), key=lambda i: len(own[i]["items"]))
    table, long = pa.table({n: [s[n] for s in own] for n in own[0]}), own[at]
    export = export_next_items(kinds, tmp_path / "net", model="clicks").folder
    alone = saved.blend.models["clicks"].recommend(frame, 7)
    for folder, (items, scores) in ((kinds, saved.recommend(frame)), (export, alone)):
        app = serve(folder)
        said = asked(app, {"sessions": own})["sessions"]
        assert [s["ids"] for s in said] == [frame.decode(row).to_pylist() for row in items]
        np.testing.assert_allclose([s["scores"] for s in said], scores.numpy(), atol=1e-5)
        assert asked(app, stream(table), headers=ARROW)["sessions"] == said
        np.testing.assert_allclose(asked(app, long)["scores"], said[at]["scores"], atol=1e-5)
        one = {**long, "type": [None] * len(long["items"])}
        none, slow = asked(app, one), asked(app, {**long, "times": [30 * t for t in long["times"]]})
        assert none == asked(app, {**one, "type": ["no"] * len(one["items"])})
        for other in (none, slow):
            assert np.abs(np.subtract(other["scores"], said[at]["scores"])).max() > 1e-3
        assert len(asked(app, {name: [] for name in long})["ids"]) == 7
        schema = get(app, "/openapi.json").json()["paths"][PATH]["post"]["requestBody"]["content"]["application/json"]
        assert set(schema["schema"]["oneOf"][0]["required"]) == set(names.values())
        assert post(app, PATH, schema["example"]).status == 200
        short = {n: v[:1] for n, v in long.items()}
        for body, says, where in (
            ({n: v for n, v in short.items() if n != "times"}, "1 items and 0 times", {"column": "times"}),
            ({**short, "times": [2, 3]}, "1 items and 2 times", {}),
            ({**short, "times": ["now"]}, "", {"row": 0}),
            ({"sessions": [], "times": []}, "times stands beside", {}),
            ({n: v for n, v in short.items() if n != "type"}, "1 items and 0 values", {"column": "type"}),
            ({**long, "price": [1.0]}, "1 values", {"column": "price"}),
            ({**short, "type": [3]}, "a number, and not text", {"column": "type"}),
            ({**short, "price": ["x"]}, "", {"row": 0, "column": "price"}),
        ):
            refused(app, PATH, body, 422, says, **where)
        for name in ("times", "type"):
            lacking = stream(table.drop_columns(name))
            refused(app, PATH, lacking, 422, "column is missing", column=name, headers=ARROW)


def test_requests_that_come_together_are_answered_each_by_its_own(served):
    async def all_of(bodies):
        return await asyncio.gather(*(post_soon(served["shop"], PATH, b) for b in bodies))

    bodies = [{"items": [IDS[i % 12]], "k": 1 + i % 3, "context": {"land": "fr"} if i % 2 else {}} for i in range(20)]
    together = [a.json() for a in asyncio.run(all_of([*bodies, {"items": [[]]}]))]
    assert together[:-1] == [asked(served["shop"], b) for b in bodies]
    assert "error" in together[-1]


def test_stages_are_timed_and_counted(served):
    answer = post(served["shop"], PATH, {"items": [IDS[0]]})
    assert answer.headers["x-model-version"] == served["shop"].state.service.scorer.spec.version[:12]
    stages = [part.split(";")[0] for part in answer.headers["server-timing"].split(", ")]
    assert stages == ["retrieve", "filter", "score", "order"]
    text = get(served["shop"], "/metrics").body.decode()
    assert 'fastrec_stage_seconds_count{stage="retrieve"}' in text
    assert 'fastrec_requests_total{path="/v1/recommend",status="200"}' in text
    assert "score;dur=" in post(served["net"], PATH, {"items": []}).headers["server-timing"]


CODED = pa.array([44]).dictionary_encode()
WRONG = [
    ("shop", b"{", 400, "no JSON"),
    ("shop", [], 400, "no object"),
    ("shop", {}, 422, "neither items nor sessions"),
    ("shop", {"items": [], "sessions": []}, 422, "or both"),
    ("shop", {"sessions": [], "context": {}}, 422, "Put it into each session"),
    ("shop", {"sessions": {}}, 422, "no list of objects"),
    ("shop", {"sessions": [{"items": []}, 3]}, 422, "row 1"),
    ("shop", {"sessions": [{"items": []}, {}]}, 422, "row 1"),
    ("shop", sessions([], k=3), 422, "unknown field 'k'"),
    ("shop", {"items": "é1"}, 422, "no object with a list of items"),
    ("shop", {"items": [], "user": 1}, 422, "unknown field 'user'. Known: context, items"),
    ("shop", sessions(["é1"], ["é1", []]), 422, "row 1: [] is a list, not a string"),
    ("shop", {"items": [None]}, 422, "may not be"),
    ("shop", sessions(["é1"], ["é1", 44]), 422, "row 1: an id is a number, and ids are text"),
    ("shop", {"items": [1.5]}, 422, 'Send "44", not 44'),
    ("shop", pa.table({"items": [[], [44]]}), 422, "row 1: an id is a number"),
    ("shop", pa.table({"items": pa.ListArray.from_arrays([0, 0, 1], CODED)}), 422, "row 1: an id is a number"),
    ("shop", {"items": [], "k": "x"}, 422, "k is 'x'"),
    ("shop", {"items": [], "context": 3}, 422, "context is no object"),
    ("shop", {"items": [], "context": {"city": "x"}}, 422, "It knows land"),
    ("shop", {"items": [], "context": {"land": ["x"]}}, 422, "no single value"),
    ("shop", {"items": [], "context": {"land": 2**70}}, 422, ""),
    ("shop", {"sessions": [{"items": [], "context": {"land": v}} for v in ("x", 1)]}, 422, "several types"),
    ("shop", sessions(*[[]] * 10_001), 413, "10001 rows"),
    ("shop", pa.table({"item": [["é1"]]}), 422, "column 'items': the column is missing"),
    ("shop", pa.table({"items": ["é1"]}), 422, "not a list of ids"),
    ("shop", pa.table({"items": [["é1"], None]}), 422, "row 1: the session has no list"),
    ("shop", pa.table({"items": [["é1"], [None]]}), 422, "row 1"),
    ("shop", pa.table({"items": [["é1"]], "city": ["x"]}), 422, "no such context"),
    # a few hundred bytes that stand for a billion
    ("shop", pa.table({"items": pa.ListArray.from_arrays([0, 10**9], pa.nulls(10**9))}), 413, ""),
    *(("net", {"items": [odd]}, 422, "column 'items'") for odd in ("a", 2**63, 1.5, True)),
    ("net", {"items": [], "context": {"x": 1}}, 422, "the items alone."),
]


@pytest.mark.parametrize(("to", "body", "status", "words"), WRONG)
def test_what_is_wrong_is_named(served, to, body, status, words):
    arrow = isinstance(body, pa.Table)
    refused(served[to], PATH, stream(body) if arrow else body, status, words, headers=ARROW if arrow else None)


def test_other_wrong_requests(served, folders):
    refused(served["shop"], PATH, b"{}", 415, headers={"content-type": "text/html"})
    refused(served["shop"], PATH, stream(pa.table({"items": [["é1"]]}), compression="zstd"), 415, headers=ARROW)
    refused(served["net"], "/v1/score", {"items": []}, 404)
    assert get(served["net"], PATH).status == 405
    app = serve(folders["shop"], limits=Limits(max_rows=10**6, max_body=2**26))
    app.state.service.scorer.spec = replace(app.state.service.scorer.spec, items=10**6)
    refused(app, PATH, {**sessions(*[[]] * 100), "k": 10**6}, 413, "smaller k")


def test_pages_token_and_reload(folders, tmp_path):
    folder, right = shutil.copytree(folders["shop"], tmp_path / "shop"), {"authorization": "Bearer s3cret"}
    app = serve(folder, token="s3cret")
    said = get(app, "/openapi.json", right).json()
    assert set(said["paths"]) == {PATH, "/v1/reload", "/health", "/ready", "/metrics"}
    example = said["paths"][PATH]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert post(app, PATH, example, right).status == 200
    assert "land" in get(app, "/", right).body.decode()
    body = {"items": [IDS[0]], "context": {"land": "dé"}}
    before = asked(app, body, headers=right)
    Recommender(PopularItems()).fit(shop_of(IDS)[1]).save(folder)
    assert asked(app, body, headers=right) == before
    assert post(app, "/v1/reload", b"", right).status == 200
    assert asked(app, {"items": [IDS[0]]}, headers=right) != before
    (folder / "recommender.json").write_text("{}")
    assert post(app, "/v1/reload", b"", right).status == 500
    assert post(app, PATH, {"items": []}, right).status == 200  # the old one goes on
    with pytest.raises(UnreadableFileError):
        open_model(folder)
    Recommender(PopularItems()).fit(SessionFrame(pd.DataFrame({"i": [[0.5, 1.5]] * 3}), item="i")).save(folder)
    with pytest.raises(DataError, match="neither integers nor text"):
        make_app(folder)


class Ranked(Competition):
    name, task, list_column, item, label = "Ranked", "ranking", "session", "item", "label"
    ids, plain, categories = ("session", "item"), ("near_score", "near_rank", "age"), ()

    def models(self, *, bs):
        return [XGBRanker("xgb", rounds=3, max_depth=2)]

    def stack(self):
        return Stack(rounds=3)


def test_a_registry_of_runs_and_exports_of_sessions(folders, served, tmp_path):
    """Promoted, listed, rolled back: each answers with the bytes that it answered with where it came from."""
    folder, right = tmp_path / "registry", {"authorization": "Bearer t"}
    body = sessions([2**60 + 3, 2**60 + 4], [])
    alone = {kind: post(served[kind], PATH, body).body for kind in ("run", "net")}
    assert alone["run"] != alone["net"]

    def command(*words: object) -> str:
        done = CliRunner().invoke(cli, [*map(str, words), "--registry", str(folder)])
        assert done.exit_code == 0, done.output
        return done.output

    command("promote", folders["run"], "--why", "the first")
    with pytest.raises(DataError, match="sessions have no canary"):
        make_app(folder, canary=Canary(1, 0.5))
    app = serve(folder, token="t")
    for change, wanted in (
        (lambda: None, ("1", alone["run"])),
        (lambda: Registry(folder).promote(folders["net"]), ("2", alone["net"])),
        (lambda: Registry(folder).rollback(), ("1", alone["run"])),
        (lambda: command("rollback"), ("2", alone["net"])),
    ):
        change()
        assert post(app, "/v1/reload", b"", right).status == 200
        answer = post(app, PATH, body, right)
        assert (answer.headers["x-model-version"], answer.body) == wanted
    assert "the first" in command("versions")


def test_a_run_that_ranks_reads_the_context(tmp_path):
    log = SessionFrame(pd.DataFrame({"items": walks(100)}), item="items")
    sources = Candidates({"near": CoVisitation()}, 8).fit(log)
    asked_for = prefixes(log)
    table = sources.union(asked_for)
    frame = table.to_arrow().to_pandas().assign(label=sources.label(table, asked_for.target).numpy())
    frame["item"], frame["age"] = log.items.decode(table["item"].values).to_pylist(), frame["session"] % 7 + 0.5
    frame.to_parquet(tmp_path / "train.parquet")
    frame[frame.session < 9].drop(columns="label").to_parquet(tmp_path / "test.parquet")
    run = run_competition(Ranked(), tmp_path, tmp_path / "run")
    shop = Recommender(sources, ranker=SavedRun(run))
    shop.save(tmp_path / "shop")
    shutil.rmtree(run)  # it went along
    with pytest.raises(DataError, match="its ranker is a run"):
        Recommender.load(tmp_path / "shop")
    app = serve(tmp_path / "shop")
    sessions = [{"items": s, "context": {"age": i + 0.5}} for i, s in enumerate(walks(4))]
    said = asked(app, {"sessions": sessions, "k": 3})["sessions"]
    again = Recommender.load(tmp_path / "shop", ranker=SavedRun(tmp_path / "shop" / "ranker"))
    ages = Table({"age": [s["context"]["age"] for s in sessions]})
    found = again.recommend(log.take(torch.arange(4)), 3, context=ages).to_arrow()
    assert [i for s in said for i in s["ids"]] == found["item"].to_pylist()
    assert [i for s in said for i in s["scores"]] == found["score"].to_pylist()

    async def both():  # one without what the ranker needs does not get it from the other
        bodies = [sessions[0] | {"k": 3}, {"items": walks(1)[0], "k": 3}]
        return await asyncio.gather(*(post_soon(app, PATH, b) for b in bodies))

    right, wrong = asyncio.run(both())
    assert right.json() == said[0]
    assert wrong.status == 422
    assert wrong.json()["column"] == "age"
    assert post(app, PATH, {"items": [], "context": {"age": "x"}}).status in (200, 422)


BODIES = st.fixed_dictionaries(
    {},
    optional={
        "items": st.one_of(st.lists(st.one_of(st.sampled_from([*IDS, 2**60, 7, None, 2**64]), TREES), max_size=4)),
        "sessions": st.lists(st.fixed_dictionaries({"items": st.lists(st.sampled_from(IDS))}), max_size=3),
        "context": st.one_of(TREES, st.fixed_dictionaries({"land": TREES})),
        "k": st.one_of(TREES, st.integers(1, 30)),
    },
)


@fuzz
@given(body=st.one_of(BODIES, TREES), to=st.sampled_from(["shop", "run", "net"]))
def test_any_json(served, body, to):
    answer = post(served[to], PATH, json.dumps(body).encode())
    if held(answer) and "items" in body:
        said = answer.json()
        assert len(said["ids"]) == len(said["scores"]) == len(set(said["ids"])) <= 12
