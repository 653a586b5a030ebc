import importlib
import json
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

import fastrec.features as ff
from fastrec.competition.table_run import check_models
from fastrec.errors import DataError, DataWarning, FastrecError, UnreadableFileError, WriteError
from fastrec.estimators import ColumnRanker
from fastrec.features import feature
from fastrec.features._engine.folds import INNER_SEED, row_folds
from fastrec.table import Table
from fastrec.validate import Folds


def frame(n=60, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "id": np.arange(n),
            "session": rng.integers(0, 12, n),
            "item": rng.choice(list("abcde"), n),
            "price": rng.normal(size=n).round(2),
            "step": rng.permutation(n),
            "clicked": rng.integers(0, 2, n),
        }
    )


def test_generators_read_what_others_make():
    te = ff.TargetEncode("item", "clicked")
    others = [ff.GroupRank(te, by="session"), ff.Diff("price", by="session", order="step")]
    fs = ff.FeatureSet([te, *others], key="session")
    assert fs.outputs == ["te_item__clicked", "rank_te_item__clicked__session", "diff1_price__session"]
    assert fs.inputs == ["item", "session", "price", "step"]
    assert fs.fit_inputs == ["item", "clicked", "session", "price", "step"]
    made = fs.fit_transform(frame())
    expected = made.groupby("session")["te_item__clicked"].rank(method="min")
    assert made["rank_te_item__clicked__session"].tolist() == expected.tolist()
    test = fs.transform(frame(seed=1).drop(columns=["clicked", "id"]))
    assert list(test.columns)[-3:] == fs.outputs
    assert test.groupby("item")["te_item__clicked"].nunique().max() == 1


def test_outputs_that_a_target_passes_through_are_those_that_change_with_it():
    te = ff.TargetEncode("item", "clicked")
    steps = [ff.CountEncode("item"), te, ff.GroupRank(te, by="session"), ff.Diff("price", by="session", order="step")]
    before, turned = frame(), frame().assign(clicked=lambda df: (df.item == "a").astype(int))
    fs = ff.FeatureSet(steps, key="session")
    made = [fs.fit(df).transform(frame(seed=1)) for df in (before, turned)]
    moved = [n for n in fs.outputs if not made[0][n].equals(made[1][n])]
    assert fs.from_targets == moved == ["te_item__clicked", "rank_te_item__clicked__session"]
    assert ff.FeatureSet([ff.CountEncode("item")]).from_targets == []


def test_equal_generators_are_one_step_and_only_what_is_listed_comes_back():
    listed = [ff.GroupRank(ff.TargetEncode("item", "clicked"), by="session"), ff.TargetEncode("item", "clicked")]
    both, rank = (ff.FeatureSet(features, key="session") for features in (listed, listed[:1]))
    assert [type(s).__name__ for s in both.steps] == ["TargetEncode", "GroupRank"]
    made = both.fit_transform(frame())
    assert list(made.columns)[-2:] == both.outputs
    pd.testing.assert_frame_equal(rank.fit_transform(frame()), made.drop(columns="te_item__clicked"))


def test_a_set_within_a_set_is_taken_apart():
    inner = ff.FeatureSet([ff.CountEncode("item"), ff.Lag("price", by="session")])
    fs = ff.FeatureSet([inner, ff.Combine("price", "-", ff.Lag("price", by="session"), name="change")], key="id")
    made = fs.fit_transform(frame())
    assert fs.outputs == ["count_item", "lag1_price__session", "change"]
    expected = frame()["price"] - frame().groupby("session")["price"].shift(1)
    assert made["change"].tolist() == pytest.approx(expected.tolist(), nan_ok=True)


def test_no_generator_at_all():
    fs = ff.FeatureSet([])
    pd.testing.assert_frame_equal(fs.fit_transform(frame()), frame())
    pd.testing.assert_frame_equal(fs.transform(frame()), frame())
    assert [len(v) for _, v in fs.cross_fit(frame(6), [0, 1, 2, 0, 1, 2])] == [2, 2, 2]


def by_hand(train, rows):
    """A target encoding of rows, learned from others."""
    prior = train["clicked"].mean()
    stat = train.groupby("item")["clicked"].agg(["sum", "count"])
    return rows["item"].map((stat["sum"] + 20 * prior) / (stat["count"] + 20)).fillna(prior).tolist()


