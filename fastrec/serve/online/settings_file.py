"""``online.json``: how the state of events in a folder is to be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastrec.errors import MissingFileError, UnreadableFileError

ABOUT = "online.json"
_NAMES = ("history", "outputs", "keep", "late", "learn")


def write_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write the arguments that an ``Online`` was made with."""
    text = json.dumps({"format": 1, **{n: settings[n] for n in _NAMES}}, indent=1)
    (folder / ABOUT).write_text(text, encoding="utf-8")


def read_settings(folder: Path) -> dict[str, Any]:
    """Read the arguments that ``write_settings`` wrote.

    Raises:
        MissingFileError, UnreadableFileError: there is nothing usable.
    """
    path = folder / ABOUT
    if not path.is_file():
        raise MissingFileError("there is no such file", file=path, remedy="Give the folder that export wrote")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {n: found[n] for n in _NAMES}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableFileError(
            f"the state's settings cannot be read ({error!r})", file=path, remedy="Export the run again"
        ) from error
