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
