"""Try new features on a finished run in seconds, and select the features that a run needs.

``ideas.py`` reads a file of generators or a function, ``new_columns.py`` computes its columns for every fold,
``reference.py`` chooses and trains the model, ``trying.py`` compares, ``log.py`` stores the tries; ``selecting.py``
selects among a run's columns, by ``null_importance.py`` or ``permuted.py``.
"""

from fastrec.trials.selecting import FeatureWorth, Selection, select_features
from fastrec.trials.trying import Trial, list_tries, try_features

__all__ = ["FeatureWorth", "Selection", "Trial", "list_tries", "select_features", "try_features"]
