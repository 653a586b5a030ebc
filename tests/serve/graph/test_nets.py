"""Every model of ``fastrec.models`` as an ONNX model: lists, vectors, missing ones, batches of 1, 7 and 4,096 rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastrec.models import TabularNet, emb_sz_rule
from fastrec.serve.graph.folded import folded
from fastrec.serve.graph.nets import onnx_of
from fastrec.table import ListBatch
from tests.models.test_contract import CASES, LIST_ROWS, SIZES, VECTOR, make, parts_of

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def batch_of(parts, n: int, seed: int) -> tuple[list, list[torch.Tensor]]:
    """A batch as a net takes it, and as its program does; some lists are empty, some missing."""
    draw = torch.Generator().manual_seed(seed)
    codes = [torch.randint(0, rows, (n, 1), generator=draw) for rows, _ in SIZES[: len(parts.cats)]]
    cats = torch.cat(codes, 1) if codes else torch.zeros((n, 0), dtype=torch.int64)
    conts = torch.randn((n, len(parts.conts)), generator=draw)
    lengths = torch.randint(0, 4, (n,), generator=draw).tolist()
    some = [None if k == 3 else torch.randint(0, LIST_ROWS, (k,), generator=draw).tolist() for k in lengths]
    wide = [[*(own or []), -1, -1, -1, -1][:4] for own in some]
    vectors = [torch.randn((n, VECTOR), generator=draw) for _ in parts.vectors]
    tensors = [torch.tensor(wide) for _ in parts.lists]
    return [cats, conts, *(ListBatch.of(some) for _ in parts.lists), *vectors], [cats, conts, *tensors, *vectors]


# torch's exporter takes seconds for each
@pytest.mark.parametrize(
    ("case", "pool", "parts"),
    [
        *((c, "mean", {}) for c in CASES), ("TabularNet-0", "sum", {}), ("TabularNet-0", "max", {}),
        *((c, "mean", {"extras": False}) for c in ("TabularNet-0", "DLRM-0")),
        *(("TabM-0", "mean", {"extras": False, lacking: False}) for lacking in ("cats", "conts")),
    ],
)  # fmt: skip
def test_every_model(case, pool, parts):
    parts = parts_of(case, **parts)
    net = make(case, parts, **({"pool": pool} if pool != "mean" else {})).eval()
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
    with torch.no_grad():
        net(*own)  # tables pool lists as before


@pytest.mark.parametrize("extras", [False, True])
@pytest.mark.parametrize("cards", [[5, 40], [3000, 900, 7]])  # a narrow table beside wide ones in the second
@pytest.mark.parametrize("bias", [False, True])
def test_tables_multiplied_by_the_first_layer_give_the_same(extras, cards, bias):
    torch.manual_seed(0)
    szs = [(c, emb_sz_rule(c)) for c in cards]
    others = {"list_szs": [(20, 12)], "vector_szs": [6]} if extras else {}
    net = TabularNet(szs, 3 if extras else 0, 2, layers=(32, 16), use_bn=not bias, pad=False, **others)
    for p in net.parameters():
        torch.nn.init.normal_(p, std=0.3)
    net = net.eval()
    made = folded(net)
    assert made is not net
    ids = torch.stack([torch.randint(c, (50,)) for c in cards], 1)
    numbers = torch.randn(50, net.n_cont)
    lists = [ListBatch(torch.tensor([1, 2, 3]), torch.tensor([0, 2, *[3] * 49]))] if extras else []
    given = [ids, numbers, *lists, *([torch.randn(50, 6)] if extras else [])]
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
