"""``sample_negatives``: as many rows as a ranker needs."""

from __future__ import annotations

import torch

from fastrec.errors import DataError
from fastrec.table import Table


def sample_negatives(table: Table, label: torch.Tensor, per_session: int, *, seed: int = 0) -> torch.Tensor:
    """Return all positives, and some negatives of each session that has a positive.

    Args:
        table: candidates, with ``session``.
        label: ``[n]``, above 0: a positive.
        per_session: how many negatives, at random.
        seed: of the choice.

    Returns:
        Rows of the table, int64, ascending.

    Raises:
        DataError: lengths differ, or ``per_session`` is below 0.
    """
    if len(label) != len(table) or per_session < 0:
        raise DataError(
            f"{len(label)} labels of {len(table)} rows, {per_session} negatives",
            remedy="Give each row a label, and 0 or more negatives",
        )
    session, positive = table["session"].values, label > 0
    draw = torch.rand(len(session), generator=torch.Generator().manual_seed(seed))
    draw[positive] = -1.0
    order = torch.argsort(draw, stable=True)
    order = order[torch.argsort(session[order], stable=True)]
    ordered = session[order]
    place = torch.arange(len(order)) - torch.searchsorted(ordered, ordered)
    count = torch.bincount(session[positive], minlength=int(session.max()) + 1 if len(session) else 0)
    have = count[ordered]
    kept = (have > 0) & (place < have + per_session)
    return order[kept].sort().values
