"""Programs of nets against the nets: every model, batches of 1, 7 and 4,096 rows, lists, vectors, missing ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from fastrec.errors import DataError, NotFittedError, WriteError
from fastrec.estimators import NetModel, NetRanker, SKModel
from fastrec.serve import export_pt2
from fastrec.serve.pt2 import program_of
from fastrec.table import ListBatch, Table
from fastrec.validate import Lists, Rows
from tests.models.examples import EXAMPLES
from tests.models.test_contract import CASES, LIST_ROWS, SIZES, VECTOR, make, parts_of

ROWS = 160


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


def check(net, parts, path) -> None:
    inputs = [(len(parts.cats), torch.int64), (len(parts.conts), torch.float32)]
    inputs += [(VECTOR, torch.float32) for _ in parts.vectors]
    torch.export.save(program_of(net, inputs, n_lists=len(parts.lists)), path)
    loaded = torch.export.load(path).module()
    for n in (1, 7, 4096):
        own, plain = batch_of(parts, n, seed=n)
        with torch.no_grad():
            torch.testing.assert_close(loaded(*plain), net(*own), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("extras", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_every_model(case, extras, tmp_path):
    parts = parts_of(case, extras=extras)
    net = make(case, parts)
    check(net, parts, tmp_path / "net.pt2")
    own, _ = batch_of(parts, 3, seed=0)
    net(*own)  # tables take lists as before


@pytest.mark.parametrize("pool", ["sum", "max", "mean"])
def test_every_way_to_pool_lists(pool, tmp_path):
    parts = parts_of("TabularNet-0")
    check(make("TabularNet-0", parts, pool=pool), parts, tmp_path / "net.pt2")


@pytest.mark.parametrize("lacking", ["cats", "conts"])
def test_nets_without_codes_or_without_numbers(lacking, tmp_path):
    parts = parts_of("TabM-0", extras=False, **{lacking: False})
    check(make("TabM-0", parts), parts, tmp_path / "net.pt2")


def rows_of(task: str) -> Rows:
    rng = np.random.default_rng(0)
    columns = {"x": rng.normal(size=ROWS), "city": rng.choice(["oslo", "rome", "wien"], ROWS)}
    columns["x"][::7] = np.nan
    label = torch.from_numpy(rng.integers(0, 3, ROWS))
    given = {"cats": ["city"], "conts": ["x"]}
    if task == "ranking":
        return Lists(Table.read(columns), torch.arange(ROWS) // 8, label=(label == 1).double(), **given)
    wide = 3 if task == "multiclass" else 1
    return Rows(Table.read(columns), task, label=label if wide > 1 else label.double(), n_outputs=wide, **given)


@pytest.mark.parametrize("model", [m for m in EXAMPLES if m not in ("TwoTower", "MatrixFactorization")])
def test_every_net_of_a_bag(model, tmp_path):
    options = EXAMPLES[model][0].options
    net = NetModel("n", model=model, options=options, epochs=1, seeds=2, bs=32).fit(rows_of("multiclass"), seed=0)
    paths = export_pt2(net, tmp_path / "out")
    assert [p.name for p in paths] == ["net_0.pt2", "net_1.pt2"]
    assert sorted((tmp_path / "out").iterdir()) == paths
    predicted = []
    for path, trained in zip(paths, net._nets, strict=True):
        data = rows_of("multiclass")
        flags = {flag: data.table[name].is_missing().double() for flag, name in trained.flags.items()}
        frame = trained.frame.new(Table({**{n: data.table[n] for n in ("city", "x")}, **flags}))
        frame.process()
        said = torch.export.load(path).module()(frame.x_cat.long(), frame.x_cont)
        assert said.dtype == torch.float32
        predicted.append(said.detach().double().softmax(1))
    torch.testing.assert_close(torch.stack(predicted).mean(0), net.predict(rows_of("multiclass")), rtol=0, atol=1e-6)


def test_a_ranker(tmp_path):
    ranker = NetRanker("n", epochs=1, layers=[8]).fit(rows_of("ranking"), seed=0)
    (path,) = export_pt2(ranker, tmp_path / "out")
    export_pt2(ranker, tmp_path / "out")  # an earlier one is replaced
    cats, conts = torch.tensor([[0], [2]]), torch.tensor([[0.5, 0.0], [-1.0, 1.0]])
    with torch.no_grad():
        expected = ranker._trained.net(cats, conts)
    torch.testing.assert_close(torch.export.load(path).module()(cats, conts), expected, rtol=0, atol=1e-6)


def test_what_has_no_nets_is_named(tmp_path):
    with pytest.raises(DataError, match="no nets"):
        export_pt2(SKModel("r", Ridge()), tmp_path / "out")
    for net in (NetModel("n"), NetRanker("n")):
        with pytest.raises(NotFittedError):
            export_pt2(net, tmp_path / "out")
    (tmp_path / "notes.txt").write_text("mine")
    ranker = NetRanker("n", epochs=1, layers=[8]).fit(rows_of("ranking"), seed=0)
    with pytest.raises(WriteError, match="other things"):
        export_pt2(ranker, tmp_path)
