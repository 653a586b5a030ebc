"""From files to a recipe without code: column types, target, task, metric and the features that help.

In: a folder or a frame. Out: a competition's folder as a person would write it, or a fitted result.
"""

from fastrec.auto.auto_fit import Fit, fit, load
from fastrec.auto.workspace import Workspace, new_competition

__all__ = ["Fit", "Workspace", "fit", "load", "new_competition"]
