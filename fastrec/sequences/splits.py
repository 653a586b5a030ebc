"""Which sessions, or which of their events, are trained on, and which are held out."""

from __future__ import annotations

import torch

from fastrec.errors import DataError
from fastrec.sequences.session_frame import SessionFrame

__all__ = ["by_session", "by_time", "given_split", "leave_one_out", "prefixes"]


def leave_one_out(sessions: SessionFrame) -> tuple[SessionFrame, SessionFrame]:
    """Hold out the last event of every session of two or more.

    Returns:
        All sessions without it (shorter ones whole), and those that lost one, with it as their target.
    """
    long = (sessions.lengths > 1).long()
    starts, ends = sessions.offsets[:-1], sessions.offsets[1:]
    train = sessions.cut(starts, ends - long)
    train.sessions = sessions.sessions
    rows = long.nonzero().squeeze(1)
    valid = train.take(rows)
    valid.target = sessions.values[ends[rows] - 1]
    return train, valid


def by_time(sessions: SessionFrame, share: float = 0.1) -> tuple[SessionFrame, SessionFrame]:
    """Hold out the sessions that ended last.

    Args:
        sessions: with times they go by their last event; without, the last in order are the last.
        share: of the sessions, held out.

    Raises:
        DataError: ``share`` is not between 0 and 1.
    """
    _check_share(share)
    held = round(len(sessions) * share)
    ends = sessions.ends
    order = torch.arange(len(sessions)) if ends is None else torch.argsort(ends.nan_to_num(-torch.inf), stable=True)
    train, valid = order[: len(order) - held], order[len(order) - held :]
    return sessions.take(train.sort().values), sessions.take(valid.sort().values)


def by_session(sessions: SessionFrame, share: float = 0.1, *, seed: int = 0) -> tuple[SessionFrame, SessionFrame]:
    """Hold out sessions at random.

    Raises:
        DataError: ``share`` is not between 0 and 1.
    """
    _check_share(share)
    order = torch.randperm(len(sessions), generator=torch.Generator().manual_seed(seed))
    held = round(len(sessions) * share)
    return sessions.take(order[held:].sort().values), sessions.take(order[:held].sort().values)


def given_split(sessions: SessionFrame, held_out: torch.Tensor) -> tuple[SessionFrame, SessionFrame]:
    """Hold out the sessions where a mask, bool ``[n]``, is True.

    Raises:
        DataError: the mask is not bool, or not one of every session.
    """
    if held_out.dtype != torch.bool or held_out.shape != (len(sessions),):
        raise DataError(
            f"a mask of {tuple(held_out.shape)} {held_out.dtype} for {len(sessions)} sessions",
            remedy="Give True or False for each",
        )
    return sessions.take(~held_out), sessions.take(held_out)


def prefixes(
    sessions: SessionFrame,
    *,
    last: int | None = None,
    drawn: int | None = None,
    seed: int = 0,
    longest: int | None = None,
) -> SessionFrame:
    """Return every event but the first of a session as a target, with the events before it as its session.

    Args:
        sessions: the sessions.
        last: only the last so many targets; None: all. All of a long session take the square of its length.
        drawn: only so many targets, drawn at random; in their order.
        seed: of what is drawn.
        longest: only so many events before each target, the last ones; None: all.

    Returns:
        One session per such event, in the order of the events; ids are those of the sessions they come from.
    """
    lengths = (sessions.lengths - 1).clamp_min(0)
    rows = torch.repeat_interleave(torch.arange(len(sessions)), lengths)
    kept = torch.arange(len(rows))
    if drawn is not None:
        kept = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:drawn].sort().values
    kept = kept if last is None else kept[max(len(kept) - last, 0) :]
    first = torch.ones(len(sessions.values), dtype=torch.bool)
    first[sessions.offsets[:-1][sessions.lengths > 0]] = False
    places, rows = first.nonzero().squeeze(1)[kept], rows[kept]
    starts = sessions.offsets[rows]
    made = sessions.cut(starts if longest is None else torch.maximum(starts, places - longest), places)
    made.target = sessions.values[places]
    made.sessions = None if sessions.sessions is None else sessions.sessions.take(rows)
    return made


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise DataError(f"a share of {share} was to be held out", remedy="Give a number between 0 and 1")
