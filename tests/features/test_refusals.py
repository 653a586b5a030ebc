"""Values that a generator cannot use: the error names it, the column and the first such row."""

from math import inf, nan

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import fastrec.features as ff
from fastrec.errors import FastrecError

DAY = pd.Timestamp("2024-01-01")


def held(*values, kind=None):
    return pa.table({"x": pa.array(values, kind)})


def padded(kind, value, pad):
    return lambda: ff.ListSlice("x", 0, 2, pad=pad).fit_transform(held(None, [value], kind=pa.list_(kind)))


def rows(**changed):
    return {"k": ["a", "b"], "t": [0.0, 1.0], "y": [0.0, 1.0], "w": [1.0, 1.0]} | changed


def averaged(**changed):
    return lambda: ff.TargetEncode("k", "y", weight="w").fit(rows(**changed))


def earlier(**changed):
    return lambda: ff.CumTarget("k", "y", order="t", weight="w").fit_transform(rows(**changed))


def weighed(weight):
    frame = {"item": ["a", "a"], "user": [1, 1], "w": [None, weight]}
    return lambda: ff.SvdEncode("item", "user", weight="w").fit(frame)


def past(log, **options):
    return lambda: ff.History("u", order="t", table="log", **options).fit_transform({"u": [1], "t": [3.0]}, tables=log)


UNLISTED = ff.Combine(ff.TargetEncode("k", "y"), "-", ff.TargetEncode("k", "y", smooth=1), name="both")
SAME_WORDS = ff.History("u", order="t", event="k", kinds=["a b", "a_b"], by_kind=True)
WIDE = pd.DataFrame(np.ones((1, 63))).add_prefix("c")
TWO = ff.VectorColumns("x").fit(held([1.0, 2.0]))
CLASSES = {"k": [1, 2, 3], "c": pd.Categorical([None, "no", "maybe"])}
LISTS = {"id": [1], "x": ["a|b"], "y": ["c|d"]}
COLLIDING = [{"columns": {"x": "id"}}, {"columns": "x", "position": "id"}, {"columns": "x", "row": "position"}]
COLLIDING.append({"columns": {"x": "v", "y": "v"}})


def found_by(function, outputs="made", **options):
    return lambda: ff.feature(inputs="t", outputs=outputs, **options)(function).fit_transform(rows(k=["a", "a"]))


