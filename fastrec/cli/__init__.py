"""The ``fastrec`` command.

``app.py`` has run and its kin, ``start.py`` the commands to begin with, ``runs.py`` those on finished runs,
``serve.py`` the server, ``monitor.py`` life after the launch.
"""

# Imported to register their commands.
from fastrec.cli import monitor, runs, serve, start  # noqa: F401
from fastrec.cli.app import app, main, script
from fastrec.competition.run import load_competition

__all__ = ["app", "load_competition", "main", "script"]

_PANELS = {
    "Competitions": "new candidates score-candidates run simulate check score layout script",
    "Finished runs": "report runs compare blend predict embed lb try tries select tune retrain",
    "Serving": "export verify serve promote rollback versions monitor event-metrics",
    "Machine": "doctor",
}
# Typer shows panels, and their commands, in the order of registration.
_by_name = {c.name or c.callback.__name__: c for c in app.registered_commands if c.callback is not None}
app.registered_commands = [_by_name[name] for names in _PANELS.values() for name in names.split()]
for _panel, _names in _PANELS.items():
    for _name in _names.split():
        _by_name[_name].rich_help_panel = _panel
