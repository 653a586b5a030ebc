"""Export runs as ONNX graphs, and serve them over HTTP.

``graph/`` builds the graph, ``forest/`` converts trees, ``server/`` answers requests, ``online/`` stores the events
that features look back to.
"""

from typing import TYPE_CHECKING

from fastrec._core.imports import lazily
from fastrec.serve.export import Exported, export_run
from fastrec.serve.next_items import NextItemGraph, export_next_items, verify_next_items
from fastrec.serve.online import MemoryStore, Online, write_online_state
from fastrec.serve.triton import write_triton
from fastrec.serve.verify import Verified, metric_loss, verify_export

if TYPE_CHECKING:
    from fastrec.serve.server.app import make_app
    from fastrec.serve.server.batcher import Scorer
    from fastrec.serve.server.call import Limits, Refusal
    from fastrec.serve.server.versions import Canary

# At first use: an export is written and verified where the server's packages are not installed.
_HOMES = {"make_app": "app", "Scorer": "batcher", "Limits": "call", "Refusal": "call", "Canary": "versions"}
__getattr__ = lazily(__name__, {name: f"server.{module}" for name, module in _HOMES.items()})

__all__ = [
    "Canary",
    "Exported",
    "Limits",
    "MemoryStore",
    "NextItemGraph",
    "Online",
    "Refusal",
    "Scorer",
    "Verified",
    "export_next_items",
    "export_run",
    "make_app",
    "metric_loss",
    "verify_export",
    "verify_next_items",
    "write_online_state",
    "write_triton",
]
