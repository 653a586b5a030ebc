"""The stand-in has a GPU's manners: it computes as the CPU does, refuses what CUDA refuses, and counts what waits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fastrec._core.device import resolve_device
from tests import fresh
from tests.device import standin

DEVICE = standin.NAME
MIXED = "same device|indices should be|to numpy|for generator"


def test_torch_knows_it_and_fastrec_numbers_it():
    assert torch.accelerator.current_accelerator().type == DEVICE
    for asked in (DEVICE, "auto", None):
        assert resolve_device(asked) == torch.zeros(1, device=DEVICE).device == torch.device(DEVICE, 0)


@pytest.mark.parametrize(
    "mixes",
    [
        lambda x, host: x + host,
        lambda x, host: host + x.sum(),
        lambda x, host: host.add_(x[0]),
        lambda x, host: torch.where(host > 0, x, x),
        lambda x, host: x.index_select(0, host.long()),
        lambda x, host: host[x.long()],
        lambda x, host: torch.add(x, x, out=host),
        lambda x, host: torch.cat([x, host]),
        lambda x, host: nn.functional.embedding(host.long(), x[:, None]),
        lambda x, host: x.numpy(),
        lambda x, host: torch.randperm(3, generator=torch.Generator(), device=DEVICE),
    ],
)
def test_what_cuda_refuses_is_refused(mixes):
    with pytest.raises((RuntimeError, TypeError), match=MIXED):
        mixes(torch.ones(3, device=DEVICE), torch.zeros(3))


def test_what_cuda_lets_through_is_let_through():
    x = torch.zeros(3, device=DEVICE)
    with standin.counting() as trips:
        x = x + torch.tensor(2.0)  # a number of the host is an argument of the kernel
        x[torch.tensor([0, 1])] = 5.0  # an index of the host is taken along
        x.copy_(torch.ones(3))
    assert trips.count("to device") == 2
    assert not trips.waits


def test_an_index_outside_breaks_the_process():
    says = fresh.run(
        """
        import torch
        from tests.device.standin import NAME
        x = torch.arange(3, device=NAME)
        for call in (lambda: x[5], lambda: x[torch.tensor([5], device=NAME)], lambda: x + 1, lambda: x.cpu()):
            try:
                call()
            except (RuntimeError, IndexError) as error:
                print(type(error).__name__, str(error).split()[0])
        """
    )
    assert says.splitlines() == ["IndexError index", *["RuntimeError device-side"] * 3]


def test_a_float_above_all_integers_is_the_largest():
    x = torch.tensor([1.9, 2.0**40, 2.0**63, torch.inf, -torch.inf], dtype=torch.float64, device=DEVICE)
    for found in (x.long(), x.to("cpu", torch.int64)):
        assert found.tolist() == [1, 2**40, 2**63 - 1, 2**63 - 1, -(2**63)]
    assert x.int().tolist() == [1, *[2**31 - 1] * 3, -(2**31)]


def test_a_divisor_of_the_host_is_a_reciprocal():
    x = torch.arange(1000.0, dtype=torch.float64)
    there = x.to(DEVICE)
    assert torch.equal((there / 49).cpu(), x * (1 / 49))
    assert torch.equal((there / torch.tensor(49.0, device=DEVICE)).cpu(), x / 49)
    for by in (0.3, torch.tensor(0.3), torch.tensor(0.3, dtype=torch.float64)):
        torch.testing.assert_close((there / by).cpu(), x / by, rtol=1e-15, atol=0)
        torch.testing.assert_close((there.float() / by).cpu(), x.float() / by, rtol=2e-7, atol=0)
    assert torch.equal((there.long() / 4).cpu(), (x.long() / 4))
    assert there.clone().div_(49).dtype == (49 / there).dtype == torch.float64


def one_by_one(t):
    return torch.stack([column.sum() for column in t.unbind(1)])


@pytest.mark.parametrize("sum_of", [lambda t: t.sum(0), lambda t: t.mean(0), lambda t: t.t().sum(1, True), one_by_one])
def test_sums_are_of_threads(sum_of):
    x = torch.rand(100, 50, dtype=torch.float64)
    found = sum_of(x.to(DEVICE))
    assert torch.equal(found, sum_of(x.to(DEVICE)))
    assert not torch.equal(found.cpu(), sum_of(x))
    torch.testing.assert_close(found.cpu(), sum_of(x))
    whole = x.round()  # of which nothing is lost
    assert torch.equal(sum_of(whole.to(DEVICE)).cpu(), sum_of(whole))


def test_floats_are_added_up_in_any_order():
    codes, values = torch.arange(3000, device=DEVICE) % 3, torch.rand(3000, dtype=torch.float64, device=DEVICE)
    blank = torch.zeros(3, dtype=torch.float64, device=DEVICE)
    sums = [blank.index_add(0, codes, values), blank.index_add(0, codes, values), blank.scatter_add(0, codes, values)]
    assert len({tuple(s.tolist()) for s in sums}) == 3
    for found in sums:
        torch.testing.assert_close(found.cpu(), torch.zeros(3).double().index_add(0, codes.cpu(), values.cpu()))
    whole = torch.arange(3000, device=DEVICE)
    assert torch.zeros(3, device=DEVICE).long().index_add(0, codes, whole).tolist() == [1498500, 1499500, 1500500]


@pytest.mark.parametrize(
    ("kind", "asks"),
    [
        ("scalar", lambda x: x.sum().item()),
        ("scalar", lambda x: bool((x > 1).any())),
        ("scalar", lambda x: x.nonzero()),
        ("scalar", lambda x: x[x > 1]),
        ("scalar", lambda x: x.unique()),
        ("scalar", lambda x: torch.bincount(x)),
        ("scalar", lambda x: torch.repeat_interleave(x, x)),
        ("scalar", lambda x: torch.equal(x, x)),
        ("to host", lambda x: x.cpu()),
        ("to host", lambda x: x.tolist()),
        ("to device", lambda x: torch.tensor([1.0], device=DEVICE)),
        (None, lambda x: torch.where(x > 1, x, 0)),
        (None, lambda x: x.clone().masked_fill_(x > 1, 0)),
        (None, lambda x: torch.repeat_interleave(x, x, output_size=6)),
        (None, lambda x: torch.full((), 3.0, device=DEVICE)),
        (None, lambda x: x.t().view(torch.int32).sort().values[1:]),
    ],
)
def test_trips_are_counted(kind, asks):
    x = torch.tensor([1, 2, 3], device=DEVICE)
    with standin.counting() as trips:
        asks(x)
    assert [k for k, *_ in trips.found] == [kind] * (kind is not None)


def test_the_line_of_fastrec_that_asked_is_told():
    from fastrec.table.coding import code_integers

    with standin.counting() as trips:
        code_integers(torch.tensor([3, 1, 3], device=DEVICE))
    assert any("fastrec/table/coding.py" in line and "code_integers" in line for *_, line in trips.found)
    assert "nonzero" in trips.table()


def test_generators():
    torch.manual_seed(3)
    first = torch.rand(4, device=DEVICE)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4, device=DEVICE), first)
    own = torch.Generator(DEVICE).manual_seed(1)
    state = own.get_state()
    drawn = torch.randperm(9, generator=own, device=DEVICE)
    assert torch.equal(torch.randperm(9, generator=own.set_state(state), device=DEVICE), drawn)
    assert sorted(drawn.tolist()) == list(range(9))


def test_pinned_memory():
    x = torch.arange(9).pin_memory()
    assert [t.is_pinned() for t in (x, x[3:], torch.arange(9))] == [True, True, False]
    assert x.to(DEVICE, non_blocking=True).tolist() == list(range(9))
