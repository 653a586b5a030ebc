"""The ``fastrec`` command; ``app.py`` holds its sub-commands, ``runs.py`` those about finished runs; others have a file each."""

from fastrec.cli import doctor, offline, runs  # noqa: F401 - their commands join the others
from fastrec.cli.app import app, load_competition, script

__all__ = ["app", "load_competition", "script"]
