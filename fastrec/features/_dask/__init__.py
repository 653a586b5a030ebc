"""Generators at work on Dask frames; imported when such a frame is given, and only then."""

from fastrec.features._dask import sizes as _sizes  # noqa: F401 - tells Dask what our tables weigh
