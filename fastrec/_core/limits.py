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
LIST_BLOCKS = 500  # blocks that lists are put into for a bootstrap: the width of an interval is then off by some 3 %
DRAWN_CLUSTERS = 100_000  # clusters that a resample draws at most (Bickel, Götze and van Zwet 1997)
COUNTED_CODES = 1 << 20  # class codes above it are renumbered; bounds memory of the counts
RESAMPLED_AT_ONCE = 1 << 22  # resampling weights held at once: 32 MiB of them

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
ADVERSARIAL_ROWS = 50_000  # rows of each side that adversarial validation looks at; not measured: bounds its time
ADVERSARIAL_FOLDS = 5  # its folds

# ----

# ---- estimators
LARGE_BATCH = (
    32_768  # rows; from here momenta and rates go with the batch: rule *scaled* of BENCHMARKS.md (extreme batches)
)
HELD_OUT_SEED = 104_729  # apart from the seeds that cut folds: the rows held out would otherwise be a part of one fold
HELD_OUT_HASHES = 1 << 30  # hashes that rows to hold out are drawn by; more than there are rows
LONG_TAIL_ROWS = 200_000  # rows whose quartiles are looked at; not measured: bounds the time of the sort
LARGEST_NUMBER = 1e38  # XGBoost refuses infinite values, and adds to the largest one
RANKED_BATCH = (
    3_000  # candidates, about 130 lists of 23 (trivago2019): the batch that a NetRanker's default rate is for
)
ROWS_AT_ONCE = 1 << 12  # rows, or candidates with events; bounds memory while a net scores: TabM has many numbers a row
BAG_SEEDS = 7_919  # the seeds of a bag lie so far apart: those of folds follow one another
BOOSTED_ROUNDS = (
    400  # trees at the default rate after which most tables have gained what they gain; judged, not in BENCHMARKS.md
)
CATBOOST_ROUNDS = 1_000  # the same of CatBoost, whose trees ask one question a level
FASTEST_TREES = (
    6.0  # times the default learning rate in a limit of time, at most: beyond, trees overshoot; not measured
)
JUDGED_ROUNDS = 8  # by which the time of a round of boosting is judged; not measured
RANKED_AT_ONCE = 1 << 15  # candidates; not measured: bounds memory while a NetRanker scores

# ----

# ---- sequences

# ----

# ---- retrieval

# ----

# ---- stacking
CHOICE_ERRORS = 2.0  # standard errors by which another blend must be better than the usual one (see Choice)
BLEND_ROWS_OF_MANY = 100_000  # rows that a blend learns from at least if there are so many; not measured
BLEND_ROWS = 500_000  # rows that a blend of one output learns from at most: it has few coefficients; not measured
RANK_KNOTS = 1_001  # points of a distribution that a mean of ranks keeps; bounds the size of a saved stack
FAR_GAP = 1000.0  # the gap of an infinite score to the best of its list; exp(-1000) is 0

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
