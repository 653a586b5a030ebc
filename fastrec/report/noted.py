"""Scores of a public leaderboard, noted by hand in the run directories."""

from __future__ import annotations

import datetime as dt
import json
import math
import warnings
from dataclasses import dataclass
from pathlib import Path

from fastrec._core.atomic import atomic_file
from fastrec._core.file_digests import file_digest
from fastrec.errors import DataError, DataWarning, MissingFileError, UnreadableFileError

_FILE = "leaderboard.json"


@dataclass(frozen=True)
class NotedRun:
    """A run with a noted score: its folder's name, its stack's score out of fold, and the leaderboard's."""

    name: str
    oof: float
    leaderboard: float


def note_leaderboard(run: str | Path, score: float) -> Path:
    """Note the leaderboard's score of a run's submission, in its run directory; an earlier note is replaced.

    Args:
        run: the run directory.
        score: the score.

    Returns:
        The file that holds it.

    Raises:
        MissingFileError: this is no run directory.
        DataError: the score is no finite number.
        WriteError: the file system refused.
    """
    run = Path(run)
    if not (run / "scores.json").is_file():
        raise MissingFileError("there is no scores.json", file=run, remedy="Give the directory of a finished run")
    if not math.isfinite(score):
        raise DataError(f"{score} is no score", remedy="Give the number that the leaderboard shows")
    submission = run / "submission.csv"
    about = {
        "score": float(score),
        "noted": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "submission": file_digest(submission) if submission.is_file() else None,
    }
    # in the run directory: the next run there removes it with the submission that it belongs to
    with atomic_file(run / _FILE) as path:
        path.write_text(json.dumps(about, indent=1), encoding="utf-8")
    return run / _FILE


def noted_score(run: str | Path) -> float | None:
    """Read a run's noted score, if it has one.

    Raises:
        UnreadableFileError: the note is damaged.
    """
    path = Path(run) / _FILE
    if not path.is_file():
        return None
    try:
        return float(json.loads(path.read_text(encoding="utf-8"))["score"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UnreadableFileError(
            f"the note cannot be read ({error!r})", file=path, remedy="Note the score again: fastrec lb RUN SCORE"
        ) from error


def noted_runs(run: str | Path) -> list[NotedRun]:
    """List runs beside a run with a noted score, of its competition and metric, in ascending order out of fold."""
    run = Path(run).resolve()
    (competition, metric, _), runs = _about(run), []
    for path in sorted(run.parent.glob(f"*/{_FILE}")):
        other = path.parent
        # a run that is written at this moment is hidden, and its name not final
        if (other.name.startswith(".") and other != run) or not (other / "scores.json").is_file():
            continue
        try:
            about, score = _about(other), noted_score(other)
        except UnreadableFileError as error:  # another run's damaged files must not prevent this one's report
            warnings.warn(str(error), DataWarning, stacklevel=2)
            continue
        if about[:2] == (competition, metric) and about[2] is not None and score is not None:
            runs.append(NotedRun(other.name, about[2], score))
    return sorted(runs, key=lambda r: (r.oof, r.name))


def _about(run: Path) -> tuple[str, str, float | None]:
    """Competition, metric and the stack's score."""
    try:
        scores = json.loads((run / "scores.json").read_text(encoding="utf-8"))
        config = run / "config.json"
        settings = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
        score = (scores.get("oof") or {}).get("stack")
        return str(settings.get("competition")), str(scores.get("metric")), None if score is None else float(score)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UnreadableFileError(
            f"the run's files cannot be read ({error!r})", file=run, remedy="Run again"
        ) from error
