"""Tables by the names of columns and categories."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from fastai.data.block import RegressionBlock
from fastai.tabular.core import TabularPandas

from fastrec.errors import DataError, MissingColumnError, MissingFileError
from fastrec.tabular import Categorify, TabularFrame
from fastrec.training import rec_learner


def learner(cities, brands=("x", "y"), *, stock=False, **options):
    n = max(len(cities), len(brands))
    pad = lambda values: [*values] + [values[0]] * (n - len(values))  # noqa: E731
    df = pd.DataFrame({"city": pad(list(cities)), "brand": pad(list(brands)), "y": [float(i) for i in range(n)]})
    if stock:
        from fastai.tabular.core import Categorify as Stock

        to = TabularPandas(df, [Stock], ["city", "brand"], [], "y", RegressionBlock())
    else:
        to = TabularFrame(df, [Categorify], ["city", "brand"], [], "y", RegressionBlock())
    return rec_learner(to.dataloaders(2, drop_last=False), layers=[4], **options)


@pytest.mark.parametrize("stock", [False, True])
def test_a_table_is_a_frame_of_category_and_vector(stock):
    learn = learner(["Rome", "Oslo", "Bern"], stock=stock)
    frame = learn.table("city")
    assert list(frame.index) == ["#na#", "Bern", "Oslo", "Rome"]
    assert frame.index.name == "city"
    vectors = learn.model.embeds(torch.tensor([[2, 0]]))[0, : frame.shape[1]]
    assert frame.loc["Oslo"].tolist() == vectors.tolist()
    frame.loc["Oslo"] = 7.0  # a copy
    assert not (learn.model.embeds.table("city") == 7).any()
    with pytest.raises(MissingColumnError, match="citty"):
        learn.table("citty")


@pytest.mark.parametrize("stock", [False, True])
def test_a_grown_vocabulary_starts_from_what_was_known(tmp_path, stock):
    old = learner(["Rome", "Oslo", "Bern"], stock=stock)
    old.save_tables(tmp_path / "tables")
    new = learner(["Wien", "Bern", "Rome", "Graz"], emb_szs={"city": old.table("city").shape[1]})
    before = new.table("city")
    assert new.load_tables(tmp_path / "tables") == {"city": 3, "brand": 3}
    after = new.table("city")
    for known in ("#na#", "Bern", "Rome"):
        assert after.loc[known].tolist() == old.table("city").loc[known].tolist()
    for grown in ("Wien", "Graz"):
        assert after.loc[grown].tolist() == before.loc[grown].tolist()
    assert {p.suffix for p in (tmp_path / "tables").iterdir()} == {".json", ".safetensors"}


def test_only_the_columns_that_are_named(tmp_path):
    old, new = learner(["Rome", "Oslo"]), learner(["Rome", "Oslo"])
    old.save_tables(tmp_path / "t", ["city"])
    kept = new.table("brand")
    assert new.load_tables(tmp_path / "t") == {"city": 3}
    assert new.table("brand").equals(kept)
    with pytest.raises(MissingColumnError, match="brand"):
        new.load_tables(tmp_path / "t", ["brand"])


def test_other_widths_and_other_folders_are_refused(tmp_path):
    learner(["Rome", "Oslo"]).save_tables(tmp_path / "t")
    with pytest.raises(DataError, match=r"city.*vectors have 4 numbers, the model's 8.*emb_szs=\{'city': 4\}"):
        learner(["Rome", "Oslo"], emb_szs={"city": 8}).load_tables(tmp_path / "t")
    with pytest.raises(MissingFileError, match="there is no such file"):
        learner(["Rome", "Oslo"]).load_tables(tmp_path / "none")
