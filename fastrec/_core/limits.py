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

CROSS_FIT_ROWS = 200_000  # rows; not measured: bounds the time of a fit of three or four weights in search_crosses
CROSS_NEWTON_STEPS = 20  # steps; not measured: bounds Newton's method in search_crosses, which converges in fewer
LEAK_DRAWS = 7  # runs with random targets in check_leakage; not measured: 126 patterns of changes tell rows apart
LEAK_SIGNS = 20  # rows changed one by one if all values move; all but one on one side is 4 in 100 000 by chance
LEAK_FOLLOWERS = 512  # rows that may follow their target; not measured: bounds the further runs' work
LEAK_ERRORS = 30.0  # standard errors from which a row may follow its target; not measured: far beyond chance
LEAK_ROUNDS = 5  # further runs that thin out followers; not measured: each halves those that follow by chance
LEAK_SINGLE = 3  # rows per column confirmed one by one; not measured: bounds the runs
LEAK_FOLDS = 5  # outer folds whose targets are changed; not measured: bounds the runs
LEAK_KEYS = 30  # columns tried as keys; not measured: bounds the time on wide frames
LEAK_PAIRED_KEYS = 6  # of those, columns tried in pairs; not measured: bounds the time
LEAK_CUTS = 3  # times at which the future is changed; not measured: bounds the runs
LEAK_RELATIVE = 1e-9  # of a value: moves below are rounding; float64 sums in another order differ by about 1e-13
LEAK_ABSOLUTE = 1e-12  # of a column's typical value: moves below are rounding
LEAK_LEAST_ROWS = 20  # rows without which a statistic of the target is chance; not measured
ROW_STATS_NUMBERS = 1 << 21  # numbers as float64 at a time; not measured: bounds memory to 16 MiB per copy
JACCARD_CELLS = 1 << 22  # pairs times properties marked at a time; not measured: 4 MiB of marks stay in the cache
TFIDF_ELEMENTS = 1 << 20  # elements compared at a time; not measured: their sort stays in the cache
LEAK_LEAST_KEYS = 8  # keys without which a statistic by key is chance; not measured

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

# ----

# ---- cli

# ----
