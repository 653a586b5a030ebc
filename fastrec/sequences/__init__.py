"""Sessions: who looked at what in which order → what is next.

In: logs of events, or list columns. Out: scores of all items for every session, the best of them first.
``session_frame.py`` holds the sessions, ``splits.py`` holds some of them out, ``base.py`` says what a model is.
``vsknn.py``, ``stan.py`` and ``vstan.py`` look for sessions that are like one (``session_knn.py``),
``co_visitation.py`` for items that stand near its last ones, ``popularity.py`` is the rule to beat,
``session_blend.py`` adds up several models' scores.
"""

from fastrec.sequences.base import SessionModel
from fastrec.sequences.bert4rec import BERT4Rec
from fastrec.sequences.chunked_loss import linear_cross_entropy
from fastrec.sequences.co_visitation import CoVisitation
from fastrec.sequences.gru4rec import GRU4Rec
from fastrec.sequences.item_tower import ItemTower
from fastrec.sequences.losses import GBCE, BPRMax, FullSoftmax, SampledSoftmax, SessionLoss
from fastrec.sequences.narm import NARM
from fastrec.sequences.next_item_net import NextItemNet
from fastrec.sequences.one_cycle_in_time import OneCycleInTime
from fastrec.sequences.popularity import PopularItems
from fastrec.sequences.ranked import best_items
from fastrec.sequences.sasrec import ESASRec, SASRec
from fastrec.sequences.sequence_scores import sequence_metrics, target_ranks
from fastrec.sequences.session_blend import SessionBlend
from fastrec.sequences.session_frame import SessionFrame
from fastrec.sequences.session_knn import SessionKNN
from fastrec.sequences.session_learner import NextItemMetric, SessionLearner, session_learner
from fastrec.sequences.session_loader import SessionLoader, session_dataloaders
from fastrec.sequences.session_net import SessionNet
from fastrec.sequences.splits import by_session, by_time, given_split, leave_one_out, prefixes
from fastrec.sequences.stan import STAN
from fastrec.sequences.vsknn import VSKNN
from fastrec.sequences.vstan import VSTAN
from fastrec.sequences.warm_start import ppmi_svd
from fastrec.sequences.xlnet import XLNet

__all__ = [
    "GBCE",
    "NARM",
    "STAN",
    "VSKNN",
    "VSTAN",
    "BERT4Rec",
    "BPRMax",
    "CoVisitation",
    "ESASRec",
    "FullSoftmax",
    "GRU4Rec",
    "ItemTower",
    "NextItemMetric",
    "NextItemNet",
    "OneCycleInTime",
    "PopularItems",
    "SASRec",
    "SampledSoftmax",
    "SessionBlend",
    "SessionFrame",
    "SessionKNN",
    "SessionLearner",
    "SessionLoader",
    "SessionLoss",
    "SessionModel",
    "SessionNet",
    "XLNet",
    "best_items",
    "by_session",
    "by_time",
    "given_split",
    "leave_one_out",
    "linear_cross_entropy",
    "ppmi_svd",
    "prefixes",
    "sequence_metrics",
    "session_dataloaders",
    "session_learner",
    "target_ranks",
]
