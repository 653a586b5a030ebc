"""scikit-learn's manners: pipelines, clones, output containers, names."""

from __future__ import annotations

import doctest
import importlib
import inspect
import math
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from torch.utils import _pytree as pytree

import fastrec.features as ff
import fastrec.features as registry
from fastrec._core.device import on_host, resolve_device
from fastrec.errors import DataError, MissingColumnError
from fastrec.features.base import GENERATORS, Context, Fitted, RowWise
from fastrec.table import Table
from tests.features.examples import EXAMPLES
from tests.features.frames import columns, tables, to_table


def frame(n=200, seed=0):
    rng = np.random.default_rng(seed)
    item = rng.integers(0, 8, n)
    return pd.DataFrame(
        {
            "session": np.sort(rng.integers(0, n // 5, n)),
            "item": [f"i{k}" for k in item],
            "price": rng.normal(size=n).round(2),
            "clicked": (rng.random(n) < item / 8).astype(int),
        },
        index=pd.Index([f"r{i}" for i in range(n)]),
    )


def features(**options):
    te = ff.TargetEncode("item", "clicked")
    made = [te, ff.GroupRank(te, by="session"), ff.CountEncode("item"), ff.Diff("price", by="session")]
    return ff.FeatureSet(made, key="session", **options)


def test_a_pipeline_ends_in_an_xgboost_ranker():
    xgb = pytest.importorskip("xgboost")
    data = frame()
    X, y = data.drop(columns="clicked"), data["clicked"]
    pipe = make_pipeline(features(keep="outputs"), xgb.XGBRanker(n_estimators=5, n_jobs=1, objective="rank:pairwise"))
    pipe.fit(X, y, xgbranker__qid=X["session"])
    score = pipe.predict(X)
    assert score.shape == (200,)
    by_item = pd.Series(score).groupby(X["item"].to_numpy()).mean()
    assert by_item["i6"] > by_item["i0"]
    assert clone(pipe).fit(X, y, xgbranker__qid=X["session"]).predict(X).tolist() == score.tolist()


def test_training_rows_get_out_of_fold_values_in_a_pipeline():
    data = frame()
    seen = {}

    class Spy(LogisticRegression):
        def fit(self, X, y):
            seen["train"] = X.copy()
            return super().fit(X, y)

    fs = ff.FeatureSet([ff.TargetEncode("item", "clicked")], key="session", keep="outputs")
    pipe = make_pipeline(fs, Spy()).fit(data, data["clicked"])
    expected = features().fit_transform(data)["te_item__clicked"]
    assert seen["train"]["te_item__clicked"].tolist() == expected.tolist()
    assert pipe.predict(data.drop(columns="clicked")).shape == (200,)


@pytest.mark.parametrize("keep", ["all", "outputs", ["price", "session"]])
def test_what_is_kept(keep):
    data = frame()
    fs = features(keep=keep)
    made = fs.fit_transform(data)
    kept = list(data.columns) if keep == "all" else [] if keep == "outputs" else keep
    assert made.columns.tolist() == kept + fs.outputs
    assert made.index.equals(data.index)
    assert list(fs.get_feature_names_out()) == kept + fs.outputs
    assert fs.get_feature_names_out(["a"]) == (["a"] if keep == "all" else kept) + fs.outputs
    again = fs.transform(data.drop(columns="clicked"))
    assert again.columns.tolist() == [n for n in kept if n != "clicked"] + fs.outputs
    for train, valid in fs.cross_fit(data, np.arange(200) % 2):
        assert train.columns.tolist() == valid.columns.tolist() == kept + fs.outputs


def test_only_outputs_of_every_library(tmp_path):
    pl = pytest.importorskip("polars")
    data = frame()
    fs = features(keep="outputs")
    expected = fs.fit_transform(data)
    for other in (pl.from_pandas(data), pa.Table.from_pandas(data, preserve_index=False), data.to_dict("list")):
        made = fs.fit_transform(other)
        assert type(made) is type(other)
        names = made.column_names if isinstance(made, pa.Table) else list(made)
        if isinstance(made, pl.DataFrame):
            names = made.columns
        assert names == fs.outputs
        first = made[fs.outputs[0]]
        first = first.to_pylist() if isinstance(made, pa.Table) else list(first)
        assert first == pytest.approx(expected[fs.outputs[0]].tolist())
    fs.save(tmp_path / "f")
    assert ff.FeatureSet.load(tmp_path / "f").keep == "outputs"


def test_bad_things_to_keep_are_named():
    with pytest.raises(DataError, match="keep 'everything'"):
        features(keep="everything")
    with pytest.raises(MissingColumnError, match="nothing"):
        features(keep=["nothing"]).fit_transform(frame())


@pytest.mark.parametrize("come", ["pandas", "polars"])
def test_the_library_that_comes_out_can_be_set(come):
    pl = pytest.importorskip("polars")
    data = frame() if come == "pandas" else pl.from_pandas(frame())
    fs = features()
    assert fs.set_output(transform="polars") is fs
    assert isinstance(fs.fit_transform(data), pl.DataFrame)
    made = fs.set_output(transform="pandas").transform(data)
    assert isinstance(made, pd.DataFrame)
    assert made["item"].tolist() == frame()["item"].tolist()
    assert made.columns[-1] == "diff1_price__session"
    assert type(fs.set_output(transform="default").transform(data)) is type(data)
    assert type(fs.set_output().transform(data)) is type(data)
    with pytest.raises(DataError, match="numpy"):
        fs.set_output(transform="numpy")


def test_a_pipelines_set_output_reaches_it():
    pl = pytest.importorskip("polars")
    pipe = make_pipeline(
        ff.FeatureSet([ff.CountEncode("item")]), ff.FeatureSet([ff.Combine("price", "*", "count_item")])
    )
    pipe.set_output(transform="polars")
    made = pipe.fit_transform(frame(), frame()["clicked"])
    assert isinstance(made, pl.DataFrame)
    assert made.columns[-2:] == ["count_item", "price_times_count_item"]


def test_an_unfitted_set_says_so_to_scikit_learn():
    from sklearn.exceptions import NotFittedError as Unfitted
    from sklearn.utils.validation import check_is_fitted

    fs = ff.FeatureSet([ff.CountEncode(ff.number())])
    with pytest.raises(Unfitted):
        check_is_fitted(fs)
    check_is_fitted(fs.fit(frame()))


# Docstrings


PUBLIC = [n for n in registry.__all__ if n != "FeatureSet"]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_docstring_has_an_example_that_runs(name):
    thing = getattr(registry, name)
    module = importlib.import_module(thing.__module__)
    found = doctest.DocTestFinder(recurse=False).find(thing, name, module=module)
    assert sum(len(t.examples) for t in found) > 0, "no example"
    report = []
    for test in found:
        failed, _ = doctest.DocTestRunner().run(test, out=report.append)
        assert not failed, "".join(report)


@pytest.mark.parametrize("name", registry.__all__)
def test_the_docstring_says_what_its_arguments_are(name):
    thing = getattr(registry, name)
    text = thing.__doc__
    assert text.splitlines()[0].endswith(".")
    if "Arguments as" not in text:
        assert "Args:" in text
    if isinstance(thing, type):
        for word in list(inspect.signature(thing).parameters):
            if "Arguments as" not in text and word != "more":
                names = r"(?:[*\w]+, )*"
                assert re.search(rf"^ +{names}\**{word}(?:, [*\w]+)*: ", text, flags=re.M), word


# ``apply`` of every generator that has one, as an exported graph


KINDS = sorted(n for n, kind in GENERATORS.items() if n in EXAMPLES and issubclass(kind, RowWise | Fitted))
# What cannot be exported, and why.
NOT_YET = {"TfIdfSimilarity": "torch.unique joins equal elements of a row's lists, block by block, to bound the memory"}
# Constants that float32 would round.
FINE = {
    "CumTarget": [lambda: ff.CumTarget("city", "y", order="when", half_life=0.7, smooth=0.3)],
    "Cyclic": [lambda: ff.Cyclic("clicks", 30.4)],
    "Digits": [lambda: ff.Digits("z", 17, decimals=9)],
    "RoundTo": [lambda: ff.RoundTo("z", 0.3, stats=["value", "gap", "is_round"])],
}


class Applied(torch.nn.Module):
    """Several generators' ``apply``; the tensors that they have learned are buffers."""

    def __init__(self, features):
        super().__init__()
        self.features = features
        self.learned = [pytree.tree_flatten(f._learned()[1] if isinstance(f, Fitted) else {}) for f in features]
        for i, (values, _) in enumerate(self.learned):
            for j, value in enumerate(values):
                if isinstance(value, torch.Tensor):
                    self.register_buffer(f"learned_{i}_{j}", value)

    def forward(self, *inputs):
        return [self.apply_one(i, tensors) for i, several in enumerate(inputs) for tensors in several]

    def apply_one(self, i, tensors):
        if isinstance(self.features[i], RowWise):
            return self.features[i].apply(tensors)
        values, form = self.learned[i]
        values = [getattr(self, f"learned_{i}_{j}", v) for j, v in enumerate(values)]
        return self.features[i].apply(pytree.tree_unflatten(values, form), tensors)


OTHERS = {name: Table.read(t) for name, t in tables().items()}


def fitted(feature, table):
    return ff.FeatureSet([feature], key="row").fit(table, tables=OTHERS)


def inputs_of(fitted_set, table):
    """What ``apply`` is given for a table: its tensors, of lists by themselves."""
    feature = fitted_set.features[0]
    for step in fitted_set.steps:  # those that it reads come first
        if step is not feature:
            alone = step.compute(table) if isinstance(step, RowWise | Fitted) else step.compute(table, Context(OTHERS))
            table = table.with_columns(alone)
    seen, apply = [], feature.apply
    feature.apply = lambda *given: (seen.append(given[-1]), apply(*given))[1]
    try:
        if isinstance(feature, RowWise):
            feature.compute(table)
            return seen or [feature.prepare(table)]  # some have a faster way to the same
        with feature.using(Context(OTHERS)):
            feature.compute(table)
        return seen
    finally:
        del feature.apply


def is_traced(feature, inputs):
    if getattr(feature, "over", None) == "group":
        return False  # it learns nothing: a row's value is made of its group's rows
    return all(isinstance(t, torch.Tensor) for tensors in inputs for t in tensors.values())  # a function of text is not


def test_only_what_is_listed_is_left_out():
    assert set(NOT_YET) < set(KINDS)
    # What makes a row's tensors needs no other rows, one generator's excepted: it looks up what it has learned of the
    # items of earlier rows.
    assert {n for n in EXAMPLES if GENERATORS[n].online != "history"} == set(KINDS) - {"CoVisit"}


@pytest.mark.parametrize("name", [n for n in KINDS if n not in NOT_YET])
def test_apply_is_exported_with_the_same_bits(name):
    first, second = (to_table(columns(n, seed=n)) for n in (40, 57))
    sets = [fitted(make(), first) for make in [*EXAMPLES[name], *FINE.get(name, [])]]
    both = [(s.features[0], inputs_of(s, first), inputs_of(s, second)) for s in sets]
    both = [(f, a, b) for f, a, b in both if is_traced(f, a)]
    module = Applied([f for f, _, _ in both])
    rows = torch.export.Dim.AUTO
    here, there = (tuple(several) for several in list(zip(*both, strict=True))[1:])
    shapes = pytree.tree_map(lambda t: [rows, *[None] * (t.ndim - 1)] if t.ndim else None, here)
    program = torch.export.export(module, here, dynamic_shapes=(shapes,), strict=False)
    for inputs in (here, there):
        made, expected = program.module()(*inputs), module(*inputs)
        rounding = 0.0 if on_host(resolve_device()) else 1e-14  # a device adds up in any order
        torch.testing.assert_close(made, expected, rtol=0, atol=rounding, equal_nan=True)
    for node in program.graph.nodes:  # ONNX holds a Python float as a float32
        for value in pytree.tree_leaves((node.args, node.kwargs)):
            if isinstance(value, float) and math.isfinite(value):
                assert float(np.float32(value)) == value, node.format_node()
