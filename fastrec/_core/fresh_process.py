"""Going on in a fresh process: a command that gives all memory back between the stages of its work.

What libraries keep of one stage (freed memory that is in pieces, caches, threads' stacks) is of no use to the next.
The process is replaced by itself (``execv``): its number, its limits and whoever waits for it stay. Only a command may
do so, whose process is its own: a notebook's or a test's is not.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from fastrec._core.leftovers import is_of_this_process

_SETTING = "FASTREC_GOES_ON_IN"
_own = False


def owns_process() -> None:
    """Say that this process is a command's own, which may replace it."""
    global _own
    _own = True


def may_begin_anew() -> bool:
    """Whether this process may be replaced by itself."""
    return _own and sys.platform.startswith("linux")


def begin_anew(folder: Path) -> NoReturn:
    """Replace this process by the same command, which finds in ``continued_in`` what is done already.

    Args:
        folder: a ``working_folder`` of this process, which stays as nothing of this process is tidied up.
    """
    os.environ[_SETTING] = str(folder.resolve())
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def continued_in() -> Path | None:
    """The folder of what this process did before it began anew; None: it has just begun. It is told once."""
    told = os.environ.pop(_SETTING, None)  # no process that this one starts is to take it for its own
    folder = None if told is None else Path(told)
    return folder if folder is not None and folder.is_dir() and is_of_this_process(folder) else None
