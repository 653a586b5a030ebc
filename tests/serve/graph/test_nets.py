"""Every model of ``fastrec.models`` as an ONNX model, in batches of 1, 7 and 4,096 rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastrec.models import TabularNet, emb_sz_rule
from fastrec.serve.graph.nets import folded, onnx_of
from tests.models.test_contract import CASES, SIZES, make, parts_of

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


# torch's exporter takes seconds for each
@pytest.mark.parametrize(("case", "lacking"), [*((c, None) for c in CASES), ("TabM-0", "cats"), ("TabM-0", "conts")])
def test_every_model(case, lacking):
    parts = parts_of(case, extras=False, **({lacking: False} if lacking else {}))
    net = make(case, parts).eval()
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
