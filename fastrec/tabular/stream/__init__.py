"""Parquet files larger than memory → batches: ``ParquetFrame`` learns in one or two passes, then streams."""

from fastrec.tabular.stream.frame import ParquetFrame
from fastrec.tabular.stream.loader import StreamLoader

__all__ = ["ParquetFrame", "StreamLoader"]
