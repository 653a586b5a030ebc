from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("dask")
dd = pytest.importorskip("dask.dataframe")

from fastrec.errors import DataError, NotFittedError  # noqa: E402
from fastrec.estimators import XGBRanker  # noqa: E402
from fastrec.features import Combine, CountEncode, FeatureSet, GroupRank, GroupStats, Lag, TargetEncode  # noqa: E402
from fastrec.scale import fit_on_dask, predict_on_dask  # noqa: E402
from fastrec.table import Table  # noqa: E402
from fastrec.validate import Lists  # noqa: E402
from tests.scale.dask_parts import assert_near, events  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # sockets to workers that are gone
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
COLUMNS = list("abcd")


@pytest.fixture(scope="module")
def workers():
    options = {"n_workers": 2, "threads_per_worker": 1, "memory_limit": "2GB", "dashboard_address": ":0"}
    with distributed.LocalCluster(processes=True, **options) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture
def worker():
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}
    with distributed.LocalCluster(processes=False, **options) as cluster, distributed.Client(cluster) as client:
        yield client


def part(frame, marker):
    """A partition; where a marker is named that is not there, the worker that reads it dies the first time."""
    if marker is not None and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return frame


def features():
    less = Combine(Lag("price", by="user", order="id"), "-", GroupStats("price", by="item"))
    return FeatureSet([CountEncode("item"), TargetEncode("item", "y"), less, GroupRank("price", by="user")], key="id")


def test_a_worker_is_killed_in_the_middle_and_nothing_is_different(workers, tmp_path):
    frame = events(800)
    marker = str(tmp_path / "killed")
    parts = [frame.iloc[a : a + 200] for a in range(0, len(frame), 200)]
    lazy = [dask.delayed(part)(p, marker if i == 2 else None) for i, p in enumerate(parts)]
    before = set(workers.scheduler_info()["workers"])
    made = features().fit_transform(dd.from_delayed(lazy, meta=frame.iloc[:0], verify_meta=False))
    got = made.compute()
    assert Path(marker).exists()
    assert set(workers.scheduler_info(n_workers=-1)["workers"]) != before  # the one that died came back as another
    expected = features().fit_transform(frame)
    assert_near(expected, got, features().outputs, near=1e-12)


def candidates(n=300, seed=0):
    """Lists of 1 to 11 candidates, one of each chosen by what two columns say."""
    rng = np.random.default_rng(seed)
    lists = np.repeat(np.arange(n) * 7, rng.integers(1, 12, n))
    values = rng.normal(size=(len(lists), 4)).astype("float32")
    frame = pd.DataFrame(values, columns=COLUMNS).assign(list=lists)
    frame["u"] = values[:, 0] + values[:, 1] ** 2 / 2 + rng.gumbel(size=len(lists)) * 0.7
    frame["y"] = 0.0
    frame.loc[frame.groupby("list")["u"].idxmax(), "y"] = 1.0
    return frame.drop(columns="u")


def as_lists(frame):
    given = {"conts": COLUMNS, "label": torch.tensor(frame["y"].to_numpy())}
    return Lists(Table.read(frame), torch.tensor(frame["list"].to_numpy()), **given)


def first_place(frame, scores):
    """Mean reciprocal rank of what was chosen, worked out with pandas."""
    ordered = frame.assign(s=np.asarray(scores)).sort_values(["list", "s"], ascending=[True, False])
    place = ordered.groupby("list").cumcount() + 1
    return float((ordered["y"] / place).groupby(ordered["list"]).sum().mean())


@pytest.mark.parametrize("early", [None, 3])
def test_one_worker_grows_the_trees_of_the_ranker_itself(worker, early):
    frame = candidates()
    mixed = frame.sample(frac=1, random_state=0, ignore_index=True)
    same = mixed.sort_values("list", kind="stable", ignore_index=True)
    alone = XGBRanker("xgb", rounds=12, early_stopping_rounds=early, nthread=1).fit(as_lists(same))
    ranker = XGBRanker("xgb", rounds=12, early_stopping_rounds=early, nthread=1)
    given = dd.from_pandas(mixed, npartitions=3, sort=False)
    assert fit_on_dask(ranker, given, columns=COLUMNS, target="y", groups="list") is ranker
    assert ranker._parts[0].get_dump() == alone._parts[0].get_dump()
    assert ranker.trace.importance == alone.trace.importance
    scores = predict_on_dask(ranker, given).compute()
    assert scores.tolist() == alone.predict(as_lists(mixed.assign(list=0))).tolist()
    assert scores.index.equals(mixed.index)


def test_two_workers_rank_as_well_as_one_and_keep_lists_whole(workers, tmp_path):
    frame, new = candidates(900), candidates(3000, seed=1)
    mixed = frame.sample(frac=1, random_state=0, ignore_index=True)
    ranker, alone = (XGBRanker("xgb", rounds=40, nthread=1) for _ in "ab")
    fit_on_dask(ranker, dd.from_pandas(mixed, npartitions=4, sort=False), columns=COLUMNS, target="y", groups="list")
    alone.fit(as_lists(frame))
    scores = predict_on_dask(ranker, dd.from_pandas(new, npartitions=2)).compute()
    together, single = first_place(new, scores), first_place(new, alone.predict(as_lists(new)))
    assert together == pytest.approx(single, abs=0.015)
    assert together > 0.7  # at random it is .42
    ranker.save(tmp_path / "ranker")
    assert XGBRanker.load(tmp_path / "ranker").predict(as_lists(new)).tolist() == scores.tolist()


def test_what_cannot_be_learned_is_named(worker):
    frame = candidates(20).assign(text="word")
    given = dd.from_pandas(frame, npartitions=2)
    for words, rows, columns in (
        ("holds text", given, ["a", "text"]),
        ("xgb has no list to learn from", given.assign(y=0.0), COLUMNS),
        ("no Dask frame", frame, COLUMNS),
    ):
        with pytest.raises(DataError, match=words):
            fit_on_dask(XGBRanker("xgb"), rows, columns=columns, target="y", groups="list")
    with pytest.raises(DataError, match=r"'max_dpeth' here. Did you mean max_depth"):
        fit_on_dask(XGBRanker("xgb", max_dpeth=3), given, columns=COLUMNS, target="y", groups="list")
    with pytest.raises(NotFittedError, match="has not been trained"):
        predict_on_dask(XGBRanker("xgb"), given)
