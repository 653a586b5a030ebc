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
FRAME_BLOCK = 1 << 15  # rows prepared and packed at a time on a CPU; not measured: they stay in the cache
DEVICE_BLOCK = 1 << 24  # rows prepared at a time on a GPU; not measured: bounds memory, each step has a cost of its own
HELD_ROWS = 1 << 18  # rows; not measured: copies of so few are held together, more are read again, which bounds memory
GATHER_BYTES = 1 << 22  # bytes gathered at once; not measured: enough for several threads, and fits the cache
LOOPS_FROM = 1 << 21  # numbers of a frame; fewer take torch some hundredths of a second, and the compiler seconds, once
MEDIAN_SAMPLE = 1 << 11  # numbers; a sample of at least so many tells where the median is
MEDIAN_SAMPLED = 64  # one number of so many is in the sample
MEAN_FAR = 100.0  # variances between the mean and the shift of the squares; beyond, more than two digits are lost
NEARLY_CONSTANT = 1e-9  # share of the mean; a smaller deviation is computed again by torch, without cancellation
ROUNDING_SPREAD = 1e-12  # share of the mean; a smaller deviation may be rounding alone, so the column's range decides
COUNTED_SPAN = 1 << 16  # whole numbers; a range of so many is counted in a table, of 512 KiB, however few the rows
LEAST_BLOCK = 1 << 12  # rows; a block has at least so many, as every column costs some calls for each block
BLOCK_WORDS = 1 << 18  # 4-byte words of a block; not measured: half of what a cache holds
BLOCK_NUMBERS = 1 << 17  # float64 numbers prepared together; not measured: 1 MiB stays in the cache
LOG_PAD = 16  # bytes after a stretch of text that a compiled loop may read
LOG_LINE_BYTES = 1 << 16  # bytes of a line; longer ones are refused, which bounds memory
LOG_DIGEST_BYTES = 1 << 16  # bytes at either end of a part that its digest covers: bounds the time to take one
HASH_SMALLEST = 1 << 12  # places of a new hash table; not measured: bounds how often it grows
HASH_FULL = 0.7  # share of a hash table's places; not measured: beyond, probing grows long
LOG_TEXT_BYTES = 1 << 24  # bytes of text parsed at a time; not measured: bounds memory
PACKED_ROWS = 1 << 16  # rows packed or encoded at a time in a stream; not measured: they stay in the cache
GAUSS_KNOTS = 1000  # knots of RankGauss at most; not measured: bounds what is saved
GAUSS_EDGE = 3.0  # standard deviations; the outermost ranks go no further
ROBUST_LIMIT = 3.0  # what the largest values of RobustScale come near to, as in RealMLP's code
ROBUST_LARGE = 1e150  # infinite values count as this; its square is still a number
SHOWN_ENTRIES = 10  # entries of a list or vector that are shown to people
MEDIAN_BITS = 46  # bits of a float below the 18 (sign, exponent, 6 of the fraction) that number the bins of a median
READ_AHEAD = 16  # one part of so many of the shuffle buffer is read ahead, twice; not measured: bounds memory
DECODED_ROWS = 262_144  # rows of a row group decoded at a time; not measured: bounds memory
SCANNED_ROWS = 131_072  # rows read at a time to fit procs; not measured: bounds memory
OPEN_GROUPS = 4  # large row groups read in turn; not measured: bounds memory
CACHED_ROWS = 8_192  # rows read together and covered by one checksum; not measured: bounds a read

# ----

# ---- models
BIAS_ROWS = 5  # training rows that RealMLP draws a bias among, as the paper's code
BIN_ROWS = 1_000_000  # rows; bins of as many rows, drawn at random, hardly differ from bins of all
TABM_NARROW = 20  # numbers; with more of them the first layer would cost a hundred times what TabularNet's does
TABM_EMB_STD = 0.3  # nothing scales embeddings up (no batch norm): vectors as small as usual would take long to count
ROW_ALIGN = 4  # floats; a row of 4k floats starts on a 16-byte boundary, which wide loads need
SPARSE_FROM = 20_000  # rows; a smaller table is read and written whole faster than by the rows of a batch
NARROW_TABLE = 32  # floats; up to here, on CPUs, index_select's backward is 1.3 to 6 times faster than F.embedding's
WIDE_TABLE = 64  # floats; looking for the ids of a narrower column costs more than it saves
REPEATED_IDS = 0.8  # share of the rows; with more distinct ids than that, too little is saved
HALVE_COUNTS = 4096  # batches after which lookup counts are halved; not measured: recent lookups must count more
HARMONIC_TERMS = 10_000  # terms of a harmonic sum that are added one by one, the rest by its integral
SENT_ROWS = 1 << 20  # rows sent at a time where all are; not measured: bounds memory
HOST_SLOTS = 262_144  # rows of room on the device for tables on the host, where no limit says how many
CACHED_SHARE = 0.05  # share of the rows on the device for cached tables, where no limit says how many
LEAST_SLOTS = 16  # rows of a placed table that always have room on the device: bounds a limit from below
STORE_NUMBERS = 1 << 24  # numbers of a row store settled at a time; not measured: bounds memory to 64 MiB
BANDWIDTH_BYTES = 1 << 25  # bytes that bandwidths are measured with
PADDING_WASTE = 0.25  # share of the bytes; beyond, rounding widths up costs more than aligned reads gain
PENDING_SETTLES = 8  # settlings that rows may lag behind; with more, each read row would cost ever more
COPIED_ROWS = 1 << 18  # rows copied at a time where all are; not measured: bounds pinned memory

# ----

# ---- optim
UNBIASED_STEP = 1e9  # a step so late that running means have forgotten their start

# ----

# ---- training
FINGERPRINT_ROWS = 1024  # rows whose checksum tells one data set from another: bounds the time to take it
COUNTED_ROWS = 4_000_000  # rows; not measured: enough to tell which ids are looked up often
NAN_EVERY = 50  # batches between two looks at losses on a device: each look waits for it
NAN_PATIENCE = 10  # losses in a row; with a scaled loss (fp16) single overflows only skip a step
BF16_SLOWDOWN = 2.0  # times float32; CPUs without instructions for bfloat16 take 4 to 14, those with AVX-512 0.7 to 1.2
GRAPH_WARM_UP = 3  # batches trained as usual, then as many runs on a separate stream, before a graph is recorded

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
