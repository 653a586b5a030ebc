"""``SubmissionFormat``: how a competition's submission looks.

A submission has one row per target (a row of the test file that is to be ranked): the target's keys and an ordered list
of item ids. Everything is read and compared as text, so that ids stay exactly what they are in the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fastrec.competition.forms.next_item_form import NextItemForm
from fastrec.competition.forms.value_form import ValueForm
from fastrec.errors import DataError, MissingFileError, UnreadableFileError

__all__ = ["RECSYS2019", "SubmissionFormat", "form_around", "form_of_run"]


@dataclass(frozen=True, kw_only=True)
class SubmissionFormat:
    """The form of a competition's submission, and where its test file and ground truth keep what it is held against.

    Args:
        keys: columns that name a target row, in the order of the file.
        prediction: the column with the ordered item ids, last in the file.
        sep: what stands between two ids.
        max_items: the most ids in one list.
        targets: (column, value) pairs; the test rows that equal all of them are the targets.
        candidates: the test file's column with the ids that may be recommended.
        candidates_sep: what stands between two of those.
        answer: the ground truth's column with the right id.

    Raises:
        DataError: no file can have this form: an empty separator, no room for an item, or a column named twice.
    """

    keys: tuple[str, ...]
    prediction: str
    sep: str = " "
    max_items: int = 25
    targets: tuple[tuple[str, str], ...] = ()
    candidates: str = "impressions"
    candidates_sep: str = "|"
    answer: str = "reference"

    def __post_init__(self) -> None:
        if not self.sep or not self.candidates_sep or self.max_items < 1 or len(set(self.header)) < len(self.header):
            raise DataError(
                f"no submission has the columns {', '.join(self.header)}, the separators {self.sep!r} and "
                f"{self.candidates_sep!r} and {self.max_items} items",
                remedy="Name each column once, and give separators and 1 item or more",
            )

    @property
    def header(self) -> tuple[str, ...]:
        """The columns of a submission file, in order."""
        return (*self.keys, self.prediction)

    @property
    def keys_needed(self) -> tuple[str, ...]:
        """The columns that target rows need to be written in this form."""
        return self.keys

    def to_state(self) -> dict[str, Any]:
        """The form as JSON values, as a run's ``config.json`` keeps it."""
        return {"kind": "lists", **asdict(self)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> SubmissionFormat:
        """The inverse of ``to_state``.

        Raises:
            ValueError, TypeError, KeyError: it is not what ``to_state`` gives.
        """
        known = {n: state[n] for n in cls.__dataclass_fields__}
        keys, targets = tuple(known["keys"]), tuple((n, v) for n, v in known["targets"])
        texts = [v for n, v in known.items() if n not in ("keys", "targets", "max_items")]
        if not all(isinstance(t, str) for t in (*texts, *keys, *(t for pair in targets for t in pair))):
            raise TypeError("a name or separator is not text")
        return cls(**{**known, "keys": keys, "targets": targets})


RECSYS2019 = SubmissionFormat(
    keys=("user_id", "session_id", "timestamp", "step"),
    prediction="item_recommendations",
    targets=(("action_type", "clickout item"), ("reference", "")),
)


def form_of_run(folder: str | Path) -> SubmissionFormat | ValueForm | NextItemForm:
    """The form of a run's submission.

    Args:
        folder: a run directory.

    Returns:
        What its ``config.json`` says; ``RECSYS2019`` where it says nothing, as older runs do.

    Raises:
        MissingFileError, UnreadableFileError: there is no ``config.json``, or it is damaged.
        DataError: the run is of several goals, whose submissions have no form here.
    """
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise MissingFileError("there is no such file", file=path, remedy="Give a run directory")
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        several, state = state.get("task") == "objectives", state.get("submission")
        if not several:
            return RECSYS2019 if state is None else _KINDS[state.get("kind", "lists")].from_state(state)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnreadableFileError(
            f"the run's submission form cannot be read ({error})",
            file=path,
            remedy="Run the recipe again, or give the form by its competition",
        ) from error
    raise DataError(
        "submissions of several goals are not checked or scored here", file=path, remedy="Read the run's scores.json"
    )


_KINDS: dict[str, Any] = {"lists": SubmissionFormat, "values": ValueForm, "next items": NextItemForm}


def form_around(submission: str | Path) -> SubmissionFormat | ValueForm | NextItemForm:
    """The form of a submission by where it lies: inside a run directory that run's, elsewhere ``RECSYS2019``.

    Args:
        submission: its path; there need not be a file.

    Raises:
        UnreadableFileError: the run's ``config.json`` is damaged.
    """
    run = run_around(submission)
    return RECSYS2019 if run is None else form_of_run(run)


def run_around(path: str | Path) -> Path | None:
    """The run directory in which a path lies, or None."""
    runs = (p for p in Path(path).absolute().parents if (p / "scores.json").is_file())
    return next((p for p in runs if (p / "config.json").is_file()), None)
