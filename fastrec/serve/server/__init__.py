"""An HTTP server for an export: it checks requests, scores waiting ones together, and reports its metrics.

It speaks its own protocol (``/v1``), the Open Inference Protocol (``/v2``), and recommends items for sessions.
"""
