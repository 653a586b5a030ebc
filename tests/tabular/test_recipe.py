from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from fastai.data.block import RegressionBlock
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import limits
from fastrec._core.kernels import compiled
from fastrec.errors import DataError, DataWarning
from fastrec.features import CountEncode, FeatureSet
from fastrec.table import Table, Vocab, as_column
from fastrec.tabular import Categorify, FillMissing, LogTransform, Normalize, RankGauss, TabularFrame, recipe
from fastrec.tabular.columns import FrameColumns, TrainingRows
from fastrec.tabular.loader import pack_row
from fastrec.tabular.targets import codes_of

PROCS = [Categorify, FillMissing, Normalize]
CATS, CONTS = ["near", "far", "word", "flag", "whole", "day", "kind"], ["a", "b", "c", "e"]


def raw(n: int) -> pd.DataFrame:
    rng = np.random.default_rng(n)
    word = pd.Series(rng.choice(["x", "yy", "é", ""], n)).where(rng.random(n) > 0.2, None)
    return pd.DataFrame(
        {
            "near": rng.integers(-3, 9, n).astype("int16"),
            "far": rng.choice([-(2**60), 5, 2**60, 7], n),
            "word": word,
            "flag": rng.random(n) < 0.4,
            "whole": np.where(rng.random(n) < 0.3, np.nan, rng.integers(0, 5, n)),
            "day": pd.Series(pd.to_datetime(rng.integers(0, 9, n), unit="D")).where(rng.random(n) > 0.1),
            "kind": pd.Categorical(rng.choice(["q", "p", "z"], n), ["z", "p", "q"]),
            "a": np.where(rng.random(n) < 0.3, np.nan, rng.normal(3, 2, n)),
            "b": rng.normal(size=n).astype("float32"),
            "c": rng.integers(-100, 100, n).astype("int8"),
            "e": pd.array(np.where(rng.random(n) < 0.3, None, rng.integers(0, 9, n)), "Int64"),
            "y": rng.integers(0, 3, n) * 10,
        }
    )


def plain_codes(values: pd.Series, train: np.ndarray) -> list[int]:
    """Codes by a dictionary of the training rows' values, sorted; a categorical's categories."""
    seen = values.iloc[train].dropna().unique().tolist()
    known = list(values.cat.categories) if isinstance(values.dtype, pd.CategoricalDtype) else sorted(seen)
    table = {v: i + 1 for i, v in enumerate(known)}
    return [0 if pd.isna(v) else table.get(v, 0) for v in values.tolist()]


