"""What stands where a generator's columns are named and is none; and whether remedies can be had."""

import inspect
from functools import partial
from math import inf, nan

import pandas as pd
import pytest
from sklearn.base import clone

import fastrec.features as ff
from fastrec.errors import DataError, FastrecError, MissingColumnError, NotFittedError
from fastrec.features import CountEncode, FeatureSet, GroupRank, Lag, TargetEncode, category, matching, number, temporal
from tests.features.examples import EXAMPLES
from tests.features.frames import columns, tables, to_pandas

PLACES = [pytest.param(name, i, id=f"{name}-{i}") for name, made in EXAMPLES.items() for i in range(len(made))]
THING = object()
NO_NAMES = [0, 1.5, b"x", True, THING, {}, [0], [None], [THING], ["city", 0], [["city"]]]  # nowhere a column's name
NOTHING = [None, [], ()]


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_no_column_is_named_and_nothing_is_never_silent(name):
    cls, params = getattr(ff, name), EXAMPLES[name][0]().get_params()
    df, others, unlabeled = to_pandas(columns()), tables(), to_pandas(columns(seed=5))
    given = inspect.signature(cls.__init__).parameters.values()
    texts = {p.name: str(p.annotation) for p in given if p.kind is not p.VAR_POSITIONAL}
    for parameter in (n for n, t in texts.items() if t == "str" or t.startswith(("str | Feature", "str | Seq"))):
        for odd in [*NO_NAMES, *NOTHING, ""]:
            try:
                feature = ff.FeatureSet([cls(**{**params, parameter: odd})], key="row")
                made = feature.fit_transform(df, tables=others, unlabeled=unlabeled)
            except FastrecError:
                continue
            assert not any(odd is thing for thing in NO_NAMES), f"{parameter}={odd!r} was taken"
            assert feature.outputs, f"{parameter}={odd!r} makes nothing"
            assert list(made.columns) == [*df.columns, *feature.outputs]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ff.CountEncode(0), r"CountEncode: 0 is no column's name\. Name columns by text"),
        (lambda: ff.CountEncode(["a", 0]), r"CountEncode: 0 is no column's name\. Name columns by text"),
        (lambda: ff.GroupRank(ff.CountEncode(0), by="list"), "CountEncode: 0 is no column's name"),
        *((partial(ff.CountEncode, n), "CountEncode makes no column.*Name one or more") for n in NOTHING),
        (lambda: ff.TargetEncode("a", "y", weight=[]), r"TargetEncode: weight=\[\] is no name"),
        (lambda: ff.GroupRank("a", by=[]), r"GroupRank: there is a key of no columns\. Name at least one"),
        (lambda: ff.VectorColumns([], name="v"), "VectorColumns of no column"),
        (lambda: ff.JoinTable("items", "item", [[]]), r"columns=\[\[\]\] is no name"),
    ],
)
def test_the_error_names_generator_value_and_remedy(make, message):
    with pytest.raises(DataError, match=message):
        ff.FeatureSet([make()]).fit_transform(pd.DataFrame({"a": [1]}))


def test_a_parameter_that_is_changed_later_is_looked_at_again():
    df, features = pd.DataFrame({"a": [1, 1]}), ff.FeatureSet([ff.CountEncode("a")])
    features.fit(df).features[0].set_params(cols=0)
    with pytest.raises(DataError, match="0 is no column's name"):
        features.fit(df)


@pytest.mark.parametrize("kind", [ff.RowFunction, ff.GroupFunction])
def test_a_function_of_another_number_of_columns_is_named(kind):
    more = {"by": "a"} if kind is ff.GroupFunction else {}
    for cols in ([], ["a", "a2", "a3"]):
        feature = kind(lambda x, y: x + y, cols, "both", **more)
        with pytest.raises(DataError, match=rf"{kind.__name__}: .*cannot be called with {len(cols)} columns.*argument"):
            feature.fit_transform(pd.DataFrame({"a": [1], "a2": [2], "a3": [3]}))
    made = kind(lambda x, y=1.0: x + y, "a", "both", **more).fit_transform(pd.DataFrame({"a": [1]}))
    assert made["both"].tolist() == [2]
    assert kind(max, "a", "most", **more).function is max  # a built-in one, whose arguments are not known


