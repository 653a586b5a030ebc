"""``try_features`` against plain loops over the folds; refused input; the log."""

import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import roc_auc_score

from fastrec import try_features
from fastrec._core import limits
from fastrec.competition.kept_rows import KeptRows
from fastrec.errors import DataError, DataWarning, FastrecError, MissingColumnError, MissingFileError
from fastrec.estimators import LGBMModel, XGBModel, XGBRanker
from fastrec.features import CountEncode, Cross, FeatureSet, GroupFunction, Lag, RowFunction, TargetEncode
from fastrec.table import Table
from fastrec.trials import list_tries
from fastrec.trials.ideas import NewColumns, read_idea
from fastrec.trials.reference import RunColumns, reference_model, thinned
from fastrec.trials.trying import note_try, tries_file
from fastrec.validate import Folds, Rows
from tests.trials import planted

TRAIN = planted.rows()


def run_of(recipe: type, frame: pd.DataFrame):
    def made(tmp_path_factory) -> Path:
        return planted.make_run(tmp_path_factory.mktemp("run"), recipe, frame)

    return pytest.fixture(scope="module")(made)


shop, amounts, later = (run_of(r, TRAIN) for r in (planted.Shop, planted.Amounts, planted.Later))
ranked = run_of(planted.Lists, planted.lists())


