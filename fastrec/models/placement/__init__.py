"""Where the rows of embedding tables lie: on the device, on the host behind a cache, in files, on several ranks.

In: sizes of tables and the device's bytes. Out: lookups, gradients and optimizer steps of the same numbers wherever the
rows are. ``settings.py`` says what goes where, ``row_store.py`` holds all rows of tables on the host or in files,
``row_cache.py`` the rows that are on the device, ``coldest.py`` which of them go, ``lease.py`` keeps those that a
gradient may still come for, ``sharded_rows.py`` shares rows out to ranks, ``regroup.py`` reads saved weights of another
placement, ``plan.py`` says beforehand what it will cost.
"""
