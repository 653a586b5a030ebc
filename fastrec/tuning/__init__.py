"""Search with Optuna for settings of a finished run's model that score better out of fold, on the run's folds."""

from fastrec.tuning.search import Tuned, TuneResult, tune_run

__all__ = ["TuneResult", "Tuned", "tune_run"]
