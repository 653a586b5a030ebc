"""From a run directory to scores elsewhere: one exported graph, a server round it, events that become features.

In: a run directory of ``fastrec run``. Out: a folder with ``model.onnx`` (raw columns → score) and ``serving.json``, or
a server that answers. ``export.py`` writes the folder and ``verify.py`` checks it, ``graph/`` builds the graph,
``forest/`` turns trees into nodes, ``triton.py`` makes a model repository of it, ``server/`` answers requests and
batches them, ``online/`` keeps the events that features look back to. ``next_items/`` does the same for nets of
sessions: raw item ids → the best items; ``session_ranker.py`` for rankers that read the events before a list.
"""

from fastrec.serve.export import Exported, export_run
from fastrec.serve.metric_loss import metric_loss
from fastrec.serve.next_items.export import ExportedNextItems, export_next_items
from fastrec.serve.next_items.graph import NextItemGraph
from fastrec.serve.next_items.verify import verify_next_items
from fastrec.serve.online import MemoryStore, Online, RedisStore, write_online_state
from fastrec.serve.server.make import make_app
from fastrec.serve.server.refusal import Refusal
from fastrec.serve.server.scorer import Scorer
from fastrec.serve.server.service import Limits
from fastrec.serve.server.versions import Canary
from fastrec.serve.session_ranker import export_session_ranker, verify_session_ranker
from fastrec.serve.triton import write_triton
from fastrec.serve.verify import Verified, verify_export

__all__ = [
    "Canary",
    "Exported",
    "ExportedNextItems",
    "Limits",
    "MemoryStore",
    "NextItemGraph",
    "Online",
    "RedisStore",
    "Refusal",
    "Scorer",
    "Verified",
    "export_next_items",
    "export_run",
    "export_session_ranker",
    "make_app",
    "metric_loss",
    "verify_export",
    "verify_next_items",
    "verify_session_ranker",
    "write_online_state",
    "write_triton",
]
