"""The ``fastrec`` command.

``app.py`` holds run and its kin, ``new.py`` and ``offline.py`` what writes recipes and scripts, ``runs.py``,
``trials.py`` and ``tune.py`` what concerns finished runs, ``serve.py`` the server, ``monitor.py``, ``retrain.py`` and
``registry.py`` what comes after the launch, ``doctor.py`` the machine.
"""

from fastrec.cli import (  # noqa: F401 - their commands join the others
    doctor,
    export,
    monitor,
    new,
    offline,
    registry,
    retrain,
    runs,
    serve,
    trials,
    tune,
)
from fastrec.cli.app import app, load_competition, main, script

__all__ = ["app", "load_competition", "main", "script"]