def folds_of(run: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    codes = pq.read_table(run / "folds.parquet").to_pandas()["fold"].to_numpy()
    return [((codes != k).nonzero()[0], (codes == k).nonzero()[0]) for k in range(codes.max() + 1)]


def refit(run: Path, settings: dict, columns: list[str], new=None) -> float:
    """The mean AUC of plain loops, a seed each: features anew on each fold's own rows, one model for each."""
    scores = []
    for r in range(limits.TRY_REPEATS):
        oof = np.full(len(TRAIN), np.nan)
        for k, (outside, inside) in enumerate(folds_of(run)):
            train, valid = TRAIN.iloc[outside].reset_index(drop=True), TRAIN.iloc[inside].reset_index(drop=True)
            own = TargetEncode("city", "bought")
            everyone = TRAIN.groupby("city").size()  # a count holds no target, and is of all rows
            both = [own.fit_transform(train, key="id"), own.transform(valid, key="id")]
            both = [b.assign(count_city=b["city"].map(everyone)) for b in both]
            if new is not None:
                both = new(train, valid, both)
            labels = [torch.tensor(b["bought"].to_numpy()) for b in both]
            data = [Rows(Table.read(b), "binary", ["city"], columns, y) for b, y in zip(both, labels, strict=True)]
            model = XGBModel("boosted", **settings, colsample_bytree=1.0).fit(data[0], seed=k + 1000 * r)
            oof[inside] = model.predict(data[1]).numpy()
        scores.append(roc_auc_score(TRAIN["bought"], oof))
    return float(np.mean(scores))


def nested(train, valid, both):
    te = TargetEncode("shop", "bought")
    made = te.fit_transform(train, key="id"), te.transform(valid, key="id")
    return [b.assign(te_shop__bought=m["te_shop__bought"]) for b, m in zip(both, made, strict=True)]


OWN = ["x", "count_city", "te_city__bought"]


@pytest.mark.parametrize("full", [False, True])
def test_the_score_after_is_that_of_plain_loops_over_seeds(shop, full, monkeypatch):
    monkeypatch.setattr(limits, "TRY_REPEATS", 2)
    settings = planted.TREES if full else planted.LIGHT
    made = try_features(lambda df: {"u": df["h"] ** 3}, shop, full=full, model="boosted")

    def add(train, valid, both):
        return [b.assign(u=b["h"] ** 3) for b in both]

    assert made.after == pytest.approx(refit(shop, settings, [*OWN, "u"], add), abs=1e-9)
    assert made.difference.mean == pytest.approx(made.after - made.before, abs=1e-9)
    assert made.difference.low < made.difference.mean < made.difference.high


def test_encodings_and_dropped_columns_score_as_plain_loops(shop, monkeypatch):
    monkeypatch.setattr(limits, "TRY_REPEATS", 2)
    made = try_features(TargetEncode("shop", "bought"), shop)
    assert made.after == pytest.approx(refit(shop, planted.LIGHT, [*OWN, "te_shop__bought"], nested), abs=1e-9)
    assert made.columns == ("te_shop__bought",)
    made = try_features(None, shop, drop=["x"])
    assert made.before == pytest.approx(refit(shop, planted.LIGHT, OWN), abs=1e-9)
    assert made.after < made.before - 0.05
    assert (made.dropped, made.columns) == (("x",), ())
    # a column that no shuffle changes makes no difference
    made = try_features(lambda df: {"one": np.ones(len(df))}, shop)
    assert made.before == made.after
    assert (tuple(made.difference), made.verdict) == ((0.0, 0.0, 0.0), "no difference seen")


class Extra(planted.Shop):
    """A run whose best model draws thresholds and columns at random."""

    def features(self):
        return None

    def models(self, *, bs):
        extra = {"extra_trees": True, "feature_fraction": 0.5, "num_leaves": 8, "learning_rate": 0.1}
        return [LGBMModel("extra", rounds=40, early_stopping_rounds=None, num_threads=1, **extra)]


extra = run_of(Extra, planted.rows(700))


@pytest.mark.parametrize("full", [False, True])
def test_noise_is_not_better_where_the_best_model_is_one_of_random_splits(extra, full):
    told = []
    for seed in range(3):
        noise = np.random.default_rng(seed).normal(size=700)
        told.append(try_features(lambda df, noise=noise: {"u": noise[df["id"]]}, extra, full=full, note=False))
    assert {t.model for t in told} == {"extra without random splits"}
    assert "better" not in {t.verdict for t in told}
    assert try_features(good_number, extra, full=full, note=False).verdict == "better"


def good_number(df):
    return df["h"]


@pytest.mark.parametrize(
    ("idea", "verdict"),
    [
        (lambda df: {"g": df["h"]}, "better"),
        (RowFunction(lambda h, z: h + 0.1 * z, ["h", "z"], "mixed"), "better"),
        ([TargetEncode("shop", "bought"), CountEncode("shop")], "better"),
        (lambda df: {"u": df["z"]}, "useless"),
        (CountEncode("user"), "useless"),
        (lambda df: {"u": np.random.default_rng(0).normal(size=len(df))}, "useless"),
        (GroupFunction(lambda v: v.mean(), "bought", "rate", by="shop"), "leak"),
        (lambda df: {"rate": df.groupby("shop")["bought"].transform("mean")}, "leak"),
        (lambda df: {"answer": TRAIN.set_index("id")["bought"].reindex(df["id"]).to_numpy()}, "leak"),
    ],
    ids=["number", "mixture", "encoding", "noise", "count", "random", "own mean", "target read", "answers"],
)
def test_good_useless_and_leaking_columns_are_told_apart(shop, idea, verdict):
    made = try_features(idea, shop)
    assert made.verdict in (("no difference seen", "worse") if verdict == "useless" else (verdict,))
    assert (verdict == "leak") == bool(made.leaks)
    if verdict == "leak":
        assert set(made.columns) == set(made.leaks)
        assert all(name in str(made) for name in made.leaks)
        assert np.isnan([made.before, made.after, made.difference.mean]).all()


def test_a_function_sees_no_target_and_all_rows_once(shop):
    seen = []

    def look(df):
        seen.append(df)
        return {"u": df["z"]}

    try_features(look, shop)
    assert all("bought" not in df for df in seen)
    # the run's own features are there, but for those that hold targets
    whole = [df for df in seen if len(df) == len(TRAIN)]
    assert whole
    assert {"h", "shop", "count_city"} <= set(whole[-1])
    assert "te_city__bought" not in whole[-1]


def test_amounts_are_compared_on_their_own_scale_by_users(amounts):
    made = try_features(lambda df: df[["h"]].rename(columns={"h": "g"}), amounts, full=True, model="boosted")
    oof = pq.read_table(amounts / "oof" / "boosted.parquet").to_pandas()["prediction"]
    assert made.before == pytest.approx(np.sqrt(((oof - TRAIN["amount"]) ** 2).mean()), rel=0.05)
    assert made.difference.mean < 0  # lower is better
    assert made.verdict == "better"
    assert "lower is better" in str(made)
    folds = Folds.load(amounts / "folds.parquet")
    folds.check_groups("user", TRAIN)


def test_lists_are_compared_by_their_mean_reciprocal_rank(ranked):
    made = try_features(lambda df: {"g": df["stars"] + 0.0}, ranked, full=True)
    train = planted.lists()
    oof = pq.read_table(ranked / "oof" / "boosted.parquet").to_pandas()
    ranks = oof.assign(label=train["clicked"]).groupby("list_id")["score"].rank(method="first", ascending=False)
    assert made.before == pytest.approx((1 / ranks[train["clicked"] == 1]).mean(), rel=0.05)
    assert made.verdict == "better"
    assert try_features(lambda df: {"u": df["noise"]}, ranked).verdict == "no difference seen"


def test_folds_in_order_of_time_keep_the_future_from_a_function(later):
    sizes = []

    def known(df):
        sizes.append(df["day"].max())
        return {"u": df["h"]}

    made = try_features(known, later)
    folds = list(Folds.load(later / "folds.parquet"))
    last = [TRAIN["day"].iloc[inside.numpy()].max() for _, inside in folds]
    assert sizes[-len(folds) :] == last
    assert made.verdict == "better"
    for idea in (CountEncode("user"), Cross("user", "shop"), TargetEncode("shop", "bought")):
        assert try_features(idea, later, note=False).verdict != "leak"
    of_all = try_features(lambda df: {"u": df.groupby("shop")["h"].transform("mean")}, later)
    assert of_all.verdict == "leak"
    assert "future" in of_all.leaks["u"]


def test_a_lag_looks_back_from_the_rows_that_are_scored(later):
    idea = [Lag("bought", n=2, by="shop", order="day"), CountEncode("shop")]
    new = NewColumns(KeptRows(later), read_idea(idea))
    assert new.leaks() == {}
    for (outside, inside), pair in zip(Folds.load(later / "folds.parquet"), new.folds(), strict=True):
        known = pd.concat([TRAIN.iloc[outside.numpy()], TRAIN.iloc[inside.numpy()].assign(bought=np.nan)])
        lag = known.sort_values("day", kind="stable").groupby("shop")["bought"].shift(2).reindex(known.index)
        count = known["shop"].map(TRAIN.iloc[outside.numpy()].groupby("shop").size()).fillna(0)
        for rows, made in zip((outside, inside), pair, strict=True):
            assert made.names == ["lag2_bought__shop", "count_shop"]
            for name, expected in (("lag2_bought__shop", lag), ("count_shop", count)):
                np.testing.assert_allclose(made[name].number(torch.float64).cpu(), expected.loc[rows.numpy()])
    assert try_features(idea, later).columns == ("lag2_bought__shop", "count_shop")


GENERATORS = """
from fastrec.features import CountEncode, Cross, FeatureSet, GroupRank, feature, Cross, TargetEncode
from beside import NAME
pair = Cross("city", "shop")
some = [TargetEncode(pair, "bought")]
rest = FeatureSet([CountEncode(NAME)])
@feature(inputs=["x", "z"], outputs="xz")
def product(x, z):
    return x * z
_not_this = CountEncode("city")
def a_helper_is_no_matter(df):
    raise ValueError
"""


def test_a_file_of_generators_or_of_one_function(shop, tmp_path):
    (tmp_path / "idea.py").write_text(GENERATORS)
    (tmp_path / "beside.py").write_text("NAME = 'shop'")
    made = try_features(tmp_path / "idea.py", shop)
    # a cross that is part of an encoding is none of its own
    assert made.columns == ("te_city_x_shop__bought", "count_shop", "xz")
    assert "beside" not in sys.path
    assert str(tmp_path) not in sys.path
    text = "def _twice(v):\n    return 2 * v\ndef gap(df):\n    return _twice(df.h - df.x)\n"
    (tmp_path / "gap.py").write_text(text)
    made = try_features(str(tmp_path / "gap.py"), shop)
    # a Series without a name of its own is called as the function is
    assert (made.columns, made.verdict) == (("gap",), "better")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def broken(:\n", "line 1 is no Python"),
        ("X = 1\n", "no generator, and 0 functions"),
        ("def a(df): ...\ndef b(df): ...\n", r"2 functions \(a, b\)"),
        ("1 / 0\n", "ZeroDivisionError"),
        ("def f(df):\n    return 1 / 0\n", r"f fails \(ZeroDivisionError: division by zero, line 2\)"),
        ("def f(df):\n    return df\n", "no new column"),
        ("def f(df):\n    return 3\n", r"'idea\.py': f returns a int"),
        ("def f(df):\n    return df.x.to_numpy()\n", r"'idea\.py': f returns a ndarray"),
        ("def f(df):\n    return {'u': [1, 2]}\n", "2 values for"),
        ("def f(df):\n    return df.assign(u=1).head(5)\n", "other rows"),
        ("def f(df):\n    return {'te_city__bought': df.x}\n", "has a column of this name"),
        ("from fastrec.features import *\nf = CountEncode('nowhere')\n", "nowhere.*do not have it"),
        ("from fastrec.features import *\nf = Log1p('te_city__bought')\n", "other values in every fold"),
    ],
)
def test_a_file_that_cannot_be_tried_says_why(shop, tmp_path, text, said):
    (tmp_path / "idea.py").write_text(text)
    before = len(list_tries(shop))
    with pytest.raises((DataError, MissingColumnError), match=said):
        try_features(tmp_path / "idea.py", shop)
    assert len(list_tries(shop)) == before


