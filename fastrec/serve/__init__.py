"""From a run directory to scores elsewhere: one exported graph, a server round it, events that become features.

In: a run directory of ``fastrec run``. Out: a folder with ``model.onnx`` (raw columns → score) and ``serving.json``, or
a server that answers. ``export.py`` writes the folder, ``graph/`` builds the graph, ``forest/`` turns trees into nodes,
``server/`` answers requests and batches them, ``online/`` keeps the events that features look back to.
"""

from fastrec.serve.pt2 import export_pt2
from fastrec.serve.triton import write_triton

__all__ = ["export_pt2", "write_triton"]
