"""The ``fastrec`` command; ``app.py`` holds its sub-commands, the other files some each."""

from fastrec.cli import doctor, offline, runs, tune  # noqa: F401 - their commands join the others
from fastrec.cli.app import app, load_competition, script

__all__ = ["app", "load_competition", "script"]