CLASSES_NAMED = r"classes \('maybe', 'no'\).*classes=\['maybe', 'no'\].*0 and 1"
# The call, the column and the row that its error names, and words of it.
REFUSALS = [
    (lambda: ff.Tokens("x").fit_transform(held(None, 2.5)), "x", 1, "Tokens"),
    (lambda: ff.Tokens("x").fit_transform(held(None, DAY)), "x", 1, "Tokens"),
    (lambda: ff.TextSvd("x").fit_transform(held(None, True)), "x", 1, "TextSvd"),
    (lambda: ff.TextSvd("x").fit_transform(held(None, [[1]])), "x", 1, "TextSvd"),
    (lambda: ff.TfIdfSimilarity("a", "b").fit(pa.table({"a": [["x"]], "b": [[1]]})), None, None, "TfIdfSimilarity"),
    (lambda: ff.TfIdfSimilarity("a", "x").fit(held(None, [[1]]).append_column("a", [[["y"], ["y"]]])), "x", 1, "TfIdf"),
    (lambda: ff.MultiHot("x").fit(held(None, [], [[1]])), "x", 2, "MultiHot"),
    (lambda: ff.MultiHot("x", values=["a"]).fit_transform(held([1])), None, None, "MultiHot"),
    (lambda: ff.ListLength("x").fit_transform(held(None, 1.0)), "x", 1, "ListLength"),
    (lambda: ff.ListLength("x").fit_transform(held(None, DAY)), "x", 1, "ListLength"),
    (padded(pa.int8(), 1, 128), "x", 1, "ListSlice: pad=128 is no value of lists of int8"),
    *((padded(pa.int64(), 1, pad), "x", 1, f"pad={pad!r}") for pad in (0.5, nan, inf, 2**63, "x")),
    (padded(pa.bool_(), True, 2), "x", 1, "pad=2"),
    (padded(pa.string(), "a", 0), "x", 1, "pad=0"),
    (padded(pa.timestamp("s"), DAY, "x"), "x", 1, "pad='x'"),
    (padded(pa.list_(pa.int64()), [1], 0), "x", 1, "pad=0"),
    (
        lambda: TWO.transform(held(None, [1.0, 2.0], [1.0, 2.0, 3.0], [1.0])),
        "x",
        2,
        "VectorColumns.* 3 numbers where 2",
    ),
    (lambda: TWO.transform(held(None, [1.0], kind=pa.list_(pa.float64(), 1))), "x", 1, "Vector.* 1 numbers where 2"),
    (lambda: ff.VectorColumns("x", dims=4).fit_transform(held(None, [1.0])), "x", 1, "VectorColumns"),
    (lambda: ff.VectorColumns("x").fit_transform(held(None, ["a", "b"])), "x", 1, "VectorColumns"),
    *((weighed(weight), "w", 1, "SvdEncode") for weight in (-1.0, inf)),
    *((averaged(y=[0.0, y]), "y", 1, "TargetEncode") for y in (inf, -inf)),
    *((averaged(w=[1.0, w]), "w", 1, "TargetEncode") for w in (inf, -1.0)),
    (earlier(y=[None, "one"]), "y", 1, "CumTarget"),
    *((earlier(**{n: [0.0, v]}), n, 1, "CumTarget") for n, v in (("y", inf), ("w", -1.0), ("w", inf), ("t", nan))),
    (lambda: ff.TargetEncode("k", "c").fit(CLASSES), "c", 1, CLASSES_NAMED),
    (lambda: ff.CumTarget("k", "c", order="k").fit(CLASSES), "c", 1, CLASSES_NAMED),
    (lambda: ff.TargetEncode("k", "c", classes=[1, 2]).fit(CLASSES), "c", None, "different kinds"),
    (lambda: ff.TargetEncode("k", "y", stats="woe").fit(rows(y=[None, 2])), "y", 1, "0 and 1"),
    (lambda: ff.TargetEncode("k", "y", fold_column="t").fit(rows(t=[0.0, None])), "t", 1, "fold"),
    (lambda: ff.TargetEncode("k", ["y", "z"]).fit({"k": ["a"]}, [1]), None, None, "2 targets"),
    (lambda: ff.TargetEncode("k", "y").fit({"k": ["a", "b"]}, [1]), None, None, "unequal length"),
    (lambda: ff.Lag("x").fit_transform(held([1], [2, 3])), "x", None, "list"),
    (lambda: ff.PctChange("x").fit_transform(held(None, DAY)), "x", 1, "PctChange"),
    (lambda: ff.Collect("x", by="u").fit_transform({"u": [1, 1], "x": [["a"], ["b"]]}), "x", 0, "Collect"),
    (lambda: ff.Log1p(["a", "x"]).fit_transform({"a": [1, 2], "x": [0.0, -1.0]}), "x", 1, "Log1p.*signed=True"),
    (lambda: ff.Log1p("x").fit_transform({"x": [None, -inf]}), "x", 1, "Log1p"),
    (
        lambda: ff.DatePart("x", "hour").fit_transform(held("2024-01-01")),
        "x",
        0,
        r"DatePart: holds text.*pd.to_datetime",
    ),
    (lambda: ff.Categorify("x").fit(held(1)).transform(held("2")), None, None, "Categorify"),
    (lambda: ff.Categorify(["a", "b"], shared=True).fit({"a": [1], "b": ["x"]}), None, None, "Categorify"),
    (lambda: ff.JoinTable("o", "x", "v").fit_transform(held(1)), None, None, "'o'"),
    (lambda: ff.JoinTable("o", "x", "w").fit_transform(held(1), tables={"o": held(1)}), "w", None, "'o'"),
    (lambda: ff.JoinTable("o", "x", "x").fit_transform(held("7"), tables={"o": held(7)}), None, None, "JoinTable"),
    (past({}), None, None, "needs the table 'log'"),
    (past({"log": {"u": [1, 1], "t": [1.0, None]}}), "t", 1, "an order value is missing in the log"),
    (lambda: ff.Pca("x", 1).fit(held([1.0, 2.0])).transform(held([1.0, 2.0, 3.0])), "x", 0, "Pca"),
    (lambda: ff.Cross(["x", "x"]), None, None, "two columns or more, each once"),
    (lambda: ff.FeatureSet([SAME_WORDS]), "history_count_a_b", None, "twice"),
    (lambda: ff.FeatureSet([ff.CountEncode(["x", "x"])]), "count_x", None, "CountEncode makes the column .* twice"),
    (lambda: ff.FeatureSet([ff.Lag("x", n=[1, 1])]), "lag1_x", None, "Lag makes the column .* twice"),
    (lambda: ff.FeatureSet([], keep="everything"), None, None, "keep 'everything'"),
    (lambda: ff.FeatureSet([]).set_params(no_such=1), None, None, "no_such"),
    (lambda: ff.FeatureSet([], folds=1), None, None, "folds"),
    (lambda: ff.FeatureSet([ff.CountEncode]), None, None, "CountEncode is not a generator"),
    (lambda: ff.FeatureSet(["x"]), None, None, "'x' is not a generator"),
    (lambda: ff.FeatureSet(5), None, None, "5 is not a generator"),
    (lambda: ff.FeatureSet([ff.CountEncode("x"), ff.CountEncode(["x"])]), "count_x", None, "two generators make"),
    (lambda: ff.FeatureSet([UNLISTED]), "te_k__y", None, "two generators make"),
    (lambda: ff.FeatureSet([ff.CountEncode("x")]).fit("nothing-*.parquet"), None, None, "no such file"),
    (lambda: ff.FeatureSet([], cache=3), None, None, "no cache"),
    (lambda: ff.FeatureCache(max_bytes=-1), None, None, "max_bytes"),
    (lambda: ff.FeatureSet([], keep=["nothing"]).fit_transform(held(1)), "nothing", None, "nothing"),
    (found_by(lambda x: x[:1]), None, None, "'made': .*1 values for 2 rows"),
    (found_by(lambda x: 1.0), None, None, "'made': .*one value for 2 rows"),
    (found_by(lambda x: (x,), ["a", "b"]), None, None, "1 columns for 2 outputs"),
    (found_by(lambda x: x[:1], by="k"), None, None, "1 values for a group of 2 rows"),
    (found_by(lambda x: x, order="k"), None, None, "order"),
    *((lambda given=given: ff.explode(LISTS, **given), None, None, "name") for given in COLLIDING),
    (lambda: ff.explode(LISTS, {"x": "v"}, numbers=["v"]), None, None, "list columns"),
    (lambda: ff.explode(LISTS, []), None, None, "no list columns"),
    (lambda: ff.explode({"x": [1, 2]}, "x", file="f.csv"), "x", 0, "f.csv"),
    *((lambda do=do: getattr(ff.Explode("y"), do)({"x": ["a"]}), "y", None, "'y'") for do in ("fit", "transform")),
    (lambda: ff.Explode("x").fit({"x": ["a"], "position": [1]}), None, None, "position"),
    (lambda: ff.Explode(["x", "y"]).fit_transform({"x": [["a"], ["b"]], "y": [["c"], []]}), "y", 1, "0 elements"),
    (lambda: ff.FeatureSet([ff.Explode("x")]), None, None, "Explode"),
    (lambda: ff.NaNPattern(ff.matching("c")).fit_transform(WIDE), None, None, "NaNPattern"),
]


@pytest.mark.parametrize(("call", "column", "row", "words"), REFUSALS)
def test_what_cannot_be_used_is_named(call, column, row, words):
    with pytest.raises(FastrecError, match=words) as caught:
        call()
    assert column is None or (caught.value.column, caught.value.row) == (column, row)
    assert caught.value.remedy