def test_the_remedy_for_two_encodings_of_one_column_can_be_had():
    df = pd.DataFrame({"a": list("xxyy") * 3, "y": [0, 1] * 6})
    light, heavy = ff.TargetEncode("a", "y", smooth=1), ff.TargetEncode("a", "y", smooth=100)
    with pytest.raises(DataError, match="two generators make the column 'te_a__y'") as caught:
        ff.FeatureSet([light, heavy])
    assert "name=" not in caught.value.remedy
    assert "FeatureSet of its own, and rename" in caught.value.remedy
    assert all(text in caught.value.problem for text in ("smooth=1)", "smooth=100)"))
    # As the remedy says:
    first = ff.FeatureSet([light], key="a", folds=2).fit_transform(df).rename(columns={"te_a__y": "light"})
    both = ff.FeatureSet([heavy], key="a", folds=2).fit_transform(first)
    assert list(both.columns) == ["a", "y", "light", "te_a__y"]
    alone = [ff.FeatureSet([f], key="a", folds=2).fit_transform(df)["te_a__y"].tolist() for f in (light, heavy)]
    assert [both["light"].tolist(), both["te_a__y"].tolist()] == alone


@pytest.mark.parametrize(("name", "i"), PLACES)
def test_another_name_helps_wherever_it_is_advised(name, i):
    one, other = EXAMPLES[name][i](), EXAMPLES[name][i]()
    with pytest.raises(DataError, match="two generators make the column") as caught:
        ff.FeatureSet([one, other])
    assert ("name=" in caught.value.remedy) == ("name" in one.get_params())
    if "name=" in caught.value.remedy:
        again = ff.FeatureSet([one, type(one)(**{**one.get_params(), "name": "another"})])
        assert len(set(again.outputs)) == 2 * len(one.outputs)


# Options that cannot be: every generator refuses them by its own name, and says what to do


def each(**options):
    """One option at a time."""
    return [{name: value} for name, values in options.items() for value in values]


def with_horizon(make):
    rows = partial(make, "x")
    return [
        (rows, each(n=[0, [1, 0]]), "n is 0"),
        (rows, [{"horizon": "42D"}, {"horizon": "42D", "order": ["a", "b"]}], "one order column"),
        (rows, [{"horizon": "42D", "order": "t", "n": [1, -1]}], "looks back"),
        (rows, [{"horizon": "42 days", "order": "t"}], "42 days"),
        (rows, [{"horizon": 0, "order": "t"}], "horizon=0"),
        (rows, [{"horizon": -7, "order": "t"}], "horizon=-7"),
    ]


never_repeated = [[], ["a", "a"], [1, 1.0], ["a", 1], [None], ["a", None], [1.0, nan], [[1]], [2**64]]
cum_target = partial(ff.CumTarget, "k", "y", order="t")
target = partial(ff.TargetEncode, "k", "y")
rolling = partial(ff.Rolling, "x", window=2)
ewm = partial(ff.Ewm, "x")
co_visit = partial(ff.CoVisit, "item", by="s", order="t")
group_stats = partial(ff.GroupStats, "x", by="g")

