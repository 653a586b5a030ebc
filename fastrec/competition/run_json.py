"""``read_json``: the settings and scores of a run directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastrec._core.atomic import recover
from fastrec.errors import MissingFileError, UnreadableFileError


def read_json(path: Path, *, again: str = "Run the recipe again") -> dict[str, Any]:
    """Read a JSON file of a run directory; ``again`` is the remedy for a damaged one.

    Raises:
        MissingFileError, UnreadableFileError: it is not there, or damaged.
    """
    recover(path.parent)
    if not path.is_file():
        raise MissingFileError("there is no such file", file=path, remedy="Give a run directory")
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UnreadableFileError(f"it cannot be read ({error})", file=path, remedy=again) from error
