"""Generators against what others make of the same frames: scikit-learn and category_encoders,
with keys of text, floats and integers that are missing or new."""

from __future__ import annotations

import inspect
import math
from importlib.metadata import version

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fastrec.features as ff
from fastrec.table import Table
from tests.features.frames import of_rows


def table_of(rng, n=300):
    """A frame for encoders: keys of text, floats and integers in no order."""
    return pd.DataFrame(
        {
            "s": rng.choice(["a", "b", "c", "é🎉", ""], n),
            "f": rng.choice([0.5, -1.25, 1e8, 1e8 + 1], n),
            "i": rng.integers(-3, 4, n),
            "x": rng.normal(size=n),
            "y": rng.integers(0, 2, n),
        }
    )


@pytest.mark.parametrize("kind", ["continuous", "binary"])
def test_out_of_fold_encodings_equal_scikit_learns_of_the_same_folds(kind):
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    from sklearn.model_selection import KFold, StratifiedKFold

    frame = table_of(np.random.default_rng(0))
    target = "x" if kind == "continuous" else "y"
    cols = ["s", "f", "i"]
    split = KFold(5) if kind == "continuous" else StratifiedKFold(5)
    for k, (_, inside) in enumerate(split.split(frame, frame[target])):
        frame.loc[inside, "fold"] = k
    newer = tuple(map(int, version("scikit-learn").split(".")[:2])) >= (1, 9)
    options = {"cv": split} if newer else {"cv": 5, "shuffle": False}
    theirs = preprocessing.TargetEncoder(smooth=4.0, target_type=kind, **options)
    ours = ff.TargetEncode(cols, target, smooth=4, fold_column="fold")
    # It takes columns of one type: text, each float by its own digits.
    keys = frame[cols].astype(str)
    with_folds = ours.fit_transform(frame)[ours.outputs].to_numpy()
    assert with_folds == pytest.approx(theirs.fit_transform(keys, frame[target]), rel=1e-12)
    new = pd.DataFrame({"s": ["a", "never", "é🎉"], "f": [1e8 + 1, 1e8 + 2, 0.5], "i": [3, -3, 99]})
    assert ours.transform(new)[ours.outputs].to_numpy() == pytest.approx(theirs.transform(new.astype(str)), rel=1e-12)


def test_missing_keys_get_what_scikit_learn_gives_new_ones():
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    frame = table_of(np.random.default_rng(1)).astype({"s": object})
    frame.loc[::7, "s"] = None
    frame.loc[::5, "f"] = math.nan
    for col, blank in (("s", None), ("f", math.nan)):
        # Rows without a key count for the prior alone: as rows whose key is seen once each, and never again.
        lone = frame[[col]].astype(object)
        gone = frame[col].isna()
        lone.loc[gone, col] = [f"lone {i}" for i in range(gone.sum())]
        theirs = preprocessing.TargetEncoder(smooth=3.0, target_type="continuous").fit(lone.astype(str), frame["x"])
        new = pd.DataFrame({col: pd.Series([*frame[col].dropna().unique(), "never" if col == "s" else 7.5])})
        expected = theirs.transform(new.astype(str))[:, 0]
        ours = ff.TargetEncode(col, "x", smooth=3).fit(frame)
        name = ours.outputs[0]
        assert ours.transform(new)[name].tolist() == pytest.approx(expected.tolist(), rel=1e-12)
        alone = pd.DataFrame({col: pd.Series([blank], dtype=frame[col].dtype)})
        assert ours.transform(alone)[name].tolist() == [pytest.approx(expected[-1], rel=1e-12)]


@pytest.mark.parametrize("strategy", ["quantile", "uniform"])
@pytest.mark.parametrize("bins", [2, 5, 16])
def test_buckets_equal_scikit_learns_bins(strategy, bins):
    from sklearn.preprocessing import KBinsDiscretizer

    rng = np.random.default_rng(bins)
    train, new = (np.concatenate([rng.normal(size=400), np.exp(rng.normal(size=101))]) for _ in "ab")
    options = {"n_bins": bins, "encode": "ordinal", "strategy": strategy, "subsample": None}
    if "quantile_method" in inspect.signature(KBinsDiscretizer).parameters:
        options["quantile_method"] = "linear"
    theirs = KBinsDiscretizer(**options).fit(train[:, None])
    edges = None if strategy == "quantile" else theirs.bin_edges_[0][1:-1].tolist()
    ours = ff.Bucketize("x", edges, quantiles=bins if edges is None else None, name="b")
    ours.fit(pd.DataFrame({"x": train}))
    on_edges = theirs.bin_edges_[0][1:-1]  # of a number of rows that makes some quantiles one of the values
    for x in (train, new, on_edges if strategy == "uniform" else on_edges[np.isin(on_edges, train)]):
        expected = theirs.transform(x[:, None])[:, 0]
        assert ours.transform(pd.DataFrame({"x": x}))["b"].tolist() == expected.tolist()


