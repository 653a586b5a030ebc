"""When one machine or one device is too small: Dask frames, several processes, tables larger than a device."""

from fastrec.scale.cluster import dask_cluster
from fastrec.scale.dask_frame import frame_from_dask
from fastrec.scale.dask_ranker import fit_on_dask, predict_on_dask

__all__ = ["dask_cluster", "fit_on_dask", "frame_from_dask", "predict_on_dask"]
