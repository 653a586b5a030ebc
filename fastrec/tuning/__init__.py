"""A finished run's model and some minutes → settings that score better out of fold, on the run's own folds.

In: a run directory whose parts lie beside it. Out: the best trials, and a line for the recipe. ``spaces.py`` says what
is searched for each class of models, ``fold_rows.py`` reads a run's folds, ``search.py`` searches with Optuna.
"""

from fastrec.tuning.search import Tuned, TuneResult, tune_run

__all__ = ["TuneResult", "Tuned", "tune_run"]
