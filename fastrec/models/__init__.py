"""The models, one a file, over one shared embedding module; ``placement/``: tables larger than the device."""

from fastrec.models.embedding import EmbeddingTables, load_tables, save_tables, table_frame
from fastrec.models.embedding_layout import TableSlice, emb_sz_rule, embedding_sizes
from fastrec.models.factors import MatrixFactorization, TwoTower, item_log_q
from fastrec.models.fields import FieldNet
from fastrec.models.history import BST, DIN, EventNet
from fastrec.models.interactions import DLRM, DCNv2, DeepFM, WideAndDeep
from fastrec.models.placement.plan import EmbeddingPlan, Embeddings, plan_embeddings
from fastrec.models.real_mlp import RealMLP
from fastrec.models.tabm import MeanOverMembers, ModernNCA, PiecewiseLinear, TabM, bins_of
from fastrec.models.tabular_net import TabularNet

__all__ = [
    "BST", "DIN", "DLRM", "DCNv2", "DeepFM", "EmbeddingPlan", "EmbeddingTables", "Embeddings", "EventNet", "FieldNet",
    "MatrixFactorization", "MeanOverMembers", "ModernNCA", "PiecewiseLinear", "RealMLP", "TabM", "TableSlice",
    "TabularNet", "TwoTower", "WideAndDeep", "bins_of", "emb_sz_rule", "embedding_sizes", "item_log_q", "load_tables",
    "plan_embeddings", "save_tables", "table_frame",
]  # fmt: skip
