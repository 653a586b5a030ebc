"""Features that look back, served from events: observed one by one, stored by key, read for a request's rows.

In: a fitted ``FeatureSet``; events. Out: the columns that ``FeatureSet.transform`` computes of the same rows and all
events so far.
"""

from fastrec.serve.online.online import Online, write_online_state
from fastrec.serve.online.store import MemoryStore

__all__ = ["MemoryStore", "Online", "write_online_state"]
