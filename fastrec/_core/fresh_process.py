"""Replace a command's process by itself (``execv``) to return all memory between stages.

Fragments and caches of one stage are useless to the next.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from fastrec._core.atomic import locks

_SETTING = "FASTREC_GOES_ON_IN"
_own = False


def owns_process() -> None:
    """Declare this process a command's, which may replace it."""
    global _own
    _own = True


def may_begin_anew() -> bool:
    """Return whether this process may be replaced by itself."""
    return _own and sys.platform.startswith("linux")


def begin_anew(folder: Path) -> NoReturn:
    """Replace this process by the same command, which gets its earlier results by ``continued_in``.

    ``folder`` is a ``working_folder`` of this process. It is not removed, since the process does not clean up.
    """
    lock = locks[folder]  # stays open: no other process may take the folder for a leftover meanwhile
    os.set_inheritable(lock, True)
    os.environ[_SETTING] = f"{lock} {folder.absolute()}"
    # execv drops what is buffered.
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def continued_in() -> Path | None:
    """Return, once, the folder of results from before this process was replaced; None: it is new."""
    # Removed, so that no process that this one starts takes the folder for its own.
    lock, _, folder = os.environ.pop(_SETTING, "").partition(" ")
    try:
        if not os.path.samestat(os.fstat(int(lock)), os.stat(folder)):
            return None
    except (OSError, ValueError):
        return None
    os.set_inheritable(int(lock), False)
    locks[Path(folder)] = int(lock)
    return Path(folder)