def test_a_line_of_an_error_is_one_of_the_idea(shop, tmp_path):
    (tmp_path / "frame.py").write_text("def f(df):\n    return {'u': df['absent']}\n")  # pandas has a file of this name
    with pytest.raises(DataError, match="'absent', line 2"):
        try_features(tmp_path / "frame.py", shop)


@pytest.mark.parametrize("case", ["shop", "later"])
def test_a_shuffled_column_stays_in_its_fold_and_follows_its_rows(case, request):
    kept = KeptRows(request.getfixturevalue(case))
    new = NewColumns(kept, read_idea(lambda df: {"day_again": df["day"] + 0.0, "z_again": df["z"]}))
    new.leaks()
    both, seen = ["day_again", "z_again"], {}
    for side in (s for pair in RunColumns(kept, ["x"]).folds(new.folds()) for s in pair):
        a, b, x = (side.take(moved=m, seed=3).table.to_pandas() for m in ([], both, ["x"]))
        assert a["x"].equals(b["x"])
        assert (b["z_again"] != a["z_again"]).mean() > 0.9
        in_order = [sorted(map(tuple, f[both].to_numpy().tolist())) for f in (a, b)]
        assert in_order[0] == in_order[1]  # both in one order
        for row, value in zip(side.rows.tolist(), b["z_again"], strict=True):
            seen.setdefault(row, set()).add(value)
        some = torch.arange(5, 50, 3)
        taken = side.take(some, moved=both, seed=3).table.to_pandas()
        assert taken.equals(b.iloc[some.numpy()].reset_index(drop=True))
        assert x["z_again"].equals(a["z_again"])
        assert sorted(x["x"]) == sorted(a["x"])
    assert {len(values) for values in seen.values()} == {1}
    kept = KeptRows(request.getfixturevalue("extra"))
    kept.folds = Folds.kfold(len(kept), 3, repeats=2)  # folds that score rows twice
    for side in (s for pair in RunColumns(kept).folds() for s in pair):
        a, b = (side.take(moved=m, seed=1).table["x"].to_arrow().to_pylist() for m in ([], ["x"]))
        assert (sorted(a), a == b) == (sorted(b), False)


