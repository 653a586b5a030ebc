"""Dask frames, several processes, tables larger than a device or memory."""

from fastrec._core.device import share_pool
from fastrec._core.malloc import keep_memory
from fastrec.estimators._on_ranks import training_on_ranks
from fastrec.scale.cluster import dask_cluster
from fastrec.scale.dask_frame import frame_from_dask
from fastrec.scale.dask_ranker import fit_on_dask, predict_on_dask
from fastrec.scale.external_ranker import fit_on_parts
from fastrec.scale.external_trees import external_matrix
from fastrec.scale.streamed_predictions import write_predictions
from fastrec.training.process_group import distributed, join_ranks

__all__ = [
    "dask_cluster",
    "distributed",
    "external_matrix",
    "fit_on_dask",
    "fit_on_parts",
    "frame_from_dask",
    "join_ranks",
    "keep_memory",
    "predict_on_dask",
    "share_pool",
    "training_on_ranks",
    "write_predictions",
]
