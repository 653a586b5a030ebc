"""The ``fastrec`` command: ``app.py`` holds its sub-commands, ``runs.py`` and ``trials.py`` those on finished runs."""

from fastrec.cli import new, runs  # noqa: F401 - their commands join the others
from fastrec.cli import runs, trials  # noqa: F401 - their commands join the others
from fastrec.cli.app import app, load_competition, script

__all__ = ["app", "load_competition", "script"]
