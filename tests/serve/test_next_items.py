"""Nets of sessions elsewhere: every model's file against the model, odd sessions, odd ids, what cannot be exported."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from typer.testing import CliRunner

from fastrec.cli import app
from fastrec.competition import NextItemCompetition, predict_run, run_competition
from fastrec.competition.next_items import SavedNextItems
from fastrec.errors import DataError, MissingFileError, NotFittedError, UnreadableFileError, WriteError
from fastrec.retrieval import Candidates, RankedCandidates
from fastrec.sequences import CoVisitation, GoalNet, NextItemNet, SessionBlend, SessionFrame
from fastrec.sequences.next_item_net import NETS
from fastrec.serve import NextItemGraph, export_next_items, verify_next_items
from fastrec.serve import next_items as library
from fastrec.serve.next_items import SessionScores

# some sessions hold no item that the model knows
pytestmark = pytest.mark.filterwarnings("ignore:no item of")

IDS = [2**60 + 7 * i for i in range(30)]
SIZES = {"width": 8, "epochs": 1, "max_len": 6, "options": {"dropout": 0.0}}


class Circle(NextItemCompetition):
    name, k, minutes = "Circle", 7, 3.0

    def models(self, *, bs):
        return {"net": NextItemNet(**SIZES), "near": CoVisitation()}


class Once(Circle):
    exclude_seen, hold = True, "events"

    def models(self, *, bs):
        return {"only": NextItemNet("GRU4Rec", **SIZES)}


def lists(n: int, seed: int, ids: list) -> list[list]:
    draws = np.random.default_rng(seed)
    return [[ids[(s + i) % 30] for i in range(m)] for s, m in zip(draws.integers(30, size=n), draws.integers(1, 9, n))]


def made(recipe, folder, ids):
    folder.mkdir()
    pd.DataFrame({"items": lists(150, 0, ids)}).to_parquet(folder / "train.parquet")
    pd.DataFrame({"items": lists(40, 1, ids)}).to_parquet(folder / "test.parquet")
    return run_competition(recipe, folder, folder / "run")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return made(Circle(), tmp_path_factory.mktemp("circle") / "data", IDS)


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return made(Once(), tmp_path_factory.mktemp("once") / "data", ["", *(f"é {i}".replace(" ", "") for i in range(29))])


@pytest.fixture(scope="module")
def export(run):
    said = CliRunner().invoke(app, ["export", str(run), "--out", str(run.parent / "export")])
    assert said.exit_code == 0, said.output
    assert "43 rows: the largest difference is" in said.output
    assert "not in the file: near" in said.output
    return run.parent / "export"


@pytest.fixture(scope="module")
def once_export(once):
    return export_next_items(once, once.parent / "export").folder


def as_frame(sessions, items):
    kind = pa.large_list(items.values.type)
    return SessionFrame(pa.table({"items": pa.array(sessions, kind)}), item="items", items=items)


ODD = [[], [5], [IDS[3]], [IDS[3], 5, IDS[4]], IDS * 4, [IDS[2]] * 50, [-(2**63), IDS[1]]]


def test_raw_ids_go_in_and_out(run, export):
    net = SavedNextItems(run).blend.models["net"]
    graph = NextItemGraph(export)
    for sessions in ([ODD[4]], ODD, lists(300, 3, IDS)):
        frame = as_frame(sessions, net.items)
        items, scores = net.recommend(frame, 7)
        said = graph.recommend(sessions, 7)
        assert [i for i, _ in said] == [net.items.decode(row).to_pylist() for row in items]
        np.testing.assert_allclose([s for _, s in said], scores.numpy(), rtol=1e-5, atol=1e-5)
    assert graph.recommend([], 3) == []
    assert [len(i) for i, _ in graph.recommend(ODD[:2], 99)] == [30, 30]  # all there are


def test_what_was_seen_is_left_out_and_text_may_be_empty(once, once_export):
    net = SavedNextItems(once).blend.models["only"]
    graph = NextItemGraph(once_export)
    assert graph.missing == "#na#"  # the empty text is an item
    sessions = [["", "é1", "no"], list(net.items.values.to_pylist()), net.items.values.to_pylist()[:27], []]
    items, scores = net.recommend(as_frame(sessions, net.items), 7, True)
    said = graph.recommend(sessions, 7)
    assert [len(i) for i, _ in said] == [7, 0, 3, 7]
    ids, numbers = graph.run(sessions, 7)
    assert [v if v != "#na#" else None for v in ids.ravel()] == net.items.decode(items.reshape(-1)).to_pylist()
    np.testing.assert_allclose(numbers, scores.numpy(), rtol=1e-5, atol=1e-5)


def test_verify(run, export, once, once_export, tmp_path):
    for folder, own in ((export, run), (once_export, once)):
        found = verify_next_items(folder, own)
        assert found.holds
        assert found.rows == 43
        assert verify_next_items(folder, own, own.parent).rows == 43
    other = shutil.copytree(run, tmp_path / "other")
    blend = SessionBlend.load(other / "models" / "blend")
    with torch.no_grad():
        blend.models["net"].model.norm.bias += 0.5
    blend.save(other / "models" / "blend")
    found = verify_next_items(export, other)
    assert not found.holds
    assert found.difference > 1e-3
    (other / "sample.parquet").unlink()
    with pytest.raises(MissingFileError, match="sample"):
        verify_next_items(export, other)


@pytest.mark.parametrize("name", sorted(NETS))
def test_every_net_as_a_file(name):
    log = as_frame(lists(60, 0, IDS), SessionFrame(pd.DataFrame({"items": lists(60, 0, IDS)}), item="items").items)
    net = NextItemNet(name, **{**SIZES, "options": {}}).fit(log)
    graph = library._graph(net, net.items, exclude_seen=False)
    from onnxruntime import InferenceSession

    session = InferenceSession(graph.model().SerializeToString())
    for sessions in ([IDS[:3]], [[], *lists(6, 5, IDS)], [IDS * 3, [IDS[4]]], lists(64, 4, IDS)):
        frame = as_frame(sessions, net.items)
        wanted = torch.empty(len(frame), len(net.items))
        for rows, scores in net.score(frame):
            wanted[rows] = scores
        width = max(map(len, sessions))
        raw = np.full((len(frame), width), -1)
        for i, own in enumerate(frame.values.split(frame.lengths.tolist())):
            raw[i, width - len(own) :] = sessions[i]  # padded on the left: where the padding is does not matter
        ids, numbers = session.run(None, {"items": raw, "k": np.array([5])})
        best, right = net.recommend(frame, 5)
        np.testing.assert_allclose(numbers, right.numpy(), rtol=1e-5, atol=1e-5)
        assert ids.ravel().tolist() == net.items.decode(best.reshape(-1)).to_pylist()


def timed_log(n: int, seed: int) -> pd.DataFrame:
    draws = np.random.default_rng(seed)
    parts = lists(n, seed, IDS)
    rows = [(s, i) for s, own in enumerate(parts) for i in own]
    log = pd.DataFrame(rows, columns=["s", "item"])
    # long pauses and short ones, at the end of which a float32 would know no second
    return log.assign(at=pd.to_datetime(1.7e9 + np.exp(draws.uniform(0, 14, len(log))).cumsum(), unit="s"))


class Kinds(NextItemCompetition):
    name, k, minutes, items, session, order = "Kinds", 7, 3.0, "item", "s", ("at",)

    def models(self, *, bs):
        one = GoalNet(["click", "buy"], event="type", **{**SIZES, "options": {"bias": "time"}})
        return {"clicks": one, "buys": one.of("buy")}

    def read(self, data, rows):
        columns = {"item": "item", "session": "s", "order": ["at"], "features": ["type", "shop", "price"]}
        train, test = (pd.read_parquet(data / f"{n}.parquet") for n in ("train", "test"))
        train = SessionFrame(train.astype({"shop": "category"}), **columns)
        return train, train.new(test)


def kinds_log(n: int, seed: int, kinds: list) -> pd.DataFrame:
    draws, log = np.random.default_rng(seed), timed_log(n, seed)
    own = {"type": draws.choice(kinds, len(log)), "shop": draws.integers(2**40, 2**40 + 3, len(log))}
    return log.assign(**own, price=np.where(draws.random(len(log)) < 0.1, np.nan, draws.lognormal(3, 1, len(log))))


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
    kinds_log(150, 0, ["click", "buy", ""]).to_parquet(folder / "train.parquet")
    kinds_log(40, 1, ["click", "buy", "unheard of"]).to_parquet(folder / "test.parquet")
    return run_competition(Kinds(), folder, folder / "run")


def test_a_net_with_kinds_of_events_is_a_file_that_reads_them(kinds, tmp_path):
    saved = SavedNextItems(kinds)
    rng = torch.Generator().manual_seed(0)
    for net in saved.blend.models.values():  # after one epoch heads and kinds are next to nothing
        with torch.no_grad():
            for part in [*net.model.heads.towers, *net.model.readers, *net.model.bias.tables.values()]:
                for weight in part.parameters():
                    weight.copy_(torch.randn(weight.shape, generator=rng.manual_seed(0)))
            net.model.readers[0].weight[0] = 0.0
    saved.blend.save(kinds / "models" / "blend")
    with pytest.raises(DataError, match=r"2 nets.*Name one of clicks, buys"):
        export_next_items(kinds, tmp_path / "export")
    logs = pd.read_parquet(kinds.parent / "test.parquet")
    sessions = [s for _, s in logs.groupby("s", sort=False)]
    odd = sessions[0].iloc[:1].assign(item=5, s=1_000)  # an item that is not known, with its kind
    sessions += [odd, pd.concat([odd, sessions[1].iloc[:1].assign(s=1_000)])]
    sessions += [pd.concat([*sessions[2:12]]).assign(s=1_001).sort_values("at")]
    assert len(sessions[-1]) > 2 * SIZES["max_len"]
    frames = [saved.empty.new(s) for s in sessions]
    nothing = frames[0].cut(*[frames[0].offsets[:1]] * 2)
    columns = {n: [s[n].tolist() for s in sessions] for n in ("type", "shop", "price")}
    times = [[t.timestamp() for t in s["at"]] for s in sessions]
    own, scores_of = [s["item"].tolist() for s in sessions], {}
    for name in ("clicks", "buys"):
        export = export_next_items(kinds, tmp_path / name, model=name).folder
        assert verify_next_items(export, kinds).holds
        assert verify_next_items(export, kinds, kinds.parent).holds
        graph, net = NextItemGraph(export), saved.blend.models[name]
        assert graph.about["inputs"][2]["known"] == ["", "buy", "click"]
        said = graph.recommend([*own, []], 7, [*times, []], sides={n: [*v, []] for n, v in columns.items()})
        for frame, (ids, scores) in zip([*frames, nothing], said, strict=True):
            items, right = net.recommend(frame, 7)
            assert ids == net.items.decode(items[0]).to_pylist()
            np.testing.assert_allclose(scores, right[0].numpy(), rtol=1e-5, atol=1e-5)
        scores_of[name] = np.array([s for _, s in said])
    assert np.abs(scores_of["clicks"] - scores_of["buys"]).max() > 1e-3
    for at, sides, words in (
        (times, {}, "reads type.*sides={'type'"),
        (times, {**columns, "type": [v[1:] for v in columns["type"]]}, "not given for every event"),
        (times, {**columns, "type": columns["shop"]}, "'type'.*no string.*training files"),
        (times, {**columns, "shop": columns["type"]}, "'shop'.*no int64"),
        (None, columns, "reads times"),
        ([row[1:] for row in times], columns, "reads times"),
    ):
        with pytest.raises(DataError, match=words):
            graph.recommend(own, 7, at, sides=sides)


def test_times_are_asked_for_wherever_the_net_that_reads_them_is(kinds):
    pytest.importorskip("starlette")
    from fastrec.serve.server.recommend import _reads_times

    blend, near = SavedNextItems(kinds).blend, CoVisitation()
    net = blend.models["clicks"]
    inside = (RankedCandidates({"net": net, "near": near}), Candidates({"near": near, "net": net}, k=5))
    assert all(_reads_times(model) for model in (net, blend, *inside))
    without = (near, NextItemNet(), RankedCandidates({"near": near}), Candidates({"near": near}, k=5))
    assert not any(_reads_times(model) for model in without)


def test_what_cannot_be_exported_or_opened_is_named(run, export, tmp_path):
    class Near(Circle):
        def models(self, *, bs):
            return {"near": CoVisitation()}

    near, out = run_competition(Near(), run.parent, tmp_path / "near"), tmp_path / "export"
    said = CliRunner().invoke(app, ["export", str(run), "--out", str(out), "--float16"])
    assert said.exit_code == 1
    assert "--float16 is not for runs for next items" in said.output
    log = pd.DataFrame({"s": [0, 0, 1, 1], "item": [1, 2, 1, 2]})
    net = NextItemNet(**SIZES).fit(SessionFrame(log.assign(item=log.item / 4), item="item", session="s"))
    for call, error, words in (
        (lambda: export_next_items(near, out), DataError, "the run has no net: its models are near"),
        (lambda: export_next_items(run, out, model="near"), DataError, "none is 'near'"),
        (lambda: SessionScores(NextItemNet()), NotFittedError, "not been trained"),
        (lambda: export_next_items(run, run.parent), WriteError, "other things"),
        (lambda: NextItemGraph(export).recommend([[1]], 2.5), DataError, "k is 2.5"),
        (lambda: library.type_of(net.items), DataError, "neither integers nor text"),
    ):
        with pytest.raises(error, match=words):
            call()
    for name, values, words in (
        ("new", [True, False] * 2, "bool, neither integers nor text"),
        ("k", ["a", "b"] * 2, "that name, which the graph has"),
        ("scores", ["a", "b"] * 2, "that name, which the graph has"),
        ("vector", pa.array([[1.0, 2.0]] * 4, pa.list_(pa.float32(), 2)), "side feature of vectors"),
    ):
        table = pa.table({**log, name: values})
        read = SessionFrame(table, item="item", session="s", features=[name])
        with pytest.raises(DataError, match=f"'{name}'.*{words}"):
            library.event_inputs(read, timed=False)
    assert not out.exists()
    broken = shutil.copytree(export, tmp_path / "broken")
    about = json.loads((broken / "serving.json").read_text())
    (broken / "serving.json").write_text(json.dumps({**about, "task": "ranking"}))
    with pytest.raises(UnreadableFileError, match="not that of an export"):
        NextItemGraph(broken)


class Searched(Circle):
    """Sessions of visits: items, and searches that no item belongs to."""

    def models(self, *, bs):
        return {"net": NextItemNet(**SIZES)}

    def read(self, data, rows):
        columns = {"item": "item", "session": "s", "order": "t", "virtual": "search"}
        train = SessionFrame(pd.read_parquet(data / "train.parquet"), **columns)
        return train.with_target(), train.new(pd.read_parquet(data / "test.parquet"))


def test_a_net_that_reads_virtual_items_is_refused(tmp_path):
    log = pd.DataFrame({"s": np.repeat(np.arange(60), 4), "t": np.tile(np.arange(4), 60)})
    log["item"] = pd.array(np.where(log["t"] == 1, None, (log["s"] + log["t"]) % 12), dtype="Int64")
    log["search"] = np.where(log["t"] == 1, (log["s"] % 3).astype(str), None)
    (tmp_path / "data").mkdir()
    log.to_parquet(tmp_path / "data" / "train.parquet")
    log[log["t"] < 3].to_parquet(tmp_path / "data" / "test.parquet")
    made = run_competition(Searched(), tmp_path / "data", tmp_path / "run")
    with pytest.raises(DataError, match="net reads virtual items"):
        export_next_items(made, tmp_path / "export")
    again = predict_run(made, tmp_path / "data", tmp_path / "again.csv")
    assert again.read_bytes() == (made / "submission.csv").read_bytes()
