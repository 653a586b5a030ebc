"""How functions of torch are written into a graph: each module registers its handlers (see ``graph/tensor.py``)."""

from fastrec.serve.graph.torch_ops import arithmetic, logic, lookups, reductions, shapes  # noqa: F401 - their handlers
