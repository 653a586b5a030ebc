"""Everything a notebook wants: ``from fastrec.all import *``."""

from fastrec.competition.check import check_submission
from fastrec.competition.form import RECSYS2019
from fastrec.competition.ordering import rank_lists, ranked_strings
from fastrec.competition.score import score_submission
from fastrec.competition.write import write_submission
from fastrec.datasets import planted_ctr
from fastrec.errors import FastrecError
from fastrec.estimators import ColumnRanker, NetRanker, XGBRanker
from fastrec.features import (
    BayesianRate,
    Bucketize,
    Clip,
    Collect,
    Combine,
    CountEncode,
    CoVisit,
    Cross,
    CumCount,
    CumStat,
    CumTarget,
    Cyclic,
    DatePart,
    DeviationFromGroup,
    Diff,
    Digits,
    Ewm,
    Explode,
    FeatureCache,
    FeatureSet,
    GroupPick,
    GroupRank,
    GroupStats,
    HashEncode,
    History,
    JaccardToHistory,
    JoinTable,
    Lag,
    LastAction,
    LastKnown,
    ListLength,
    ListSlice,
    Log1p,
    MultiHot,
    NaNPattern,
    Neighbours,
    NUnique,
    PctChange,
    RankByCount,
    Rolling,
    RoundTo,
    SvdEncode,
    TargetEncode,
    TfIdfSimilarity,
    TimeSince,
    Tokens,
    VectorColumns,
    Where,
    check_leakage,
    explode,
    search_crosses,
)
from fastrec.losses.bce import BCE
from fastrec.losses.in_batch import InBatchSoftmax
from fastrec.losses.listwise import ListwiseSoftmax
from fastrec.losses.pairwise import BPR, PairwiseHinge
from fastrec.metrics.callbacks import AUC, MAP, MRR, NDCG, Recall
from fastrec.metrics.ranking import auc, mean_average_precision, mrr, ndcg, recall
from fastrec.models import (
    DLRM,
    DCNv2,
    DeepFM,
    MatrixFactorization,
    PiecewiseLinear,
    TabM,
    TabularNet,
    TwoTower,
    WideAndDeep,
    bins_of,
    item_log_q,
)
from fastrec.optim.scaling import scale_lr, scale_moms, split_embeddings
from fastrec.optim.wrapper import AdamW, Lamb, adamw, lamb
from fastrec.stacking.blends import LinearBlend
from fastrec.stacking.stack import Stack
from fastrec.table.table import Table
from fastrec.table.vocab import Vocab
from fastrec.tabular.dataloaders import RecDataLoaders
from fastrec.tabular.frame import TabularFrame
from fastrec.tabular.loader import TabularLoader
from fastrec.tabular.procs.categorify import Categorify
from fastrec.tabular.procs.features import Features
from fastrec.tabular.procs.fill_missing import FillMissing
from fastrec.tabular.procs.log_transform import LogTransform
from fastrec.tabular.procs.normalize import Normalize
from fastrec.tabular.procs.rank_gauss import RankGauss
from fastrec.tabular.stream.frame import ParquetFrame
from fastrec.training.amp import BF16Autocast
from fastrec.training.checkpoint import Checkpoint, load_checkpoint
from fastrec.training.cow_clip import CowClip
from fastrec.training.cuda_graph import CudaGraph
from fastrec.training.learner import RecLearner, rec_learner
from fastrec.training.stop_on_nan import StopOnNaN
from fastrec.training.torch_compile import CompiledModel
from fastrec.validate.crossfit import CrossFit
from fastrec.validate.folds import group_folds
from fastrec.validate.lists import Lists

__all__ = [
    "AUC",
    "BCE",
    "BPR",
    "DLRM",
    "MAP",
    "MRR",
    "NDCG",
    "RECSYS2019",
    "AdamW",
    "BF16Autocast",
    "BayesianRate",
    "Bucketize",
    "Categorify",
    "Checkpoint",
    "Clip",
    "CoVisit",
    "Collect",
    "ColumnRanker",
    "Combine",
    "CompiledModel",
    "CountEncode",
    "CowClip",
    "Cross",
    "CrossFit",
    "CudaGraph",
    "CumCount",
    "CumStat",
    "CumTarget",
    "Cyclic",
    "DCNv2",
    "DatePart",
    "DeepFM",
    "DeviationFromGroup",
    "Diff",
    "Digits",
    "Ewm",
    "Explode",
    "FastrecError",
    "FeatureCache",
    "FeatureSet",
    "Features",
    "FillMissing",
    "GroupPick",
    "GroupRank",
    "GroupStats",
    "HashEncode",
    "History",
    "InBatchSoftmax",
    "JaccardToHistory",
    "JoinTable",
    "Lag",
    "Lamb",
    "LastAction",
    "LastKnown",
    "LinearBlend",
    "ListLength",
    "ListSlice",
    "Lists",
    "ListwiseSoftmax",
    "Log1p",
    "LogTransform",
    "MatrixFactorization",
    "MultiHot",
    "NUnique",
    "NaNPattern",
    "Neighbours",
    "NetRanker",
    "Normalize",
    "PairwiseHinge",
    "ParquetFrame",
    "PctChange",
    "PiecewiseLinear",
    "RankByCount",
    "RankGauss",
    "RecDataLoaders",
    "RecLearner",
    "Recall",
    "Rolling",
    "RoundTo",
    "Stack",
    "StopOnNaN",
    "SvdEncode",
    "TabM",
    "Table",
    "TabularFrame",
    "TabularLoader",
    "TabularNet",
    "TargetEncode",
    "TfIdfSimilarity",
    "TimeSince",
    "Tokens",
    "TwoTower",
    "VectorColumns",
    "Vocab",
    "Where",
    "WideAndDeep",
    "XGBRanker",
    "adamw",
    "auc",
    "bins_of",
    "check_leakage",
    "check_submission",
    "explode",
    "group_folds",
    "item_log_q",
    "lamb",
    "load_checkpoint",
    "mean_average_precision",
    "mrr",
    "ndcg",
    "planted_ctr",
    "rank_lists",
    "ranked_strings",
    "rec_learner",
    "recall",
    "scale_lr",
    "scale_moms",
    "score_submission",
    "search_crosses",
    "split_embeddings",
    "write_submission",
]
