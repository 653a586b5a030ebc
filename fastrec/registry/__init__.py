"""Versions of a served model on disk, one of them current.

In: run directories and exports. Out: a folder of versions whose files never change, and one small file that names the
current one: ``promote``, ``rollback`` and their history.
"""

from fastrec.registry.registry import Registry, Version, is_registry

__all__ = ["Registry", "Version", "is_registry"]
