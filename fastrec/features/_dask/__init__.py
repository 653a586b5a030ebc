"""Generators at work on Dask frames; imported when such a frame is given, and only then."""
