"""``cut_at``: a log parted by time, so that nothing after a moment is learned from."""

from __future__ import annotations

import torch

from fastrec.errors import DataError
from fastrec.sequences import SessionFrame
from fastrec.table.offsets import rows_of


def cut_at(sessions: SessionFrame, moment: float) -> tuple[SessionFrame, SessionFrame, SessionFrame]:
    """Part a log at a moment.

    Args:
        sessions: with times (``order=…``).
        moment: what is before it is known; seconds since 1970 where ``order`` holds times.

    Returns:
        What may be learned from: all sessions with their events before the moment. Then, of the sessions with events
        both before and after, those before, which are asked for; and those after, which are to be found. The last two
        have one session for another.

    Raises:
        DataError: the events have no times.
    """
    if sessions.times is None:
        raise DataError("the events have no times", remedy="Name the column of times (order=…)")
    early = sessions.times < moment
    counts = torch.zeros(len(sessions), dtype=torch.int64).index_add_(0, rows_of(sessions.offsets), early.long())
    starts, ends = sessions.offsets[:-1], sessions.offsets[1:]
    middle = starts + counts  # times ascend within a session
    known = sessions.cut(starts, middle)
    known.sessions = sessions.sessions
    both = ((counts > 0) & (middle < ends)).nonzero().squeeze(1)
    asked, wanted = known.take(both), sessions.cut(middle[both], ends[both])
    wanted.sessions = asked.sessions
    return known, asked, wanted


def cut_anywhere(sessions: SessionFrame, *, seed: int = 0) -> tuple[SessionFrame, SessionFrame]:
    """Cut every session of two events or more somewhere, at random: one event or more is on either side.

    Args:
        sessions: any; shorter ones are left out.
        seed: of the cuts.

    Returns:
        What was before the cut, which is asked for, and what came after, which is to be found: one session for another.
    """
    long = (sessions.lengths > 1).nonzero().squeeze(1)
    starts, ends = sessions.offsets[long], sessions.offsets[long + 1]
    share = torch.rand(len(long), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    middle = starts + 1 + (share * (ends - starts - 1)).long()
    asked, wanted = sessions.cut(starts, middle), sessions.cut(middle, ends)
    asked.sessions = wanted.sessions = None if sessions.sessions is None else sessions.sessions.take(long)
    return asked, wanted
