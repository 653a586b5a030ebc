"""Functions of torch that a graph writes as others: what onnxruntime makes of them is what torch does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastrec.serve.graph import torch_ops  # noqa: F401 - its handlers
from fastrec.serve.onnx_builder import Graph, GraphTensor, N, value_of

ort = pytest.importorskip("onnxruntime")

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
    made = FUNCTIONS[name](GraphTensor(graph, given, torch.empty(N, dtype=dtype, device="meta")))
    assert made.dtype == wanted.dtype
    graph.output("y", value_of(graph, made, torch.float64), np.float64)
    (found,) = ort.InferenceSession(graph.model().SerializeToString()).run(None, {"x": values.numpy()})
    rtol = 1e-12 if wanted.dtype == torch.float64 else 1e-6
    np.testing.assert_allclose(found, wanted.double().numpy(), rtol=rtol)
