"""Every estimator in a graph: what it predicts of rows that it has not seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

from fastrec.errors import DataError
from fastrec.estimators import (
    CentredModel,
    ColumnRanker,
    ConstantModel,
    NetModel,
    NetRanker,
    OffsetModel,
    SKModel,
    XGBModel,
    XGBRanker,
)
from fastrec.models import TabularNet, emb_sz_rule
from fastrec.serve.graph.columns import OTHER_NO_TEXT, GraphTable, input_column
from fastrec.serve.graph.estimators import GraphRows, blended, prediction
from fastrec.serve.graph.features import GraphGroups
from fastrec.serve.graph.nets import folded, onnx_of
from fastrec.serve.onnx_builder import Graph, GraphTensor, value_of
from fastrec.stacking import StackModel
from fastrec.stacking.blends import (
    AverageBlend,
    BoostedBlend,
    LinearBlend,
    LogisticBlend,
    MeanBlend,
    OneBase,
    PoolBlend,
    RankMean,
    RidgeBlend,
    TreeBlend,
)
from fastrec.stacking.hill_climb import HillClimb
from fastrec.stacking.stack import level_two_of
from fastrec.table import Table
from fastrec.validate import Lists, Rows
from tests.models.test_contract import CASES, SIZES, make, parts_of
from tests.serve.graph.run_graph import graph_feeds

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

NETS = ["TabularNet", "DCNv2", "RealMLP"]  # what differs is the way into a net; ``test_every_model`` has all of them
CATS, CONTS = ["city", "code"], ["price", "size", "flag"]


def frame(n, seed, *, odd=False):
    rng = np.random.default_rng(seed)
    price = rng.normal(size=n) * 100
    price[rng.random(n) < 0.15] = np.nan
    values = {
        "city": rng.choice(["Köln", "東京", "a", "b"] + (["new"] if odd else []), n),
        "code": pd.array(rng.integers(0, 9 + 3 * odd, n) + 2**53, dtype="Int64"),
        "price": price,
        "size": rng.integers(0, 50, n),
        "flag": rng.random(n) < 0.5,
    }
    data = pd.DataFrame(values)
    data.loc[rng.random(n) < 0.1, "city"] = None
    data.loc[rng.random(n) < 0.1, "code"] = pd.NA
    return data


def rows_of(task, n, seed, *, label=True, odd=False):
    table = Table.read(frame(n, seed, odd=odd))
    rng = np.random.default_rng(seed)
    price, size = (table[n].number().cpu().numpy() for n in ("price", "size"))
    signal = np.nan_to_num(price) / 100 + (size > 20)
    if task == "ranking":
        groups = np.repeat(np.arange(n // 5) * 7, 5)
        y = np.zeros(n)
        y[np.arange(0, n, 5) + (signal.reshape(-1, 5) + rng.normal(size=(n // 5, 5))).argmax(1)] = 1
        given = {"label": torch.from_numpy(y)} if label else {}
        return Lists(table, torch.from_numpy(groups), cats=CATS, conts=CONTS, **given)
    noisy = signal + rng.normal(size=n) * 0.5
    y, k = {
        "binary": (noisy > 0.5, 1),
        "multiclass": (np.digitize(noisy, [0, 1]), 3),
        "regression": (noisy * 10, 1),
        "multilabel": (np.stack([noisy > 0, noisy > 1], 1), 2),
    }[task]
    y = torch.from_numpy(np.asarray(y, dtype=np.int64 if task == "multiclass" else np.float64))
    return Rows(table, task, cats=CATS, conts=CONTS, label=y if label else None, n_outputs=k)


def served(make, rows):
    """What a graph says of rows, at batches of 1, 7 and all; ``make``: graph rows → prediction."""
    graph, kept = Graph(), {}

    def given(name):
        if name not in kept:
            kept[name] = input_column(graph, name, rows.table[name], no_text=OTHER_NO_TEXT)
        return kept[name]

    later = {n: (lambda n=n: given(n)) for n in rows.table.names}
    lists, groups = None, None
    if rows.task == "ranking":
        groups = rows.groups.numpy()
        name = graph.input("lists", np.int64)
        lists = GraphGroups(GraphTensor(graph, name, torch.empty(1009, dtype=torch.int64, device="meta")))
    made = make(GraphRows(GraphTable({}, later=later), rows.task, CATS, CONTS, rows.n_outputs, lists))
    graph.output("score", value_of(graph, made, torch.float64), np.float64, None if made.ndim == 1 else made.shape[1])
    session = ort.InferenceSession(graph.model().SerializeToString())
    read = [i.name for i in session.get_inputs()]
    feeds = graph_feeds({n: rows.table[n] for n in kept if n in read}, rows.table)
    feeds |= {"lists": groups} if "lists" in read else {}
    whole = session.run(None, feeds)[0]
    for a, b in ((0, 5), (5, 15)) if rows.task == "ranking" else ((0, 1), (1, 8)):
        part = session.run(None, {n: v[a:b] for n, v in feeds.items()})[0]
        np.testing.assert_allclose(part, whole[a:b], atol=1e-5, rtol=1e-5)
    return whole


def check(model, task, *, atol=1e-6, rtol=1e-6):
    model.fit(rows_of(task, 400, 0), seed=0)
    rows = rows_of(task, 200, 1, label=False, odd=True)
    said = served(lambda r: prediction(model, r), rows)
    np.testing.assert_allclose(said, model.predict(rows).numpy(), atol=atol, rtol=rtol)


def few_trees():
    return XGBModel("xgb", rounds=5, early_stopping_rounds=None)


TASKS = ["binary", "multiclass", "regression", "multilabel", "ranking"]
CHECKED = [
    *((NetModel("net", model=net, epochs=1), "binary", {"atol": 1e-5}) for net in NETS),
    *((NetModel("net", model="TabularNet", epochs=1), task, {"atol": 1e-5}) for task in ("multiclass", "regression")),
    (NetModel("net", model="TabularNet", epochs=1, seeds=2), "multilabel", {"atol": 1e-5}),
    (NetRanker("net", layers=[16], epochs=1), "ranking", {"atol": 1e-5, "rtol": 1e-5}),
    *((XGBModel("xgb", rounds=20, early_stopping_rounds=None), task, {"atol": 2e-6}) for task in TASKS),
    (XGBRanker("xgb", rounds=20), "ranking", {"atol": 2e-6}),
    (XGBRanker("xgb", rounds=20, margin="size"), "ranking", {"atol": 1e-5}),
    (SKModel("forest", ExtraTreesClassifier(20, max_depth=6, random_state=0)), "multiclass", {}),
    (SKModel("forest", ExtraTreesRegressor(20, max_depth=6, random_state=0)), "regression", {}),
    (ConstantModel(), "binary", {}),
    (ConstantModel(), "multiclass", {}),
    (OffsetModel(few_trees(), "price"), "regression", {"atol": 1e-5}),
    (OffsetModel(CentredModel(few_trees(), "price"), "price"), "regression", {"atol": 1e-5}),
]


@pytest.mark.parametrize(("model", "task", "tolerance"), CHECKED, ids=lambda v: getattr(v, "name", str(v)))
def test_every_estimator(model, task, tolerance):
    check(model, task, **tolerance)


def test_a_net_of_logarithms():
    def skewed(n, seed, **options):
        rows = rows_of("binary", n, seed, **options)
        tails = np.round(np.exp(np.random.default_rng(seed).normal(size=n) * 2.5)) - seed
        return replace(rows, table=rows.table.with_columns({"size": tails}))

    model = NetModel("net", model="RealMLP", epochs=1, logs=True).fit(skewed(400, 0), seed=0)
    assert "LogTransform" in [p.name for p in model._nets[0].frame.procs]
    rows = skewed(200, 1, label=False, odd=True)  # and values below the lowest of training
    said = served(lambda r: prediction(model, r), rows)
    np.testing.assert_allclose(said, model.predict(rows).numpy(), atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "task"), [("LGBMModel", "binary"), ("LGBMModel", "multiclass"), ("CatBoostModel", "binary")]
)
def test_other_libraries(name, task):
    estimators = pytest.importorskip("fastrec.estimators")
    pytest.importorskip("lightgbm" if name.startswith("LGBM") else "catboost")
    check(getattr(estimators, name)("trees", rounds=20), task)


def test_a_rule_orders_each_list():
    rule, rows = ColumnRanker("rule", ["size", "price"]), rows_of("ranking", 200, 1)
    said = served(lambda r: prediction(rule, r), rows).reshape(-1, 5)
    wanted = rule.predict(rows).numpy().reshape(-1, 5)  # a place among all rows: in each list the same order
    assert (np.argsort(said, 1, kind="stable") == np.argsort(wanted, 1, kind="stable")).all()


@pytest.mark.parametrize("task", TASKS)
def test_every_blend(task):
    train, rows = rows_of(task, 400, 0), rows_of(task, 200, 1, label=False, odd=True)
    models = {"a": XGBModel("a", rounds=8, early_stopping_rounds=None, max_depth=2)}
    models["b"] = XGBModel("b", rounds=8, early_stopping_rounds=None, columns=["price", "city"])
    base = {n: m.fit(train, seed=0).predict(train) for n, m in models.items()}
    for blend in blends_of(task, list(models)):
        extra = ["size", "city"] if "trees" in blend.name or "boost" in blend.name else []
        stack = StackModel(list(models), [blend], extra)
        blend.fit(level_two_of(base, train, extra), seed=0)
        wanted = stack.predict({n: m.predict(rows) for n, m in models.items()}, rows)
        said = served(lambda r, s=stack: blended(s, {n: prediction(m, r) for n, m in models.items()}, r), rows)
        np.testing.assert_allclose(said, wanted.numpy(), atol=2e-5, rtol=2e-5, err_msg=blend.name)


def blends_of(task, models):
    if task == "ranking":
        plain = [LinearBlend(models), AverageBlend(models), AverageBlend(models, of="rank")]
        trees = [XGBRanker("trees", rounds=5), BoostedBlend(models, rounds=5)]
        return [*plain, *trees, HillClimb(models), OneBase("a")]
    linear = {"regression": RidgeBlend, "multiclass": PoolBlend}.get(task, LogisticBlend)
    ranked = [] if task == "multiclass" else [RankMean(models)]
    trees = [TreeBlend(models, task, rounds=5), HillClimb(models)]
    return [OneBase("a"), MeanBlend(models), linear(models), *trees, *ranked]


def test_one_without_a_form_is_refused_by_name():
    from sklearn.neighbors import KNeighborsClassifier

    model = SKModel("near", KNeighborsClassifier())
    model.fit(rows_of("binary", 100, 0), seed=0)
    with pytest.raises(DataError, match="KNeighbors"):
        served(lambda r: prediction(model, r), rows_of("binary", 10, 1))


# Every model of ``fastrec.models`` as an ONNX model, in batches of 1, 7 and 4,096 rows


# torch's exporter takes seconds for each
@pytest.mark.parametrize(("case", "lacking"), [*((c, None) for c in CASES), ("TabM-0", "cats"), ("TabM-0", "conts")])
def test_every_model(case, lacking):
    parts = parts_of(case, extras=False, **({lacking: False} if lacking else {}))
    net = make(case, parts).cpu().eval()
    inputs = [(len(parts.cats), torch.int64), (len(parts.conts), torch.float32)]
    session = ort.InferenceSession(onnx_of(net, inputs).SerializeToString())
    names = [i.name for i in session.get_inputs()]
    draw = torch.Generator().manual_seed(0)
    for n in (1, 7, 4096):
        codes = [torch.randint(0, rows, (n, 1), generator=draw) for rows, _ in SIZES[: len(parts.cats)]]
        cats = torch.cat(codes, 1) if codes else torch.zeros((n, 0), dtype=torch.int64)
        batch = cats, torch.randn((n, len(parts.conts)), generator=draw)
        with torch.no_grad():
            expected = net(*batch).numpy()
        given = [t.numpy() for t in batch]
        given = given if len(given) == len(names) else [g for g in given if g.shape[1]]
        (said,) = session.run(None, dict(zip(names, given, strict=True)))
        np.testing.assert_allclose(said, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n_cont", [0, 3])
@pytest.mark.parametrize("cards", [[5, 40], [3000, 900, 7]])  # a narrow table beside wide ones in the second
@pytest.mark.parametrize("bias", [False, True])
def test_tables_multiplied_by_the_first_layer_give_the_same(n_cont, cards, bias):
    torch.manual_seed(0)
    szs = [(c, emb_sz_rule(c)) for c in cards]
    net = TabularNet(szs, n_cont, 2, layers=(32, 16), use_bn=not bias, pad=False)
    for p in net.parameters():
        torch.nn.init.normal_(p, std=0.3)
    net = net.eval()
    made = folded(net)
    assert made is not net
    ids = torch.stack([torch.randint(c, (50,)) for c in cards], 1)
    given = [ids, torch.randn(50, n_cont)]
    with torch.no_grad():
        torch.testing.assert_close(made(*given), net(*given), rtol=1e-5, atol=1e-5)


def test_only_tables_with_room_are_multiplied(monkeypatch):
    net = TabularNet([(1000, 16), (50, 12), (4, 4)], 1, 1, layers=(32,)).eval()
    monkeypatch.setattr("fastrec._core.limits.FOLD_TABLE_BYTES", 4 * 50 * 20)  # the growth of the second table
    assert folded(net).columns == [1]
    monkeypatch.setattr("fastrec._core.limits.FOLD_TABLE_BYTES", 0)
    assert folded(net) is net
    norm_first = TabularNet([(50, 12)], 1, 1, layers=(32,), lin_first=False).eval()
    assert folded(norm_first) is norm_first