REFUSED = [
    (partial(ff.BayesianRate, "c", "n"), each(weight=[0, -1, inf], prior=[nan]), ""),
    (partial(ff.Bucketize, "x"), each(edges=[None, [], [2, 1], [1, 1], [nan]]), ""),
    (partial(ff.Bucketize, "x"), each(edges=[4]), "edges=4 lists no numbers.*quantiles=4"),
    (partial(ff.Bucketize, "x"), each(quantiles=[1, 2.5, [], [0.5, 0.2], [1.2]]), ""),
    (partial(ff.Bucketize, "x"), [{"edges": [1], "quantiles": 2}, {"quantiles": 3, "scope": "test"}], ""),
    (partial(ff.Categorify, "k"), each(min_count=[-1, {"other": 2}], max_size=[-1], buckets=[0], scope=["test"]), ""),
    (partial(ff.Categorify, "k"), [{"min_count": {"k": 2}, "shared": True}, {"buckets": 2, "unseen": True}], ""),
    (partial(ff.Clip, "x"), [{"low": 2, "high": 1}, {"low": nan}], ""),
    (partial(ff.Clip, "x"), each(quantiles=[(0.5,), (0.9, 0.1), (-1, 0.5), (0.5, 1.5)], scope=["test"]), ""),
    (partial(ff.FillMissing, "x"), each(strategy=["max"], value=[{"other": 1}], scope=["test"]), ""),
    (partial(ff.Normalize, "x"), each(scope=["test"]), ""),
    (partial(ff.Collect, "x", by="user"), each(max_len=[0], table=["log"]), ""),
    (co_visit, each(stats=["min"], window=[0], last=[0], folds=[1], order=[[]], half_life=[0, nan]), ""),
    (co_visit, each(event=["kind"], weights=[{"a": 1}]), ""),
    (co_visit, [{"event": "kind", "weights": {"a": w}} for w in (-1, inf)], ""),
    (partial(ff.Collect, ff.Collect("x", by="user"), by="user"), [{"order": "t", "table": "log"}], ""),
    (partial(ff.Combine, "a", b="b"), each(how=["%"]), ""),
    (partial(ff.CountEncode, "k"), [{"log": True, "normalise": True}], "logarithm"),
    (partial(ff.CountEncode, "k"), each(scope=["test"]), "scope"),
    (ff.Cross, each(cols=["a", []]), ""),
    (partial(ff.Cross, "a", "b"), each(buckets=[0]), ""),
    (ff.CumCount, each(by=[[]]), ""),
    (partial(ff.CumStat, "x", by="g"), each(stats=["median"]), "median"),
    (cum_target, each(smooth=[-1, nan]), "smooth"),
    (cum_target, each(half_life=[0, inf]), "half-life"),
    (cum_target, [{"half_life": 1, "order": ["a", "b"]}], "order columns"),
    (cum_target, each(order=[[]]), "earlier"),
    (partial(ff.Cyclic, "t"), each(period=["year", 0, -1, nan, inf]), "period"),
    (partial(ff.DatePart, "t"), each(parts=["fortnight", ["year", "decade"], []]), ""),
    (partial(ff.DeviationFromGroup, "x", by="g"), each(how=["log"], stat=["max"], over=["all"], scope=["all"]), ""),
    (partial(ff.Digits, "x"), [{"digits": d, "decimals": n} for d, n in ((0, 0), (19, 0), (1, -1), (1, 10))], ""),
    (ewm, each(half_life=[0]), "half_life=0"),
    (ewm, each(half_life=[[1, -2.0]]), "half_life=-2.0"),
    (ewm, each(half_life=[nan]), "half_life=nan"),
    (ewm, each(half_life=[[]]), "no half_life"),
    (ewm, each(half_life=["7D"]), "one order column"),
    (ewm, [{"half_life": "soon", "order": "t"}], "soon"),
    (partial(ff.GroupPick, "x", by="g", order="t"), each(nth=[0]), ""),
    (partial(ff.GroupRank, "x", by="g"), each(method=["first"]), ""),
    (group_stats, each(stats=["mode", "q5", "quantile", "first", "histogram"], bins=[[0, 1]]), ""),
    (group_stats, [*each(over=["test"], scope=["test"]), {"over": "group", "scope": "all"}], ""),
    (group_stats, [{"stats": "histogram", "bins": bins} for bins in ([1], [1, 1], [2, 1])], ""),
    (partial(ff.HashEncode, "k"), each(buckets=[0]), ""),
    (partial(ff.History, ["u", "i"], order="t"), each(stats=["median"], kinds=[["x"]]), ""),
    (partial(ff.History, "u", order="t"), [{"by_kind": True, "event": "k"}, {"stats": "is_last"}], ""),
    (partial(ff.JoinTable, "o", "id", "v"), each(duplicates=["mean"]), ""),
    (partial(ff.JoinTable, "o"), [{"on": [], "columns": "v"}, {"on": "id", "columns": []}], ""),
    *[case for make in (ff.Lag, ff.Diff, ff.PctChange) for case in with_horizon(make)],
    (partial(ff.LastAction, "user", action="kind", order="t"), each(n=[0, [1, -1]], order=[None]), ""),
    (partial(ff.LastAction, "user", action="kind", order=None), [{"since": False, "table": "log"}], ""),
    (partial(ff.ListSlice, "x", 0, 1, pad=0), each(pad_side=["up"]), "'up'"),
    (partial(ff.MultiHot, "x"), each(values=never_repeated, max_size=[0], scope=["test"]), ""),
    (partial(ff.Neighbours, "x", by="g"), each(what=["left"], n=[0, [1, -1]]), ""),
    (partial(ff.NUnique, "v", by="g"), each(by=[[]], scope=["test"]), ""),
    (partial(ff.Pca, "v"), each(dims=[0]), "dims is 0"),
    (partial(ff.RankByCount, "k"), each(method=["max"], scope=["test"]), ""),
    (rolling, each(stats=["mode"]), "no statistic 'mode'"),
    (rolling, each(closed=["middle"]), "closed 'middle'"),
    (rolling, each(window=[0]), "window=0"),
    (rolling, each(window=[-3]), "window=-3"),
    (rolling, each(window=[1.5]), "not whole"),
    (rolling, each(window=[True]), "window=True"),
    (rolling, each(window=[[]]), "no window"),
    (rolling, each(min_count=[-1]), "min_count"),
    (rolling, [{"window": "7 days", "order": "t"}], "7 days"),
    (rolling, [{"window": "7D"}, {"window": "7D", "order": ["s", "t"]}], "one order column"),
    (partial(ff.RoundTo, "x"), [*each(to=[0, -5, nan, inf, []]), {"to": 1, "stats": "x"}], ""),
    (partial(ff.RowStats, "a"), each(stats=[[], "median", ["mean", "mean"], ["mean", 3], None]), ""),
    (partial(ff.SvdEncode, "item", "user"), each(dims=[0], scope=["x"]), ""),
    (target, each(stats=["median"]), "median"),
    (target, [*each(smooth=[-1, nan]), {"smooth": 0, "stats": "woe"}], "smooth"),
    (target, each(folds=[1, 0]), "folds"),
    (target, each(classes=[[], "ab", ["a", "a"], ["a", None], [1, "b"]]), "classes"),
    (partial(ff.TextSvd, "text"), each(dims=[0], max_words=[0], scope=["x"], pattern=["("]), ""),
    (partial(ff.TfIdfSimilarity, "a", "b"), each(scope=["x"]), "'x'"),
    (partial(ff.TimeSince, "e"), each(order=[None, [], ["a", "b"]]), "a time needs one order column"),
    (partial(ff.Tokens, "x"), each(pattern=["(", 7]), "pattern"),
    (partial(ff.Tokens, "x"), each(pattern=["(a)(b)"]), "2 groups"),
    (ff.VectorColumns, [*each(cols=[["a", "b"], []]), {"cols": "a", "dims": 0}], ""),
    (partial(ff.VectorColumns, ["a", "b"]), [{"name": "v", "dims": 3}], ""),
]


