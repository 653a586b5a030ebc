import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastrec.errors import DataError, FastrecError
from fastrec.features import Bucketize, Cross, FeatureSet, TargetEncode, search_crosses
from fastrec.features.base import Cells
from fastrec.features.cross import _auc, _CrossTrial, _logistic, _ridge
from fastrec.table import Table
from tests.features.test_encode import fnv

part = st.one_of(st.none(), st.sampled_from(["a", "b", "c"]))
rows = st.lists(st.tuples(part, st.one_of(st.none(), st.integers(-2, 2))), min_size=1, max_size=20)


def frame_of(rows):
    return pd.DataFrame({"x": [r[0] for r in rows], "y": pd.array([r[1] for r in rows], dtype="Int64")})


@given(rows, rows, st.integers(1, 3))
def test_codes_equal_a_loop(train, new, min_count):
    cross = Cross("x", "y", min_count=min_count).fit(frame_of(train))
    whole = [r for r in train if None not in r]
    kept = sorted({r for r in whole if whole.count(r) >= min_count})
    for some in (train, new):
        made = cross.transform(frame_of(some))["x_x_y"].astype("Int64")
        expected = [kept.index(r) + 1 if r in kept else None for r in some]
        assert [None if pd.isna(v) else v for v in made] == expected


@given(rows, st.integers(1, 50), st.integers(0, 5))
def test_buckets_equal_a_plain_hash_of_the_values_in_order(train, buckets, seed):
    made = Cross("x", "y", buckets=buckets, seed=seed).fit_transform(frame_of(train))["x_x_y"].astype("Int64")
    for found, (x, y) in zip(made, train, strict=True):
        if None in (x, y):
            assert pd.isna(found)
        else:
            text = ":".join(f"{len(t.encode())}:{t}" for t in (x, str(y)))
            assert found == fnv(text, buckets, seed)


def test_equal_values_do_not_collapse_and_the_order_counts():
    values = [str(k) for k in range(200)]
    frame = pd.DataFrame({"a": values, "b": values, "c": values[::-1]})
    same = Cross("a", "b", buckets=1000).fit_transform(frame)["a_x_b"]
    assert same.nunique() > 150
    one, two = (Cross(*c, buckets=1000).fit_transform(frame) for c in (("a", "c"), ("c", "a")))
    assert (one["a_x_c"] == two["c_x_a"]).mean() < 0.1
    assert same.between(1, 1000).all()
    frame = pd.DataFrame({"a": ["1:x", "1", "", "a\x1f"], "b": ["y", ":xy", "1:xy", "b"]})
    # No two tuples read the same.
    assert Cross("a", "b", buckets=10**9).fit_transform(frame)["a_x_b"].nunique() == 4


def test_a_bucket_does_not_depend_on_the_type_that_holds_the_value_nor_a_name_on_how_columns_are_named():
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    frames = [frame.astype({"a": kind}) for kind in ("int64", "float64", "Int64", "int8", "category")]
    cross = Cross("a", "b", buckets=10**6)
    assert len({tuple(cross.fit_transform(f)["a_x_b"]) for f in frames}) == 1
    assert repr(Cross("a", "b")) == repr(Cross(["a", "b"])) == repr(Cross(("a", "b")))
    assert Cross("a", "b", "c").outputs == Cross(Cross("a", "b"), "c").outputs == ["a_x_b_x_c"]


NAMES = ["a", "b", "c", "d", "e", "f"]


def xor(n=1000, seed=0, noise=0.2):
    """Two columns that say something together and nothing apart, and four of noise."""
    rng = np.random.default_rng(seed)
    df = pd.DataFrame({c: rng.integers(0, k, n) for c, k in zip(NAMES, (4, 6, 30, 200, 10, 1000), strict=True)})
    odd = (df["a"] % 2) ^ (df["b"] % 2)
    df["y"] = (rng.random(n) < np.where(odd, 1 - noise, noise)).astype(int)
    df["z"] = odd * 2.0 + rng.normal(size=n)
    return df


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("target", "metric"), [("y", "auto"), ("z", "auto"), ("y", "auc")])
def test_a_planted_pair_is_found_and_noise_is_not(seed, target, metric):
    search = search_crosses(xor(seed=seed), NAMES, target, metric=metric, errors=3)
    assert search.kept == [("a", "b")]
    assert len(search.pairs) == 15
    best = search.pairs[0]
    assert best.columns == ("a", "b")
    assert best.gain > 3 * best.error > 0
    assert search.metric == {"y": "logloss", "z": "r2"}[target] if metric == "auto" else metric


