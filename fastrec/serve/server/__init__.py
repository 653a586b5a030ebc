"""An HTTP server for an export: it checks requests, scores waiting ones together, and reports its metrics.

It speaks its own protocol (``/v1``), the Open Inference Protocol (``/v2``), and recommends items for sessions.
"""

from fastrec._core.imports import require

for _module in ("starlette", "orjson", "uvicorn", "httptools"):  # here, before anything imports them
    require(_module, _module, "pip install 'fastrec-tabular[serve]'")
