"""The log of tries on a run: one line of JSON each, in ``RUN.tries.jsonl`` beside the run directory."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastrec.errors import DataWarning, MissingFileError, WriteError


def tries_file(run: str | Path) -> Path:
    """Return the path of a run's log."""
    run = Path(os.path.abspath(run))  # not in the run directory, which the next run replaces
    return run.with_name(f"{run.name}.tries.jsonl")


def note_try(run: str | Path, about: Mapping[str, Any]) -> None:
    """Add a line.

    Raises:
        WriteError: the file system refused.
    """
    path = tries_file(run)
    line = (json.dumps(about, ensure_ascii=False) + "\n").encode()
    try:
        # one unbuffered write: two tries at the same time leave two whole lines
        with path.open("ab", buffering=0) as file:
            file.write(line)
    except OSError as error:
        raise WriteError(f"could not be written ({error.strerror})", file=path, remedy="Free disk space") from error


def list_tries(run: str | Path) -> list[dict[str, Any]]:
    """List the tries on a run, the first try first.

    Args:
        run: the run directory.

    Returns:
        For each try ``when``, ``file`` and its ``digest``, ``columns``, ``dropped``, ``model``, ``metric``, ``before``,
        ``after``, ``difference`` with ``low`` and ``high``, ``verdict``, ``leaks``, ``seconds``, and ``rows``, which
        differs if the run was repeated in between.

    Raises:
        MissingFileError: there is no such run.
    """
    if not Path(run).is_dir():
        raise MissingFileError("there is no such folder", file=run, remedy="Give a run directory")
    path, tries = tries_file(run), []
    for number, line in enumerate(path.read_bytes().splitlines() if path.is_file() else [], 1):
        try:
            tries.append(dict(json.loads(line)))
        except (ValueError, TypeError):
            warnings.warn(f"{path}: line {number} cannot be read and is left out", DataWarning, stacklevel=2)
    return tries
