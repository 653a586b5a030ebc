"""The models, one a file, over one shared embedding module."""

from __future__ import annotations

from fastrec.models.embedding import EmbeddingTables
from fastrec.models.embedding_layout import TableSlice, emb_sz_rule, embedding_sizes
from fastrec.models.field_net import FieldNet
from fastrec.models.tabular_net import TabularNet

__all__ = ["EmbeddingTables", "FieldNet", "TableSlice", "TabularNet", "emb_sz_rule", "embedding_sizes"]
