"""Generators on Dask frames; imported only if such a frame is given."""

from fastrec.features._dask import blocks as _sizes  # noqa: F401 - tells Dask what our tables weigh