def test_cross_fit_equals_fitting_by_hand():
    data, folds = frame(), np.arange(60) % 3
    fs = ff.FeatureSet([ff.TargetEncode("item", "clicked"), ff.CountEncode("item")], key="id", folds=4)
    inner = row_folds(Table.read(data), ["id"], 4, seed=INNER_SEED).cpu().numpy()
    found = list(fs.cross_fit(data, folds))
    assert len(found) == 3
    for k, (train, valid) in enumerate(found):
        rest = data[folds != k]
        assert train.index.tolist() == rest.index.tolist()
        assert valid["te_item__clicked"].tolist() == pytest.approx(by_hand(rest, data[folds == k]))
        for f in range(4):
            own = (inner == f) & (folds != k)
            expected = by_hand(data[(inner != f) & (folds != k)], data[own])
            assert train["te_item__clicked"][own[folds != k]].tolist() == pytest.approx(expected)
        assert train["count_item"].tolist() == rest["item"].map(data["item"].value_counts()).tolist()


def test_folds_by_time_are_for_the_hand():
    data, fs = frame(40), ff.FeatureSet([ff.TargetEncode("item", "clicked")])
    random, by_time = Folds.kfold(40, 4), Folds.time_series(np.arange(40), np.arange(40), 4)
    for got, want in zip(fs.cross_fit(data, random), fs.cross_fit(data, random.codes), strict=True):
        pd.testing.assert_frame_equal(got[1], want[1])
    for folds in (by_time, by_time.codes, Folds(random.codes, {0: random.codes > 1})):
        with pytest.raises(DataError, match=r"is -1, as in folds by time.*fit_tr.*train|train on all other"):
            next(fs.cross_fit(data, folds))


def test_both_at_once_equal_each_alone_and_make_clean_columns_once():
    runs = []

    @feature(inputs=["price"], outputs=["twice"])
    def twice(price):
        runs.append(len(price))
        return price * 2

    def make():
        te = ff.TargetEncode("item", "clicked")
        ranks = [ff.GroupRank(te, by="session"), ff.GroupRank(twice, by="item")]
        listed = [twice, ff.CountEncode("item", scope="all"), te, *ranks, ff.Lag("clicked", by="item", order="step")]
        return ff.FeatureSet(listed, key="session", target="clicked")

    data, folds, test = frame(), np.arange(60) % 3, frame(20, seed=5).drop(columns="clicked")
    alone, both = make(), make()
    expected = [alone.fit_transform(data, unlabeled=test)]
    expected += [f for pair in alone.cross_fit(data, folds, unlabeled=test) for f in pair]
    runs.clear()
    train, pairs = both.fit_transform_folds(data, folds, unlabeled=test)
    both.transform(test)  # between the two, as in a run
    found = [train, *(f for pair in pairs for f in pair)]
    assert runs == [60, 20]
    for a, b in zip(found, expected, strict=True):
        pd.testing.assert_frame_equal(a, b)
    pd.testing.assert_frame_equal(both.transform(test), alone.transform(test))
    assert both.transductive == alone.transductive == ["count_item"]


def test_a_clone_keeps_what_several_generators_share():
    te = ff.TargetEncode("item", "clicked")
    fs = ff.FeatureSet([te, ff.GroupRank(te, by="session"), ff.Combine(te, "-", "price")], key="session")
    other = clone(fs)
    assert len(other.steps) == 3
    assert te is not other.features[0] is other.features[1].cols is other.features[2].a
    assert fs.get_params()["features"] is fs.get_params()["features"]


def test_parameters_of_a_set():
    fs = ff.FeatureSet([ff.CountEncode("item")], key="id")
    fs.set_params(folds=7, features=[ff.CountEncode("session")])
    assert (fs.folds, fs.outputs) == (7, ["count_session"])


def test_an_output_of_a_columns_name_replaces_it_with_a_warning():
    data = pd.DataFrame({"u": [1, 1, 2], "count_u": [-1.0, -1.0, -1.0]})
    with pytest.warns(DataWarning, match="column 'count_u': a generator's output"):
        made = ff.FeatureSet([ff.CountEncode("u")]).fit_transform(data)
    assert made["count_u"].tolist() == [2, 2, 1]
    alone = ff.FeatureSet([ff.CountEncode("u")], keep="outputs").fit_transform(data)
    assert alone["count_u"].tolist() == [2, 2, 1]


def test_another_table_is_given_by_name():
    log = frame(seed=7)
    fs = ff.FeatureSet([ff.History("item", order="step", table="log")])
    made = fs.fit_transform(frame(), tables={"log": log, "unused": None})
    expected = [int(((log["item"] == r.item) & (log["step"] < r.step)).sum()) for r in frame().itertuples()]
    assert made["history_count"].tolist() == expected
    with pytest.raises(FastrecError, match="column 'step': table 'log'"):
        fs.transform(frame(), tables={"log": log.drop(columns="step")})
    with pytest.raises(FastrecError, match="needs the table 'log', and the tables given are: 'logs'"):
        fs.transform(frame(), tables={"logs": log})
    with pytest.raises(FastrecError, match="the tables given are: none"):
        fs.transform(frame())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA")
