"""Features of a dask-cuDF frame beside those of one cuDF frame: the same values, and the time of both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from _gpu_trace import seconds_of
from _logs import event_log
from _timing import Record, Timing, record

from fastrec.features import CountEncode, FeatureSet, GroupStats, Lag, TargetEncode

PARTITIONS = 8


def measure(device: torch.device, *, rows: int) -> Iterator[Record]:
    """Four features of an event log, ``fit_transform``; off CUDA pandas and Dask stand for cuDF and dask-cuDF."""
    frame, cut = _frames(device, event_log(rows, ordered=True).to_pandas())
    made: dict[str, Any] = {}

    def seconds(system: str, df: Any) -> Timing:
        return Timing(seconds_of(lambda: made.update({system: _values(_features(), df)}), device, 1))

    own = seconds("one frame", frame)
    yield record("features, dask", "one frame", rows, own, own, same=True)
    cut_up = f"{PARTITIONS} partitions"
    yield record("features, dask", cut_up, rows, seconds(cut_up, cut), own, same=_same(made))


def _features() -> FeatureSet:
    lag = Lag("price", by="user", order="timestamp")
    return FeatureSet([CountEncode("item"), TargetEncode("item", "clicked"), GroupStats("price", by="user"), lag])


def _frames(device: torch.device, log: Any) -> tuple[Any, Any]:
    """A frame, and the same in partitions."""
    if device.type == "cuda":
        import cudf
        import dask_cudf

        frame = cudf.from_pandas(log)
        return frame, dask_cudf.from_cudf(frame, npartitions=PARTITIONS)
    import dask.dataframe as dd

    return log, dd.from_pandas(log, npartitions=PARTITIONS, sort=False)


def _values(features: FeatureSet, df: Any) -> np.ndarray:
    """Float64 ``[rows, features]``, on the host."""
    made = features.fit_transform(df)
    made = made.compute() if hasattr(made, "compute") else made
    made = made[list(features.outputs)]
    return (made.to_pandas() if hasattr(made, "to_pandas") else made).to_numpy("float64", na_value=np.nan)


def _same(made: dict[str, np.ndarray]) -> bool:
    first, *others = made.values()
    return all(np.allclose(first, other, rtol=1e-6, atol=1e-9, equal_nan=True) for other in others)
