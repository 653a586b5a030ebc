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

GRAPH_ROWS = 1 << 20  # rows of all tables together below which a streamed net on CUDA has dense gradients and a CUDA
# graph; not measured: dense gradients of more rows cost more than the graph saves

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

# ----

# ---- cli

# ----
