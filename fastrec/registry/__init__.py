"""Versions of a served model on disk: which is current, which was before, and the change between them at once.

In: run directories and exports. Out: a folder of versions whose files never change, and one small file that says which
is in use (``model_registry.py``): ``promote``, ``rollback`` and a history of both.
"""

from fastrec.registry.registry import Registry, Version, is_registry

__all__ = ["Registry", "Version", "is_registry"]
