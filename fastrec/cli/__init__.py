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

_PANELS = {
    "Competitions": ("new", "run", "simulate", "check", "score", "layout", "script"),
    "Finished runs": ("report", "runs", "compare", "predict", "lb", "try", "tries", "select", "tune", "retrain"),
    "Serving": (
        "export",
        "verify",
        "serve",
        "promote",
        "rollback",
        "versions",
        "monitor",
        "event-metrics",
    ),
    "Machine": ("doctor",),
}
# Typer shows panels in the order of their first command.
_by_name = {c.name or c.callback.__name__: c for c in app.registered_commands if c.callback is not None}
app.registered_commands = [_by_name.pop(name) for names in _PANELS.values() for name in names] + [*_by_name.values()]
for _panel, _names in _PANELS.items():
    for _command in app.registered_commands:
        if (_command.name or _command.callback.__name__) in _names:
            _command.rich_help_panel = _panel
