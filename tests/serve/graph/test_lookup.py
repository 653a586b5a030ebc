"""Vocabularies of one column in a graph, beside ``Vocab.encode``."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastrec.serve.graph.columns import encode, input_column
from fastrec.serve.graph.lookup import count_below
from fastrec.serve.onnx_builder import Graph, GraphTensor, N, value_of
from fastrec.table import Table, Vocab

ort = pytest.importorskip("onnxruntime")

WORDS = np.array(["é", "b", "c", "", "d\u0000", "e"], dtype=object)
IDS = (1 << 53) + np.arange(6)


def session_of(values, vocabs):
    """A session that gives each vocabulary's codes of a column, and how many nodes of it look for keys."""
    graph = Graph()
    column = input_column(graph, "key", Table.read({"key": values})["key"], no_text="none")
    for i, vocab in enumerate(vocabs):
        graph.output(f"code{i}", value_of(graph, encode(vocab, column), torch.int64), np.int64)
    model = graph.model()
    found = sum(node.op_type == "LabelEncoder" for node in model.graph.node)
    return ort.InferenceSession(model.SerializeToString()), found


@pytest.mark.parametrize("values", [WORDS, IDS, np.arange(6) / 3])
@pytest.mark.parametrize(
    ("parts", "nodes"),
    [
        ([slice(0, 6), slice(1, 4), slice(5, 2, -1)], 1),  # the others are in the first
        ([slice(1, 4), slice(0, 6)], 2),
        ([slice(0, 3), slice(2, 6), slice(3, 5)], 2),
    ],
)
def test_vocabularies_of_a_column(values, parts, nodes):
    known = [values[p] for p in parts]
    vocabs = [Vocab.fit(Table.read({"key": k})["key"]) for k in known]
    session, found = session_of(values, vocabs)
    assert found == nodes
    asked = np.r_[values, values[:2]]
    asked[-1] = "unseen" if values is WORDS else 7
    for vocab, said in zip(vocabs, session.run(None, {"key": asked}), strict=True):
        np.testing.assert_array_equal(said, vocab.encode(Table.read({"key": asked})["key"]).cpu().numpy())


TAKEN = [
    lambda table, codes: table[codes],
    lambda table, codes: torch.index_select(table, 0, codes),
    lambda table, codes: torch.stack([table, -table], 1)[codes],
    lambda table, codes: table[torch.stack([codes, codes * 0], 1)],
]


