"""Constants with the measurement that chose them: name, value, unit, and what was measured where.

A constant without a measurement says what it bounds. Read them as ``limits.NAME``, so that a test can change one.
"""

# ---- _core

# ----

# ---- table

# ----

# ---- segments

# ----

# ---- losses

# ----

# ---- metrics

# ----

# ---- features

# ----

# ---- tabular

# ----

# ---- models

# ----

# ---- optim

# ----

# ---- training

# ----

# ---- validate

# ----

# ---- estimators

# ----

# ---- sequences

# ----

# ---- retrieval

# ----

# ---- stacking

# ----

# ---- scale

# ----

# ---- report

# ----

# ---- competition

# ----

# ---- registry

# ----

# ---- serve

ONNX_FILE_BYTES = 2_000_000_000  # constants in one file; protobuf's largest message is 2 GiB
VERIFY_DIFFERENCE = 1e-5  # largest difference of a graph's scores from the run's, relative above 1; not measured
VERIFY_TIE = 1e-6  # scores of a list so near one another may change places; not measured
FOREST_SETS = 1_024  # sets of categories in a node; rows of thousands of columns would take much memory, not measured
PAIR_TABLE_CODES = 1 << 22  # pairs of codes looked up in a table of all pairs (32 MiB); not measured: bounds memory
NEXT_ITEM_CELLS = 1 << 24  # scores, or padded events of sessions, in memory at a time; not measured: bounds memory
FOLD_TABLE_BYTES = 32 << 20  # by which tables multiplied by a net's first layer may grow; not measured: bounds memory
HASHED_TEXT_BYTES = 1_024  # of a text whose letters a graph hashes: all rows are as wide as the longest; bounds memory

# ----

# ---- auto

# ----

# ---- trials

TRY_ROWS = 10_000  # rows a fold's light model trains on, or some more with whole lists; not measured: bounds the time
TRY_LEAK_ROWS = 3_000  # rows the search for leaks runs on, or some more with whole keys; not measured: bounds the time
TRY_REPEATS = 5  # seeds and shuffles of a try; not measured: bounds the time of its interval's degrees of freedom

# ----

# ---- tuning

# ----

# ---- monitor

# ----

# ---- cli

# ----
