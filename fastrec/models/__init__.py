"""The models, one a file, over one shared embedding module; ``placement/``: tables larger than the device."""

from __future__ import annotations

from fastrec.models.bst import BST
from fastrec.models.dcn import DCNv2
from fastrec.models.deep_fm import DeepFM
from fastrec.models.din import DIN
from fastrec.models.dlrm import DLRM
from fastrec.models.embedding import EmbeddingTables
from fastrec.models.embedding_layout import TableSlice, emb_sz_rule, embedding_sizes
from fastrec.models.event_net import EventNet
from fastrec.models.field_net import FieldNet
from fastrec.models.learned_tables import load_tables, save_tables, table_frame
from fastrec.models.matrix_factorization import MatrixFactorization
from fastrec.models.piecewise import PiecewiseLinear, bins_of
from fastrec.models.placement.plan import EmbeddingPlan, plan_embeddings
from fastrec.models.placement.settings import Embeddings
from fastrec.models.real_mlp import RealMLP
from fastrec.models.tabm import MeanOverMembers, TabM
from fastrec.models.tabular_net import TabularNet
from fastrec.models.two_tower import TwoTower, item_log_q
from fastrec.models.wide_deep import WideAndDeep

__all__ = [
    "BST",
    "DIN",
    "DLRM",
    "DCNv2",
    "DeepFM",
    "EmbeddingPlan",
    "EmbeddingTables",
    "Embeddings",
    "EventNet",
    "FieldNet",
    "MatrixFactorization",
    "MeanOverMembers",
    "PiecewiseLinear",
    "RealMLP",
    "TabM",
    "TableSlice",
    "TabularNet",
    "TwoTower",
    "WideAndDeep",
    "bins_of",
    "emb_sz_rule",
    "embedding_sizes",
    "item_log_q",
    "load_tables",
    "plan_embeddings",
    "save_tables",
    "table_frame",
]
