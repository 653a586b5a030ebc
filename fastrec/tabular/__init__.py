"""A frame → ``TabularFrame`` → shuffled batches for a fastai ``Learner``.

In: any frame, procs and column names, as for fastai's ``TabularPandas``. Out: tensors in one packed buffer, loaders.
``stream/`` does the same for Parquet files larger than memory, ``click_log/`` for clicks in text files.
"""

from fastrec.tabular.click_log import ClickLogFrame, LogPart
from fastrec.tabular.dataloaders import RecDataLoaders
from fastrec.tabular.frame import TabularFrame
from fastrec.tabular.loader import TabularLoader
from fastrec.tabular.procs import Categorify, Features, FillMissing, LogTransform, Normalize, RankGauss, RobustScale
from fastrec.tabular.stream import ParquetFrame

__all__ = [
    "Categorify", "ClickLogFrame", "Features", "FillMissing", "LogPart", "LogTransform", "Normalize", "ParquetFrame",
    "RankGauss", "RecDataLoaders", "RobustScale", "TabularFrame", "TabularLoader",
]  # fmt: skip
