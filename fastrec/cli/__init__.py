"""The ``fastrec`` command.

``app.py`` holds run and its kin, ``new.py`` new, ``runs.py`` and ``trials.py`` what concerns finished runs.
"""

from fastrec.cli import new, runs, trials  # noqa: F401 - their commands join the others
from fastrec.cli.app import app, load_competition, script

__all__ = ["app", "load_competition", "script"]
