"""Sessions: who looked at what in which order → what is next.

In: logs of events, or list columns. Out: scores of all items for every session, the best of them first.
"""

__all__: list[str] = []
