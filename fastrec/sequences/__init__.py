"""Sessions: who looked at what in which order → the next item.

In: logs of events, or list columns. Out: scores of all items for every session, the best first. Models are nets,
neighbours, items near the last ones, popularity, and blends of them; all are ``SessionModel``.
"""

from fastrec.sequences.base import SessionModel, best_items, sequence_metrics, target_ranks
from fastrec.sequences.items import CoVisitation, PopularItems
from fastrec.sequences.losses import (
    GBCE,
    BPRMax,
    FullSoftmax,
    GoalLoss,
    SampledSoftmax,
    SessionLoss,
    linear_cross_entropy,
    ppmi_svd,
)
from fastrec.sequences.neighbours import STAN, VSKNN, VSTAN, SessionKNN
from fastrec.sequences.nets import HSTU, NARM, BERT4Rec, ESASRec, GRU4Rec, PooledSASRec, SASRec, XLNet
from fastrec.sequences.next_item_net import GoalNet, NextItemNet
from fastrec.sequences.reading import SessionFrame, by_session, by_time, given_split, leave_one_out, prefixes
from fastrec.sequences.session_blend import SessionBlend
from fastrec.sequences.session_learner import (
    NextItemMetric,
    OneCycleInTime,
    SessionLearner,
    SessionLoader,
    session_dataloaders,
    session_learner,
)
from fastrec.sequences.session_net import GoalHeads, ItemTower, SessionNet

__all__ = [
    "GBCE", "HSTU", "NARM", "STAN", "VSKNN", "VSTAN", "BERT4Rec", "BPRMax", "CoVisitation", "ESASRec",
    "FullSoftmax", "GRU4Rec", "GoalHeads", "GoalLoss", "GoalNet", "ItemTower", "NextItemMetric", "NextItemNet",
    "OneCycleInTime", "PooledSASRec", "PopularItems", "SASRec", "SampledSoftmax", "SessionBlend", "SessionFrame",
    "SessionKNN", "SessionLearner", "SessionLoader", "SessionLoss", "SessionModel", "SessionNet", "XLNet",
    "best_items", "by_session", "by_time", "given_split", "leave_one_out", "linear_cross_entropy", "ppmi_svd",
    "prefixes", "sequence_metrics", "session_dataloaders", "session_learner", "target_ranks",
]  # fmt: skip
