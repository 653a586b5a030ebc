"""Versions of a served model on disk: which is current, which was before, and the change between them at once."""

__all__: list[str] = []
