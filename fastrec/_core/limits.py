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
REGISTRY_POLL = 0.5  # seconds between looks at a registry; bounds how late a promoted version answers
PARSE_INLINE = 64 * 1024  # bytes of a body parsed in the event loop; not measured: larger ones go to a thread
SLOW_BODY = 1.0  # seconds after which a body still coming gives way to others; bounds what slow clients hold
CLIENT_BODIES = 8  # largest bodies that one client may have in memory at once; bounds memory
ANSWER_ITEMS = 5_000_000  # items of one answer of /v1/recommend; bounds memory
EXACT_FLOAT = 2.0**53  # from here on a float may stand for several integers
SHORT_LOG = 64 << 20  # bytes; not measured: a shorter log of events loads faster than a snapshot is written

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
