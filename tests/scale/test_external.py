from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
import xgboost as xgb
from fastai.data.block import CategoryBlock

from fastrec.errors import DataError, DataWarning, MissingColumnError
from fastrec.estimators import XGBRanker
from fastrec.scale import external_matrix, fit_on_parts, write_predictions
from fastrec.table import Table
from fastrec.tabular import Categorify, FillMissing, ParquetFrame
from fastrec.training import rec_learner
from fastrec.validate import Lists
from tests._core.refusals import refused

N = 700
PARAMS = {"max_depth": 3, "eta": 0.5, "nthread": 1, "max_bin": 64, "seed": 0}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"id": np.arange(N) + 7, "name": [f"n{i}" for i in range(N)], "city": rng.choice([*"abcd"], N)})
    df.loc[rng.random(N) < 0.1, "city"] = None
    df["x"], df["z"] = rng.integers(0, 40, N).astype(float), rng.integers(0, 9, N).astype(float)
    df.loc[rng.random(N) < 0.1, "x"] = np.nan
    score = df.x.fillna(20) / 10 + (df.city == "a") + rng.normal(size=N)
    df["y"] = (score > 2.5).astype(int)
    lists = np.sort(rng.integers(0, 90, N))
    df["list"] = (lists * 7_919) % 1_009  # together, but not in ascending order
    df.to_parquet(folder / "rows.parquet", row_group_size=60)
    df.drop(columns=["y", "list"]).to_parquet(folder / "test.parquet", row_group_size=90)
    return folder, df


def in_memory(df: pd.DataFrame) -> tuple[np.ndarray, list[str]]:
    codes = pd.Categorical(df.city, categories=list("abcd")).codes.astype(np.float32)
    return np.column_stack([np.where(codes < 0, np.nan, codes), df.x, df.z]).astype(np.float32), ["c", "q", "q"]


def parquet_frame(folder, ys=("y",), **options):
    return ParquetFrame(
        folder / "rows.parquet", [Categorify], ["city"], ["x", "z"], list(ys), y_dtype=torch.float64, device="cpu",
        **options,
    )  # fmt: skip


def test_trees_from_files_are_those_from_memory(files, tmp_path):
    folder, df = files
    values, types = in_memory(df)
    params = {**PARAMS, "objective": "binary:logistic"}
    plain = xgb.QuantileDMatrix(values, df.y, feature_types=types, enable_categorical=True, max_bin=64)
    expected = xgb.train(params, plain, 8).inplace_predict(values)
    with pytest.warns(DataWarning, match="share 1 of their files"):
        frame = parquet_frame(folder, valid=folder / "rows.parquet")
    matrix = external_matrix(frame, tmp_path / "train", max_bin=64, batch_rows=64)
    assert matrix.num_row() == N
    checked = external_matrix(frame, tmp_path / "valid", valid=True, ref=matrix, max_bin=64, batch_rows=100)
    seen = {}
    booster = xgb.train(params, matrix, 8, evals=[(checked, "valid")], evals_result=seen, verbose_eval=False)
    assert booster.feature_names == ["city", "x", "z"]
    assert write_predictions(
        booster, frame, folder / "test.parquet", tmp_path / "out.parquet", ids=["id", "name"], bs=64
    )
    found = pq.read_table(tmp_path / "out.parquet").to_pandas()
    assert found.columns.tolist() == ["id", "name", "prediction"]
    assert found.id.tolist() == df.id.tolist()
    assert found.name.tolist() == df.name.tolist()
    assert np.allclose(found.prediction, expected, atol=1e-6)
    loss = -np.log(np.where(df.y == 1, expected, 1 - expected)).mean()
    assert seen["valid"]["logloss"][-1] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("batch_rows", [3, 64, 5_000])
def test_a_list_is_never_cut_in_two(files, tmp_path, batch_rows):
    folder, df = files
    frame = parquet_frame(folder, ("y", "list"))
    matrix = external_matrix(frame, tmp_path / "rows", lists="list", batch_rows=batch_rows)
    sizes = df.groupby((df.list != df.list.shift()).cumsum()).size()
    assert np.diff(matrix.get_uint_info("group_ptr")).tolist() == sizes.tolist()
    assert matrix.get_label().tolist() == df.y.tolist()


