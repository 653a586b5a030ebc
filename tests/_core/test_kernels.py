import os

import numpy as np
import pytest
import torch
from torch import nn

from fastrec._core import kernels, limits
from fastrec._core.kernels import compiled
from fastrec.optim import AdamW, Lamb
from tests.fresh import run, start

pytestmark = pytest.mark.skipif(not compiled(1 << 30), reason="numba is not installed")


@pytest.fixture(autouse=True)
def however_little(monkeypatch):
    monkeypatch.setattr(limits, "LOOP_NUMBERS", 0)


CODE = {
    "torch's number of threads stays as it was set": (
        "import torch; torch.set_num_threads(1); from fastrec._core import kernels; kernels.steps()\n"
        "kernels.threads_for(1 << 30); print(torch.get_num_threads())",
        "1",
    ),
    "numba's own threads take one caller at a time": (
        "import torch; from concurrent.futures import ThreadPoolExecutor as P; from fastrec.optim import Lamb\n"
        "def go(_):\n"
        "    p = torch.nn.Parameter(torch.ones(300_000)); o = Lamb([p])\n"
        "    for _ in range(20): p.grad = torch.ones_like(p); o.step()\n"
        "with P(4) as pool: list(pool.map(go, range(8)))\n"
        "print('done')",
        "done",
    ),
    "without numba torch's calls do it": (
        "import sys; sys.modules['numba'] = None\n"
        "import torch; from fastrec._core import kernels; from fastrec.models.embedding import EmbeddingTables\n"
        "from fastrec.optim import Lamb\n"
        "kernels.limits.LOOP_NUMBERS = 0; assert not kernels.compiled(1 << 30)\n"
        "e = EmbeddingTables([(5, 4)]); e(torch.tensor([[1]])).sum().backward()\n"
        "Lamb(e.parameters()).step(); print('done')",
        "done",
    ),
    "a forked child goes without": (
        "import warnings; warnings.simplefilter('ignore')\n"  # that threads and forks go ill together
        "import multiprocessing as m, torch\n"
        "from fastrec._core import kernels\nfrom fastrec.segments import rank_in_group\n"
        "torch.set_num_threads(1)\n"  # torch's own threads do not outlive a fork either
        "codes = torch.arange(1 << 18) // 20; values = codes * 7919 % 1000\n"
        "def go(_): return float(rank_in_group(values, codes).sum()), kernels.compiled(1 << 30)\n"
        "first = go(0)\n"
        "with m.get_context('fork').Pool(1) as pool: then = pool.map_async(go, [0]).get(60)[0]\n"
        "print(first[0] == then[0], first[1], then[1])",
        "True True False",
    ),
}


@pytest.mark.parametrize("what", CODE)
def test_in_a_process_of_its_own(what):
    if "forked" in what and not hasattr(os, "fork"):
        pytest.skip("there is no fork")
    code, said = CODE[what]
    assert run(code, NUMBA_THREADING_LAYER="workqueue" if "own" in what else "default").strip() == said


def sparse(ids, values, like):
    return torch.sparse_coo_tensor(torch.tensor([ids]), values, like.shape, check_invariants=True)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("shape", [(5_000, 64), (150_000,), (40, 3), (7,), (), (0, 4)])
@pytest.mark.parametrize("debias", ["paper", True, False])
def test_lambs_loops_take_its_step(monkeypatch, shape, count, debias):
    monkeypatch.setattr(kernels, "threads_for", lambda numbers: count)
    torch.manual_seed(0)
    start, ends = torch.randn(shape), []
    for least in (0, 1 << 62):
        p = nn.Parameter(start.clone())
        if len(shape) == 2:
            p.segments = (0, shape[0] // 3, shape[0])
        opt = Lamb([p], lr=0.05, weight_decay=0.1, clamp=2.0, debias=debias)
        torch.manual_seed(1)
        monkeypatch.setattr(limits, "LOOP_NUMBERS", least)
        for _ in range(4):
            p.grad = torch.randn(shape)
            opt.step()
        ends.append(p.detach())
    torch.testing.assert_close(*ends, rtol=1e-5, atol=2e-6)


def test_a_step_by_loops_counts_as_a_change_of_the_weights():
    table = nn.Parameter(torch.randn(70_000, 2))
    for opt in (Lamb([table], lr=0.1), AdamW([table], lr=0.1)):
        loss = (table * table).sum()
        table.grad = sparse([0, 5], torch.ones(2, 2), table) if isinstance(opt, AdamW) else torch.ones_like(table)
        opt.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_e_to_the_x_is_as_exact_as_a_float():
    loops = pytest.importorskip("fastrec._core.kernels.train_loops")
    from numba import njit

    @njit
    def all_of(x, out):
        for i in range(len(x)):
            out[i] = loops._exp(x[i])

    x = np.append(-np.logspace(-9, np.log10(87), 20_000), 0.0).astype(np.float32)
    out = np.empty_like(x)
    all_of(x, out)
    np.testing.assert_allclose(out, np.exp(x.astype(np.float64)), rtol=3e-7)


def test_few_numbers_are_not_worth_a_compiler(monkeypatch):
    monkeypatch.undo()
    assert (compiled(1000), compiled(1 << 20)) == (False, True)
    monkeypatch.setattr(limits, "LOOP_NUMBERS", 1 << 62)
    assert not compiled(1 << 20)


# an OSError comes under a limit of address space
@pytest.mark.parametrize("error", ["ImportError('NumPy 2.4')", "OSError('failed to map')", "MemoryError('no room')"])
def test_a_numba_that_cannot_be_loaded_is_told_of_once(tmp_path, error):
    (tmp_path / "numba.py").write_text(f"raise {error}")
    code = (
        "import warnings, sys; sys.path.insert(0, sys.argv[1]); from fastrec._core import kernels\n"
        "with warnings.catch_warnings(record=True) as told:\n"
        "    warnings.simplefilter('always'); print(kernels.compiled(1 << 30), kernels.compiled(1 << 30))\n"
        "print(*[t.message for t in told])"
    )
    first, second = run(code, tmp_path).splitlines()
    assert first == "False False"
    assert second == f"numba cannot be used, fastrec goes on without: {error.split(chr(39))[1]}"


def test_lambs_loops_are_as_exact_as_floats_can_be():
    torch.manual_seed(0)
    start, grads, ends = torch.randn(5_000, 16), [torch.randn(5_000, 16) for _ in range(6)], []
    for dtype in (torch.float32, torch.float64):  # doubles go torch's way
        p = nn.Parameter(start.to(dtype).clone())
        opt = Lamb([p], lr=0.05, weight_decay=0.1)
        for grad in grads:
            p.grad = grad.to(dtype)
            opt.step()
        ends.append(p.detach().double())
    assert (ends[0] - ends[1]).abs().max() < 1.5e-6  # 1 - β2 taken from floats makes 2.6e-6, the double 6e-7


def test_compiling_is_told_of_once_and_not_where_it_is_on_disk(tmp_path):
    code = (
        "import numpy as np; from fastrec._core import kernels\n"
        "for kind in ('i8', 'i4'): kernels.groups().bucket_starts(np.zeros(4, kind), 0, np.zeros(8, 'i8'))"
    )
    said = [start(code, NUMBA_CACHE_DIR=str(tmp_path)).communicate() for _ in range(2)]
    assert said[0] == ("", "fastrec: compiling loops with numba; some seconds, once (they are kept on disk)\n")
    assert said[1] == ("", "")