def test_columns_that_add_up_are_no_pair():
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(0, 5, 3000) for _ in "abc")
    score = (a - 2.0) + (b - 2.0)
    df = pd.DataFrame({"a": a, "b": b, "c": c, "z": score + rng.normal(size=3000)})
    df["y"] = (rng.random(3000) < 1 / (1 + np.exp(-score))).astype(int)
    for target, alone in (("y", 0.44), ("z", 0.79)):
        search = search_crosses(df, ["a", "b", "c"], target)
        assert search.kept == []
        assert {p.columns: p.alone for p in search.pairs}[("a", "b")] == pytest.approx(alone, abs=0.06)


def test_two_pairs_are_found_the_stronger_first_and_the_number_is_limited():
    rng = np.random.default_rng(1)
    df = pd.DataFrame({c: rng.integers(0, 4, 3000) for c in "abcd"})
    df["z"] = 3.0 * ((df["a"] ^ df["b"]) % 2) + 1.0 * ((df["c"] ^ df["d"]) % 2) + rng.normal(size=3000)
    search = search_crosses(df, list("abcd"), "z")
    assert search.kept == [("a", "b"), ("c", "d")]
    limits = [{"max_pairs": 1}, {"min_gain": 0.3}, {"max_pairs": 0}, {"max_pairs": -1}]
    kept = [search_crosses(df, list("abcd"), "z", **limit).kept for limit in limits]
    assert kept == [[("a", "b")], [("a", "b")], [], []]
    assert [p.gain for p in search.pairs] == sorted((p.gain for p in search.pairs), reverse=True)


def test_its_features_are_generators_for_a_set_and_it_prints_and_tabulates():
    df = xor()
    search = search_crosses(df, NAMES, "y")
    assert str(search).startswith("1 of 15 pairs kept, by logloss\n+ a × b")
    table = search.table()
    assert list(table.columns) == ["a", "b", "alone", "together", "gain", "error", "kept"]
    assert table["kept"].tolist() == [True] + [False] * 14
    assert (table["alone"] - table["together"]).to_numpy() == pytest.approx(table["gain"].to_numpy())
    features = search.features(smooth=5)
    assert [repr(f) for f in features] == ["TargetEncode(cols=Cross(cols=['a', 'b']), target='y', smooth=5)"]
    assert [repr(f) for f in search.crosses()] == ["Cross(cols=['a', 'b'])"]
    made = FeatureSet(features, key="f").fit_transform(df)
    from sklearn.metrics import roc_auc_score

    assert roc_auc_score(df["y"], made["te_a_x_b__y"]) > 0.7
    assert search.features("z")[0].outputs == ["te_a_x_b__z"]


def test_generators_can_be_paired():
    df = xor()
    df["x"] = df["a"] + np.random.default_rng(0).random(len(df)) * 0.5
    bucket = Bucketize("x", [0.9, 1.9, 2.9], name="x_bin")
    search = search_crosses(df, [bucket, "b", Cross("c", "d", buckets=50)], "y")
    assert search.kept == [("x_bin", "b")]
    made = FeatureSet(search.features()).fit_transform(df)
    assert "te_x_bin_x_b__y" in made
    with pytest.raises(DataError, match="uses a target"):
        search_crosses(df, ["a", TargetEncode("b", "y")], "y")
    for col in ("y", Bucketize("y", [0.5])):
        with pytest.raises(DataError, match="uses a target"):
            search_crosses(df, ["a", "b", col], "y")