@pytest.mark.parametrize("case", ["shop", "ranked"])
def test_of_many_rows_some_are_trained_on_and_all_scored(case, request):
    kept = KeptRows(request.getfixturevalue(case))
    lists = None if case == "shop" else planted.lists()["list_id"].to_numpy()
    (outside, inside), (train, valid) = next(zip(kept.folds, RunColumns(kept).folds(), strict=True))
    groups = None if lists is None else kept.tensors["groups"][outside]
    one, again, other = (thinned(len(outside), groups, 300, seed) for seed in (0, 0, 1))
    assert one.tolist() == again.tolist() != other.tolist()
    some, at = train.take(one), outside[one].numpy()
    assert valid.rows.tolist() == inside.tolist()
    np.testing.assert_array_equal(some.label, kept.tensors["label"][at])
    if lists is None:
        assert len(some) == 300
        np.testing.assert_array_equal(some.table["x"].number().cpu(), TRAIN["x"].to_numpy()[at])
    else:
        assert np.isin(lists, lists[at]).sum() == len(at)  # lists are whole
        assert 200 < len(at) < 400
    assert thinned(len(outside), None, len(outside), 0) is None


def test_the_best_model_is_tried_or_the_one_that_is_named(shop, extra, tmp_path):
    kept = KeptRows(shop)
    assert [reference_model(kept, n).name for n in ("stump", None)] == ["stump", "boosted"]
    assert try_features(CountEncode("shop"), shop, model="stump").model == "stump"
    for name, said in (("net", r"no model 'net'.*boosted"), ("constant", "learns nothing")):
        with pytest.raises(DataError, match=said):
            reference_model(kept, name)
    # trees of random thresholds are the yardstick only if there are no others, better or worse
    run = Path(shutil.copytree(extra, tmp_path / "run"))
    plain = Path(shutil.copytree(run / "models" / "extra", run / "models" / "plain"))
    for file in plain.glob("fold*/estimator.json"):
        about = json.loads(file.read_text())
        about["settings"] |= {"name": "plain", "extra_trees": False}
        file.write_text(json.dumps(about))
    scores = json.loads((run / "scores.json").read_text())
    scores["oof"]["plain"] = scores["oof"]["extra"] - 0.1
    (run / "scores.json").write_text(json.dumps(scores))
    kept = KeptRows(extra)
    kept.run = run
    assert reference_model(kept).name == "extra"
    kept.config["models"] = [*kept.config["models"], "plain"]
    assert [reference_model(kept, n).name for n in (None, "extra")] == ["plain", "extra"]