@pytest.mark.parametrize("options", [{}, {"min_count": 12}, {"max_size": 3}, {"min_count": 12, "max_size": 2}])
@pytest.mark.parametrize(
    ("col", "values"),
    [("s", ["b", "a", "é🎉", "", "z"]), ("f", [0.5, -1.25, 1e8 + 1, 1e8, 7.0]), ("i", [3, -9, 0, 2**53, 2**53 + 1])],
)
def test_codes_equal_scikit_learns_ordinals(col, values, options):
    from sklearn.preprocessing import OrdinalEncoder

    rng = np.random.default_rng(3)
    missing = {"s": None, "f": math.nan, "i": pd.NA}[col]
    counts = [9, 40, 12, 70, 25, 17]  # none as often as another: of such, each would keep another one
    drawn = [v for v, n in zip([*values, missing], counts, strict=True) for _ in range(n)]
    kind = {"s": object, "f": "float64", "i": "Int64"}[col]
    frame = pd.DataFrame({col: pd.Series([drawn[k] for k in rng.permutation(len(drawn))], dtype=kind)})
    limits = {"min_frequency": options.get("min_count")}
    if "max_size" in options:  # the infrequent ones are a category of theirs
        limits["max_categories"] = options["max_size"] + 1
    theirs = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-1, **limits)
    known = frame.dropna().astype({"i": "int64"} if col == "i" else {})
    theirs.fit(known)
    rare = theirs.infrequent_categories_[0] if options else None
    ours = ff.Categorify(col, **options).fit(frame)
    new = known.drop_duplicates()
    found = ours.transform(new)[f"code_{col}"].to_numpy()
    expected = theirs.transform(new)[:, 0]
    if rare is None:
        assert (found == expected + 1).all()
    else:  # theirs come last, ours first: #na#, #rare#, then the others in order
        last = expected.max()
        is_rare = new[col].isin(rare).to_numpy()
        assert 0 < is_rare.sum() < len(new)
        assert (found[is_rare] == 1).all()
        assert (expected[is_rare] == last).all()
        assert (found[~is_rare] == expected[~is_rare] + 2).all()
    never = pd.DataFrame({col: pd.Series(["never" if col == "s" else 77, missing], dtype=kind)})
    assert ours.transform(never)[f"code_{col}"].tolist() == [0, 0]