def three(n=3000):
    """Three columns that say something together, two of which say less of it; a fourth of noise."""
    rng = np.random.default_rng(2)
    df = pd.DataFrame({c: rng.integers(0, 4, n) for c in "abcd"})
    odd = (df["a"] ^ df["b"]) % 2
    return df.assign(z=odd + 1.5 * ((odd + df["c"]) % 2) + rng.normal(size=n), row=np.arange(n) % 3)


def test_a_third_column_is_found_that_says_more_with_a_pair():
    df = three()
    pairs = search_crosses(df, list("abcd"), "z")
    assert pairs.kept == [("a", "b")]
    search = search_crosses(df, list("abcd"), "z", extend=pairs.kept)
    assert [p.columns for p in search.pairs] == [("a", "b", "c"), ("a", "b", "d")]
    assert search.kept == [("a", "b", "c")]
    assert [repr(f) for f in search.features()] == ["TargetEncode(cols=Cross(cols=['a', 'b', 'c']), target='z')"]
    table = search.table()
    assert list(table.columns) == ["a", "b", "c", "alone", "together", "gain", "error", "kept"]
    assert table["c"].tolist() == ["c", "d"]
    assert "a × b × c" in str(search)
    each_once = search_crosses(df, list("abcd"), "z", extend=[("a", "b"), ("c", "b")])
    assert sorted(p.columns for p in each_once.pairs) == [("a", "b", "c"), ("a", "b", "d"), ("b", "c", "d")]


def test_a_triples_scores_are_those_of_a_plain_loop():
    from sklearn.linear_model import LinearRegression

    df = three(300)
    (found,) = search_crosses(df, list("abc"), "z", folds="row", extend=[("a", "b")], smooth=3).pairs

    def encoded(names, fold):  # each row by the rows outside of its own fold and of the one that is scored
        made = np.zeros(len(df))
        for other in range(3):
            used = df[(df.row != fold) & (df.row != other)]
            groups = used.groupby(list(names))["z"].agg(["sum", "count"])
            means = (groups["sum"] + 3 * used.z.mean()) / (groups["count"] + 3)
            own = df.row == other
            keys = pd.MultiIndex.from_frame(df.loc[own, list(names)])
            made[own] = means.reindex(keys).fillna(used.z.mean())
        return made

    def scored(sets):
        scores = []
        for fold in range(3):
            x, out = np.column_stack([encoded(s, fold) for s in sets]), df.row == fold
            said = LinearRegression().fit(x[~out], df.z[~out]).predict(x[out])
            # the mean that r2 is measured from is that of the rows learned from
            scores.append(1 - ((df.z[out] - said) ** 2).sum() / ((df.z[out] - df.z[~out].mean()) ** 2).sum())
        return np.mean(scores)

    assert found.alone == pytest.approx(scored(["ab", "ac", "bc"]), abs=2e-4)
    assert found.together == pytest.approx(scored(["ab", "ac", "bc", "abc"]), abs=2e-4)


def test_missing_targets_do_not_count_and_text_and_missing_keys_are_keys():
    df = xor(1200)
    df["a"] = df["a"].map(lambda v: f"v{v}")
    df["b"] = df["b"].astype("Int64").mask(np.arange(1200) % 50 == 0)
    whole = search_crosses(df, ["a", "b", "c"], "y", key="f")
    more = pd.concat([df, df.assign(y=np.nan, a="other")])
    assert search_crosses(more, ["a", "b", "c"], "y", key="f").pairs == whole.pairs
    assert whole.kept == [("a", "b")]


def test_folds_may_be_given_or_named_and_a_key_keeps_rows_together():
    df = xor(600)
    df["k"] = np.arange(600) % 4 + 3  # folds need not begin at 0, nor all be there
    by_name = search_crosses(df, ["a", "b", "c"], "y", folds="k")
    assert search_crosses(df, ["a", "b", "c"], "y", folds=df["k"].tolist()).pairs == by_name.pairs
    shuffled = df.sample(frac=1, random_state=0)
    a, b = (search_crosses(f, ["a", "b", "c"], "y", key=["c", "d"]) for f in (df, shuffled))
    for p, q in zip(a.pairs, b.pairs, strict=True):
        assert p.columns == q.columns
        assert p.gain == pytest.approx(q.gain, rel=1e-6, abs=1e-9)


