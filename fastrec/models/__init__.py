"""The models, one a file, over one shared embedding module."""

from __future__ import annotations

from fastrec.models.embedding import EmbeddingTables, TableSlice, emb_sz_rule, embedding_sizes
from fastrec.models.tabular_net import TabularNet

__all__ = ["EmbeddingTables", "TableSlice", "TabularNet", "emb_sz_rule", "embedding_sizes"]
