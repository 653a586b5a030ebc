"""The ``fastrec`` command; ``app.py`` holds its sub-commands."""

from fastrec.cli.app import app, load_competition, script

__all__ = ["app", "load_competition", "script"]
