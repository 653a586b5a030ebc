from __future__ import annotations

import json
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from fastrec._core.atomic import is_plain_name
from fastrec.competition.table_run import check_models
from fastrec.errors import DataError, FastrecError, NotFittedError, UnreadableFileError, WriteError
from fastrec.estimators import ColumnRanker
from fastrec.features import (
    Combine,
    CountEncode,
    Cross,
    Diff,
    FeatureSet,
    GroupRank,
    GroupStats,
    History,
    Lag,
    RowFunction,
    TargetEncode,
    feature,
)
from fastrec.features._engine.folds import INNER_SEED, row_folds
from fastrec.table import Table
from fastrec.tabular import Features


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
    te = TargetEncode("item", "clicked")
    fs = FeatureSet([te, GroupRank(te, by="session"), Diff("price", by="session", order="step")], key="session")
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
    te = TargetEncode("item", "clicked")
    steps = [CountEncode("item"), te, GroupRank(te, by="session"), Diff("price", by="session", order="step")]
    before, turned = frame(), frame().assign(clicked=lambda df: (df.item == "a").astype(int))
    fs = FeatureSet(steps, key="session")
    made = [fs.fit(df).transform(frame(seed=1)) for df in (before, turned)]
    moved = [n for n in fs.outputs if not made[0][n].equals(made[1][n])]
    assert fs.from_targets == moved == ["te_item__clicked", "rank_te_item__clicked__session"]
    assert FeatureSet([CountEncode("item")]).from_targets == []


def test_only_what_is_listed_comes_back():
    rank = GroupRank(TargetEncode("item", "clicked"), by="session")
    made = FeatureSet([rank], key="session").fit_transform(frame())
    assert list(made.columns) == [*frame().columns, "rank_te_item__clicked__session"]


def test_equal_generators_are_one_step():
    fs = FeatureSet([GroupRank(TargetEncode("item", "clicked"), by="session"), TargetEncode("item", "clicked")])
    assert [type(s).__name__ for s in fs.steps] == ["TargetEncode", "GroupRank"]
    assert list(fs.fit_transform(frame()).columns)[-2:] == fs.outputs


def test_two_generators_of_one_column_are_refused():
    with pytest.raises(FastrecError, match="count_item"):
        FeatureSet([CountEncode("item"), CountEncode(["item"])])
    a, b = TargetEncode("item", "clicked", smooth=1), TargetEncode("item", "clicked", smooth=50)
    with pytest.raises(FastrecError, match="te_item__clicked"):  # neither is listed, but both would write it
        FeatureSet([Combine(a, "-", b, name="difference")])


def test_a_set_within_a_set_is_taken_apart():
    inner = FeatureSet([CountEncode("item"), Lag("price", by="session")])
    fs = FeatureSet([inner, Combine("price", "-", Lag("price", by="session"), name="change")], key="id")
    made = fs.fit_transform(frame())
    assert fs.outputs == ["count_item", "lag1_price__session", "change"]
    expected = frame()["price"] - frame().groupby("session")["price"].shift(1)
    assert made["change"].tolist() == pytest.approx(expected.tolist(), nan_ok=True)


def test_no_generator_at_all():
    fs = FeatureSet([])
    pd.testing.assert_frame_equal(fs.fit_transform(frame()), frame())
    pd.testing.assert_frame_equal(fs.transform(frame()), frame())
    assert [len(v) for _, v in fs.cross_fit(frame(6), [0, 1, 2, 0, 1, 2])] == [2, 2, 2]


def test_fit_then_transform_is_fit_transforms_state():
    features = [TargetEncode("item", "clicked"), CountEncode("item"), GroupStats(CountEncode("item"), by="session")]
    one, two = FeatureSet(features, key="id"), FeatureSet(FeatureSet(features).features, key="id")
    one.fit(frame())
    first = one.transform(frame(seed=3))
    two.fit_transform(frame())
    pd.testing.assert_frame_equal(two.transform(frame(seed=3)), first)


