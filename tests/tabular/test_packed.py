from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastrec._core.threads import run_parallel
from fastrec.errors import DataError
from fastrec.tabular.packed import Layout, Packed, one_ahead

cat_dtypes = st.sampled_from([torch.int32, torch.int64])
y_dtypes = st.sampled_from([torch.float32, torch.float64, torch.int64])


@given(st.integers(0, 4), st.integers(0, 4), st.none() | st.integers(0, 3), cat_dtypes, y_dtypes, st.integers(0, 5))
def test_what_is_packed_comes_back(n_cat, n_cont, n_y, cat_dtype, y_dtype, n):
    layout = Layout(n_cat, n_cont, n_y, cat_dtype, y_dtype)
    generator = torch.Generator().manual_seed(0)
    cats = torch.randint(0, 2**31 - 1, (n, n_cat), generator=generator).to(cat_dtype)
    conts = torch.randn(n, n_cont, generator=generator)
    ys = None if n_y is None else (torch.randn(n, n_y, generator=generator) * 1e6).to(y_dtype)
    packed = Packed.of(cats, conts, ys, layout)
    wanted = [cats, conts] + ([] if ys is None else [ys])
    assert len(packed.views) == len(wanted)
    rows = torch.arange(n - 1, -1, -1)
    for got, backwards, want in zip(packed.views, packed.take(rows).views, wanted, strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got, want)
        assert torch.equal(backwards, want.flip(0))
    assert packed.nbytes == 4 * layout.words * n
    used = n_cat * cat_dtype.itemsize + 4 * n_cont + (n_y or 0) * y_dtype.itemsize
    assert used <= 4 * layout.words < used + 8


def test_slices_share_memory_and_are_saved_without_the_rest():
    packed = Packed.of(torch.arange(6000).reshape(3000, 2), torch.zeros(3000, 1), None, Layout(2, 1))
    part = packed.rows(1, 3)
    part.views[0][0, 0] = 77
    assert packed.views[0][1].tolist() == [77, 3]
    saved = pickle.dumps(part)
    assert len(saved) < 3000
    assert pickle.loads(saved).views[0].tolist() == [[77, 3], [4, 5]]
    assert packed.on(torch.device("cpu")) is packed
    assert packed.on(torch.device("meta")) is packed.on(torch.device("meta"))


@pytest.mark.parametrize("rows", [10, 10**6])
def test_parallel_runs_keep_order_and_pass_errors_on(rows, set_threads):
    set_threads(2)
    assert run_parallel(lambda x: x * x, range(5), rows=rows) == [0, 1, 4, 9, 16]
    with pytest.raises(ZeroDivisionError):
        run_parallel(lambda x: 1 // x, [1, 0, 2], rows=rows)


@given(st.lists(st.integers(), max_size=9))
def test_one_is_begun_ahead_and_all_come_in_order(items):
    places: list[int | None] = [None, None]
    begun: list[int] = []

    def begin(place, item):
        assert places[place] is None
        places[place] = item
        begun.append(item)
        return place

    def end(place):
        item, places[place] = places[place], None
        return item

    seen = []
    for result in one_ahead(begin, end, iter(items)):
        seen.append(result)
        assert len(begun) == min(len(seen) + 1, len(items))
    assert seen == items
    assert places == [None, None]


def test_large_and_small_buffers_are_rows_of_words():
    with pytest.raises(DataError, match="int16"):
        Layout(1, 1, 1, torch.int16)
    for n in (0, 3, 300_000):
        packed = Packed.empty(n, Layout(2, 1), device="cpu")
        assert (packed.buffer.shape, packed.buffer.dtype) == ((n, 3), torch.int32)
        packed.buffer.fill_(1)
        assert packed.nbytes == 12 * n
