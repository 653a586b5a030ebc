"""Parquet files larger than memory → batches: ``ParquetFrame`` learns in one or two passes, then streams.

``files.py`` lists row groups, ``learn.py`` and ``fit.py`` take statistics block by block, ``rows.py`` packs rows (and
keeps them in a cache folder if asked), ``reader.py`` reads ahead and mixes, ``order.py`` shuffles row groups,
``loader.py`` gives the batches.
"""

from fastrec.tabular.stream.frame import ParquetFrame
from fastrec.tabular.stream.loader import StreamLoader

__all__ = ["ParquetFrame", "StreamLoader"]
