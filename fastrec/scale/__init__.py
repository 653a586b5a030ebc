"""When one machine or one device is too small: Dask frames, several processes, tables larger than a device.

``distributed`` trains a Learner on the processes that ``torchrun`` has started (``fastrec.training`` has how);
``join_ranks`` gives each its GPU; ``training_on_ranks`` lets estimators start such processes for their nets.
``external_matrix`` hands Parquet files larger than memory to XGBoost, ``write_predictions`` predicts such files.
"""

from fastrec.estimators._on_ranks import training_on_ranks
from fastrec.scale.external_trees import external_matrix
from fastrec.scale.streamed_predictions import write_predictions
from fastrec.training.process_group import distributed, join_ranks

__all__ = ["distributed", "external_matrix", "join_ranks", "training_on_ranks", "write_predictions"]
