"""Sessions: who looked at what in which order → what is next.

In: logs of events, or list columns. Out: scores of all items for every session, the best of them first.
``session_frame.py`` holds the sessions, ``splits.py`` holds some of them out, ``base.py`` says what a model is.
"""

from fastrec.sequences.base import SessionModel
from fastrec.sequences.ranked import best_items
from fastrec.sequences.session_frame import SessionFrame
from fastrec.sequences.splits import by_session, by_time, given_split, leave_one_out, prefixes

__all__ = [
    "SessionFrame",
    "SessionModel",
    "best_items",
    "by_session",
    "by_time",
    "given_split",
    "leave_one_out",
    "prefixes",
]
