"""The ``fastrec`` command; ``app.py`` holds its sub-commands, ``runs.py`` those about finished runs."""

from fastrec.cli import new, runs  # noqa: F401 - their commands join the others
from fastrec.cli.app import app, load_competition, script

__all__ = ["app", "load_competition", "script"]
