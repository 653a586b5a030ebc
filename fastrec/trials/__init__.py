"""Try new features on a finished run in seconds, and select the features that a run needs."""

from fastrec.trials.selecting import FeatureWorth, Selection, select_features
from fastrec.trials.trying import Trial, list_tries, try_features

__all__ = ["FeatureWorth", "Selection", "Trial", "list_tries", "select_features", "try_features"]
