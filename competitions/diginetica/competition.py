"""Diginetica (CIKM Cup 2016): which item does a shopper look at next.

Run it with ``fastrec run competitions/diginetica --data DIR --out DIR``, or as a script, on any log of sessions that
has the same columns.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

if __package__ in (None, ""):  # run as a script, or loaded by path: the workspace's folders are found from its root
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fastrec.competition import NextItemCompetition
from fastrec.retrieval import RankedCandidates
from fastrec.sequences import NextItemNet, SessionModel


class Diginetica(NextItemCompetition):
    """A session is a row of ``items``; ``target`` is the next item. Items recur: none is left out as seen."""

    name = "Diginetica"

    def models(self, *, bs: int | None) -> Mapping[str, SessionModel]:  # type: ignore[override]
        own = {} if bs is None else {"tokens": bs}
        net = NextItemNet("PooledSASRec", epochs=6, negatives=8192, options={"dropout": 0.4}, **own)
        return {"net": net, "ranked": RankedCandidates()}


if __name__ == "__main__":
    from fastrec.cli import script

    script(Diginetica)
