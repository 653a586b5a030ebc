"""MovieLens 1M, leave one out: which film does each user rate next, of all films not rated yet.

Run it with ``fastrec run competitions/movielens --data DIR --out DIR``, or as a script.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

if __package__ in (None, ""):  # run as a script, or loaded by path: the workspace's folders are found from its root
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fastrec.competition import NextItemCompetition
from fastrec.errors import DataError, MissingFileError, UnreadableFileError
from fastrec.retrieval import EASE, HistoryFilter
from fastrec.sequences import CoVisitation, NextItemNet, SessionFrame, SessionModel

_FILES = {"known": "gsasrec_test_input.txt", "target": "gsasrec_test_output.txt"}


class MovieLens(NextItemCompetition):
    """A line is a user's films in the order of time; a film is rated once."""

    name = "MovieLens 1M"
    k = 10
    hold, exclude_seen = "events", True

    def read(self, data: Path, rows: int | None) -> tuple[SessionFrame, SessionFrame]:
        known = _films(data, _FILES["known"])
        train = known if rows is None else known[-rows:]
        asked = {"items": known}
        if (data / _FILES["target"]).exists():
            asked["target"] = [line[0] for line in _films(data, _FILES["target"])]
            if len(asked["target"]) != len(known):
                raise DataError(
                    f"{len(asked['target'])} lines for the {len(known)} of {_FILES['known']}",
                    file=data / _FILES["target"],
                    row=min(len(asked["target"]), len(known)),
                    remedy="Fetch both files again: a line is a user, in both",
                )
        sessions = SessionFrame(pa.table({"items": train}), item="items")
        return sessions, sessions.new(pa.table(asked), target="target" if "target" in asked else None)

    def models(self, *, bs: int | None) -> Mapping[str, SessionModel]:  # type: ignore[override]
        deep = {"blocks": 2, "dropout": 0.2, "attention_dropout": 0.0, "cosine": None, "bias": "position"}
        own = {} if bs is None else {"tokens": bs}
        return {
            "net": NextItemNet(width=64, epochs=75, max_len=200, chronological=False, options=deep, **own),
            "ease": HistoryFilter(EASE(reg=500.0), decay=20.0),
            "directed": CoVisitation(window=20, before=0.0, near=4.0, own=3.0, norm=(0.65, 0.25), keep=1000),
        }


def _films(data: Path, name: str) -> list[list[int]]:
    path = data / name
    if not path.is_file():
        raise MissingFileError("there is no such file", file=path, remedy="Give the folder of the gSASRec files")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFileError(f"it cannot be read ({error})", file=path, remedy="Fetch it again") from error
    found = []
    for row, line in enumerate(lines):
        try:
            found.append([int(word) for word in line.split()])
        except ValueError as error:
            raise DataError(f"no number of a film: {error}", file=path, row=row, remedy="Mend the line") from error
        if not found[-1]:
            raise DataError("the line has no film", file=path, row=row, remedy="Mend the line")
    return found


if __name__ == "__main__":
    from fastrec.cli import script

    script(MovieLens)
