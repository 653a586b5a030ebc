"""Tools for Dask frames, several processes, and tables larger than a device or memory."""

from fastrec._core.device import share_pool
from fastrec._core.memory import keep_memory
from fastrec.estimators._on_ranks import training_on_ranks
from fastrec.scale.dask import dask_cluster, fit_on_dask, frame_from_dask, predict_on_dask
from fastrec.scale.external import external_matrix, fit_on_parts, write_predictions
from fastrec.training.ranks import distributed, join_ranks

__all__ = [
    "dask_cluster", "distributed", "external_matrix", "fit_on_dask", "fit_on_parts", "frame_from_dask", "join_ranks",
    "keep_memory", "predict_on_dask", "share_pool", "training_on_ranks", "write_predictions",
]  # fmt: skip
