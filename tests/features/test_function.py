import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastrec.errors import DataError, UnreadableFileError
from fastrec.features import FeatureSet, RowFunction, TargetEncode, feature
from tests.features.examples import functions


@feature(inputs=["price", "nights"], outputs="total")
def total(price, nights):
    return price * nights


def frame():
    return pd.DataFrame({"user": [2, 1, 2, None], "price": [1.0, None, 3.0, 4.0], "nights": [1, 2, 3, 4]})


def test_a_decorated_function_still_is_one():
    assert total(2, 3) == 6
    assert total.outputs == ["total"]
    assert total.fit_transform(frame())["total"].fillna(-1).tolist() == [1.0, -1.0, 9.0, 16.0]
    grouped = functions.feature(inputs="nights", outputs="n", by="user")(len)
    assert grouped.fit_transform(frame())["n"].fillna(-1).tolist() == [2, 1, 2, -1]  # none without a group
    both = RowFunction(lambda x: {"b": x + 1, "a": x}, "nights", ["a", "b"])  # a dict may come back
    assert both.fit_transform(frame())[["a", "b"]].values.tolist() == [[1, 2], [2, 3], [3, 4], [4, 5]]
    a, b = (RowFunction(lambda x, k=k: x + k, "nights", f"plus{k}") for k in (1, 2))  # two of one name
    made = FeatureSet([a, b]).fit_transform(frame())
    assert made[["plus1", "plus2"]].values.tolist() == [[2, 3], [3, 4], [4, 5], [5, 6]]


@given(rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(-4, 4)), min_size=1, max_size=12))
def test_groups_arrive_whole_and_in_order(rows):
    table = pd.DataFrame(rows, columns=["g", "t", "x"])

    @feature(inputs=["x"], outputs=["sum_so_far", "size"], by="g", order="t")
    def running(x):
        return torch.cumsum(x, 0), len(x)

    made = running.fit_transform(table)
    ordered = table.sort_values(["g", "t"], kind="stable")
    expected = ordered.groupby("g")["x"].cumsum().reindex(table.index)
    assert made["sum_so_far"].tolist() == expected.tolist()
    assert made["size"].tolist() == table.groupby("g")["x"].transform("size").tolist()


def test_text_arrives_as_text():
    shout = RowFunction(lambda words: [None if w is None else w.upper() for w in words], "w", "loud")
    made = shout.fit_transform(pd.DataFrame({"w": ["a", None, "ß"]}))
    assert made["loud"].astype(object).where(made["loud"].notna(), None).tolist() == ["A", None, "SS"]


def test_saving_keeps_the_name_of_the_function(tmp_path):
    FeatureSet([functions.total, functions.over_mean]).save(tmp_path / "f")
    again = FeatureSet.load(tmp_path / "f")
    assert again.features[0].function is functions.total.function
    text = (tmp_path / "f" / "features.json").read_text()
    assert "functions:total" in text
    for bad in ("functions:columns", "no_such_module:total", "functions:torch"):
        (tmp_path / "f" / "features.json").write_text(text.replace("functions:total", bad))
        with pytest.raises(UnreadableFileError):
            FeatureSet.load(tmp_path / "f")
    with pytest.raises(DataError, match="cannot be found again"):
        FeatureSet([RowFunction(lambda x: x, "a", "b")]).save(tmp_path / "g")
    assert not (tmp_path / "g").exists()


def test_a_function_after_an_encoding_is_nested():
    data = pd.DataFrame({"id": range(30), "item": list("abc") * 10, "y": np.arange(30) % 2})
    spread = feature(inputs=TargetEncode("item", "y"), outputs="spread", by="item")(lambda te: te - te.mean())
    one, two = (
        FeatureSet([spread], key="id", folds=3).fit_transform(d)["spread"][0]
        for d in (data, data.assign(y=data["y"].where(data["id"] > 0, 1 - data["y"])))
    )
    assert one == two
