"""Features that look back, served from events: observed one by one, kept by key, read for the rows of a request.

In: a fitted ``FeatureSet``; events. Out: the columns that ``FeatureSet.transform`` makes of the same rows and all
events so far. ``plan.py`` finds out which generator looks at which events, ``fold.py`` what old ones leave behind,
``records.py`` and ``keys.py`` turn rows into bytes, ``memory_store.py`` and ``redis_store.py`` keep them,
``fetching.py`` brings a request's own back, ``online.py`` puts it together.
"""

from fastrec.serve.online.online import Online, write_online_state
from fastrec.serve.online.store import MemoryStore, RedisStore

__all__ = ["MemoryStore", "Online", "RedisStore", "write_online_state"]