def test_trees_that_start_from_a_column_keep_it(tmp_path):
    class Started(planted.Lists):
        def models(self, *, bs):
            return [XGBRanker("boosted", rounds=5, margin="stars", max_depth=2, nthread=1)]

    run = planted.make_run(tmp_path, Started, planted.lists(100))
    assert try_features(lambda df: {"u": df["noise"]}, run, full=True).before > 0.5


def test_a_function_may_write_to_its_frame_and_return_its_rows_in_another_order(shop):
    def spoils(df):
        df["double"] = df["x"] * 2.0
        df["x"] = 0.0
        df.loc[:, "shop"] = df["shop"].iloc[0]
        del df[df.columns[0]]
        return df.sort_values("z")

    new = NewColumns(KeptRows(shop), read_idea(spoils))
    table = new._table
    before = {n: table[n].to_arrow() for n in table.names}
    assert new.leaks() == {}
    assert {n: table[n].to_arrow() for n in table.names} == before
    np.testing.assert_array_equal(new._whole["double"], TRAIN["x"] * 2)
    new = NewColumns(KeptRows(shop), read_idea(lambda df: {"double": df.sort_values("z")["x"] * 2.0}))
    assert new.leaks() == {}
    np.testing.assert_array_equal(new._whole["double"], TRAIN["x"] * 2)
    with pytest.MonkeyPatch.context() as patch:  # a sample of the rows has an index of its own
        patch.setattr(limits, "TRY_LEAK_ROWS", 100)
        new = NewColumns(KeptRows(shop), read_idea(lambda df: {"double": pd.Series(df["x"].to_numpy() * 2.0)}))
        assert new.leaks() == {}


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        *((given, {}, "nothing to try") for given in (3, CountEncode, [CountEncode("x"), 1], FeatureSet([]), None)),
        (None, {"drop": ["h"]}, r"'h': the run's models do not learn from it.*count_city"),
        (None, {"drop": ["city", *OWN]}, "no column is left"),
        (good_number, {"data": "other"}, "other files than those of the run"),
        (good_number, {"data": "nowhere"}, "no such folder"),
        (good_number, {"on": "."}, r"config\.json"),
    ],
)
def test_what_cannot_be_tried_is_refused(shop, tmp_path, given, options, said):
    (tmp_path / "other").mkdir()
    TRAIN.assign(z=0.0).to_parquet(tmp_path / "other" / "train.parquet", index=False)
    options = {n: v if n == "drop" else tmp_path / v for n, v in options.items()}
    with pytest.raises(FastrecError, match=said):
        try_features(given, **{"on": shop, **options})