def test_other_tables_and_rows_follow_to_the_device_of_the_rows():
    options = {"tables": {"log": frame(seed=7)}, "unlabeled": frame(seed=8)}
    fs = ff.FeatureSet([ff.History("item", order="step", table="log"), ff.CountEncode("item", scope="all")])
    made = fs.fit_transform(Table.read(frame(), device="cuda"), **options)
    expected = fs.fit_transform(frame(), **options)
    for name in fs.outputs:
        assert made[name].values.is_cuda
        np.testing.assert_array_equal(made[name].number().cpu(), expected[name].to_numpy(np.float64, na_value=np.nan))


def test_saving_replaces_an_older_set_and_nothing_else(tmp_path):
    fs = ff.FeatureSet([ff.CountEncode("item")]).fit(frame())
    ff.FeatureSet([ff.CountEncode(["item", "session"]), ff.Cross("item", "session")]).fit(frame()).save(tmp_path / "f")
    fs.save(tmp_path / "f")
    assert ff.FeatureSet.load(tmp_path / "f").outputs == ["count_item"]
    assert sorted(p.name for p in (tmp_path / "f").iterdir()) == ["features.json", "states"]
    (tmp_path / "mine.csv").write_text("mine")
    with pytest.raises(WriteError, match=r"no features\.json"):
        fs.save(tmp_path)
    with pytest.raises(WriteError, match="this is a file"):
        fs.save(tmp_path / "mine.csv")
    assert (tmp_path / "mine.csv").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    fs.save(tmp_path / "empty")
    assert ff.FeatureSet.load(tmp_path / "empty").outputs == ["count_item"]
    own = ff.FeatureSet([type("Mine", (ff.CountEncode,), {})("item")]).fit(frame())
    with pytest.raises(FastrecError, match="Mine"):
        own.save(tmp_path / "own")
    assert not (tmp_path / "own").exists()


def test_rows_may_be_a_folder_a_file_or_a_pattern_of_files(tmp_path):
    frame = pd.DataFrame({"k": list("abacab"), "y": [0, 1, 1, 0, 1, 0]})
    (tmp_path / "train").mkdir()
    for i in range(3):
        frame.iloc[2 * i : 2 * i + 2].to_parquet(tmp_path / "train" / f"part-{i}.parquet", index=False)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    expected = ff.FeatureSet([ff.CountEncode("k")]).fit_transform(frame)
    for given in (tmp_path / "train", str(tmp_path / "train" / "part-*.parquet"), tmp_path / "rows.csv"):
        features = ff.FeatureSet([ff.CountEncode("k")])
        pd.testing.assert_frame_equal(features.fit_transform(given), expected, check_dtype=False)
        assert features.transform(given)["count_k"].tolist() == expected["count_k"].tolist()


# Saved features that were damaged, or made by a stranger: named errors, and no code that was not asked for


MODULE = """
from pathlib import Path
from fastrec.features import feature
Path(__file__).with_name("ran").touch()

@feature(inputs="x", outputs="twice")
def twice(x):
    return 2 * x
"""


def saved(folder):
    df = pd.DataFrame({"item": ["a", "a", "b"], "y": [1, 0, 1]})
    ff.FeatureSet([ff.CountEncode("item"), ff.TargetEncode("item", "y")]).fit(df).save(folder)
    return folder / "features.json"


def rewrite(path, change):
    """The configuration changed, and its digests taken out, as someone who means harm would."""
    config = json.loads(path.read_text())
    config.pop("digests", None)
    change(config)
    path.write_text(json.dumps(config))