@pytest.mark.parametrize(("make", "options", "words"), [(m, o, w) for m, options, w in REFUSED for o in options])
def test_options_that_cannot_be(make, options, words):
    with pytest.raises(FastrecError, match=words or None) as caught:
        make(**options)
    assert getattr(make, "func", make).__name__ in str(caught.value)
    assert caught.value.remedy


# Choosing


@pytest.fixture
def frame():
    made = {"id": range(6), "city": list("aabbcd"), "sex": pd.Series(list("fmfmfm"), dtype="category")}
    made |= {"new": [True, False] * 3, "store": [1, 1, 2, 2, 3, 3], "price": [1.0, 2.0, None, 4.0, 5.0, 6.0]}
    made |= {"day": pd.date_range("2024-01-01", periods=6), "clicked": [0, 1, 0, 1, 1, 0], "label": list("xyxyxy")}
    return pd.DataFrame(made)


def chosen(selector, frame, **options):
    fs = FeatureSet([CountEncode(selector)], **options).fit(frame)
    return [n.removeprefix("count_") for n in fs.outputs]


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        (category(), "city sex new label"),
        (category(integers=True), "id city sex new store clicked label"),
        (number(), "id store price clicked"),
        (temporal(), "day"),
        (matching("^s"), "sex store"),
        (category() | "store", "city sex new store label"),
        (category() - ["sex", "new"], "city label"),
        ((category() | number()) & matching("e"), "sex new store price clicked label"),
        (["price", category(), "city"], "price city sex new label"),
    ],
    ids=repr,
)
def test_kinds_of_columns_joined_with_others_and_names(frame, selector, names):
    assert chosen(selector, frame) == names.split()