def test_parts_that_are_gone_or_damaged_are_named(shop, tmp_path):
    shutil.copytree(shop.parent / "data", tmp_path / "data")  # a copy is the same data
    assert try_features(CountEncode("shop"), shop, data=tmp_path / "data").columns == ("count_shop",)
    for name in ("run", ".run.parts"):
        shutil.copytree(shop.parent / name, tmp_path / name)
    parts = tmp_path / ".run.parts"
    about = next(parts.glob("rows-*")) / "state" / "state.json"
    whole = about.read_text()
    about.write_text("{")
    with pytest.raises(FastrecError, match=r"state.*cannot be read.*without --no-resume"):
        try_features(good_number, tmp_path / "run")
    planted.run_competition(planted.Shop(), tmp_path / "data", tmp_path / "run", resume=True)  # the remedy
    assert about.read_text() == whole
    for gone, said in ((next(parts.glob("features-*")), "not there any more"), (parts, r"keeps no rows.*--no-resume")):
        shutil.rmtree(gone)
        with pytest.raises(MissingFileError, match=said):
            try_features(good_number, tmp_path / "run")


def test_every_try_is_noted(shop, tmp_path):
    before = len(list_tries(shop))
    (tmp_path / "idea.py").write_text("def g(df):\n    return df.h\n")
    made = try_features(tmp_path / "idea.py", shop)
    try_features(lambda df: {"rate": df.groupby("shop")["bought"].transform("mean")}, shop)
    try_features(good_number, shop, note=False)
    one, leak = list_tries(shop)[before:]
    assert (one["file"], one["columns"], one["verdict"]) == ("idea.py", ["g"], "better")
    assert (one["difference"], one["low"], one["high"]) == tuple(made.difference)
    assert (one["before"], one["after"], one["metric"], one["model"]) == (made.before, made.after, "auc", "boosted")
    assert (leak["verdict"], leak["difference"], list(leak["leaks"])) == ("leak", None, ["rate"])


def test_tries_at_once_leave_whole_lines_and_a_broken_one_is_left_out(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    assert list_tries(run) == []
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: note_try(run, {"i": i, "text": "x" * 3000}), range(80)))
    assert sorted(t["i"] for t in list_tries(run)) == list(range(80))
    with tries_file(run).open("a") as file:
        file.write('{"i": 4, "te')
    with pytest.warns(DataWarning, match="line 81 cannot be read"):
        assert len(list_tries(run)) == 80
    with pytest.raises(MissingFileError):
        list_tries(tmp_path / "nowhere")
