"""Export runs as ONNX graphs, and serve them over HTTP.

``graph/`` builds the graph, ``forest/`` converts trees, ``server/`` answers requests, ``online/`` stores the events
that features look back to.
"""

from fastrec.serve.export import Exported, export_run, export_session_ranker
from fastrec.serve.next_items import ExportedNextItems, NextItemGraph, export_next_items, verify_next_items
from fastrec.serve.online import MemoryStore, Online, RedisStore, write_online_state
from fastrec.serve.server.app import make_app
from fastrec.serve.server.batcher import Scorer
from fastrec.serve.server.call import Limits, Refusal
from fastrec.serve.server.versions import Canary
from fastrec.serve.triton import write_triton
from fastrec.serve.verify import Verified, metric_loss, verify_export, verify_session_ranker

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
