"""Constants with the measurement that chose them: name, value, unit, and what was measured where.

A constant without a measurement says what it bounds. Read them as ``limits.NAME``, so that a test can change one.
"""

# ---- _core

LEFTOVER_AGE = 86_400  # seconds; not measured: a hidden file this old is abandoned where no lock can tell
PARALLEL_ROWS = 100_000  # rows; not measured: below, starting threads costs more than it saves
PLAIN_EVERY = 10.0  # seconds; bounds the plain lines of one stage in a log
LOOP_NUMBERS_A_THREAD = 1 << 16  # numbers; bounds the threads of a compiled loop: fewer numbers do not pay for a thread
LOOP_NUMBERS = 1 << 14  # numbers; with fewer nobody should wait for a compiler
LARGEST_MMAP_THRESHOLD = 32 << 20  # bytes; the largest threshold that glibc itself comes to
MEMORY_LEFT = 512 << 20  # bytes; bounds the free memory that a process keeps for good
MEMORY_MUCH = 1 << 30  # bytes held, used or free, from which returning the free ones pays
MEMORY_BLOCK = 32 << 20  # bytes; smaller blocks are allocated without a look at free memory
MEMORY_GROWN = 256 << 20  # bytes by which a process grows before it returns free memory
MEMORY_PAUSE = 10.0  # seconds without use after which free memory is returned
SENT_NUMBERS = 1 << 24  # numbers sent at once; bounds the memory of the copies

# ----

# ---- table

HASHED_IN_PYTHON = 64  # values; with fewer a numpy step for all costs more than a Python step for each
MARKED_VALUES = 1 << 22  # range of integers that a table of marks codes; bounds it to 4 MB
COMPILED_TEXT_ROWS = 1 << 18  # rows; fewer take Arrow some milliseconds, and the compiler seconds, once
TEXT_BLOCK = 1 << 15  # rows; their lengths fit the CPU's cache
NARROW_SPAN = 1 << 16  # range of integers that always gets a table, of 256 kB
NARROW_SPARE = 16  # places per value that a table of a wider range may have; bounds memory
ARROW_LOOKUPS = 512  # text values; Arrow finds fewer as fast
CSV_ROWS = 1 << 16  # rows written at once; bounds memory
FEW_KEYS_IN = 16  # fewer keys than this share of the known ones are few
FEW_LOOKUPS = 2  # lookups of few keys before their preparation is cached
LISTED_CLASSES = 1 << 20  # values; a table of more takes more memory than single lookups are worth

# ----

# ---- segments

COMPILED_ROWS = 1 << 18  # rows; fewer take torch some milliseconds, and the compiler seconds, once
EVENT_BUCKETS = 1 << 10  # least number of buckets of events
EVENTS_A_BUCKET = 4  # events per bucket, on average; not measured
LONG_GROUP_ROWS = 16  # rows of a group beyond this place are picked out
REQUEST_ROWS = 1 << 11  # rows of a request: numpy's fixed cost of a call is a fifth of torch's
PAIRED_ROWS = 1 << 7  # rows of a request's list: comparing all pairs takes the time of a few calls
RUN_BLOCK = 1 << 17  # rows whose run starts are found at a time on a CPU; they fit its cache

# ----

# ---- losses

# ----

# ---- metrics

# ----

# ---- features

DIGEST_CHUNK = 1 << 24  # bytes that one thread hashes at a time
RUNNING_BLOCK = 16  # rows summed by doubling steps before blocks are joined
PAIRED_PLACES = 1 << 21  # places paired at a time; bounds memory
PARALLEL_STEPS_FROM = 50_000  # rows; below, threads cost more than they save
PARALLEL_STEPS_TO = 1_000_000  # rows; above, two steps at once hold too much memory
PARALLEL_STEPS = 8  # steps at once; each holds its intermediate columns
FAN_IN = 8  # states that one task merges
MANY_KEYS = 2_000_000  # keys of all partitions from which no task holds them all
BUCKET_KEYS = 1_000_000  # keys per bucket, about: a partition is cut into a piece for each bucket
SPLIT_TABLES = 8  # tables whose partition files are cached
RANGE_POINTS = 200  # values of a partition that the ranges are cut by
OBJECT_BYTES = 200  # bytes of a Python object, about
HEAD_ROWS = 1_000  # rows of a partition that tell the kinds of its columns
MANY_CATEGORIES = 1_000  # categories from which they are taken for ids
MAX_BUCKETS = 128  # buckets; a shuffle has partitions times buckets pieces, and a bucket's number is one byte
MAPPED_BYTES = 16 << 20  # bytes of arrays from which they go into a file

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

PARTS_A_WORKER = 2  # partitions per worker: the second is read while the first is processed
ROW_GROUP = 65_536  # rows of a Parquet row group: a stream's buffer mixes many
BATCH_ROWS = 65_536  # rows that XGBoost or a model gets at once; bounds memory

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