def test_tables_may_be_as_long_as_rows_are_in_shapes():
    """``N`` stands for the rows in a graph's shapes, and is no limit to a table."""
    graph = Graph()
    column = input_column(graph, "key", Table.read({"key": np.arange(N - 1)})["key"])
    codes = encode(Vocab.fit(Table.read({"key": np.arange(N - 1)})["key"]), column)
    table, asked, at = torch.arange(N) * 0.5, np.array([5, N]), torch.tensor([6, 0])  # codes begin at 1
    for i, made in enumerate(f(table, codes) for f in TAKEN):
        graph.output(str(i), value_of(graph, made, torch.float32), np.float32, None if made.ndim == 1 else 2)
    said = ort.InferenceSession(graph.model().SerializeToString()).run(None, {"key": asked})
    for values, take in zip(said, TAKEN, strict=True):
        np.testing.assert_array_equal(values, take(table, at).numpy())


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("sizes", [[1], [2, 3], [4, 1, 9], [99, 100, 101, 1000, 1023, 1024], [20_000]])
def test_count_below(right, sizes):
    rng = np.random.default_rng(len(sizes))
    edges = [np.unique(rng.normal(size=4 * k).round(5))[:k] for k in sizes]
    rows = np.stack([np.r_[e[[0, -1, len(e) // 2]], e[0] - 1, e[-1] + 1, rng.normal(size=20)] for e in edges], 1)
    rows = np.r_[rows, np.repeat([[np.nan], [np.inf], [-np.inf]], len(sizes), 1)]
    graph = Graph()
    columns = [graph.input(f"x{i}", np.float64) for i in range(len(sizes))]
    given = torch.stack([GraphTensor.of(graph, c, torch.float64) for c in columns], 1)
    counts = count_below(given, [torch.tensor(e) for e in edges], right=right)
    graph.output("counts", value_of(graph, counts, torch.int64), np.int64, len(sizes))
    session = ort.InferenceSession(graph.model().SerializeToString())
    (said,) = session.run(None, {f"x{i}": rows[:, i] for i in range(len(sizes))})
    side = "right" if right else "left"
    expected = np.stack([np.searchsorted(e, rows[:, i], side=side) for i, e in enumerate(edges)], 1)
    np.testing.assert_array_equal(said, expected)


FRACTIONS = [-700.0, -3.7, -1.0, -0.5, -1e-9, 0.0, 1e-9, 1e-300, 0.3, 2.5, 7.0, 1e20, float("nan")]
WHOLE = [-100, -12, -7, -6, -1, 0, 1, 2, 3, 5, 6, 12, 100]
FUNCTIONS = {
    "rsub": lambda a: 3 - a,
    "rdiv": lambda a: 2 / a,
    "div": lambda a: a / 3,
    "floor_divide": lambda a: a // -3,
    "div, trunc": lambda a: torch.div(a, 3, rounding_mode="trunc"),
    "div, floor": lambda a: torch.div(a, -4, rounding_mode="floor"),
    "remainder": lambda a: a % 3,
    "remainder of a negative": lambda a: torch.remainder(a, -3),
    "trunc": lambda a: a.trunc(),
    "log1p": torch.log1p,
    "expm1": torch.expm1,
    "logit": lambda a: torch.logit(a.clamp(-5, 5).double().sigmoid()),
    "logit, eps": lambda a: torch.logit(a.double().sigmoid(), eps=0.1),
    "isfinite": lambda a: torch.where(a > 5, a, a / 0).isfinite(),
    "ne": lambda a: a != 2,
    "masked_fill": lambda a: a.masked_fill(a > 1, 5),
    "clamp_max": lambda a: a.clamp_max(2),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_composed_functions_are_torchs(name, dtype):
    values = torch.tensor(FRACTIONS if dtype.is_floating_point else WHOLE, dtype=dtype)
    wanted, graph = FUNCTIONS[name](values), Graph()
    given = graph.input("x", values.numpy().dtype)
    made = FUNCTIONS[name](GraphTensor.of(graph, given, dtype))
    assert made.dtype == wanted.dtype
    graph.output("y", value_of(graph, made, torch.float64), np.float64)
    (found,) = ort.InferenceSession(graph.model().SerializeToString()).run(None, {"x": values.numpy()})
    rtol = 1e-12 if wanted.dtype == torch.float64 else 1e-6
    np.testing.assert_allclose(found, wanted.double().numpy(), rtol=rtol)


MOVES = [("transpose", (1, 3)), ("permute", (0, 3, 1, 2)), ("permute", ((0, 2, 3, 1),)), ("movedim", (1, 3))]


@pytest.mark.parametrize(("name", "given"), MOVES)
def test_dimensions_go_where_torch_moves_them(name, given):
    def moved(x):
        wide = x[:, None, None, None] * torch.arange(24.0).reshape(2, 3, 4)
        return getattr(wide, name)(*given).reshape(-1, 24)

    values, graph = torch.tensor([1.0, -2.0]), Graph()
    made = moved(GraphTensor(graph, graph.input("x", np.float32), torch.empty(N, device="meta")))
    graph.output("y", value_of(graph, made, torch.float32), np.float32, 24)
    (found,) = ort.InferenceSession(graph.model().SerializeToString()).run(None, {"x": values.numpy()})
    np.testing.assert_array_equal(found, moved(values).numpy())
