"""``warn``: warnings that point at the caller of fastrec."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from fastrec.errors import DataWarning

_PACKAGE = str(Path(__file__).parents[1])


def warn(message: str, category: type[Warning] = DataWarning) -> None:
    """Warn with the place of the line outside fastrec that led here."""
    # Python's own ``skip_file_prefixes`` does the same from 3.12 on
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