def test_cardinality_is_counted_without_missing_values(frame):
    frame["city"] = ["a", "a", "b", "b", "c", None]
    assert chosen(category(min_card=3), frame) == ["city"]
    assert chosen(category(max_card=2), frame) == ["sex", "new", "label"]
    assert chosen(category(min_card=3, max_card=3, integers=True), frame) == ["city", "store"]


def test_bad_choices_are_named(frame):
    with pytest.raises(MissingColumnError, match="nothing"):
        chosen(category() | "nothing", frame)
    with pytest.raises(DataError, match=r"no column is chosen by temporal\(\)"):
        chosen(temporal(), frame[["city"]])
    with pytest.raises(DataError, match="lag1_price"):
        FeatureSet([Lag("price"), Lag(number(), n=[1, 2])]).fit(frame)


def test_targets_keys_weights_and_folds_are_passed_over(frame):
    frame["fold"], frame["weight"] = [0, 1] * 3, 1.0
    te = TargetEncode("store", "clicked", weight="weight", fold_column="fold")
    fs = FeatureSet([te, CountEncode(number())], key="id", target="label").fit(frame)
    assert fs.outputs == ["te_store__clicked", "count_store", "count_price"]
    fs = FeatureSet([CountEncode(category())], target="label").fit(frame)
    assert fs.outputs == ["count_city", "count_sex", "count_new"]


def test_names_are_known_once_fitted(frame):
    selector = category(min_card=3)
    fs = FeatureSet([GroupRank(CountEncode(selector), by="sex")])
    for what in ("outputs", "inputs", "fit_inputs"):
        with pytest.raises(NotFittedError, match=r"category\(min_card=3\)"):
            getattr(fs, what)
    with pytest.raises(NotFittedError):
        fs.transform(frame)
    made = fs.fit_transform(frame)
    assert made["rank_count_city__sex"].tolist() == [2, 2, 2, 2, 1, 1]
    assert fs.inputs == ["city", "sex"]
    assert fs.transform(frame[["city", "sex"]])["rank_count_city__sex"].tolist() == [2, 2, 2, 2, 1, 1]


def test_fitting_again_chooses_again_and_a_clone_is_open(frame):
    fs = FeatureSet([CountEncode(category())]).fit(frame)
    other = clone(fs)
    with pytest.raises(NotFittedError):
        _ = other.outputs
    other.fit(frame[["city"]])
    assert (len(fs.outputs), other.outputs) == (4, ["count_city"])
    fs.fit(frame[["sex", "price"]])
    assert fs.outputs == ["count_sex"]


def test_saved_and_loaded(frame, tmp_path):
    fs = FeatureSet([CountEncode((category() | ["store"]) - matching("^l"))], keep="outputs").fit(frame)
    fs.save(tmp_path / "f")
    again = FeatureSet.load(tmp_path / "f")
    assert again.outputs == fs.outputs == ["count_city", "count_sex", "count_new", "count_store"]
    pd.testing.assert_frame_equal(again.transform(frame), fs.transform(frame))
    open_again = FeatureSet([CountEncode(number())])
    open_again.save(tmp_path / "open")
    assert FeatureSet.load(tmp_path / "open").fit(frame[["city", "price"]]).outputs == ["count_price"]
