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

END_SHARE = 0.05  # share of the minutes for stack, files and report, at least; more for many rows
END_SECONDS_PER_MILLION = 13.0  # seconds of the end for a million predictions that a stack's blends learn from
END_SECONDS_PER_FURTHER_MILLION = 2.0  # seconds for a million predictions that they do not learn from
FIT_SHARE = 0.95  # share of a fold's time that fit gets: predicting and caching take the rest
LEAST_FIT_SECONDS = 0.5  # seconds below which no model is begun
MARKED_BYTES = 1 << 16  # bytes at either end of a file that its mark depends on; bounds the time for many GiB
SAMPLE_ROWS = 2_000  # rows of a run's sample, by which an export takes its types and is verified
GRAPH_ROWS = 1 << 20  # rows of all tables together below which a streamed net on CUDA has dense gradients and a CUDA
# graph; not measured: dense gradients of more rows cost more than the graph saves

# ----

# ---- registry

# ----

# ---- serve

# ----

# ---- auto

FIT_MINUTES = 0.05  # least wall time of fit; not measured: the bound of --minutes
# numbers; from here on their statistics by row are tried, deviations no more: bounds the columns of a trial
WIDE_TABLE = 50
COUNTED_VALUES = 12  # different values from which a category's counts are tried; not measured
MEAN_VALUES = 8  # different values from which a category's target means are tried; not measured
TREE_TRIAL_ROWS = 200_000  # rows that sizes of trees are tried on; with fewer, small trees look better than they are
CODE_WIDTH = 120  # characters of a line of generated code: ruff's line-length here
SNIFFED_TEXTS = 20_000  # distinct texts of a column that are looked at; bounds the time of look_at
PARSED_SHARE = 0.98  # share of a column's values that must be what the column is taken for; not measured
FEW_CLASSES = 20  # different whole numbers that may be classes; not measured
MANY_CLASSES = 200  # different texts that may be classes; not measured
TREE_TRIAL_TIME = 0.3  # least share of the time for trials that goes to sizes of trees; not measured
# ----

# ---- trials

# ----

# ---- tuning

# ----

# ---- monitor

# ----

# ---- cli

SHOWN_TRIALS = 10  # trials that `fastrec tune` prints; bounds its table
# ----
