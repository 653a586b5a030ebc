"""Search with Optuna for settings of a finished run's model that score better out of fold, on the run's folds.

``spaces.py`` names the settings of each class of models and their bounds, ``search.py`` runs the trials.
"""

from fastrec.tuning.search import Tuned, TuneResult, tune_run

__all__ = ["TuneResult", "Tuned", "tune_run"]
