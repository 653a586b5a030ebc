"""When one machine or one device is too small: Dask frames, several processes, tables larger than a device."""

from fastrec.scale.dask_ranker import fit_on_dask, predict_on_dask

__all__ = ["fit_on_dask", "predict_on_dask"]
