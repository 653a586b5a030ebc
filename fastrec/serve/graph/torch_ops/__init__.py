"""How functions of torch are written into a graph: each module registers its handlers (see ``graph/tensor.py``)."""

from fastrec.serve.graph.torch_ops import arithmetic, logic, lookups, reductions, shapes

__all__ = ["arithmetic", "logic", "lookups", "reductions", "shapes"]
