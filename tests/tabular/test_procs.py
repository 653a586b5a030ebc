from __future__ import annotations

import json
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.data.transforms import CategoryMap
from fastai.data.transforms import Normalize as FastaiNormalize
from fastai.tabular.core import Categorify as FastaiCategorify
from fastai.tabular.core import FillMissing as FastaiFillMissing
from fastai.tabular.core import FillStrategy, TabularProc
from hypothesis import given
from hypothesis import strategies as st

from fastrec.errors import DataError, NotFittedError
from fastrec.table import ClassList, Table, Vocab
from fastrec.tabular import Categorify, FillMissing, Normalize
from fastrec.tabular.columns import coded_of, training_part
from fastrec.tabular.procs.registry import as_procs, proc_from_state

numbers = st.floats(-1e6, 1e6, width=32)


def column(values, name="x"):
    return Table.read(pd.DataFrame({name: values}))[name]


def fitted(proc, values, name="x"):
    proc.reset([name])
    proc.fit(name, torch.tensor(values, dtype=torch.float64))
    return proc


@given(st.lists(st.none() | numbers, min_size=1, max_size=30))
def test_median_and_mode_equal_pandas(values):
    values = [np.nan if v is None else v for v in values]
    present = pd.Series(values).dropna()
    median, mode = fitted(FillMissing(), values), fitted(FillMissing("mode"), values)
    if len(present) == 0:
        assert median.fills["x"] == mode.fills["x"] == 0
        return
    assert median.fills["x"] == pytest.approx(present.median(), rel=1e-15)
    counts = {v: sum(v == w for w in present) for v in present}
    assert mode.fills["x"] == next(v for v in present if counts[v] == max(counts.values()))


def test_fill_values_of_every_strategy():
    values = [np.nan, 4.0, 1.0, 4.0, 3.0]
    assert fitted(FillMissing(), values).na_dict == {"x": 3.5}
    assert fitted(FillMissing("mode"), values).na_dict == {"x": 4.0}
    assert fitted(FillMissing("constant", fill_vals={"x": -1}), values).na_dict == {"x": -1.0}
    assert fitted(FillMissing("constant"), values).na_dict == {"x": 0.0}
    assert fitted(FillMissing(lambda c, fill: c.max() + fill, fill_vals={"x": 1}), values).na_dict == {"x": 5.0}


def test_a_column_without_missing_values_is_not_flagged_but_can_be_filled():
    proc = fitted(FillMissing(), [1.0, 2.0, 9.0])
    assert proc.na_dict == {}
    assert proc.flagged == []
    filled = proc.apply("x", torch.tensor([torch.nan, torch.inf, 5.0], dtype=torch.float64))
    assert filled.tolist() == [2.0, torch.inf, 5.0]


def test_filling_leaves_its_input_alone():
    values = torch.tensor([torch.nan, 1.0], dtype=torch.float64)
    fitted(FillMissing(), [1.0, np.nan]).apply("x", values)
    assert values.isnan().tolist() == [True, False]


def test_unknown_strategy_is_refused():
    with pytest.raises(DataError, match="no fill strategy"):
        FillMissing("mean")