def test_a_nets_predictions_come_as_from_memory(files, tmp_path):
    folder, df = files
    procs = [Categorify, FillMissing]
    frame = ParquetFrame(folder / "rows.parquet", procs, ["city"], ["x", "z"], "y", CategoryBlock(), device="cpu")
    learn = rec_learner(frame.dataloaders(bs=64, seed=0), layers=[4])
    expected, _ = learn.get_preds(dl=learn.dls.test_dl(df.drop(columns="y")))
    rows = write_predictions(learn, frame, folder / "test.parquet", tmp_path / "out.parquet", bs=50)
    found = pq.read_table(tmp_path / "out.parquet").to_pandas()
    assert rows == N
    assert found.columns.tolist() == ["prediction_0", "prediction_1"]
    assert np.allclose(found.to_numpy(), expected.numpy(), atol=1e-6)


def test_what_is_not_there_is_named_and_a_file_without_rows_gives_one_without_predictions(files, tmp_path):
    folder, _ = files
    frame, out = parquet_frame(folder), tmp_path / "out.parquet"
    refused(DataError, "no target", lambda: external_matrix(parquet_frame(folder, ()), tmp_path / "a"))
    refused(DataError, "'list'", lambda: external_matrix(frame, tmp_path / "a", lists="list"))
    refused(DataError, "no validation rows", lambda: external_matrix(frame, tmp_path / "a", valid=True))
    booster, none = xgb.Booster(), tmp_path / "none.parquet"
    pq.write_table(pq.read_table(folder / "test.parquet").slice(0, 0), none)
    refused(MissingColumnError, "'nothing'", lambda: write_predictions(booster, frame, none, out, ids=["nothing"]))
    assert not out.exists()
    assert write_predictions(booster, frame, none, out, ids=["id"]) == 0
    assert (pq.read_table(out).num_rows, pq.read_table(out).column_names) == (0, ["id", "prediction"])


TREES = {"rounds": 6, "max_depth": 3, "nthread": 1, "subsample": 1.0, "colsample_bytree": 1.0}


def lists(count, seed, names="abcd"):
    """Lists of five, of columns with few values: bins do not depend on how rows come."""
    g = torch.Generator().manual_seed(seed)
    n = 5 * count
    x, city = torch.randint(0, 9, (n,), generator=g), torch.randint(0, len(names), (n,), generator=g)
    score = x + 2.0 * (city == 1) + 3 * torch.rand(n, generator=g)
    label = torch.zeros(count, 5).scatter_(1, score.reshape(count, 5).argmax(1, keepdim=True), 1.0).flatten()
    table = Table({"x": x.double(), "city": [names[c] for c in city.tolist()]})
    weight = torch.where(torch.arange(n) // 5 % 2 == 0, 1.0, 0.5)
    return Lists(table, torch.arange(n) // 5, ["city"], ["x"], label=label, weight=weight)


@pytest.mark.parametrize("objective", ["rank:ndcg", "binary:logistic"])
def test_parts_grow_the_trees_of_the_whole(tmp_path, objective):
    whole = lists(120, 0)
    cuts = [torch.arange(a * 5, b * 5) for a, b in ((0, 50), (50, 51), (51, 120))]
    whole.label[cuts[1]] = 0  # of the second part no list teaches anything
    expected = XGBRanker("a", objective=objective, **TREES).fit(whole)
    got = fit_on_parts(
        XGBRanker("a", objective=objective, **TREES), [partial(whole.take, c) for c in cuts], tmp_path / "cache"
    )
    new = lists(30, 1, "abce")  # one value that training has not
    assert got.predict(new).tolist() == pytest.approx(expected.predict(new).tolist(), abs=1e-5)
    assert len(set(got.predict(new).tolist())) > 5
    got.save(tmp_path / "saved")
    assert torch.equal(XGBRanker.load(tmp_path / "saved").predict(new), got.predict(new))


def test_what_cannot_be_grown_is_refused(tmp_path):
    whole, early = lists(10, 0), XGBRanker("a", early_stopping_rounds=3)
    odd, said = XGBRanker("a", max_dpeth=3), r"'max_dpeth' here. Did you mean max_depth"
    refused(DataError, said, lambda: fit_on_parts(odd, [lambda: whole], tmp_path))
    refused(DataError, "stops early", lambda: fit_on_parts(early, [lambda: whole], tmp_path))
    whole.label[:] = 0
    refused(DataError, "no list to learn from", lambda: fit_on_parts(XGBRanker("a"), [lambda: whole], tmp_path))