def plain_numbers(values: pd.Series, train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
    gaps = np.isnan(numbers)
    numbers = np.where(gaps, np.nanmedian(numbers[train]), numbers)
    return (numbers - numbers[train].mean()) / (numbers[train].std() + 1e-7), gaps


NEEDS_LOOPS = pytest.mark.skipif(not compiled(1 << 30), reason="numba is not installed")
HOST_LOOPS = pytest.mark.host_only(reason="the loops are compiled for the host")


def use_loops(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(limits, "LOOPS_FROM", 1)
    patch.setattr(limits, "LOOP_NUMBERS", 1)
    patch.setattr(limits, "MEDIAN_SAMPLE", 8)
    patch.setattr(limits, "MEDIAN_SAMPLED", 2)
    patch.setattr(limits, "FRAME_BLOCK", 7)


LIBRARIES = {
    "pandas": lambda df: df,
    "numpy_nullable": lambda df: df.convert_dtypes(dtype_backend="numpy_nullable"),
    "arrow": lambda df: pa.Table.from_pandas(df),
    "chunked": lambda df: pa.concat_tables([pa.Table.from_pandas(df[:5]), pa.Table.from_pandas(df[5:])]),
    "table": lambda df: Table.read(df),
    "dict": lambda df: {n: df[n] for n in df},
}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("splits", ["none", "ordered", "mixed"])
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("loops", [False, pytest.param(True, marks=NEEDS_LOOPS)])
def test_rows_are_what_a_plain_loop_makes_of_them(library, splits, parallel, loops, set_threads, monkeypatch):
    if loops:
        use_loops(monkeypatch)
    monkeypatch.setattr(limits, "FRAME_BLOCK", 7)
    monkeypatch.setattr(limits, "HELD_ROWS", 0)
    monkeypatch.setattr(limits, "PARALLEL_ROWS", 0 if parallel else 10**9)
    set_threads(3)
    n = 60
    df, order = raw(n), np.arange(n)
    frame = LIBRARIES[library](df)
    if isinstance(frame, pa.Table):
        df["kind"] = df["kind"].astype(object)  # Arrow knows no order of categories unless they are ordered
    rows = {"none": None, "ordered": (range(40), range(40, n)), "mixed": None}[splits]
    if splits == "mixed":
        order = np.random.default_rng(1).permutation(n)[:50]
        rows = (order[:40], order[40:])
    train = order if splits == "none" else order[:40]
    to = TabularFrame(frame, PROCS, CATS, CONTS, "y", splits=rows)
    numbers = {name: plain_numbers(df[name], train) for name in CONTS}
    flagged = [name for name in CONTS if numbers[name][1][train].any()]
    assert list(to.cat_names) == [*CATS, *(f"{n}_na" for n in flagged)]
    for i, name in enumerate(CATS):
        assert to.x_cat[:, i].tolist() == np.array(plain_codes(df[name], train))[order].tolist(), name
    for i, name in enumerate(flagged):
        assert to.x_cat[:, len(CATS) + i].tolist() == (numbers[name][1] + 1)[order].tolist()
    for i, name in enumerate(CONTS):
        np.testing.assert_allclose(to.x_cont[:, i].cpu().numpy(), numbers[name][0][order], rtol=1e-5, atol=1e-6)
    assert to.y[:, 0].tolist() == df["y"].to_numpy()[order].tolist()


@NEEDS_LOOPS
@HOST_LOOPS
@pytest.mark.parametrize("cat_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("y_dtype", [None, torch.float32, torch.float64])
@pytest.mark.parametrize("left_out", [0, 7])
@pytest.mark.parametrize("procs", [PROCS, [Categorify, Normalize], [Categorify]])
def test_loops_pack_what_torch_packs(cat_dtype, y_dtype, left_out, procs, monkeypatch):
    n = 300
    order = np.random.default_rng(2).permutation(n)[left_out:]
    given = {"splits": (order[:240], order[240:]), "cat_dtype": cat_dtype, "y_dtype": y_dtype}
    block = None if y_dtype is None else RegressionBlock
    plain = TabularFrame(raw(n), procs, CATS, CONTS, "y", block, **given)
    use_loops(monkeypatch)
    monkeypatch.setattr(recipe.Writer, "_write_block", None)
    looped = TabularFrame(raw(n), procs, CATS, CONTS, "y", block, **given)
    assert looped.packed.layout == plain.packed.layout
    assert torch.equal(looped.x_cat, plain.x_cat)
    assert torch.equal(looped.y, plain.y)
    torch.testing.assert_close(looped.x_cont, plain.x_cont, rtol=1e-6, atol=1e-6, equal_nan=True)


@NEEDS_LOOPS
def test_a_target_that_training_lacks_is_named_by_its_row(monkeypatch):
    use_loops(monkeypatch)
    df = raw(60)
    df["y"] = df["y"].astype(str)
    df.loc[[11, 5], "y"] = "other"
    rest = [i for i in range(60) if i not in (5, 11)]
    with pytest.raises(DataError, match="row 11: the target 'other'"):
        TabularFrame(df, PROCS, CATS, CONTS, "y", splits=(rest, [11, 5]))


@given(
    st.lists(st.integers(-5, 70_000) | st.none(), min_size=1, max_size=40),
    st.integers(0, 40),
    st.integers(1, 3),
    st.none() | st.integers(0, 4),
    st.booleans(),
    st.booleans(),
    st.randoms(),
)
@settings(max_examples=80, deadline=None)
def test_codes_learnt_on_the_way_are_those_of_the_vocabulary(values, fit_rows, least, most, unseen, mixed, random):
    fit_rows = min(fit_rows, len(values))
    order = random.sample(range(len(values)), len(values)) if mixed else None
    column = as_column(pa.array(values, pa.int64()), name="x")
    columns = FrameColumns({"x": column}, ["x"], len(values), order=None if order is None else torch.tensor(order))
    categorify = Categorify(min_count=least, max_size=most, unseen=unseen)
    categorify.reset(["x"])
    coded = codes_of(columns, "x", categorify, training=TrainingRows(fit_rows, columns))
    codes = coded.of(columns.rows(0, len(values))).tolist()
    in_order = column if order is None else column.take(torch.tensor(order))
    vocab = Vocab.fit(in_order.take(torch.arange(fit_rows)), min_count=least, max_size=most, unseen=unseen)
    assert categorify["x"] == vocab.classes
    assert codes == vocab.encode(in_order).tolist()


@pytest.mark.parametrize("classes", [254, 255, 256, 257, 32_767, 32_768, 32_769])
def test_codes_fit_into_the_bytes_that_hold_them(classes):
    words = np.array([f"w{i:05d}" for i in range(classes - 1)])  # and #na#
    order = np.random.default_rng(0).permutation(classes - 1)
    to = TabularFrame({"x": words[order].tolist()}, [Categorify], ["x"], [])
    assert to.x_cat[:, 0].tolist() == (order + 1).tolist()


# One row packed at once is bit for bit the row of a frame

ROW_PROCS = {
    "plain": PROCS,
    "rare": [Categorify(min_count={"word": 16, "near": 9}, max_size=5, unseen=True), FillMissing("mode"), RankGauss],
    "logs": [Categorify, LogTransform(["a", "c"]), Normalize],
    "codes alone": [Categorify],
}
ROW_CATS, ROW_CONTS = [*CATS, "gone"], [*CONTS, "when"]
wholes = st.integers(-5, 5) | st.sampled_from(
    [None, float("nan"), 2.0, 2.5, -0.0, float("inf"), np.int8(3), np.float64(1), 1 << 60, 1e17]
)
days = st.sampled_from([pd.Timestamp("1970-01-02"), pd.Timestamp("2030-01-01"), pd.NaT, None, np.datetime64(3, "D")])
numbers = st.floats(-1e9, 1e9) | st.sampled_from(
    [None, float("nan"), float("inf"), -float("inf"), 7, True, np.float32(0.1), np.int64(5), (1 << 60) + 1, np.bool_(1)]
)
ROW = {
    **{"near": wholes, "far": wholes, "whole": wholes | st.just(np.float32(0.5)), "gone": st.none(), "day": days},
    **{"word": st.sampled_from(["x", "yy", "é", "new", "", "#na#", None]), "kind": st.sampled_from(["q", "new", None])},
    **{"flag": st.booleans() | st.sampled_from([None, np.bool_(1)]), **dict.fromkeys(CONTS, numbers)},
    "when": st.sampled_from([pd.Timestamp("2024-01-01 01:00"), pd.NaT, dt.datetime(2024, 1, 2)]),
}


def row_frame(procs=PROCS, cats=ROW_CATS, conts=ROW_CONTS, **options):
    when = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(60) ** 2, unit="s")
    return TabularFrame(raw(60).assign(gone=None, when=when), procs, cats, conts, "y", **options)


@pytest.fixture(scope="module")
def row_frames():
    return {name: row_frame(procs) for name, procs in ROW_PROCS.items()}


@pytest.mark.filterwarnings("ignore:column .* rows have (no|an infinite) number there")  # nothing fills them
@pytest.mark.parametrize("name", ROW_PROCS)
@settings(max_examples=60)
@given(row=st.fixed_dictionaries(ROW))
def test_a_row_is_packed_as_its_frame_is(row_frames, name, row):
    to = row_frames[name]
    new = to.new({n: pd.Series([v]) for n, v in row.items()})
    new.process()
    got = pack_row(to._recipe, row)
    assert (len(got), got.layout) == (1, new.packed.layout)
    assert torch.equal(got.views[0], new.x_cat.cpu())
    assert torch.equal(got.views[1].view(torch.int32), new.x_cont.cpu().view(torch.int32))
    assert torch.equal(to.one_row({**row, "y": "no number"}).packed.buffer, new.packed.buffer.cpu())


def test_of_a_row_a_bad_value_is_named_and_a_frame_is_needed_for_features_absent_columns_and_values_without_codes():
    row = raw(60).assign(gone=None, when=pd.NaT).iloc[0].to_dict()
    plain = row_frame()
    for column, value in (("word", 5), ("near", "x"), ("a", "x"), ("a", [1.0]), ("flag", "yes"), ("day", 3.5)):
        with pytest.raises(DataError, match=f"'{column}'"):
            plain.one_row({**row, column: value})
    assert row_frame([Categorify], "word", "a", features=FeatureSet([CountEncode("word")])).one_row(row) is None
    assert plain.one_row({k: v for k, v in row.items() if k != "a"}) is None
    assert row_frame([Normalize], "near", "b").one_row(row) is None


def test_large_vocabularies_are_asked_one_value_at_a_time(monkeypatch):
    monkeypatch.setattr(limits, "LISTED_CLASSES", 2)
    to = row_frame([Categorify], ["word", "near"], "b")
    assert (to.classes["word"].code_of("x"), to.classes["word"].code_of(None)) == (None, 0)
    row = {"word": "é", "near": 4, "b": 0.0}
    new = to.new(pd.DataFrame([row]))
    new.process()
    assert torch.equal(to.one_row(row).x_cat, new.x_cat.cpu())


GROW = """
import ctypes, gc
import numpy as np, pandas as pd, pyarrow as pa, torch
torch.set_num_threads(1)
from fastrec.tabular import Categorify, FillMissing, Normalize, TabularFrame

def held(name):
    line = next(l for l in open("/proc/self/status") if l.startswith(name))
    return int(line.split()[1]) * 1024

def make(n):
    rng = np.random.default_rng(0)
    data = {f"c{i}": rng.integers(0, 10 ** (i + 1), n) for i in range(5)}
    data["ct"] = pd.Series(rng.integers(0, 50_000, n)).astype(str).astype("string[pyarrow]")
    return pd.DataFrame(data | {f"x{i}": rng.normal(size=n) for i in range(9)})

def pack(df):
    names = [[n for n in df if n[0] == kind] for kind in "cx"]
    return TabularFrame(df, [Categorify, FillMissing, Normalize], *names)

pack(make(300_000))  # so many that the loops are compiled, which takes memory once
df = make(1_000_000)
gc.collect()
pa.default_memory_pool().release_unused()
ctypes.CDLL(None).malloc_trim(0)
open("/proc/self/clear_refs", "w").write("5")
before = held("VmRSS")
size = pack(df).packed.nbytes
print(held("VmHWM") - before, size)
"""


@pytest.mark.skipif(
    not (os.path.exists("/proc/self/clear_refs") and platform.libc_ver()[0] == "glibc"),
    reason="this system does not tell what a process has held",
)
@pytest.mark.host_only(reason="it measures the memory of the host")
def test_packing_takes_little_beyond_the_rows():
    done = subprocess.run([sys.executable, "-c", GROW], capture_output=True, text=True, check=True)
    grown, size = map(int, done.stdout.split())
    assert grown <= 1.5 * size


GAPS = pd.DataFrame({"a": [1.0, 2, 3, np.nan], "b": [1.0, np.nan, 3, 4], "c": [5.0, 6, 7, 8], "y": [0.0, 1, 0, 1]})


def told(run):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run()
    return [str(w.message) for w in found if issubclass(w.category, DataWarning)]


def test_numbers_first_missing_at_test_are_told_of_by_column_and_row():
    frame = TabularFrame(GAPS[:3], [Normalize], [], ["a", "b", "c"], "y")
    test = pd.DataFrame({"a": [1.0, 2, 3, -4], "b": [np.nan] * 4, "c": [1.0, np.nan, 2, np.nan]})
    (said,) = told(lambda: frame.dataloaders(2).test_dl(test))
    assert "column 'c', row 1: 2 of 4 test rows have no number there, which no training row lacked" in said
    assert "FillMissing" in said
    (said,) = told(lambda: frame.dataloaders(2).test_dl(test.assign(a=[1.0, np.nan, 1, 1])))
    assert "column 'a', row 1: 1 of 4 test rows have no number there (and in 1 further columns), which" in said
    assert not told(lambda: frame.dataloaders(2).test_dl(test.assign(c=1.0)))


def test_numbers_first_missing_in_validation_rows_or_in_one_row_are_told_of():
    (said,) = told(lambda: TabularFrame(GAPS, [Normalize], [], ["a", "c"], "y", splits=([1, 0, 2], [3])))
    assert "column 'a', row 3: 1 of 1 validation rows" in said
    target = lambda: TabularFrame(GAPS.assign(c=GAPS["a"]), None, [], ["y"], "c", splits=([1, 2], [0, 3]))  # noqa: E731
    assert told(target) == [
        "column 'c', row 3: the target of a validation row is nan: scores on such rows will be NaN. "
        "Leave them out of the splits."
    ]
    frame = TabularFrame(GAPS[:3].assign(k="u"), [Categorify, Normalize], ["k"], ["a", "c"], "y")
    (said,) = told(lambda: frame.one_row({"k": "u", "a": None, "c": 2.0}))
    assert "column 'a', row 0: 1 of 1 test rows" in said


@pytest.mark.parametrize("procs", [[Normalize], [FillMissing, Normalize], [FillMissing]])
def test_infinite_numbers_are_told_of_by_column_and_row(procs):
    rows = pd.DataFrame({"a": [1.0, 2, 3, 4], "c": [5.0, 6, -np.inf, np.inf], "y": [0.0, 1, 0, 1]})
    made = lambda *splits: TabularFrame(rows, procs, [], ["a", "c"], "y", splits=splits)  # noqa: E731
    (said,) = told(lambda: made([0, 1], [3, 2]))
    assert said.startswith("column 'c', row 3: 2 of 2 validation rows have an infinite number there, which no training")
    frame = TabularFrame(rows[:2], procs, [], ["a", "c"], "y")
    (said,) = told(lambda: frame.dataloaders(2).test_dl(rows))
    assert "column 'c', row 2: 2 of 4 test rows have an infinite number there" in said
    if Normalize in procs:
        with pytest.raises(DataError, match=r"column 'c', row 3: an infinite number.*or use RankGauss or RobustScale"):
            made([0, 3, 1], [2])


@pytest.mark.parametrize("proc", [FillMissing, RankGauss, LogTransform])
def test_nothing_is_told_of_what_a_proc_fills(proc):
    frame = TabularFrame(GAPS[:3], [proc], [], ["a", "c"], "y")
    assert not told(lambda: frame.dataloaders(2).test_dl(GAPS))


@pytest.mark.parametrize("cat_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("rows", ["all", "some", "twice"])
def test_rows_in_an_order_of_their_own_are_the_rows_in_that_order(rows, cat_dtype):
    df, n = raw(20_000), 20_000  # several blocks
    order = np.random.default_rng(2).permutation(n)
    order = {"all": order, "some": order[: n // 3], "twice": np.append(order[:100], order[:900])}[rows]
    cut = len(order) // 2
    mixed = TabularFrame(df, PROCS, CATS, CONTS, "y", splits=(order[:cut], order[cut:]), cat_dtype=cat_dtype)
    splits = (range(cut), range(cut, len(order)))
    taken = TabularFrame(df.iloc[order], PROCS, CATS, CONTS, "y", splits=splits, cat_dtype=cat_dtype)
    assert torch.equal(mixed.packed.buffer, taken.packed.buffer)
    assert mixed.rows.tolist() == order.tolist()
