"""Values among sorted edges in a graph, beside numpy's ``searchsorted``."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastrec.serve.graph.builder import Graph, GraphTensor, N, value_of
from fastrec.serve.graph.lookup import count_below

ort = pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("sizes", [[1], [2, 3], [4, 1, 9], [99, 100, 101, 1000, 1023, 1024], [20_000]])
def test_count_below(right, sizes):
    rng = np.random.default_rng(len(sizes))
    edges = [np.unique(rng.normal(size=4 * k).round(5))[:k] for k in sizes]
    rows = np.stack([np.r_[e[[0, -1, len(e) // 2]], e[0] - 1, e[-1] + 1, rng.normal(size=20)] for e in edges], 1)
    rows = np.r_[
        rows, np.full((1, len(sizes)), np.nan), np.full((1, len(sizes)), np.inf), np.full((1, len(sizes)), -np.inf)
    ]
    graph = Graph()
    columns = [graph.input(f"x{i}", np.float64) for i in range(len(sizes))]
    given = torch.stack([GraphTensor(graph, c, torch.empty(N, dtype=torch.float64, device="meta")) for c in columns], 1)
    counts = count_below(given, [torch.tensor(e) for e in edges], right=right)
    graph.output("counts", value_of(graph, counts, torch.int64), np.int64, len(sizes))
    session = ort.InferenceSession(graph.model().SerializeToString())
    (said,) = session.run(None, {f"x{i}": rows[:, i] for i in range(len(sizes))})
    side = "right" if right else "left"
    expected = np.stack([np.searchsorted(e, rows[:, i], side=side) for i, e in enumerate(edges)], 1)
    np.testing.assert_array_equal(said, expected)
