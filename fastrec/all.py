"""The names that a notebook begins with: ``from fastrec.all import *``.

All other names are imported from their room, such as ``from fastrec.metrics import ndcg``. ``Categorify``,
``FillMissing`` and ``Normalize`` are the procs of ``fastrec.tabular``; the generators of the same names are
``features.Categorify`` and so on, by ``from fastrec import features``. fastai's own names (``np``, ``accuracy``,
``Learner``) come from fastai: import ``fastai.tabular.all`` first.
"""

# ruff: noqa: F401 - names are imported here to be imported from here
from fastrec import fit, try_features
from fastrec.competition import (
    Competition,
    CompetitionData,
    NextItemCompetition,
    Reading,
    SavedRun,
    SubmissionForm,
    blend_runs,
    run_competition,
)
from fastrec.datasets import planted_ctr
from fastrec.errors import DataError, FastrecError
from fastrec.estimators import (
    CatBoostModel,
    ColumnRanker,
    ConstantModel,
    LGBMModel,
    NetModel,
    PseudoLabelled,
    SKModel,
    XGBModel,
)
from fastrec.features import (
    BayesianRate,
    Bucketize,
    Combine,
    CountEncode,
    CoVisit,
    Cross,
    CumStat,
    CumTarget,
    Cyclic,
    DateOf,
    DatePart,
    DeviationFromGroup,
    Diff,
    Ewm,
    Explode,
    FeatureSet,
    GroupPick,
    GroupRank,
    GroupStats,
    History,
    ImageEmbed,
    JoinTable,
    Lag,
    LastAction,
    LastKnown,
    MultiHot,
    NUnique,
    Rolling,
    RowStats,
    SvdEncode,
    TargetEncode,
    TextEmbed,
    TextSvd,
    TimeSince,
    Where,
    check_leakage,
    feature,
    search_crosses,
)
from fastrec.losses import BCE, ListwiseSoftmax
from fastrec.metrics import AUC, MRR, NDCG, as_metric, bootstrap_metric, get_metric
from fastrec.models import DLRM, DCNv2, DeepFM, MatrixFactorization, RealMLP, TabM, TabularNet, TwoTower, WideAndDeep
from fastrec.optim import adamw, lamb
from fastrec.stacking import Stack
from fastrec.table import Table
from fastrec.tabular import (
    Categorify,
    Features,
    FillMissing,
    LogTransform,
    Normalize,
    ParquetFrame,
    RankGauss,
    RecDataLoaders,
    TabularFrame,
)
from fastrec.training import Checkpoint, rec_learner
from fastrec.validate import CrossFit, Folds, adversarial_validation

__all__ = [name for name in dir() if not name.startswith("_")]