def test_cross_fit_equals_fitting_by_hand():
    data, folds = frame(), np.arange(60) % 3
    fs = FeatureSet([TargetEncode("item", "clicked"), CountEncode("item")], key="id", folds=4)
    inner = row_folds(Table.read(data), ["id"], 4, seed=INNER_SEED).cpu().numpy()

    def by_hand(train, rows):
        prior = train["clicked"].mean()
        stat = train.groupby("item")["clicked"].agg(["sum", "count"])
        value = (stat["sum"] + 20 * prior) / (stat["count"] + 20)
        return rows["item"].map(value).fillna(prior)

    found = list(fs.cross_fit(data, folds))
    assert len(found) == 3
    for k, (train, valid) in enumerate(found):
        rest = data[folds != k]
        assert train.index.tolist() == rest.index.tolist()
        assert valid["te_item__clicked"].tolist() == pytest.approx(by_hand(rest, data[folds == k]).tolist())
        for f in range(4):
            own = (inner == f) & (folds != k)
            expected = by_hand(data[(inner != f) & (folds != k)], data[own])
            assert train["te_item__clicked"][own[folds != k]].tolist() == pytest.approx(expected.tolist())
        assert train["count_item"].tolist() == rest["item"].map(data["item"].value_counts()).tolist()


def test_cross_fit_where_a_fold_is_empty_or_everything():
    found = list(FeatureSet([TargetEncode("item", "clicked")]).cross_fit(frame(6), [0, 0, 2, 2, 0, 2]))
    assert [(len(a), len(b)) for a, b in found] == [(3, 3), (3, 3)]
    ((train, valid),) = FeatureSet([TargetEncode("item", "clicked")]).cross_fit(frame(6), [0] * 6)
    assert len(train) == 0
    assert valid["te_item__clicked"].tolist() == [0] * 6
    assert list(FeatureSet([TargetEncode("item", "clicked")]).cross_fit(frame(0), [])) == []


def test_both_at_once_equal_each_alone_and_make_clean_columns_once():
    runs = []

    @feature(inputs=["price"], outputs=["twice"])
    def twice(price):
        runs.append(len(price))
        return price * 2

    def make():
        te = TargetEncode("item", "clicked")
        lag = Lag("clicked", by="item", order="step")
        listed = [
            twice,
            CountEncode("item", scope="all"),
            te,
            GroupRank(te, by="session"),
            lag,
            GroupRank(twice, by="item"),
        ]
        return FeatureSet(listed, key="session", target="clicked")

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


@pytest.mark.parametrize("library", ["polars", "pyarrow", "table"])
def test_cross_fit_gives_back_the_library_that_came_in(library):
    data = pa.Table.from_pandas(frame(12))
    if library == "polars":
        data = pytest.importorskip("polars").from_arrow(data)
    data = Table.read(data) if library == "table" else data
    for train, valid in FeatureSet([TargetEncode("item", "clicked")], key="id").cross_fit(data, [0, 1] * 6):
        assert type(train) is type(valid) is type(data)
        assert len(train) == len(valid) == 6


def test_a_chain_is_nested_only_where_rows_of_several_folds_meet():
    te = TargetEncode("item", "clicked")
    data = frame()
    inside = FeatureSet([GroupRank(te, by="session")], key="session").fit_transform(data)
    plain = FeatureSet([te], key="session").fit_transform(data)
    expected = plain.groupby("session")["te_item__clicked"].rank(method="min")
    assert inside["rank_te_item__clicked__session"].tolist() == expected.tolist()


