"""OTTO's recipe and simulator: the files' form, what is read of them, and a run whose score a loop finds again."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from competitions.otto.competition import KINDS, Otto
from competitions.otto.objectives import write_net
from competitions.otto.simulate import BEGIN, FILES, WEEK, simulate
from fastrec.cli import app
from fastrec.competition import predict_run, run_competition
from fastrec.errors import DataError, MissingColumnError, MissingFileError, UnreadableFileError
from fastrec.retrieval import ObjectiveRanker, recall_of_sets
from fastrec.sequences import SessionFrame
from fastrec.serve import NextItemGraph, export_next_items
from tests.serve.server.calls import get, post, serve

WEIGHTS = {"clicks": 0.1, "carts": 0.3, "orders": 0.6}


class Quick(Otto):
    ranker = {"rounds": 15, "k": 30}  # noqa: RUF012


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("otto") / "data"
    simulate(600, folder, seed=1)
    return folder


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> Path:
    return run_competition(Quick(), data, tmp_path_factory.mktemp("otto") / "run")


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_files_have_the_official_form(data):
    train, test, labels = (lines(data / name) for name in FILES)
    assert len(train) + len(test) == 600
    assert [t["session"] for t in test] == [t["session"] for t in labels]
    for one in (*train, *test):
        times = [e["ts"] for e in one["events"]]
        assert times == sorted(times)
        assert set(one["events"][0]) == {"aid", "ts", "type"}
        assert one["events"][0]["type"] == "clicks"
    assert all(t["events"][0]["ts"] < BEGIN + 4 * WEEK for t in train)
    assert all(t["events"][0]["ts"] >= BEGIN + 4 * WEEK for t in test)
    for one in labels:
        assert one["labels"]
        assert set(one["labels"]) <= set(KINDS)
        assert isinstance(one["labels"].get("clicks", 0), int)
        assert len(set(one["labels"].get("orders", []))) == len(one["labels"].get("orders", []))
    ordered = {e["aid"] for t in train for e in t["events"] if e["type"] == "orders"}
    assert ordered <= {e["aid"] for t in train for e in t["events"] if e["type"] == "carts"}


def test_all_events_are_read(data):
    found = Quick().read(data, None)
    train, test, labels = (lines(data / name) for name in FILES)
    names, ids = found.known.items.values.to_pylist(), found.known.sessions.to_arrow().to_pylist()
    assert ids == [t["session"] for t in (*train, *test)]
    assert found.test.tolist() == [False] * len(train) + [True] * len(test)
    kinds = found.known.codings["type"].vocab.values.to_pylist()
    for i, one in enumerate((*train, *test)):
        a, b = found.known.offsets[i : i + 2].tolist()
        assert [names[c - 1] for c in found.known.values[a:b]] == [e["aid"] for e in one["events"]]
        assert [kinds[c - 1] for c in found.known.sides["type"][a:b]] == [e["type"] for e in one["events"]]
        assert found.known.times[a:b].tolist() == [e["ts"] / 1000 for e in one["events"]]
    for kind in KINDS:
        wanted = found.wanted[kind]
        for i, one in enumerate(labels):
            a, b = wanted.offsets[i : i + 2].tolist()
            expected = one["labels"].get(kind, [])
            expected = expected if isinstance(expected, list) else [expected]
            got = [names[c - 1] if c else None for c in wanted.values[a:b]]
            assert got == [v if v in names else None for v in expected]
    few = Quick().read(data, 10)
    assert int((~few.test).sum()) == 10
    assert few.known.sessions.to_arrow().to_pylist()[0] == train[-10]["session"]


def test_a_run_scores_what_a_loop_scores(run, data):
    scores = json.loads((run / "scores.json").read_text())
    rows = pd.read_csv(run / "submission.csv", dtype=str)
    test, labels = lines(data / FILES[1]), {t["session"]: t["labels"] for t in lines(data / FILES[2])}
    assert rows.columns.tolist() == ["session_type", "labels"]
    assert rows.session_type.tolist() == [f"{t['session']}_{kind}" for t in test for kind in KINDS]
    found, possible = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    for key, text in zip(rows.session_type, rows.labels, strict=True):
        session, kind = key.split("_")
        items = [int(v) for v in text.split()]
        assert len(items) == len(set(items)) == 20
        right = labels[int(session)].get(kind, [])
        right = set(right if isinstance(right, list) else [right])
        found[kind] += len(right & set(items))
        possible[kind] += min(20, len(right))
    for kind in KINDS:
        assert scores[f"{kind}@20"] == pytest.approx(found[kind] / possible[kind])
    total = sum(w * scores[f"{kind}@20"] for kind, w in WEIGHTS.items())
    assert scores["recall@20"] == scores["models"]["ranker"] == pytest.approx(total)
    assert scores["recall@20"] > 0.3
    sources = ["near", "to_cart", "bought", "late", "popular"]  # of equal ones the first is taken
    held = scores["held_out"]
    assert set(held) == {*sources, "trees", "ranker"}
    assert set(scores["models"]) == {*sources, "ranker"}
    for kind in KINDS:
        best = max(sources, key=lambda n: held[n][f"{kind}@20"])
        better = held[best][f"{kind}@20"] > held["trees"][f"{kind}@20"]
        assert scores["instead"].get(kind) == (best if better else None)
        # the mean of two halves, each with the choice of the other
        assert held["ranker"][f"{kind}@20"] < max(held[best][f"{kind}@20"], held["trees"][f"{kind}@20"]) + 0.05
    assert set(scores["seconds_per_million_events"]) == {"near", "to_cart", "bought", "late", "popular", "own"}
    assert (run / "report.html").stat().st_size > 1000


def test_heads_of_one_net_are_sources_if_asked(data, tmp_path):
    class WithNet(Quick):
        net = {"width": 8, "epochs": 1, "heads": "shared"}  # noqa: RUF012

    assert not [n for n in Quick().sources() if n.startswith("net")]
    scores = json.loads((run_competition(WithNet(), data, tmp_path / "run", rows=200) / "scores.json").read_text())
    assert [n for n in scores["models"] if n.startswith("net")] == [f"net_{kind}" for kind in KINDS]
    found = WithNet().read(data, 200)
    best = ObjectiveRanker.load(tmp_path / "run" / "models" / "ranker")
    nets = [best.models[f"net_{kind}"] for kind in KINDS]
    asked = found.known.take(found.test)
    for kind, net in zip(KINDS, nets, strict=True):
        items = net.recommend(asked, 20)[0]
        assert recall_of_sets(items, found.wanted[kind]) == scores["also"][f"{kind}@20"][f"net_{kind}"]
    _exported(tmp_path / "run", asked)


def _exported(run: Path, asked: SessionFrame) -> None:
    """Its net as a file: each goal by its head, or by that whose order is submitted for it."""
    pytest.importorskip("onnxscript")
    ranker = ObjectiveRanker.load(run / "models" / "ranker")
    for name, source in ranker.candidates.sources.items():
        if name.startswith("net"):  # after one epoch a head says what the net says
            for tower in source.model.model.heads.towers:
                torch.nn.init.normal_(tower.weight, generator=torch.Generator().manual_seed(0))
            with torch.no_grad():
                source.model.model.heads.towers[1].weight.neg_()
    ranker.instead = {"orders": "net_carts", "clicks": "near"}
    config = json.loads((run / "config.json").read_text())
    again = write_net(run / "models" / "blend", ranker)
    (run / "config.json").write_text(json.dumps({**config, **again}))
    made = CliRunner().invoke(app, ["export", str(run), "--out", str(run.parent / "export")])
    assert made.exit_code == 0, made.output
    assert "orders: the head of carts" in made.output
    assert "not in the file: near, to_cart, bought, late, popular, trees\n" in made.output
    assert f"{min(len(asked), 1000) + 3} rows: the largest difference is" in made.output
    graph, heads = NextItemGraph(run.parent / "export"), dict(zip(KINDS, ("clicks", "carts", "carts"), strict=True))
    assert graph.about["goals"] == heads
    best, kinds = ranker.recommend(asked, 20), asked.codings["type"].decode(asked.sides["type"]).to_pylist()
    items = [asked.decode(asked.values).to_pylist()[a:b] for a, b in pairwise(asked.offsets.tolist())]
    sides = {"type": [kinds[a:b] for a, b in pairwise(asked.offsets.tolist())]}
    said = graph.recommend(items, 20, sides=sides)
    for goal, head in heads.items():
        right, scores = ranker.models[f"net_{head}"].recommend(asked, 20)
        np.testing.assert_allclose([s[goal][1] for s in said], scores.numpy(), rtol=1e-5, atol=1e-5)
        assert [s[goal][0] for s in said] == [asked.decode(row).to_pylist() for row in right]
    assert [s["orders"][0] for s in said] == [asked.decode(row).to_pylist() for row in best["orders"]]
    assert [s["orders"][0] for s in said] != [s["clicks"][0] for s in said]
    served = serve(run.parent / "export")
    answer = post(served, "/v1/recommend", {"items": items[0], "type": sides["type"][0], "k": 20}).json()["goals"]
    assert {g: a["ids"] for g, a in answer.items()} == {g: ids for g, (ids, _) in said[0].items()}
    assert "orders" in get(served, "/openapi.json").body.decode()
    served.state.service.close()


def test_other_commands_say_what_to_do(run, data, tmp_path):
    with pytest.raises(DataError, match="several goals"):
        predict_run(run, data, tmp_path / "said.csv")
    with pytest.raises(DataError, match=r"the run has no net: its models are near.*Add one"):
        export_next_items(run, tmp_path / "export")
    for command in ("check", "score"):
        said = CliRunner().invoke(app, [command, str(run / "submission.csv"), str(data / FILES[1])])
        assert said.exit_code == 1
        assert "submissions of several goals" in said.output


@pytest.mark.parametrize("option", [{"ranks": 2}, {"scheduler": "local:2"}, {"minutes": 5.0}, {"bs": 64}])
def test_options_of_no_use_are_refused(option, data, tmp_path):
    with pytest.raises(DataError, match=f"{next(iter(option))} is of no use"):
        run_competition(Quick(), data, tmp_path / "run", **option)


def test_parquet_files_are_read_alike(data, tmp_path):
    for name in ("train", "test"):
        rows = [
            (t["session"], e["aid"], e["ts"] // 1000, KINDS.index(e["type"]))
            for t in lines(data / f"{name}.jsonl")
            for e in t["events"]
        ]
        pd.DataFrame(rows, columns=["session", "aid", "ts", "type"]).to_parquet(tmp_path / f"{name}.parquet")
    one, other = Quick().read(data, None), Quick().read(tmp_path, None)
    assert one.known.values.tolist() == other.known.values.tolist()
    assert one.known.sides["type"].tolist() == other.known.sides["type"].tolist()
    assert other.known.times.tolist() == one.known.times.floor().tolist()
    assert other.wanted is None


SEEN = '{"session": 1, "events": [{"aid": 1, "ts": 5, "type": "%s"}]}\n'
UNREADABLE = [
    ("train.jsonl", None, MissingFileError, r"train\.jsonl"),
    ("train.jsonl", "no json\n", UnreadableFileError, r"train\.jsonl"),
    ("train.jsonl", '{"session": 1, "things": []}\n', MissingColumnError, "events"),
    ("train.jsonl", SEEN % "views", DataError, "views"),
    ("test_labels.jsonl", '{"session": 1}\n', MissingColumnError, r"test_labels\.jsonl.*labels"),
    ("test_labels.jsonl", '{"labels": {"clicks": 1}}\n', MissingColumnError, r"test_labels\.jsonl.*session"),
]


@pytest.mark.parametrize(("name", "text", "error", "words"), UNREADABLE)
def test_errors_name_the_file(data, tmp_path, name, text, error, words):
    for file in FILES:
        (tmp_path / file).write_bytes((data / file).read_bytes())
    (tmp_path / name).unlink()
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(error, match=words):
        Quick().read(tmp_path, None)


def test_sessions_in_both_files_unknown_kinds_and_too_few_sessions_are_refused(data, tmp_path):
    for name in FILES[:2]:
        (tmp_path / name).write_bytes((data / FILES[1]).read_bytes())
    with pytest.raises(DataError, match="in both files"):
        Quick().read(tmp_path, None)
    (folder := tmp_path / "parquet").mkdir()
    for kind in (3, -1):
        for i, name in enumerate(("train", "test")):
            rows = {"session": [i], "aid": [1], "ts": [5], "type": [kind]}
            pd.DataFrame(rows).to_parquet(folder / f"{name}.parquet")
        with pytest.raises(DataError, match=rf"kinds of events: \[{kind}\]"):
            Quick().read(folder, None)
    with pytest.raises(DataError, match="too few"):
        simulate(10, tmp_path / "out")
