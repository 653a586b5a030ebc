"""``CandidateFeatures``: what a ranker can know of a candidate besides the sources' scores."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from fastrec.retrieval._saved import Saved
from fastrec.sequences import SessionFrame
from fastrec.table import Table


class CandidateFeatures(Saved):
    """Adds columns to a table of candidates.

    For every ``{source}_score`` its share of the session's highest and of their sum; the item's events in the log and
    in its last twentieth; the session's length, its last item's events, and whether the candidate is that item.
    """

    def fit(self, sessions: SessionFrame) -> Self:
        """Count the log's items; of the log that the sources learn from."""
        codes = len(sessions.items)
        self._counts = torch.bincount(sessions.values, minlength=codes).float()
        late = sessions.offsets[len(sessions) - max(1, len(sessions) // 20)] if len(sessions) else 0
        self._recent = torch.bincount(sessions.values[int(late) :], minlength=codes).float()
        return self

    @property
    def popularity(self) -> Tensor:
        """Each code's share of the most frequent item's events, float32 ``[codes]``."""
        return self._counts / self._counts.max().clamp_min(1)

    def to_state(self) -> dict[str, Any]:
        """Return what was counted, as ``save_state`` takes it."""
        return {"counts": self._counts, "recent": self._recent}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild what ``to_state`` returned."""
        made = cls()
        made._counts, made._recent = state["counts"], state["recent"]
        return made

    def __call__(self, table: Table, sessions: SessionFrame) -> Table:
        """Return the table with these columns more.

        Args:
            table: candidates, with ``session``, ``item`` and scores.
            sessions: those that are asked for.
        """
        session, item = table["session"].values, table["item"].values
        last = torch.zeros(len(sessions), dtype=torch.int64)
        filled = sessions.lengths > 0
        last[filled] = sessions.values[sessions.offsets[1:][filled] - 1]
        made = {
            "item_events": self._counts[item],
            "item_events_recent": self._recent[item],
            "session_length": sessions.lengths[session].float(),
            "last_item_events": self._counts[last][session],
            "is_last_item": (item == last[session]).float(),
        }
        for name in [n for n in table.names if n.endswith("_score")]:
            made |= _shares(name, table[name].values, session, len(sessions))
        return table.with_columns(made)


def _shares(name: str, score: Tensor, session: Tensor, count: int) -> dict[str, Tensor]:
    known = score.nan_to_num(0.0).clamp_min(0.0)
    top = torch.zeros(count).scatter_reduce_(0, session, known, "amax")[session]
    total = torch.zeros(count).index_add_(0, session, known)[session]
    return {f"{name}_of_top": score / top, f"{name}_of_sum": score / total}