def test_keys_of_several_columns_and_row_numbers():
    data = frame()
    for key in (None, "id", ["session", "item"], ["id"]):
        made = FeatureSet([TargetEncode("item", "clicked")], key=key, folds=4).fit_transform(data)
        keys = [key] if isinstance(key, str) else key or []
        fold = row_folds(Table.read(data), keys, 4, seed=INNER_SEED).cpu().numpy()
        for f in range(4):
            rest = data[fold != f]
            stat = rest.groupby("item")["clicked"].agg(["sum", "count"])
            prior = rest["clicked"].mean()
            value = data["item"][fold == f].map((stat["sum"] + 20 * prior) / (stat["count"] + 20)).fillna(prior)
            assert made["te_item__clicked"][fold == f].tolist() == pytest.approx(value.tolist())


def test_the_same_object_may_be_fitted_again():
    fs = FeatureSet([TargetEncode("item", "clicked")], key="id")
    fs.fit(frame(seed=5))
    first = fs.fit_transform(frame())
    pd.testing.assert_frame_equal(FeatureSet([TargetEncode("item", "clicked")], key="id").fit_transform(frame()), first)


def test_it_works_in_a_scikit_learn_pipeline():
    from sklearn.base import clone
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    data = frame()[["id", "session", "price", "step"]]
    fs = FeatureSet([TargetEncode("session", "y"), CountEncode("session"), Combine("price", "-", "step")])
    pipe = make_pipeline(fs, LogisticRegression(max_iter=2000))
    pipe.fit(data, frame()["clicked"])
    assert pipe.predict_proba(data).shape == (60, 2)
    assert list(pipe[:-1].get_feature_names_out()) == [*data.columns, *fs.outputs]
    again = clone(pipe).fit(data, frame()["clicked"])
    assert again.predict_proba(data) == pytest.approx(pipe.predict_proba(data))


def test_a_clone_keeps_what_several_generators_share():
    from sklearn.base import clone

    te = TargetEncode("item", "clicked")
    fs = FeatureSet([te, GroupRank(te, by="session"), Combine(te, "-", "price")], key="session")
    other = clone(fs)
    assert len(other.steps) == 3
    assert other.features[1].cols is other.features[0] is other.features[2].a
    assert other.features[0] is not te
    assert fs.get_params()["features"] is fs.get_params()["features"]


def test_parameters_of_a_set():
    fs = FeatureSet([CountEncode("item")], key="id")
    fs.set_params(folds=7, features=[CountEncode("session")])
    assert (fs.folds, fs.outputs) == (7, ["count_session"])
    with pytest.raises(FastrecError, match="no_such"):
        fs.set_params(no_such=1)
    with pytest.raises(FastrecError, match="folds"):
        FeatureSet([], folds=1)


def test_errors_say_which_generator_met_them():
    data = frame().assign(item=1.5).astype({"price": str})
    with pytest.raises(DataError) as caught:
        FeatureSet([CountEncode("item"), GroupStats("price", by="session")]).fit(data)
    assert "GroupStats" in str(caught.value)
    assert (caught.value.column, caught.value.row) == ("price", 0)
    with pytest.raises(NotFittedError, match="CountEncode"):
        FeatureSet([CountEncode("item")]).transform(frame())


def test_a_type_that_changed_is_named():
    fs = FeatureSet([CountEncode("item")]).fit(frame())
    with pytest.raises(FastrecError, match="CountEncode") as caught:
        fs.transform(frame().assign(item=1))
    assert caught.value.column == "item"


def test_another_table_is_given_by_name():
    log = frame(seed=7)
    fs = FeatureSet([History("item", order="step", table="log")])
    made = fs.fit_transform(frame(), tables={"log": log, "unused": None})
    expected = [int(((log["item"] == r.item) & (log["step"] < r.step)).sum()) for r in frame().itertuples()]
    assert made["history_count"].tolist() == expected
    with pytest.raises(FastrecError, match="column 'step': table 'log'"):
        fs.transform(frame(), tables={"log": log.drop(columns="step")})
    with pytest.raises(FastrecError, match="needs the table 'log', and the tables given are: 'logs'"):
        fs.transform(frame(), tables={"logs": log})
    with pytest.raises(FastrecError, match="the tables given are: none"):
        fs.transform(frame())


