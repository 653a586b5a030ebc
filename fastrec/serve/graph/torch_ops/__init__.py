"""Handlers of torch's functions in a graph; each module registers its own (see ``graph/tensor.py``)."""

from fastrec.serve.graph.torch_ops import arithmetic, logic, lookups, reductions, shapes  # noqa: F401 - their handlers
