from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

dask = pytest.importorskip("dask")
dd = pytest.importorskip("dask.dataframe")

from fastrec.errors import DataError, WriteError  # noqa: E402
from fastrec.features import FeatureSet, Lag, TargetEncode  # noqa: E402
from fastrec.scale import frame_from_dask  # noqa: E402
from fastrec.tabular import Categorify, FillMissing, Normalize, TabularFrame  # noqa: E402

pytestmark = pytest.mark.usefixtures("in_this_thread")
PROCS = [Categorify, FillMissing, Normalize]
COLUMNS = (PROCS, ["item"], ["price", "te_item__y", "lag1_price__item", "lag1_y__item"], "y")


def rows(n=300, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"id": np.arange(n), "item": rng.choice(list("abcde"), n), "price": rng.normal(size=n)})
    frame.loc[rng.random(n) < 0.1, "price"] = np.nan
    return frame.assign(y=rng.integers(0, 2, n).astype("float32"))


def batches(dls, i):
    found = [torch.cat([cats.float(), conts, ys], 1) for cats, conts, ys in dls[i]]
    whole = torch.cat(found).cpu().numpy()
    return whole[np.lexsort(whole.T)]


def test_batches_are_those_of_a_frame_in_memory(tmp_path):
    train, valid = rows(), rows(80, seed=1).assign(id=range(300, 380))
    steps = [TargetEncode("item", "y"), *(Lag(name, by="item", order="id") for name in ("price", "y"))]
    features = FeatureSet(steps, key="id")
    parts = dd.from_pandas(train, npartitions=4), dd.from_pandas(valid, npartitions=2)
    frame = frame_from_dask(parts[0], tmp_path / "rows", *COLUMNS, features=features, valid=parts[1], device="cpu")
    assert len(list((tmp_path / "rows" / "train").glob("*.parquet"))) == 4
    assert any((tmp_path / "rows" / "packed").iterdir())
    own = FeatureSet(steps, key="id", target="y")
    learned, asked = own.fit_transform(train), valid.drop(columns="y")  # features do not see the targets of valid
    asked = own.transform(asked, history=train).assign(y=valid["y"])
    both = pd.concat([learned, asked], ignore_index=True)
    splits = (list(range(300)), list(range(300, 380)))
    memory = TabularFrame(both, *COLUMNS, splits=splits, device="cpu")
    streamed, held = frame.dataloaders(bs=64, drop_last=False), memory.dataloaders(bs=64, drop_last=False)
    for i in (0, 1):
        np.testing.assert_allclose(batches(streamed, i), batches(held, i), rtol=1e-5, atol=1e-6)


def test_what_is_no_dask_frame_and_what_is_not_replaced(tmp_path):
    with pytest.raises(DataError, match="DataFrame is no Dask frame"):
        frame_from_dask(rows(), tmp_path / "rows", *COLUMNS)
    (tmp_path / "rows" / "train").mkdir(parents=True)
    (tmp_path / "rows" / "train" / "mine.txt").write_text("mine")
    with pytest.raises(WriteError):
        frame_from_dask(dd.from_pandas(rows(), npartitions=2), tmp_path / "rows", PROCS, ["item"], ["price"], "y")
    assert (tmp_path / "rows" / "train" / "mine.txt").read_text() == "mine"
