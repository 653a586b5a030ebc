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

# ----

# ---- auto

# ----

# ---- trials

# ----

# ---- tuning

# ----

# ---- monitor
MONITOR_ROWS = 20  # rows of a side; not measured: below, tests of shares and shapes find nothing
MONITOR_TREE_ROWS = 20_000  # rows of a side; not measured: bounds the time of the trees that tell the sides apart
LEAST_EXPECTED = 5.0  # counts of a cell; Cochran's rule for the chi-square approximation
GATE_UNITS = 50  # rows or lists; not measured: a gate's decision from fewer would be chance

# ----

# ---- cli

# ----
