"""The ``fastrec`` command.

``app.py`` holds run and its kin, ``new.py`` and ``offline.py`` what writes recipes and scripts, ``runs.py``,
``trials.py`` and ``tune.py`` what concerns finished runs, ``serve.py`` the server, ``doctor.py`` the machine.
"""

from fastrec.cli import doctor, export, new, offline, runs, serve, trials, tune  # noqa: F401 - their commands join the others
from fastrec.cli.app import app, load_competition, script

__all__ = ["app", "load_competition", "script"]