@given(st.lists(numbers, min_size=2, max_size=40))
def test_normalize_equals_numpy(values):
    array = np.array(values, dtype=np.float64)
    proc = fitted(Normalize(), values)
    done = proc.apply("x", torch.tensor(array)).numpy()
    if array.min() == array.max():
        assert (done == 0).all()
        return
    expected = (array - array.mean()) / (array.std() + 1e-7)
    np.testing.assert_allclose(done, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(proc.invert("x", torch.tensor(done)).numpy(), array, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("centre", [1e8, 1.7e9, 1e12])
def test_normalize_keeps_the_digits_of_large_numbers(centre):
    z = np.random.default_rng(0).normal(size=5000)
    z = (z - z.mean()) / z.std()
    done = fitted(Normalize(), centre + z).apply("x", torch.tensor(centre + z)).numpy()
    np.testing.assert_allclose(done, z, atol=max(1e-6, centre * 3e-16))


@pytest.mark.parametrize("value", [0.0, 0.1, 1e8 + 0.1, -3.0])
def test_a_constant_column_becomes_zero(value):
    proc = fitted(Normalize(), [value] * 7)
    assert proc.apply("x", torch.tensor([value, value], dtype=torch.float64)).tolist() == [0, 0]
    assert proc.apply("x", torch.tensor([value + 2], dtype=torch.float64)).item() == pytest.approx(2)


def test_normalize_leaves_missing_values_out():
    proc = fitted(Normalize(), [1.0, np.nan, 3.0])
    assert (proc.means["x"], round(proc.stds["x"], 6)) == (2.0, 1.0)
    assert fitted(Normalize(), [np.nan]).means["x"] == 0


def test_categorify_counts_and_sizes():
    values = ["b", "a", "b", None, "c", "b", "a", "d"]
    plain, frequent, small = Categorify(), Categorify(min_count=2), Categorify(max_size={"x": 1})
    for proc in (plain, frequent, small):
        proc.fit(column(values))
    assert list(plain["x"]) == ["#na#", "a", "b", "c", "d"]
    assert plain["x"] == CategoryMap(pd.Series(values).dropna(), add_na=True)
    assert list(frequent["x"]) == ["#na#", "#rare#", "a", "b"]
    assert list(small["x"]) == ["#na#", "#rare#", "b"]
    assert frequent.encode("x", column(["a", "c", None, "new"])).tolist() == [2, 1, 0, 0]
    unseen = Categorify(unseen=True, min_count={"other": 5})
    unseen.fit(column(values))
    assert unseen.encode("x", column(["a", "new", None])).tolist() == [2, 1, 0]


def test_class_list_behaves_like_a_category_map():
    classes = ClassList(Vocab.fit(column(["b", "a", None])))
    assert (len(classes), classes[1], classes.o2i["b"], list(classes.items)) == (3, "a", 2, ["#na#", "a", "b"])
    assert pickle.loads(pickle.dumps(classes)) == classes
    assert classes != ["a"]
    assert repr(classes) == "['#na#', 'a', 'b']"


@given(st.lists(st.integers(-5, 40), min_size=1, max_size=60), st.integers(1, 60), st.integers(0, 3))
def test_narrow_whole_numbers_are_coded_like_any_other(values, rows, shift):
    rows = min(rows, len(values))
    long = column(np.array(values * (1 + 4096 // len(values)), dtype=np.int64))
    coded = coded_of(long)
    vocab = Vocab.fit(training_part(long, coded, rows))
    assert vocab.classes == ["#na#", *sorted(set(values[:rows]))]
    assert vocab.encode(coded).tolist() == vocab.encode(long.coded()).tolist()
    assert long.slice(shift, shift + 2).values.tolist() == long.values.tolist()[shift : shift + 2]


def test_training_part_forgets_other_rows_but_keeps_a_categoricals_categories():
    plain = column(["b", "a", "c", "b"])
    assert Vocab.fit(training_part(plain, plain.coded(), 2), min_count=2).rare.to_pylist() == ["a", "b"]
    ordered = column(pd.Categorical(["b", "a", "b"], categories=["z", "b", "a"]))
    assert Vocab.fit(training_part(ordered, ordered.coded(), 1)).classes == ["#na#", "z", "b", "a"]


def test_fastais_procs_are_translated_and_ordered():
    given_procs = [FastaiNormalize, FastaiCategorify(), FastaiFillMissing(FillStrategy.mode, add_col=False)]
    found = as_procs(given_procs)
    assert [type(p) for p in found] == [FillMissing, Categorify, Normalize]
    assert (found[0].fill_strategy, found[0].add_col) == ("mode", False)
    own = Categorify()
    assert as_procs(own)[0] is own
    assert as_procs(None) == []


def test_what_is_no_proc_is_refused():
    class Other(TabularProc):
        def encodes(self, to):
            return to

    with pytest.raises(DataError, match="cannot prepare"):
        as_procs([Other])
    with pytest.raises(DataError, match="twice"):
        as_procs([Categorify, FastaiCategorify])
    with pytest.raises(DataError, match="procs="):
        Categorify().setup(None)


def test_use_before_fitting_is_named():
    with pytest.raises(NotFittedError, match="'x'"):
        Categorify().encode("x", column([1]))
    for proc in (FillMissing(), Normalize()):
        with pytest.raises(NotFittedError, match="'x'"):
            proc.apply("x", torch.zeros(1, dtype=torch.float64))


def test_states_round_trip():
    categorify = Categorify(min_count=2)
    categorify.fit(column(["a", "a", "b", None]))
    procs = [categorify, fitted(FillMissing("mode"), [1.0, np.nan, 1.0]), fitted(Normalize(), [1.0, 2.0])]
    for proc in procs:
        state = proc.to_state()
        again = proc_from_state(state)
        assert type(again) is type(proc)
        assert repr(again.to_state()) == repr(state)
    assert json.loads(json.dumps(procs[1].to_state())) == procs[1].to_state()
    assert procs[2].to_state()["means"].dtype == torch.float64
    assert proc_from_state(categorify.to_state()).encode("x", column(["b", "a", "q"])).tolist() == [1, 2, 0]
    custom = fitted(FillMissing(largest), [3.0, np.nan])
    assert proc_from_state(custom.to_state()).fills == {"x": 3.0}


def largest(values, fill):
    return values.max()


MEDIAN_OF = {
    "apart": lambda rng, n: rng.normal(size=n) * 10.0 ** rng.integers(-9, 9, n),
    "counts": lambda rng, n: rng.negative_binomial(0.2, 0.3, n).astype(float),
    "few": lambda rng, n: rng.integers(0, 3, n).astype(float),
    "halves": lambda rng, n: np.where(np.arange(n) < n // 2, 1.0, 2.0),
    "half zero": lambda rng, n: np.where(np.arange(n) % 2 == 0, 0.0, rng.random(n)),
    "rising": lambda rng, n: np.arange(n, dtype=float),
    "in periods of the sample": lambda rng, n: np.where(np.arange(n) % 64 == 0, 1e9, rng.random(n)),
    "infinite": lambda rng, n: rng.choice([-np.inf, 0.0, 3.0, np.inf], n),
    "one": lambda rng, n: np.full(n, -2.5),
}


@pytest.mark.parametrize("kind", MEDIAN_OF)
@pytest.mark.parametrize("n", [1, 2, 7, 8_191, 8_192, 8_193, 49_600, 200_001])
@pytest.mark.parametrize("gaps", [0.0, 0.1])
def test_the_median_is_exact_however_many_numbers_are_equal(kind, n, gaps):
    rng = np.random.default_rng(n)
    values = MEDIAN_OF[kind](rng, n)
    values[rng.random(n) < gaps] = np.nan
    fill = FillMissing()
    fill.reset(["x"])
    fill.fit("x", torch.from_numpy(values))
    ranked = sorted(values[~np.isnan(values)].tolist())
    middle = len(ranked) // 2
    expected = (ranked[middle] if len(ranked) % 2 else (ranked[middle - 1] + ranked[middle]) / 2) if ranked else 0.0
    assert fill.fills["x"] == expected or (np.isnan(expected) and np.isnan(fill.fills["x"]))
    assert fill.was_missing["x"] == bool(np.isnan(values).any())


@pytest.mark.parametrize("proc", [FillMissing, Normalize])
def test_a_block_of_columns_is_prepared_as_one_column_after_the_other(proc):
    rng = np.random.default_rng(0)
    values = torch.from_numpy(np.where(rng.random((3, 500)) < 0.1, np.nan, rng.normal(5, 3, (3, 500))))
    values[1] = values[1].nan_to_num(0)
    values[2, 7] = torch.inf
    made = proc()
    made.reset(["a", "b", "c"])
    for name, column in zip("abc", values, strict=True):
        made.fit(name, column[column != torch.inf])
    expected = torch.stack([made.apply(n, v) for n, v in zip("abc", values, strict=True)])
    assert torch.equal(made.apply_block(["a", "b", "c"], values.clone()).nan_to_num(-9), expected.nan_to_num(-9))
