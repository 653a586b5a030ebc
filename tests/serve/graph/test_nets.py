"""Every model of ``fastrec.models`` as an ONNX model: lists, vectors, missing ones, batches of 1, 7 and 4,096 rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastrec.serve.graph.nets import onnx_of
from tests.models.test_contract import CASES, VECTOR, make, parts_of
from tests.serve.test_pt2 import batch_of

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.mark.parametrize("extras", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_every_model(case, extras):
    parts = parts_of(case, extras=extras)
    net = make(case, parts).eval()
    inputs = [(len(parts.cats), torch.int64), (len(parts.conts), torch.float32)]
    inputs += [(VECTOR, torch.float32) for _ in parts.vectors]
    session = ort.InferenceSession(onnx_of(net, inputs, n_lists=len(parts.lists)).SerializeToString())
    names = [i.name for i in session.get_inputs()]
    for n in (1, 7, 4096):
        own, plain = batch_of(parts, n, seed=n)
        with torch.no_grad():
            expected = net(*own).numpy()
        given = [t.numpy() for t in plain]
        given = given if len(given) == len(names) else [g for g in given if g.shape[1]]
        (said,) = session.run(None, dict(zip(names, given, strict=True)))
        np.testing.assert_allclose(said, expected, rtol=1e-5, atol=1e-5)