def test_normalised_parts_equal_scikit_learns_partial_fit():
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(4)
    x = rng.normal(size=(210, 3)) * [1, 1e4, 1e-6] + [1e6, -3, 1e-3]
    x[rng.random(x.shape) < 0.2] = math.nan
    names = ["a", "b", "c"]
    ours, theirs, state = ff.Normalize(names), StandardScaler(), None
    for part in np.array_split(x, 7):
        theirs.partial_fit(part)
        own = ours.collect(Table.read(pd.DataFrame(part, columns=names)))
        state = own if state is None else ours.merge(own, state)
    ours.learn(state)
    made = ours.transform(pd.DataFrame(x, columns=names))[ours.outputs].to_numpy()
    np.testing.assert_allclose(made, theirs.transform(x), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("strategy", ["median", "mean", "mode", "constant"])
def test_filled_columns_and_their_marks_equal_scikit_learns(strategy):
    from sklearn.impute import MissingIndicator, SimpleImputer

    rng = np.random.default_rng(5)
    names = ["a", "b", "c"]
    x, new = (np.round(rng.normal(size=(41, 3)) * [1, 5, 900], 1) for _ in "ab")
    for frame in (x, new):
        frame[rng.random(frame.shape) < 0.3] = math.nan
    word = {"mode": "most_frequent"}.get(strategy, strategy)
    theirs = SimpleImputer(strategy=word, fill_value=-1.5 if word == "constant" else None, add_indicator=True).fit(x)
    train, later = (pd.DataFrame(f, columns=names) for f in (x, new))
    ours = ff.FillMissing(names, strategy, value=-1.5 if word == "constant" else 0.0).fit(train)
    filled, marks = [f"filled_{n}" for n in names], [f"{n}_na" for n in names]
    for ours_in, theirs_in in ((train, x), (later, new)):
        made = ours.transform(ours_in)[filled + marks].astype("float64").to_numpy()
        assert made == pytest.approx(theirs.transform(theirs_in), rel=1e-12)
    bits = MissingIndicator(features="all").fit(x).transform(new) @ [1, 2, 4]
    assert ff.NaNPattern(names).fit_transform(later)["nan_pattern"].tolist() == bits.tolist()


def test_likeness_of_texts_equals_scikit_learns_tfidf():
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = ["red", "Red", "shoe", "hat", "naïve", "a", "x_1", "42", "new"]
    rng = np.random.default_rng(6)

    def texts(n):
        return [" ".join(rng.choice(words, rng.integers(0, 7))) + rng.choice(["", "!", ", ok"]) for _ in range(n)]

    train = pd.DataFrame({"q": texts(60), "d": texts(60)})
    new = pd.DataFrame({"q": [*texts(30), "never seen"], "d": [*texts(30), "never seen"]})
    theirs = TfidfVectorizer(token_pattern=r"(?u)\w+").fit([*train["q"], *train["d"]])
    ours = ff.TfIdfSimilarity(ff.Tokens("q", "words"), ff.Tokens("d", "words"), name="like").fit(train)
    for frame in (train, new):
        expected = np.asarray(theirs.transform(frame["q"]).multiply(theirs.transform(frame["d"])).sum(1)).ravel()
        assert ours.transform(frame)["like"].to_numpy() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("key", ["s", "f"])
def test_vectors_span_scikit_learns_truncated_decomposition(log, key):
    from sklearn.decomposition import TruncatedSVD

    rng = np.random.default_rng(7)
    rank = np.minimum(rng.geometric(0.15, 3000), 40)
    keys = np.array([f"i{k}" for k in range(41)], dtype=object) if key == "s" else np.arange(41) * 0.5 - 3
    frame = pd.DataFrame({"k": pd.Series(keys[rank]), "user": (rank * 3 + rng.integers(0, 25, 3000)) % 60})
    frame.loc[::50, "k"] = None if key == "s" else math.nan
    matrix = pd.crosstab(frame["k"], frame["user"]).astype("float64")
    matrix = np.log1p(matrix) if log else matrix
    theirs = TruncatedSVD(4, algorithm="arpack").fit_transform(matrix.to_numpy())
    ours = ff.SvdEncode("k", "user", dims=4, log=log).fit(frame)
    made = ours.transform(pd.DataFrame({"k": matrix.index}))[ours.outputs].to_numpy()
    # Components have any sign: the subspace, and every inner product in it, has not.
    np.testing.assert_allclose(made @ made.T, theirs @ theirs.T, atol=1e-6 * np.abs(theirs).max() ** 2)
    np.testing.assert_allclose(np.abs(made), np.abs(theirs), atol=1e-4 * np.abs(theirs).max())
    assert (made[np.abs(made).argmax(0), range(4)] > 0).all()


@pytest.mark.parametrize("given_values", [True, False])
@pytest.mark.parametrize("kind", ["text", "integers"])
def test_sets_equal_scikit_learns_binarizer(given_values, kind):
    from sklearn.preprocessing import MultiLabelBinarizer

    rng = np.random.default_rng(8)
    tags = ["x", "y y", "é🎉", "z"] if kind == "text" else [2**53, 2**53 + 1, -1, 0]
    lists = [[tags[k] for k in rng.integers(0, 4, rng.integers(0, 6))] for _ in range(80)]
    frame = pa.table({"tags": pa.array(lists, pa.list_(pa.string() if kind == "text" else pa.int64()))})
    ours = ff.MultiHot("tags", values=tags if given_values else None, max_size=4)
    made = ours.fit_transform(frame)
    if given_values:
        found = np.stack([made[n].to_numpy() for n in ours.outputs], 1)
    else:
        found = np.array(made["tags_multihot"].to_pylist())
        assert sorted(ours.learned) == sorted(tags)
    expected = MultiLabelBinarizer(classes=ours.learned).fit_transform(lists)
    assert (found == expected).all()


encoders = pytest.mark.filterwarnings("ignore:.*no_silent_downcasting")  # an option of pandas 2 that they set


@encoders
@pytest.mark.parametrize("share", [False, True])
def test_counts_equal_category_encoders(share):
    ce = pytest.importorskip("category_encoders")
    frame = table_of(np.random.default_rng(9))
    cols = ["s", "f", "i"]
    theirs = ce.CountEncoder(cols=cols, normalize=share, handle_unknown=0, handle_missing=0).fit(frame[cols])
    ours = ff.CountEncode(cols, normalise=share).fit(frame)
    new = pd.DataFrame({"s": ["a", "never", "é🎉"], "f": [1e8 + 1, 1e8 + 2, 0.5], "i": [3, -3, 99]})
    for f in (frame[cols], new):
        assert ours.transform(f)[ours.outputs].to_numpy() == pytest.approx(theirs.transform(f)[cols].to_numpy())


@encoders
def test_smoothed_means_of_several_columns_equal_category_encoders():
    ce = pytest.importorskip("category_encoders")
    frame = table_of(np.random.default_rng(10))
    cols, new = ["s", "f", "i"], pd.DataFrame({"s": ["a", "never"], "f": [1e8 + 1, 1e8 + 2], "i": [-3, 99]})
    for m in (0.5, 30):
        theirs = ce.MEstimateEncoder(cols=cols, m=m).fit(frame[cols], frame["y"]).transform(new)
        ours = ff.TargetEncode(cols, "y", smooth=m).fit(frame)
        assert ours.transform(new)[ours.outputs].to_numpy() == pytest.approx(theirs[cols].to_numpy(), rel=1e-12)


@encoders
@pytest.mark.parametrize("extra", [0.5, 1.0, 6.0])
def test_weights_of_evidence_equal_category_encoders_where_both_classes_are_as_many(extra):
    ce = pytest.importorskip("category_encoders")
    frame = table_of(np.random.default_rng(11))
    frame["y"] = np.random.default_rng(12).permutation([0, 1] * 150)
    cols = ["s", "f", "i"]
    # It adds `extra` to the ones and to the zeros; a smooth of twice that does, where the prior is a half.
    theirs = ce.WOEEncoder(cols=cols, regularization=extra).fit(frame[cols], frame["y"])
    ours = ff.TargetEncode(cols, "y", stats="woe", smooth=2 * extra).fit(frame)
    for f in (frame[cols], pd.DataFrame({"s": ["never"], "f": [7.5], "i": [99]})):
        made = ours.transform(f)[ours.outputs].to_numpy()
        assert made == pytest.approx(theirs.transform(f)[cols].to_numpy(), rel=1e-9, abs=1e-12)


@encoders
def test_means_so_far_equal_category_encoders_catboost_after_a_keys_first_row():
    ce = pytest.importorskip("category_encoders")
    rng = np.random.default_rng(13)
    frame = table_of(rng).assign(t=rng.permutation(300))
    in_time = frame.sort_values("t")
    for col in ("s", "f", "i"):
        # Its prior is the mean of all rows, later ones too: without smoothing it has no part, but in a key's first row.
        theirs = ce.CatBoostEncoder(cols=[col], a=1e-13).fit_transform(in_time[[col]], in_time["y"])[col]
        ours = ff.CumTarget(col, "y", order="t", smooth=0).fit_transform(frame)
        later = in_time.groupby(col).cumcount() > 0
        name = f"cumte_{col}__y"
        assert later.sum() > 280
        assert ours.loc[in_time.index[later], name].tolist() == pytest.approx(theirs[later].tolist(), abs=1e-9)


# Generators against pandas and fastai: rows in any order, groups of text and floats, keys that are missing or new


some = settings(max_examples=25, deadline=None)
text = st.one_of(st.none(), st.sampled_from(["a", "b", "é🎉"]))
level = st.sampled_from([math.nan, 0.0, -0.0, 0.5, 1e8, 1e8 + 1, math.inf])
value = st.one_of(st.just(math.nan), st.integers(-3, 3).map(float), st.sampled_from([0.1, 2.5, -7.25]))
rows = st.lists(st.tuples(text, level, st.integers(0, 6), st.sampled_from([0.0, 0.25, 3.0]), value), max_size=24)
BY = ["s", "f"]


def many(n=90):
    """Rows in groups of many, with ties in everything."""
    rng = np.random.default_rng(0)
    s, f = ([pool[i] for i in rng.integers(0, len(pool), n)] for pool in ("aab", [0.0, -0.0, 1e8, 1e8 + 1, math.nan]))
    s = [None if gone else key for gone, key in zip(rng.random(n) < 0.2, s)]
    x = rng.choice([math.nan, -3, -1, 0, 0.1, 2.5, 2.5], n).tolist()
    return list(zip(s, f, rng.integers(0, 7, n).tolist(), rng.integers(0, 3, n).astype(float).tolist(), x))


MANY = many()


def frame_of(rows):
    """Rows in any order: a group of text ``s`` and float ``f``, times ``t`` and ``u``, numbers ``x``."""
    return of_rows(rows, s=object, f="float64", t="int64", u="float64", x="float64")


def ordered(frame, *names, by=BY):
    """The rows of whole groups in the order of columns, ties by row, for pandas to group."""
    rows = frame.dropna(subset=by) if by else frame
    rows = rows.sort_values(list(names), kind="stable") if names else rows
    return rows.groupby(by or (lambda _: 0), sort=False)


def same(found, expected, near=1e-9):
    """Equal values, missing where they are; rows that pandas drops (without a group) are missing."""
    expected = expected.reindex(found.index).astype("float64")
    assert found.astype("float64").tolist() == pytest.approx(expected.tolist(), rel=near, abs=near, nan_ok=True)


def transformed(groups, stat, share=None):
    """A statistic of every row's group."""
    if not groups.ngroups:
        return pd.Series(dtype="float64")
    made = groups.transform(stat) if share is None else groups.transform(lambda v: v.quantile(share))
    if stat == "skew":  # of three equal values or more pandas 2 says 0, and pandas 3 nothing
        equal = (groups.transform("nunique") == 1) & (groups.transform("count") > 2)
        made = made.where(~equal, 0)
    return made


STATS = ["mean", "std", "min", "max", "sum", "count", "median", "skew", "nunique"]


@settings(max_examples=15, deadline=None)
@example(MANY)
@given(rows)
def test_statistics_of_groups_of_text_and_float_equal_pandas(data):
    frame = frame_of(data)
    groups = frame.dropna(subset=BY).groupby(BY)["x"]
    shares = {"q10": 0.1, "q25": 0.25, "q975": 0.975}
    trained = ff.GroupStats("x", by=BY, stats=[*STATS, *shares], name="tr").fit(frame)
    own = ff.GroupStats("x", by=BY, stats=[*STATS, *shares], over="group", name="own")
    for feature, made in ((trained, trained.transform(frame)), (own, own.fit_transform(frame))):
        for name, stat in zip(feature.outputs, [*STATS, *shares], strict=True):
            expected = transformed(groups, stat, shares.get(stat)).reindex(frame.index)
            expected = expected.fillna(0) if stat in ("sum", "count", "nunique") else expected
            same(made[name], expected, near=1e-6 if stat == "skew" else 1e-9)
    gone = pd.DataFrame({"s": ["a", "new", None], "f": [99.0, 0.5, 0.5]})
    made = trained.transform(gone.assign(x=1.0))
    for name, stat in zip(trained.outputs, [*STATS, *shares], strict=True):
        assert made[name].fillna(-1).tolist() == [0 if stat in ("sum", "count", "nunique") else -1] * 3


METHODS = {"min": "min", "max": "max", "average": "average", "dense": "dense", "ordinal": "first"}


@settings(max_examples=40, deadline=None)
@example(MANY, "average", False, False, "x")
@given(rows, st.sampled_from(sorted(METHODS)), st.booleans(), st.booleans(), st.sampled_from("xf"))
def test_ranks_in_groups_of_text_and_float_equal_pandas(data, method, descending, normalise, ranked):
    frame = frame_of(data)
    frame["w"] = -frame[ranked]  # of f infinities, and numbers that differ in the ninth digit
    by = BY if ranked == "x" else ["s"]
    groups = frame.dropna(subset=by).groupby(by)["w"]
    feature = ff.GroupRank("w", by=by, method=method, descending=descending, normalise=normalise)
    expected = groups.rank(method=METHODS[method], ascending=not descending)
    if normalise:
        size = groups.transform("count").astype("float64")
        expected = ((expected - 1) / (size - 1)).where(size > 1, expected * 0)
    same(feature.fit_transform(frame)[feature.outputs[0]], expected)


@settings(max_examples=75, deadline=None)
@example(MANY, 1, BY, ["t", "u"])
@given(rows, st.sampled_from([1, 2, 3, 5, -1, -2]), st.sampled_from([BY, None]), st.sampled_from([["t", "u"], []]))
def test_shifts_equal_pandas_over_two_groups_and_orders_or_none(data, n, by, order):
    frame = frame_of(data)
    frame["w"] = frame["x"].map(lambda v: None if math.isnan(v) else f"w{v}").astype(object)
    groups, where = ordered(frame, *order, by=by), {"by": by, "order": order or None}
    made = ff.FeatureSet([cls("x", **where, n=n) for cls in (ff.Lag, ff.Diff, ff.PctChange)]).fit_transform(frame)
    lag, diff, share = list(made)[-3:]
    same(made[lag], groups["x"].shift(n))
    same(made[diff], groups["x"].diff(n))
    with np.errstate(all="ignore"):
        expected = groups["x"].pct_change(n, fill_method=None)
    same(made[share], expected.where(np.isfinite(expected)))
    word = ff.Lag("w", **where, n=n)
    found = word.fit_transform(frame)[word.outputs[0]]
    there = groups["w"].shift(n).reindex(frame.index)
    assert [None if pd.isna(v) else v for v in found] == [None if pd.isna(v) else v for v in there]
    if abs(n) == 1 and by and order:
        beside = ff.Neighbours("x", **where, what="previous" if n > 0 else "next")
        same(beside.fit_transform(frame)[beside.outputs[0]], groups["x"].shift(n))


@settings(max_examples=50, deadline=None)
@example(MANY, 3, 1)
@given(rows, st.sampled_from([1, 3]), st.integers(1, 2))
def test_windows_and_running_statistics_equal_pandas_over_two_groups_and_orders(data, window, least):
    frame, least, where = frame_of(data), min(least, window), {"by": BY, "order": ["t", "u"]}
    groups = ordered(frame, "t", "u")
    each = groups["x"].transform
    features = {ff.Ewm("x", half_life=1.5, **where): each(lambda v: v.ewm(halflife=1.5).mean().shift())}
    for s in ("sum", "max", "median"):
        rolled = each(lambda v, s=s: v.rolling(window, least, closed="left").agg(s))
        features[ff.Rolling("x", s, window=window, min_count=least, **where)] = rolled
    for s in ("mean", "min", "max"):
        features[ff.CumStat("x", stats=s, **where)] = each(lambda v, s=s: v.expanding().agg(s).shift())
    features[ff.LastKnown("x", **where)] = each(lambda v: v.ffill().shift())
    features[ff.CumCount(**where)] = groups.cumcount().reindex(frame.index).fillna(0)
    for feature, expected in features.items():
        same(feature.fit_transform(frame)[feature.outputs[0]], expected)
    sums = ff.CumStat("x", stats=["sum", "count"], **where)
    made, inside = sums.fit_transform(frame), frame[BY].notna().all(axis=1)
    for name, values in zip(sums.outputs, (lambda v: v.fillna(0), pd.Series.notna), strict=True):
        same(made[name][inside], each(lambda v, of=values: of(v).cumsum().shift(fill_value=0)))


@some
@example(MANY)
@given(rows)
def test_events_before_equal_pandas_where_no_times_are_equal(data):
    frame = frame_of(data).drop_duplicates([*BY, "t"], ignore_index=True)
    groups = ordered(frame, "t")
    history = ff.History(BY, order="t", stats=["count", "since", "since_first"])
    made = ff.FeatureSet([history, ff.TimeSince(by=BY, order="t")]).fit_transform(frame)
    count, since, first = history.outputs
    same(made[count], groups.cumcount().reindex(frame.index).fillna(0))
    gap = groups["t"].diff()
    same(made[since], gap)
    same(made[list(made)[-1]], gap)
    age = frame["t"] - groups["t"].transform("first")
    same(made[first], age.where(gap.notna()))
    for last in (False, True):
        pick = ff.GroupPick("x", by=BY, order="t", last=last)
        found = pick.fit_transform(frame)[pick.outputs[0]]
        expected = groups["x"].transform("last" if last else "first")  # pandas passes missing values over, too
        same(found, expected)


@some
@example(MANY)
@given(rows)
def test_counts_in_groups_of_text_and_float_equal_pandas(data):
    frame = frame_of(data)
    whole = frame.dropna(subset=BY)
    made = ff.FeatureSet(
        [ff.CountEncode("f"), ff.CountEncode("f", by="s"), ff.NUnique(["f", "x"], by="s")]
    ).fit_transform(frame)
    same(made["count_f"], frame["f"].map(frame["f"].value_counts()).reindex(frame.index).fillna(0))
    same(made["count_f__s"], whole.groupby(BY)["x"].transform("size").reindex(frame.index).fillna(0))
    for col in ("f", "x"):
        same(made[f"nunique_{col}__s"], frame.groupby("s")[col].transform("nunique").reindex(frame.index).fillna(0))


@some
@given(st.lists(value, min_size=1, max_size=30).filter(lambda v: any(x == x for x in v)), st.floats(0, 0.45))
def test_clipped_numbers_equal_pandas(values, share):
    x = pd.Series(values, dtype="float64")
    feature = ff.Clip("x", quantiles=(share, 1 - share))
    same(feature.fit_transform(pd.DataFrame({"x": x}))["clip_x"], x.clip(*x.quantile([share, 1 - share])))


@some
@example(MANY, MANY)
@given(rows, rows)
def test_looked_up_values_equal_pandas_merge(data, lookup):
    frame, other = frame_of(data), frame_of(lookup).dropna(subset=BY)[[*BY, "x"]]
    for keep in ("first", "last"):
        feature = ff.JoinTable("other", on=BY, columns="x", duplicates=keep, name="o")
        made = feature.fit_transform(frame, tables={"other": other})[feature.outputs[0]]
        joined = frame[BY].merge(other.drop_duplicates(BY, keep=keep), on=BY, how="left")
        same(made, joined["x"])


# Formulas of other libraries where they say the same, computed live by scikit-learn or written out by hand


def frame(seed=0, n=300):
    rng = np.random.default_rng(seed)
    keys = rng.choice(list("abcdefgh"), n, p=np.arange(1, 9) / 36)
    return pd.DataFrame({"k": keys, "y": rng.normal(size=n) + (keys == "h")})


@pytest.mark.parametrize("seed", range(5))
def test_scikit_learns_own_smoothing_is_ours_with_its_weight(seed):
    """Empirical Bayes: the prior weighs the key's variance over the target's, as many rows (TargetEncoder, 'auto')."""
    from sklearn.preprocessing import TargetEncoder

    data = frame(seed)
    theirs = TargetEncoder(smooth="auto", target_type="continuous").fit(data[["k"]], data["y"])
    for key, want in zip(theirs.categories_[0], theirs.encodings_[0], strict=True):
        own = data["y"][data["k"] == key]
        weight = float(own.var(ddof=0) / data["y"].var(ddof=0))
        made = ff.TargetEncode("k", "y", smooth=weight).fit(data).transform(pd.DataFrame({"k": [key]}))
        assert made["te_k__y"][0] == pytest.approx(want, rel=1e-9)


def test_leave_one_out_is_a_fold_for_every_row():
    """(sum - own) / (count - 1), the encoding of leave-one-out encoders, where a key has other rows."""
    data = frame(n=60).assign(row=range(60))
    made = ff.TargetEncode("k", "y", smooth=0, fold_column="row").fit_transform(data)["te_k__y"]
    total, count = (data.groupby("k")["y"].transform(how) for how in ("sum", "count"))
    others = count > 1
    assert others.sum() > 50
    expected = (total - data["y"]) / (count - 1).clip(lower=1)
    np.testing.assert_allclose(made[others], expected[others], rtol=1e-9)
    for i in data.index[~others]:  # without other rows of its key: the mean of the others
        assert made[i] == pytest.approx(data["y"].drop(index=i).mean())
