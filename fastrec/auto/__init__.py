"""From files to a recipe with no code: what the columns are, what is to be predicted, which features pay.

In come a folder or a frame, out comes a competition's folder that a person could have written, or a fitted result.
``files.py`` tells train, test and sample apart, ``columns.py`` what each column is, ``problem.py`` target, task and
metric, ``choose_features.py`` tries features, ``workspace.py`` writes the recipe, ``auto_fit.py`` fits a frame.
"""

from fastrec.auto.auto_fit import Fit, fit
from fastrec.auto.workspace import Workspace, new_competition

__all__ = ["Fit", "Workspace", "fit", "new_competition"]
