"""scikit-learn's manners: pipelines, clones, output containers, names."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import fastrec.features as ff
import fastrec.features as registry
from fastrec.errors import DataError


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
    if "Arguments as" not in text and inspect.signature(thing).parameters:
        assert "Args:" in text
    if isinstance(thing, type):
        for word in list(inspect.signature(thing).parameters):
            if "Arguments as" not in text and word != "more":
                names = r"(?:[*\w]+, )*"
                assert re.search(rf"^ +{names}\**{word}(?:, [*\w]+)*: ", text, flags=re.M), word
