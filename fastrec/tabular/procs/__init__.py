"""Preprocessing of a ``TabularFrame``'s columns: categories to codes, numbers filled and brought to mean 0 and sd 1.

The names and defaults are fastai's, and so are the codes, fill values and scales. The differences, all deliberate:

- Classes come from training rows alone; fastai's default lets validation's strings in.
- ``FillMissing`` learns a value for every continuous column, so that one first missing at test time is filled. Only
  columns missing in training get a ``_na`` column, as in fastai; its classes are always ``#na#``, False, True. A column
  with no training value at all is filled with 0.
- ``Normalize`` takes mean and sd in float64, block by block, each in two passes. A constant column becomes 0 (and is
  not scaled where a later value differs).
- Statistics are taken of the values as given: fastai first shrinks float64 to float32.
"""

from fastrec.tabular.procs.base import ContProc, FrameProc
from fastrec.tabular.procs.features import Features
from fastrec.tabular.procs.procs import (
    Categorify,
    FillMissing,
    LogTransform,
    Normalize,
    RankGauss,
    RobustScale,
    as_procs,
    proc_from_state,
)

__all__ = [
    "Categorify", "ContProc", "Features", "FillMissing", "FrameProc", "LogTransform", "Normalize", "RankGauss",
    "RobustScale", "as_procs", "proc_from_state",
]  # fmt: skip