@pytest.mark.parametrize(("given", "named"), [([CountEncode], "CountEncode"), (["item"], "'item'"), (5, "5")])
def test_what_is_not_a_generator_is_refused(given, named):
    with pytest.raises(DataError, match=f"{named} is not a generator"):
        FeatureSet(given)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA")
def test_other_tables_and_rows_follow_to_the_device_of_the_rows():
    options = {"tables": {"log": frame(seed=7)}, "unlabeled": frame(seed=8)}
    fs = FeatureSet([History("item", order="step", table="log"), CountEncode("item", scope="all")])
    made = fs.fit_transform(Table.read(frame(), device="cuda"), **options)
    expected = fs.fit_transform(frame(), **options)
    for name in fs.outputs:
        assert made[name].values.is_cuda
        np.testing.assert_array_equal(made[name].number().cpu(), expected[name].to_numpy(np.float64, na_value=np.nan))


def test_saving_over_an_older_set_replaces_it(tmp_path):
    FeatureSet([CountEncode(["item", "session"]), Cross("item", "session")]).fit(frame()).save(tmp_path / "f")
    FeatureSet([CountEncode("item")]).fit(frame()).save(tmp_path / "f")
    again = FeatureSet.load(tmp_path / "f")
    assert again.outputs == ["count_item"]
    assert sorted(p.name for p in (tmp_path / "f").iterdir()) == ["000_CountEncode", "features.json"]


def test_saving_replaces_nothing_but_an_older_set(tmp_path):
    fs = FeatureSet([CountEncode("item")]).fit(frame())
    (tmp_path / "mine.csv").write_text("mine")
    with pytest.raises(WriteError, match=r"no features\.json"):
        fs.save(tmp_path)
    with pytest.raises(WriteError, match="this is a file"):
        fs.save(tmp_path / "mine.csv")
    assert (tmp_path / "mine.csv").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    fs.save(tmp_path / "empty")
    assert FeatureSet.load(tmp_path / "empty").outputs == ["count_item"]


def test_a_generator_that_is_not_registered_cannot_be_saved(tmp_path):
    class Mine(CountEncode):
        """One of a user's own."""

    with pytest.raises(FastrecError, match="Mine"):
        FeatureSet([Mine("item")]).fit(frame()).save(tmp_path / "f")
    assert list(tmp_path.iterdir()) == []


def test_a_table_stays_a_table_of_tensors():
    made = FeatureSet([CountEncode("item")]).fit_transform(Table.read(frame()))
    assert isinstance(made["count_item"].values, torch.Tensor)
    assert made["count_item"].values.dtype == torch.int64


def test_rows_may_be_a_folder_a_file_or_a_pattern_of_files(tmp_path):
    frame = pd.DataFrame({"k": list("abacab"), "y": [0, 1, 1, 0, 1, 0]})
    (tmp_path / "train").mkdir()
    for i in range(3):
        frame.iloc[2 * i : 2 * i + 2].to_parquet(tmp_path / "train" / f"part-{i}.parquet", index=False)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    expected = FeatureSet([CountEncode("k")]).fit_transform(frame)
    for given in (tmp_path / "train", str(tmp_path / "train" / "part-*.parquet"), tmp_path / "rows.csv"):
        features = FeatureSet([CountEncode("k")])
        made = features.fit_transform(given)
        assert isinstance(made, pd.DataFrame)
        assert made["k"].tolist() == expected["k"].tolist()
        assert made["count_k"].tolist() == expected["count_k"].tolist()
        assert features.transform(given)["count_k"].tolist() == expected["count_k"].tolist()
    with pytest.raises(FastrecError, match="no such file"):
        FeatureSet([CountEncode("k")]).fit(str(tmp_path / "nothing-*.parquet"))


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
    FeatureSet([CountEncode("item"), TargetEncode("item", "y")]).fit(df).save(folder)
    return folder / "features.json"


