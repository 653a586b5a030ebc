"""Sessions: who looked at what in which order → what is next.

In: logs of events, or list columns. Out: scores of all items for every session, the best of them first.
``session_frame.py`` holds the sessions, ``splits.py`` holds some of them out, ``sequence_scores.py`` says how good a
ranking is, ``base.py`` what a model is: nets (``next_item_net.py``), sessions that are like one (``vsknn.py``,
``stan.py``, ``vstan.py``; ``session_knn.py``), items near its last ones (``co_visitation.py``), popularity
(``popularity.py``), several together (``session_blend.py``).

Nets one by one: ``session_loader.py`` makes batches (``targets.py``: what they ask, ``augmentation.py``: what is
changed in training), ``sasrec.py``, ``pooled_sasrec.py``, ``gru4rec.py``, ``narm.py``, ``bert4rec.py``, ``xlnet.py``
turn a session into a vector (``session_net.py``) beside those of items (``item_tower.py``), ``losses.py`` compares the
two, ``session_learner.py`` is fastai's Learner around all of it, ``warm_start.py`` what items begin with,
``byte_dropout.py`` their dropout.
"""

from fastrec.sequences.base import SessionModel, best_items
from fastrec.sequences.items import CoVisitation, PopularItems
from fastrec.sequences.losses import (
    GBCE,
    BPRMax,
    FullSoftmax,
    SampledSoftmax,
    SessionLoss,
    linear_cross_entropy,
    ppmi_svd,
)
from fastrec.sequences.neighbours import STAN, VSKNN, VSTAN, SessionKNN
from fastrec.sequences.nets import NARM, BERT4Rec, ESASRec, GRU4Rec, PooledSASRec, SASRec, XLNet
from fastrec.sequences.next_item_net import NextItemNet
from fastrec.sequences.reading import SessionFrame, by_session, by_time, given_split, leave_one_out, prefixes
from fastrec.sequences.session_blend import SessionBlend, sequence_metrics, target_ranks
from fastrec.sequences.session_learner import (
    NextItemMetric,
    OneCycleInTime,
    SessionLearner,
    SessionLoader,
    session_dataloaders,
    session_learner,
)
from fastrec.sequences.session_net import ItemTower, SessionNet

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
    "PooledSASRec",
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
