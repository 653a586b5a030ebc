"""Amazon reviews (Beauty, Toys and their kind), leave one out: which item does each user review next.

Run it with ``fastrec run competitions/amazon --data DIR --out DIR``, or as a script, on any log of the same form.
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
from fastrec.sequences import CoVisitation, NextItemNet, SessionFrame, SessionModel, leave_one_out
from fastrec.table import Table


class Amazon(NextItemCompetition):
    """A user's items in the order of time; the last one is asked for, the one before it held out."""

    name = "Amazon"
    k = 10
    hold, exclude_seen = "events", True

    def read(self, data: Path, rows: int | None) -> tuple[SessionFrame, SessionFrame]:
        columns = _users(data)
        if rows is not None:
            columns = {n: column[-rows:] for n, column in columns.items()}
        sessions = SessionFrame(pa.table(columns), item="items", session="user")
        return leave_one_out(sessions)

    def models(self, *, bs: int | None) -> Mapping[str, SessionModel]:  # type: ignore[override]
        own = {} if bs is None else {"tokens": bs}
        directed = CoVisitation(window=20, before=0.0, near=4.0, own=3.0, norm=(0.65, 0.25), keep=500)
        net = NextItemNet(epochs=10, width=64, max_len=50, chronological=False, **own)
        return {"net": net, "directed": directed}


def _users(folder: Path) -> dict[str, list]:
    """Return ``user`` and ``items`` of the folder's one file: ``.parquet``, or ``.txt`` with a line a user."""
    found = sorted(p for p in folder.glob("*") if p.suffix in (".parquet", ".txt"))
    if len(found) != 1:
        raise MissingFileError(
            f"it holds {len(found)} files that end with .parquet or .txt ({', '.join(p.name for p in found[:3])})",
            file=folder,
            remedy="Give a folder with one: a user a line, then the items in the order of time",
        )
    path = found[0]
    if path.suffix == ".parquet":
        table = Table.read(path, ["user", "items"]).to_arrow()
        return _checked(path, {n: table[n].to_pylist() for n in ("user", "items")})
    try:
        lines = [line.split() for line in path.read_text(encoding="utf-8").rstrip().split("\n")]
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFileError(f"it cannot be read ({error})", file=path, remedy="Fetch it again") from error
    return _checked(path, {"user": [next(iter(w), None) for w in lines], "items": [w[1:] for w in lines]})


def _checked(path: Path, columns: dict[str, list]) -> dict[str, list]:
    seen = set()
    for row, (user, items) in enumerate(zip(columns["user"], columns["items"], strict=True)):
        if user is None or user in seen or not isinstance(items, list) or not items:
            told = "has no user" if user is None else "has a user that was there" if user in seen else "has no items"
            remedy = "Write a user a line, then the items, with spaces between (in Parquet a list)"
            raise DataError(f"the line {told}", file=path, row=row, remedy=remedy)
        seen.add(user)
    return columns


if __name__ == "__main__":
    from fastrec.cli import script

    script(Amazon)
