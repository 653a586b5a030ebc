"""Where rows of embedding tables are stored: on the device, on the host behind a cache, in files, on several ranks.

In: sizes of tables and the device's bytes. Out: lookups, gradients and optimizer steps with the same numbers wherever
the rows are.
"""
