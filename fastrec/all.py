"""Everything a notebook wants: ``from fastrec.all import *``."""

from fastrec.errors import FastrecError
from fastrec.features import (
    BayesianRate,
    Bucketize,
    Combine,
    CountEncode,
    Cross,
    CumStat,
    Cyclic,
    Diff,
    FeatureSet,
    GroupPick,
    GroupRank,
    GroupStats,
    History,
    JaccardToHistory,
    Lag,
    LastKnown,
    TargetEncode,
    Where,
    explode,
)
from fastrec.learner import RecLearner, rec_learner
from fastrec.loader import TabularLoader
from fastrec.losses import BCE, ListwiseSoftmax
from fastrec.metric_callbacks import AUC, MAP, MRR, NDCG, Recall
from fastrec.metrics import auc, mean_average_precision, mrr, ndcg, recall
from fastrec.models import TabularNet
from fastrec.optim import Lamb, adamw, lamb, scale_lr
from fastrec.procs import Categorify, FillMissing, Normalize
from fastrec.rank import rank_lists, ranked_strings
from fastrec.rank_gauss import RankGauss
from fastrec.rankers import ColumnRanker, Lists, NetRanker, XGBRanker
from fastrec.stack import LinearBlend, Stack
from fastrec.submit import RECSYS2019, check_submission, score_submission, write_submission
from fastrec.table import Table
from fastrec.tabular import TabularFrame
from fastrec.validate import CrossFit, group_folds
from fastrec.vocab import Vocab

__all__ = [
    "AUC",
    "BCE",
    "MAP",
    "MRR",
    "NDCG",
    "RECSYS2019",
    "BayesianRate",
    "Bucketize",
    "Categorify",
    "ColumnRanker",
    "Combine",
    "CountEncode",
    "Cross",
    "CrossFit",
    "CumStat",
    "Cyclic",
    "Diff",
    "FastrecError",
    "FeatureSet",
    "FillMissing",
    "GroupPick",
    "GroupRank",
    "GroupStats",
    "History",
    "JaccardToHistory",
    "Lag",
    "Lamb",
    "LastKnown",
    "LinearBlend",
    "Lists",
    "ListwiseSoftmax",
    "NetRanker",
    "Normalize",
    "RankGauss",
    "RecLearner",
    "Recall",
    "Stack",
    "Table",
    "TabularFrame",
    "TabularLoader",
    "TabularNet",
    "TargetEncode",
    "Vocab",
    "Where",
    "XGBRanker",
    "adamw",
    "auc",
    "check_submission",
    "explode",
    "group_folds",
    "lamb",
    "mean_average_precision",
    "mrr",
    "ndcg",
    "rank_lists",
    "ranked_strings",
    "rec_learner",
    "recall",
    "scale_lr",
    "score_submission",
    "write_submission",
]
