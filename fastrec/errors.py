"""Errors and warnings that name the file, the column, the first bad row and what to do about it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from numbers import Integral
from pathlib import Path
from typing import Any

__all__ = [
    "DataError",
    "DataWarning",
    "DeviceError",
    "DeviceMemoryError",
    "FastrecError",
    "LeakageError",
    "MissingColumnError",
    "MissingFileError",
    "MissingPackageError",
    "NotFittedError",
    "OutOfTimeError",
    "RankError",
    "SubmissionError",
    "TrainingError",
    "UnreadableFileError",
    "WriteError",
]


class FastrecError(Exception):
    """Base of every error that fastrec raises on purpose.

    Args:
        problem: what is wrong, in one sentence.
        file: the file it was found in, if any.
        column: the column it was found in, if any.
        row: number of the first offending data row, counted from 0 (a CSV's header does not count), if known.
        remedy: what the reader can do about it.
    """

    def __init__(
        self,
        problem: str,
        *,
        file: str | Path | None = None,
        column: str | None = None,
        row: int | None = None,
        remedy: str | None = None,
    ) -> None:
        self.problem, self.column, self.row, self.remedy = problem, column, row, remedy
        self.file = None if file is None else str(file)
        places = {"file": self.file, "column": column, "row": row}
        where = ", ".join(f"{k} {v!r}" if k != "row" else f"row {v}" for k, v in places.items() if v is not None)
        text = f"{where}: {problem}" if where else problem
        super().__init__(f"{text}. {remedy}." if remedy else text)

    def __str__(self) -> str:
        return str(self.args[0])

    def of_file(self, file: Any) -> FastrecError:
        """Return the error with a file; unchanged if it names one already, or if ``file`` is a frame."""
        if self.file is not None or not isinstance(file, str | Path):
            return self
        return type(self)(self.problem, file=file, column=self.column, row=self.row, remedy=self.remedy)


class DataError(FastrecError, ValueError):
    """A value, row or column that cannot be used as it is."""


class MissingFileError(FastrecError, FileNotFoundError):
    """A file that should be there is not."""


class UnreadableFileError(FastrecError, OSError):
    """A file exists but is empty, truncated, corrupt or of another format."""


class MissingColumnError(FastrecError, KeyError):
    """A column that is needed is not in the data."""


class NotFittedError(FastrecError, RuntimeError):
    """Something that learns from data was used before it was fitted."""


class DeviceError(FastrecError, RuntimeError):
    """The requested device does not exist."""


class DeviceMemoryError(DeviceError, MemoryError):
    """A device, or the host, has not enough memory for a request.

    Args:
        problem, remedy: as for ``FastrecError``.
        asked: bytes that were asked for, if known.
        free: bytes that were free, if known.
    """

    def __init__(
        self, problem: str, *, remedy: str | None = None, asked: int | None = None, free: int | None = None
    ) -> None:
        self.asked, self.free = asked, free
        super().__init__(problem, remedy=remedy)


class MissingPackageError(FastrecError, ImportError):
    """An optional package is needed and not installed."""


class TrainingError(FastrecError, RuntimeError):
    """Training cannot continue: its loss is not a finite number."""


class LeakageError(FastrecError, ValueError):
    """A feature depends on a target, or on the future."""


class OutOfTimeError(FastrecError, TimeoutError):
    """A model's time limit is too short to learn anything."""


class RankError(FastrecError, RuntimeError):
    """A process of a distributed training was lost, or differs from the others."""


class SubmissionError(FastrecError, ValueError):
    """A submission does not have the official form or the exact set of rows."""


class WriteError(FastrecError, OSError):
    """A result could not be written; what was there before is untouched."""


class DataWarning(UserWarning):
    """Something odd in the data, and how fastrec handled it."""


def refuse_rows(
    bad: Any,
    problem: str | Callable[[int], str],
    error: type[FastrecError] = DataError,
    *,
    numbers: Any = None,
    **about: Any,
) -> None:
    """Raise an error if there are bad rows; it names the first one, and their number if there are more.

    Args:
        bad: bool ``[n]`` or ``[n, k]`` of any library, or the bad rows in ascending order.
        problem: what is wrong with them, or a function of the first one's place that says it.
        error: the class of the error, and ``about`` its further arguments.
        numbers: the rows' numbers in their file, ``[n]``; None: their places.
    """
    import numpy as np  # this file is imported first, and mostly raises nothing

    bad = bad if hasattr(bad, "dtype") else np.asarray(bad)
    if "bool" in str(bad.dtype) and not bad.any():  # from a GPU, one flag is copied instead of all
        return
    bad = np.asarray(bad.cpu() if hasattr(bad, "cpu") else bad)
    rows = np.flatnonzero(bad if bad.ndim == 1 else bad.any(1)) if bad.dtype == bool else bad
    if len(rows):
        first = int(rows[0])
        text = problem if isinstance(problem, str) else problem(first)
        row = first if numbers is None else int(numbers[first])
        raise error(text if len(rows) == 1 else f"{text} ({len(rows)} such rows in all)", row=row, **about)


def refuse(bad: Any, column: str | None, problem: str, remedy: str) -> None:
    """Raise a ``DataError`` of a column's bad rows, if there are any (see ``refuse_rows``)."""
    refuse_rows(bad, problem, column=column, remedy=remedy)


def check_whole(name: str, **given: object) -> None:
    """Refuse values other than whole numbers of 1 or more; None is allowed."""
    for argument, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral) or value < 1):
            remedy = f"Give {argument} as a whole number of 1 or more"
            raise DataError(f"{name}: {argument} is {value!r}", remedy=remedy)


_PACKAGE = str(Path(__file__).parent)


def warn(message: str, category: type[Warning] = DataWarning) -> None:
    """Warn, attributed to the caller's line outside fastrec."""
    # Python's own ``skip_file_prefixes`` does the same from 3.12 on
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
