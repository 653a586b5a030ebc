"""Sessions: who looked at what in which order → what is next.

In: logs of events, or list columns. Out: scores of all items for every session, the best of them first.
``session_frame.py`` holds the sessions, ``splits.py`` holds some of them out, ``base.py`` says what a model is.
``vsknn.py``, ``stan.py`` and ``vstan.py`` look for sessions that are like one (``session_knn.py``).
"""

from fastrec.sequences.base import SessionModel
from fastrec.sequences.ranked import best_items
from fastrec.sequences.session_frame import SessionFrame
from fastrec.sequences.session_knn import SessionKNN
from fastrec.sequences.splits import by_session, by_time, given_split, leave_one_out, prefixes
from fastrec.sequences.stan import STAN
from fastrec.sequences.vsknn import VSKNN
from fastrec.sequences.vstan import VSTAN

__all__ = [
    "STAN",
    "VSKNN",
    "VSTAN",
    "SessionFrame",
    "SessionKNN",
    "SessionModel",
    "best_items",
    "by_session",
    "by_time",
    "given_split",
    "leave_one_out",
    "prefixes",
]