@pytest.mark.parametrize("trusted", ["fastrec_test_own", ["other", "fastrec_test_own"]])
def test_a_module_that_is_not_imported_is_run_only_if_it_is_trusted(tmp_path, monkeypatch, trusted):
    (tmp_path / "fastrec_test_own.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "fastrec_test_own", raising=False)
    ff.FeatureSet([importlib.import_module("fastrec_test_own").twice]).save(tmp_path / "f")
    del sys.modules["fastrec_test_own"]
    (tmp_path / "ran").unlink()
    with pytest.raises(UnreadableFileError, match=r"features\.json.*fastrec_test_own.*trust='fastrec_test_own'"):
        ff.FeatureSet.load(tmp_path / "f")
    for trust in ("fastrec_test", "fastrec_test_own.deep", ["other"]):
        with pytest.raises(UnreadableFileError, match="not imported"):
            ff.FeatureSet.load(tmp_path / "f", trust=trust)
    assert not (tmp_path / "ran").exists()
    made = ff.FeatureSet.load(tmp_path / "f", trust=trusted).transform(pd.DataFrame({"x": [1.0, 2.0]}))
    assert made["twice"].tolist() == [2, 4]
    assert ff.RowFunction.load(tmp_path / "f").outputs == ["twice"]  # imported by now
    del sys.modules["fastrec_test_own"]


@pytest.mark.parametrize("name", ["this:x", "antigravity:geohash", "os:system", ":x", "", "fastrec.features:feature"])
def test_nothing_but_generators_is_taken(tmp_path, name):
    path = saved(tmp_path / "f")
    params = {"function": {"$function": name}, "cols": "x", "columns": "y"}
    rewrite(path, lambda c: c["steps"].append({"class": "RowFunction", "params": params, "state": None}))
    before = set(sys.modules)
    with pytest.raises(UnreadableFileError, match=r"features\.json"):
        ff.FeatureSet.load(tmp_path / "f")
    assert not {"this", "antigravity"} & (set(sys.modules) - before)


@pytest.mark.parametrize("what", ["folder", "state.json", "state.safetensors"])
def test_a_link_is_refused(tmp_path, what):
    saved(tmp_path / "f")
    (tmp_path / "link").symlink_to(tmp_path / "f")
    assert ff.FeatureSet.load(tmp_path / "link").outputs == ["count_item", "te_item__y"]  # reached by a link it is read
    inside = tmp_path / "f" / "states" / ("" if what == "folder" else what)
    inside.rename(tmp_path / "elsewhere")
    inside.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnreadableFileError, match="is a link"):
        ff.FeatureSet.load(tmp_path / "f")


def test_every_changed_byte_is_noticed(tmp_path):
    saved(tmp_path / "f")
    files = [p for p in sorted((tmp_path / "f").rglob("*")) if p.is_file()]
    assert len(files) == 3
    for file in files:
        whole = file.read_bytes()
        for place in range(0, len(whole), max(len(whole) // 12, 1)):
            changed = bytearray(whole)
            changed[place] ^= 1
            file.write_bytes(bytes(changed))
            if file.suffix == ".json" and _equal(whole, bytes(changed)):
                continue
            with pytest.raises(UnreadableFileError):
                ff.FeatureSet.load(tmp_path / "f")
        file.write_bytes(whole)
    assert ff.FeatureSet.load(tmp_path / "f").outputs == ["count_item", "te_item__y"]


def _equal(a, b):
    try:
        return json.loads(a) == json.loads(b) and "digests" not in json.loads(a)
    except ValueError:
        return False


SHAPES = {
    "nothing": "",
    "an empty configuration": "{}",
    "a class that is a function": '{"steps": [{"class": "explode", "params": {}}], "listed": []}',
    "deep": "[" * 100_000,
    "digests that are none": '{"steps": [], "listed": [], "digests": 3}',
    "a step that comes later": '{"steps": [{"class": "CountEncode", "params": {"cols": {"$step": 7}}, "state": null}]}',
    "another class": '{"steps": [{"class": "FeatureSet", "params": {"features": []}, "state": null}]}',
    "a selector": '{"steps": [{"class": "CountEncode", "params": {"cols": {"$selector": 3}}, "state": null}]}',
}


@pytest.mark.parametrize("what", SHAPES)
def test_a_configuration_of_another_shape_is_named(tmp_path, what):
    (tmp_path / "features.json").write_text(SHAPES[what])
    with pytest.raises(UnreadableFileError, match=r"features\.json"):
        ff.FeatureSet.load(tmp_path)


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/b", "..", "", "a\\b", "C:x"])
def test_a_models_name_is_no_path(name):
    def check(name):
        models = [ColumnRanker("fine", ["x"]), ColumnRanker(name, ["x"])]
        check_models(SimpleNamespace(name="tiny", baselines=list, models=lambda bs: models), None)

    check("display_order.2 (new)")
    with pytest.raises(DataError, match="name"):
        check(name)


def test_the_target_of_a_frame_is_no_second_one_of_the_set():
    rows = pd.DataFrame({"shop": ["a", "b"] * 6, "y": range(12), "z": range(12)})
    features = ff.FeatureSet([ff.TargetEncode("shop", "z")])
    features.assume_target("y")
    assert features.fit(rows, rows["z"]).targets == ["y", "z"]
    assert clone(features).get_params()["target"] is None
    with pytest.raises(DataError, match="reads the target"):
        ff.FeatureSet([ff.CountEncode("y")], target="y").fit(rows)
