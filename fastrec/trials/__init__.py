"""A run and an idea → what the idea is worth, in seconds; which features a run can do without.

In: a run directory whose parts lie beside it, and a file of generators or a function. Out: the paired difference that
the new columns make out of fold, with its interval. ``ideas.py`` reads the file, ``new_columns.py`` makes its columns
for every fold, ``reference.py`` says which model is trained and trains it, ``trying.py`` compares, ``log.py`` keeps
what was tried; ``selecting.py`` weighs all columns of a run, by ``null_importance.py`` or ``permutation.py``.
"""

from fastrec.trials.log import list_tries
from fastrec.trials.selecting import FeatureWorth, Selection, select_features
from fastrec.trials.trying import Trial, try_features

__all__ = ["FeatureWorth", "Selection", "Trial", "list_tries", "select_features", "try_features"]