def rewrite(path, change):
    """The configuration changed, and its digests taken out, as someone who means harm would."""
    config = json.loads(path.read_text())
    config.pop("digests", None)
    change(config)
    path.write_text(json.dumps(config))


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A folder with saved features of a function in a module that is not imported."""
    (tmp_path / "fastrec_test_own.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "fastrec_test_own", raising=False)
    import fastrec_test_own

    FeatureSet([fastrec_test_own.twice]).save(tmp_path / "f")
    monkeypatch.delitem(sys.modules, "fastrec_test_own")
    (tmp_path / "ran").unlink()
    yield tmp_path
    sys.modules.pop("fastrec_test_own", None)


def test_a_module_that_is_not_imported_is_not_run(own_module):
    with pytest.raises(UnreadableFileError, match=r"features\.json.*fastrec_test_own.*trust='fastrec_test_own'"):
        FeatureSet.load(own_module / "f")
    for trust in ("fastrec_test", "fastrec_test_own.deep", ["other"]):
        with pytest.raises(UnreadableFileError, match="not imported"):
            FeatureSet.load(own_module / "f", trust=trust)
    assert not (own_module / "ran").exists()


@pytest.mark.parametrize("trust", ["fastrec_test_own", ["other", "fastrec_test_own"]])
def test_a_module_that_is_trusted_is_imported(own_module, trust):
    made = FeatureSet.load(own_module / "f", trust=trust).transform(pd.DataFrame({"x": [1.0, 2.0]}))
    assert made["twice"].tolist() == [2, 4]
    assert RowFunction.load(own_module / "f").outputs == ["twice"]  # imported by now


@pytest.mark.parametrize("name", ["this:x", "antigravity:geohash", "os:system", ":x", "", "fastrec.features:feature"])
def test_nothing_but_generators_is_taken(tmp_path, name):
    path = saved(tmp_path / "f")
    params = {"function": {"$function": name}, "cols": "x", "columns": "y"}
    rewrite(path, lambda c: c["steps"].append({"class": "RowFunction", "params": params, "state": None}))
    before = set(sys.modules)
    with pytest.raises(UnreadableFileError, match=r"features\.json"):
        FeatureSet.load(tmp_path / "f")
    assert not {"this", "antigravity"} & (set(sys.modules) - before)


OUTSIDE = ["../other", "..", ".", "", "/etc", "000_CountEncode/../../other", "a\\b", "a\0b", 3, ["x"], {"x": 1}]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_state_outside_the_folder_is_refused(tmp_path, name):
    path = saved(tmp_path / "f")
    (tmp_path / "f" / "000_CountEncode").rename(tmp_path / "other")
    rewrite(path, lambda c: c["steps"][0].update(state=name))
    with pytest.raises(UnreadableFileError, match="no folder beside this file"):
        FeatureSet.load(tmp_path / "f")


@pytest.mark.parametrize("what", ["folder", "state.json", "state.safetensors"])
def test_a_link_is_refused(tmp_path, what):
    saved(tmp_path / "f")
    inside = tmp_path / "f" / "000_CountEncode" / ("" if what == "folder" else what)
    inside.rename(tmp_path / "elsewhere")
    inside.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnreadableFileError, match="is a link"):
        FeatureSet.load(tmp_path / "f")


def test_a_folder_that_is_reached_by_a_link_is_read(tmp_path):
    saved(tmp_path / "f")
    (tmp_path / "link").symlink_to(tmp_path / "f")
    assert FeatureSet.load(tmp_path / "link").outputs == ["count_item", "te_item__y"]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/b"])
def test_a_state_of_a_proc_is_written_nowhere_else(tmp_path, name):
    proc = Features(FeatureSet([CountEncode("item")]).fit(pd.DataFrame({"item": ["a"]})))
    state = proc.to_state()
    assert Features.from_state(state).feature_set.outputs == ["count_item"]
    state["states"] = {name: {"x": 1}}
    with pytest.raises(UnreadableFileError, match="no folder beside this file"):
        Features.from_state(state)


def test_every_changed_byte_is_noticed(tmp_path):
    saved(tmp_path / "f")
    files = [p for p in sorted((tmp_path / "f").rglob("*")) if p.is_file()]
    assert len(files) == 5
    for file in files:
        whole = file.read_bytes()
        for place in range(0, len(whole), max(len(whole) // 12, 1)):
            changed = bytearray(whole)
            changed[place] ^= 1
            file.write_bytes(bytes(changed))
            if file.suffix == ".json" and _equal(whole, bytes(changed)):
                continue
            with pytest.raises(UnreadableFileError):
                FeatureSet.load(tmp_path / "f")
        file.write_bytes(whole)
    assert FeatureSet.load(tmp_path / "f").outputs == ["count_item", "te_item__y"]


def _equal(a, b):
    try:
        return json.loads(a) == json.loads(b) and "digests" not in json.loads(a)
    except ValueError:
        return False


def test_files_of_two_saves_are_not_mixed(tmp_path):
    saved(tmp_path / "f")
    FeatureSet([CountEncode("item")]).fit(pd.DataFrame({"item": ["a", "c"]})).save(tmp_path / "g")
    for name in ("state.json", "state.safetensors"):
        (tmp_path / "g" / "000_CountEncode" / name).replace(tmp_path / "f" / "000_CountEncode" / name)
    with pytest.raises(UnreadableFileError, match=r"000_CountEncode.*not those that were written"):
        FeatureSet.load(tmp_path / "f")


def test_what_was_saved_before_there_were_digests_is_read(tmp_path):
    rewrite(saved(tmp_path / "f"), lambda c: None)
    assert FeatureSet.load(tmp_path / "f").outputs == ["count_item", "te_item__y"]


SHAPES = {
    "deep": "[" * 100_000,
    "a list of steps that are none": '{"steps": [1], "listed": []}',
    "steps that are text": '{"steps": "abc", "listed": []}',
    "steps that are null": '{"steps": null}',
    "digests that are none": '{"steps": [], "listed": [], "digests": 3}',
    "no option": '{"steps": [], "listed": []}',
    "a step that comes later": '{"steps": [{"class": "CountEncode", "params": {"cols": {"$step": 7}}, "state": null}]}',
    "parameters of a list": '{"steps": [{"class": "CountEncode", "params": [1], "state": null}]}',
    "a class that is a list": '{"steps": [{"class": ["CountEncode"], "params": {}, "state": null}]}',
    "another class": '{"steps": [{"class": "FeatureSet", "params": {"features": []}, "state": null}]}',
    "a function": '{"steps": [{"class": "search_crosses", "params": {}, "state": null}]}',
    "a selector": '{"steps": [{"class": "CountEncode", "params": {"cols": {"$selector": 3}}, "state": null}]}',
    "a function that is a number": (
        '{"steps": [{"class": "RowFunction", "params": {"function": {"$function": 3}}, "state": null}]}'
    ),
}


@pytest.mark.parametrize("what", SHAPES)
def test_a_configuration_of_another_shape_is_named(tmp_path, what):
    (tmp_path / "features.json").write_text(SHAPES[what])
    with pytest.raises(UnreadableFileError, match=r"features\.json"):
        FeatureSet.load(tmp_path)


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/b", "..", "", "a\\b", "C:x"])
def test_a_models_name_is_no_path(name):
    class Recipe:
        name = "tiny"

        def baselines(self):
            return []

        def models(self, *, bs=None):
            return [ColumnRanker("fine", ["x"]), self.model]

    recipe = Recipe()
    recipe.model = ColumnRanker("display_order.2 (new)", ["x"])
    check_models(recipe, None)
    recipe.model = ColumnRanker(name, ["x"])
    with pytest.raises(DataError, match="name"):
        check_models(recipe, None)
    assert not is_plain_name(name)
