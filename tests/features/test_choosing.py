from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from fastrec.errors import DataError, MissingColumnError, NotFittedError
from fastrec.features import CountEncode, FeatureSet, GroupRank, Lag, TargetEncode, category, matching, number, temporal


@pytest.fixture
def frame():
    return pd.DataFrame(
        {
            "id": range(6),
            "city": list("aabbcd"),
            "sex": pd.Series(list("fmfmfm"), dtype="category"),
            "new": [True, False] * 3,
            "store": [1, 1, 2, 2, 3, 3],
            "price": [1.0, 2.0, None, 4.0, 5.0, 6.0],
            "day": pd.date_range("2024-01-01", periods=6),
            "clicked": [0, 1, 0, 1, 1, 0],
            "label": list("xyxyxy"),
        }
    )


def chosen(selector, frame, **options):
    fs = FeatureSet([CountEncode(selector)], **options).fit(frame)
    return [n.removeprefix("count_") for n in fs.outputs]


def test_kinds_of_columns(frame):
    assert chosen(category(), frame) == ["city", "sex", "new", "label"]
    assert chosen(category(integers=True), frame) == ["id", "city", "sex", "new", "store", "clicked", "label"]
    assert chosen(number(), frame) == ["id", "store", "price", "clicked"]
    assert chosen(temporal(), frame) == ["day"]
    assert chosen(matching("^s"), frame) == ["sex", "store"]


def test_cardinality_is_counted_without_missing_values(frame):
    frame["city"] = ["a", "a", "b", "b", "c", None]
    assert chosen(category(min_card=3), frame) == ["city"]
    assert chosen(category(max_card=2), frame) == ["sex", "new", "label"]
    assert chosen(category(min_card=3, max_card=3, integers=True), frame) == ["city", "store"]


def test_selectors_join_with_selectors_and_names(frame):
    assert chosen(category() | "store", frame) == ["city", "sex", "new", "store", "label"]
    assert chosen(category() - ["sex", "new"], frame) == ["city", "label"]
    assert chosen((category() | number()) & matching("e"), frame) == [
        "sex",
        "new",
        "store",
        "price",
        "clicked",
        "label",
    ]
    assert chosen(["price", category(), "city"], frame) == ["price", "city", "sex", "new", "label"]
    with pytest.raises(MissingColumnError, match="nothing"):
        chosen(category() | "nothing", frame)


def test_equal_selectors_in_several_generators_are_all_filled_in(frame):
    fs = FeatureSet([CountEncode(category(max_card=2)), GroupRank(CountEncode(category(max_card=2)), by="store")])
    made = fs.fit_transform(frame)
    assert made["rank_count_new__store"].tolist() == [1] * 6
    assert len(fs.steps) == 2


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


def test_a_generator_alone_and_in_cross_fit(frame):
    count = CountEncode(category(max_card=2))
    assert count.fit_transform(frame).columns[-3:].tolist() == ["count_sex", "count_new", "count_label"]
    assert count.outputs == ["count_sex", "count_new", "count_label"]
    te = FeatureSet([TargetEncode(category() - "label", "clicked")], key="id")
    for train, valid in te.cross_fit(frame, [0, 1] * 3):
        assert train.columns[-1] == valid.columns[-1] == "te_new__clicked"


def test_saved_and_loaded(frame, tmp_path):
    fs = FeatureSet([CountEncode((category() | ["store"]) - matching("^l"))], keep="outputs").fit(frame)
    fs.save(tmp_path / "f")
    again = FeatureSet.load(tmp_path / "f")
    assert again.outputs == fs.outputs == ["count_city", "count_sex", "count_new", "count_store"]
    pd.testing.assert_frame_equal(again.transform(frame), fs.transform(frame))
    open_again = FeatureSet([CountEncode(number())])
    open_again.save(tmp_path / "open")
    assert FeatureSet.load(tmp_path / "open").fit(frame[["city", "price"]]).outputs == ["count_price"]


def test_nothing_to_choose_is_named(frame):
    with pytest.raises(DataError, match=r"no column is chosen by temporal\(\)"):
        FeatureSet([CountEncode(temporal())]).fit(frame[["city"]])


def test_two_generators_of_one_column_are_found_when_it_is_chosen(frame):
    fs = FeatureSet([Lag("price"), Lag(number(), n=[1, 2])])
    with pytest.raises(DataError, match="lag1_price"):
        fs.fit(frame)


def test_polars_and_arrow(frame):
    pl = pytest.importorskip("polars")
    frame = frame.drop(columns="sex")
    for other in (pl.from_pandas(frame), pl.from_pandas(frame).to_arrow()):
        assert chosen(category(), other) == ["city", "new", "label"]
    assert np.all([chosen(number(), pl.from_pandas(frame)) == ["id", "store", "price", "clicked"]])