def trial(df, metric="r2", smooth=3.0, folds=3):
    table = Table.read(df)
    y = table["y"].number()
    cells = Cells(torch.arange(len(df), device=y.device) % folds, folds)
    return _CrossTrial(table.with_columns({"y": y}), y, cells, metric, smooth)


@pytest.mark.parametrize("metric", ["r2", "logloss"])
def test_targets_of_a_fold_move_nothing_that_it_is_scored_with(metric):
    df = xor(90)
    y = torch.tensor(df["y"].to_numpy(), dtype=torch.float64)
    for k in range(3):
        changed = df.assign(y=torch.where(torch.arange(90) % 3 == k, 1 - y, y).numpy())
        a, b = (trial(d, metric)._encode(Table.read(df)["a"])[k] for d in (df, changed))
        assert torch.equal(a, b)


def test_logistic_and_ridge_are_those_of_scikit_learn():
    from sklearn.linear_model import LinearRegression, LogisticRegression

    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=(400, 2)), np.ones(400)])
    y = (rng.random(400) < 1 / (1 + np.exp(-(x @ [1.0, -2.0, 0.5])))).astype(float)
    ours = _logistic(torch.tensor(x), torch.tensor(y))
    theirs = LogisticRegression(C=1 / (1e-4 * 400), tol=1e-10).fit(x[:, :2], y)
    assert ours.tolist() == pytest.approx([*theirs.coef_[0], theirs.intercept_[0]], rel=1e-4)
    linear = LinearRegression().fit(x[:, :2], y)
    expected = [*linear.coef_, linear.intercept_]
    assert _ridge(torch.tensor(x), torch.tensor(y)).tolist() == pytest.approx(expected, rel=1e-3)


def test_auc_is_that_of_scikit_learn():
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    scores, y = rng.integers(0, 6, 80).astype(float), rng.integers(0, 2, 80)
    ours, rows = _auc(torch.tensor(scores), torch.tensor(y, dtype=torch.float64))
    assert float(ours) == pytest.approx(roc_auc_score(y, scores), rel=1e-12)
    assert float(_auc(torch.tensor([1.0, 2.0]), torch.zeros(2))[0]) == 0.5
    # DeLong's variance, from all pairs
    above = (scores[y == 1][:, None] > scores[y == 0]) + 0.5 * (scores[y == 1][:, None] == scores[y == 0])
    variance = above.mean(1).var() / (y == 1).sum() + above.mean(0).var() / (y == 0).sum()
    assert float(rows.var() / len(rows)) == pytest.approx(variance, rel=0.02)
    assert float(rows.mean()) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cols": ["a"]}, "two columns or more"),
        ({"cols": ["a", "b", "a"]}, "twice"),
        ({"cols": ["a", 3]}, "neither a column nor a generator"),
        ({"cols": ["a", "nope"]}, "'nope'"),
        ({"metric": "mrr"}, "no metric 'mrr'"),
        ({"metric": "auc", "target": "z"}, "needs a target of 0 and 1"),
        ({"extend": [("a", "nope")]}, "extend names a column that is not searched"),
        ({"extend": [("a",)]}, "is no pair to extend"),
        ({"folds": 1}, "1 fold;|1 fold"),
        ({"folds": [0, 1]}, "2 folds of kind number for 50 rows"),
        ({"target": "text"}, "cannot be used as a number"),
        ({"target": "constant"}, "one value only"),
        ({"target": "endless"}, "infinite"),
    ],
)
def test_what_cannot_be_searched_is_named(change, message):
    df = xor(50).assign(text="t", constant=1.0, endless=np.inf)
    arguments = {"cols": ["a", "b"], "target": "y", **change}
    with pytest.raises(FastrecError, match=message):
        search_crosses(df, arguments.pop("cols"), arguments.pop("target"), **arguments)
