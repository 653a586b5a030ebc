"""Recipes for rows that do not fit into memory.

``clicks.py``: outcomes that are 0 or 1, by nets that learn from a stream. ``lists.py``: lists to rank, by a recipe's
own features, streamed nets and XGBoost's external memory, of parts on the disk (``laid.py``).
"""
