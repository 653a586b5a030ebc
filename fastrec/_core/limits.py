"""Constants with the measurement that determined them: name, value, unit, and what was measured where.

Without a measurement, the comment tells what it bounds. Use ``limits.NAME``, so that a test can change one.
"""

# ---- _core
BLOCK = 1 << 22  # numbers of a temporary matrix: bounds memory to tens of MB, and a block fits a large cache
LEFTOVER_AGE = 86_400  # seconds; not measured: a hidden file this old counts as abandoned if no lock can tell
PARALLEL_ROWS = 100_000  # rows; not measured: for fewer, starting threads costs more than it saves
LOAD_SAMPLES = 8  # samples of the other load, LOAD_SECONDS apart: a single one is chance; .04 s in all
LOAD_SECONDS = 0.005  # see LOAD_SAMPLES
PLAIN_EVERY = 10.0  # seconds between plain log lines of one stage; bounds their number
LOOP_NUMBERS_A_THREAD = 1 << 16  # numbers; bounds the threads of a compiled loop: fewer numbers do not justify a thread
LOOP_NUMBERS = 1 << 14  # numbers; for fewer, compiling is not worth the wait
LARGEST_MMAP_THRESHOLD = 32 << 20  # bytes; the largest threshold that glibc sets itself
MEMORY_LEFT = 512 << 20  # bytes; bounds the free memory that a process keeps permanently
MEMORY_MUCH = 1 << 30  # bytes held, used or free; above, returning free ones pays
MEMORY_BLOCK = 32 << 20  # bytes; smaller blocks are allocated without checking free memory
MEMORY_GROWN = 256 << 20  # bytes by which a process grows before it returns free memory
MEMORY_PAUSE = 10.0  # seconds without use after which free memory is returned
SENT_NUMBERS = 1 << 24  # numbers sent at once; bounds the memory of the copies

# ---- table
HASHED_IN_PYTHON = 64  # values; for fewer, one numpy call costs more than a Python step for each
MARKED_VALUES = 1 << 22  # range of integers that a lookup table codes; bounds it to 4 MB
COMPILED_TEXT_ROWS = 1 << 18  # rows; fewer take Arrow some milliseconds, but the compiler takes seconds, once
TEXT_BLOCK = 1 << 15  # rows; their lengths fit the CPU's cache
NARROW_SPAN = 1 << 16  # range of integers that always gets a lookup table, of 256 kB
NARROW_SPARE = 16  # places per value that a lookup table of a wider range may have; bounds memory
ARROW_LOOKUPS = 512  # text values; for fewer, Arrow is as fast
CSV_ROWS = 1 << 16  # rows written at once; bounds memory
FEW_KEYS_IN = 16  # keys are few if they are fewer than the known ones divided by this
FEW_LOOKUPS = 2  # lookups of few keys before their preparation is cached
LISTED_CLASSES = 1 << 20  # values; a lookup table of more needs more memory than single lookups justify

# ---- segments
COMPILED_ROWS = 1 << 18  # rows; fewer take torch some milliseconds, but the compiler takes seconds, once
EVENT_BUCKETS = 1 << 10  # minimum number of buckets of events
EVENTS_A_BUCKET = 4  # events per bucket, on average; not measured
REQUEST_ROWS = 1 << 11  # rows of a request: numpy's fixed cost of a call is a fifth of torch's
PAIRED_ROWS = 1 << 7  # rows of a request's list: comparing all pairs takes the time of a few calls
RUN_BLOCK = 1 << 17  # rows whose run starts are found at a time on a CPU; they fit its cache

# ---- metrics
HIGHEST_GRADE = 10  # highest relevance grade accepted in a truth column of another name; grades in use end at 4 or 5
LEAST_EXAMINED = 0.05  # share of the first place's examination; bounds the weight of a click to 20
LIST_BLOCKS = 500  # blocks of lists for a bootstrap: the width of an interval is then off by some 3 %
DRAWN_CLUSTERS = 100_000  # maximum of clusters in a resample (Bickel, Götze and van Zwet 1997)
COUNTED_CODES = 1 << 20  # class codes above it are renumbered; bounds memory of the counts
RESAMPLED_AT_ONCE = 1 << 22  # resampling weights in memory at once: 32 MiB

# ---- features
CROSS_FIT_ROWS = 200_000  # rows; not measured: bounds the time to fit three or four weights in search_crosses
CROSS_NEWTON_STEPS = 20  # steps; not measured: bounds Newton's method in search_crosses, which converges in fewer
LEAK_DRAWS = 7  # runs with random targets in check_leakage; not measured: 126 patterns of changes distinguish rows
LEAK_SIGNS = 20  # rows changed one by one if all values move; chance puts all but one on one side in 4 of 100 000
LEAK_FOLLOWERS = 512  # rows that may follow their target; not measured: bounds the work of further runs
LEAK_ERRORS = 30.0  # standard errors above which a row may follow its target; not measured: far beyond chance
LEAK_ROUNDS = 5  # further runs to reduce followers; not measured: each halves those that follow by chance
LEAK_SINGLE = 3  # rows per column confirmed one by one; not measured: bounds the runs
LEAK_FOLDS = 5  # outer folds whose targets are changed; not measured: bounds the runs
LEAK_KEYS = 30  # columns tried as keys; not measured: bounds the time on wide frames
LEAK_PAIRED_KEYS = 6  # of those, columns tried in pairs; not measured: bounds the time
LEAK_CUTS = 3  # times after which the future is changed; not measured: bounds the runs
LEAK_RELATIVE = 1e-9  # share of a value: smaller moves are rounding; float64 sums in another order differ by some 1e-13
LEAK_ABSOLUTE = 1e-12  # share of a column's typical value: smaller moves are rounding
LEAK_LEAST_ROWS = 20  # rows; not measured: with fewer, a statistic of the target is chance
ROW_STATS_NUMBERS = 1 << 21  # float64 numbers at a time; not measured: bounds memory to 16 MiB per copy
JACCARD_CELLS = 1 << 22  # pairs times properties marked at a time; not measured: 4 MiB of marks fit the cache
TFIDF_ELEMENTS = 1 << 20  # elements compared at a time; not measured: sorting them fits the cache
LEAK_LEAST_KEYS = 8  # keys; not measured: with fewer, a statistic by key is chance
DIGEST_CHUNK = 1 << 24  # bytes that one thread hashes at a time
RUNNING_BLOCK = 16  # rows summed by doubling steps before blocks are joined
PAIRED_PLACES = 1 << 21  # places paired at a time; bounds memory
PARALLEL_STEPS_FROM = 50_000  # rows; for fewer, threads cost more than they save
PARALLEL_STEPS_TO = 1_000_000  # rows; for more, two steps at once need too much memory
PARALLEL_STEPS = 8  # steps at once; each holds its intermediate columns
FAN_IN = 8  # states that one task merges
MANY_KEYS = 2_000_000  # keys in all partitions; from here on, no task holds them all
BUCKET_KEYS = 1_000_000  # approximate keys per bucket: a partition is split into a piece per bucket
SPLIT_TABLES = 8  # tables whose partition files are cached
RANGE_POINTS = 200  # sampled values of a partition from which the ranges are cut
OBJECT_BYTES = 200  # approximate bytes of a Python object
HEAD_ROWS = 1_000  # rows of a partition from which the kinds of its columns are inferred
MANY_CATEGORIES = 1_000  # categories; from here on they are taken for ids
MAX_BUCKETS = 128  # buckets; a shuffle has partitions times buckets pieces, and a bucket's number fits one byte
MAPPED_BYTES = 16 << 20  # bytes of arrays; from here on they are written to a file

# ---- tabular
FRAME_BLOCK = 1 << 15  # rows prepared and packed at a time on a CPU; not measured: they fit the cache
DEVICE_BLOCK = 1 << 24  # rows prepared at a time on a GPU; not measured: bounds memory, as each step has a fixed cost
HELD_ROWS = 1 << 18  # rows; not measured: bounds memory: copies of so few stay together, more are read again
GATHER_BYTES = 1 << 22  # bytes gathered at once; not measured: enough for several threads, and fits the cache
LOOPS_FROM = 1 << 21  # numbers of a frame; fewer take torch some hundredths of a second, the compiler seconds, once
MEDIAN_SAMPLE = 1 << 11  # numbers; a sample of at least this size locates the median
MEDIAN_SAMPLED = 64  # one number in this many is sampled
MEAN_FAR = 100.0  # variances between the mean and the shift of the squares; beyond, more than two digits are lost
NEARLY_CONSTANT = 1e-9  # share of the mean; a smaller deviation is recomputed by torch, without cancellation
ROUNDING_SPREAD = 1e-12  # share of the mean; a smaller deviation may be rounding only, so the column's range decides
COUNTED_SPAN = 1 << 16  # whole numbers; such a range is counted in a table, of 512 KiB, even for few rows
LEAST_BLOCK = 1 << 12  # minimum of rows in a block, as every column costs some calls for each block
BLOCK_WORDS = 1 << 18  # 4-byte words of a block; not measured: half of what a cache holds
BLOCK_NUMBERS = 1 << 17  # float64 numbers prepared together; not measured: 1 MiB fits the cache
LOG_PAD = 16  # bytes after a stretch of text that a compiled loop may read
LOG_LINE_BYTES = 1 << 16  # bytes of a line; longer ones are refused, which bounds memory
LOG_DIGEST_BYTES = 1 << 16  # bytes at either end of a part that its digest covers: bounds the time to compute it
HASH_SMALLEST = 1 << 12  # places of a new hash table; not measured: bounds how often it grows
HASH_FULL = 0.7  # maximum share of used places in a hash table; not measured: beyond, probing takes long
LOG_TEXT_BYTES = 1 << 24  # bytes of text parsed at a time; not measured: bounds memory
PACKED_ROWS = 1 << 16  # rows packed or encoded at a time in a stream; not measured: they fit the cache
GAUSS_KNOTS = 1000  # maximum of knots of RankGauss; not measured: bounds the saved size
GAUSS_EDGE = 3.0  # standard deviations; the outermost ranks are at most this far out
ROBUST_LIMIT = 3.0  # limit of RobustScale for the largest values, as in RealMLP's code
ROBUST_LARGE = 1e150  # infinite values are replaced by this; its square is still finite
SHOWN_ENTRIES = 10  # entries of a list or vector in printed output
MEDIAN_BITS = 46  # bits of a float below the 18 (sign, exponent, 6 of the fraction) that number the bins of a median
READ_AHEAD = 16  # one part in so many of the shuffle buffer is read ahead, twice; not measured: bounds memory
DECODED_ROWS = 262_144  # rows of a row group decoded at a time; not measured: bounds memory
SCANNED_ROWS = 131_072  # rows read at a time to fit procs; not measured: bounds memory
OPEN_GROUPS = 4  # large row groups read in turn; not measured: bounds memory
CACHED_ROWS = 8_192  # rows read together and covered by one checksum; not measured: bounds a read

# ---- models
BIAS_ROWS = 5  # training rows from which RealMLP draws a bias, as in the paper's code
BIN_ROWS = 1_000_000  # rows; bins from a random sample of this size hardly differ from bins of all rows
TABM_NARROW = 20  # numbers; with more, the first layer would cost a hundred times as much as TabularNet's
TABM_EMB_STD = 0.3  # nothing scales embeddings up (no batch norm): vectors of usual size would take long to matter
ROW_ALIGN = 4  # floats; a row of 4k floats starts on a 16-byte boundary, which wide loads need
SPARSE_FROM = 20_000  # rows; a smaller table is read and written whole faster than by the rows of a batch
NARROW_TABLE = 32  # floats; up to here, on CPUs, index_select's backward is 1.3 to 6 times faster than F.embedding's
BY_ID_WIDTH = 64  # floats; from here on, a vector is multiplied once per id: see ``tabular_net.linear_by_id``
BY_ID_ROWS = 128  # rows; ms a step of ten columns 300 wide, by id and without: 64 5.1, 5.2; 128 5.2, 8.1; 256 6.5, 14
REPEATED_IDS = 0.8  # of a batch's rows; with more distinct ids than that, multiplying once per id saves too little
HALVE_COUNTS = 4096  # batches after which lookup counts are halved; not measured: recent lookups must count more
HARMONIC_TERMS = 10_000  # terms of a harmonic sum that are added one by one; the rest is an integral
SENT_ROWS = 1 << 20  # rows sent at a time if all are sent; not measured: bounds memory
HOST_SLOTS = 262_144  # rows on the device for tables on the host, if no limit is given
CACHED_SHARE = 0.05  # share of the rows on the device for cached tables, if no limit is given
LEAST_SLOTS = 16  # rows of a placed table that always fit on the device: bounds a limit from below
STORE_NUMBERS = 1 << 24  # numbers of a row store settled at a time; not measured: bounds memory to 64 MiB
BANDWIDTH_BYTES = 1 << 25  # bytes with which bandwidths are measured
PADDING_WASTE = 0.25  # share of the bytes; beyond, rounding widths up costs more than aligned reads gain
PENDING_SETTLES = 8  # pending settlings per row; with more, each row read would become ever slower
COPIED_ROWS = 1 << 18  # rows copied at a time if all are copied; not measured: bounds pinned memory

# ---- optim
UNBIASED_STEP = 1e9  # a step so late that running means have forgotten their initial value

# ---- training
FINGERPRINT_ROWS = 1024  # rows whose checksum identifies a data set: bounds the time to compute it
COUNTED_ROWS = 4_000_000  # rows; not measured: enough to tell which ids are looked up often
NAN_EVERY = 50  # batches between two checks of losses on a device: each check waits for the device
NAN_PATIENCE = 10  # consecutive losses; with a scaled loss (fp16), a single overflow only skips a step
BF16_SLOWDOWN = 2.0  # times float32; CPUs without bfloat16 instructions take 4 to 14, those with AVX-512 0.7 to 1.2
GRAPH_WARM_UP = 3  # normal batches, then as many runs on a separate stream, before a graph is recorded

# ---- validate
ADVERSARIAL_ROWS = 50_000  # rows per side that adversarial validation uses; not measured: bounds its time
ADVERSARIAL_FOLDS = 5  # its folds

# ---- estimators
LARGE_BATCH = 32_768  # rows; from here on momenta and rates scale with the batch: rule *scaled* of BENCHMARKS.md
HELD_OUT_SEED = 104_729  # differs from the seeds of folds: otherwise the hold-out would be a part of one fold
HELD_OUT_HASHES = 1 << 30  # number of hash values for drawing a hold-out; more than there are rows
# Small tables get more training time. A TabM learns 200 epochs in batches of 64 to 256: of 13 real tables of 500 to
# 8,200 rows it was better on the held-out third of 11 (airfoil's error 2.05 → 1.57, wine's .698 → .690), in .9 to 4
# times the time. Trees use several hold-outs, and `fit` has further models (below, and BENCHMARKS.md).
FEW_ROWS = 10_000
LONG_TAIL_ROWS = 200_000  # rows from which quartiles are computed; not measured: bounds the time of the sort
LARGEST_NUMBER = 1e38  # XGBoost refuses infinite values, and adds to the largest one
WHOLE_LIST = 1_000  # places that LightGBM's NDCG counts: with the first one only, trivago's trees stop after 5 rounds
RANKED_BATCH = 3_000  # candidates, about 130 lists of 23 (trivago2019): the batch for a NetRanker's default rate
NEIGHBOUR_PAIRS = 1 << 23  # pairs of a scored and a training row of a ModernNCA; not measured: bounds memory
ROWS_AT_ONCE = 1 << 12  # rows, or candidates with events; bounds memory of scoring: TabM has many numbers a row
BAG_SEEDS = 7_919  # distance between the seeds of a bag, as those of folds are consecutive
# Hold-outs of an eighth whose mean loss determines the number of trees for few rows. Eight tables of 500 to 1,000 rows,
# two cuts each: error 2.5 % (LightGBM) and 2.2 % (XGBoost) lower, in 4.5 times the time. Seven of 1,700 to 8,200, by
# one: 1.6 and 1.8 %. For more rows one is enough: Adult .8 and .4 %, by four .8 and .5 % (BENCHMARKS.md).
STOP_DRAWS = 4
BOOSTED_ROUNDS = 400  # trees at the default rate after which most tables gain no more; estimated, not in BENCHMARKS.md
CATBOOST_ROUNDS = 1_000  # the same for CatBoost, whose trees ask one question per level
FASTEST_TREES = 6.0  # maximum factor on the default rate under a time limit: beyond, trees overshoot; not measured
JUDGED_ROUNDS = 8  # rounds from which the time of a boosting round is estimated; not measured
RANKED_AT_ONCE = 1 << 15  # candidates; not measured: bounds memory while a NetRanker scores

# ---- sequences
PREFIX_LONGEST = 1_000  # events before a target that trees and blends learn from: bounds memory of long sessions
RECENCIES = (1.0, 3.0, 0.3, 0.1, 0.03, None)  # of session kNN, in spans of a log: ties take the first one
RECENCY_GAIN = 0.01  # gain in NDCG required to replace the first: on Diginetica .3 and 1 differ by .002 of it
RECENCY_SHARE = 0.1  # share of the sessions held out to choose one
RECENCY_EVENTS = 2_000  # of these: with 1,000, parts of Diginetica's log differ, and MovieLens-100k keeps 1; 4 to 6 s
RECENCY_TIME = 0.1  # share of the given time for the choice: 60,000 sessions of 20,000 items took 20 s without
TIME_GAPS = 64  # classes of gaps between events: the last one is five and a half years and more
TIME_GAP_STEP = 0.301  # natural logarithms between two classes, as in HSTU's code (arXiv 2402.17152)
HIDDEN_LOGIT = -1e4  # exp and sigmoid of it are 0 in float32
NEIGHBOURS_FARTHEST = 1 << 10  # events: larger distances are weighted as this one
AUGMENTATION_MASKED = 0.1  # share of the inputs
CHUNKED_LOSS_CELLS = 1 << 21  # logits of a block, which stay in the cache between the steps
CHUNKED_LOSS_FEWEST = 32  # positions of a block: with fewer, a matrix product is slow
CHUNKED_LOSS_TINY = 1e-38  # smaller probabilities are replaced by it: a loss is at most 87
CO_VISITATION_LEAST = 1e-4  # of an event's weight: older events are ignored
CO_VISITATION_DENSE = 1 << 13  # items: for fewer, the whole matrix is stored
NET_SCORES_CELLS = 1 << 24  # scores in memory at a time
NET_VECTORS = 1_024  # sessions whose vectors are requested at once; not measured
NEXT_ITEM_NET_LARGE = 100_000  # items: above, a step over all rows takes longer than one over the batch's rows
RANKED_FEW = 512  # items: for more, a heap or a sort is faster than keeping a short list in order
SESSION_BLEND_ENOUGH = 0.5  # share of the first fit's time: with less left, a model is not refitted
SESSION_BLEND_FEW = 0.02  # share of the events, held out: a net that also learns them in half of the time knows less
SESSION_BLEND_ONCE = 0.85  # share of the time for those weighed: Diginetica, 12 minutes, HR@20 of the net .530 → .533
SESSION_BLEND_LOOKED_AT = 10  # times as many items of each model as are returned
SESSION_LOADER_CHUNK = 32  # batches within which sessions are sorted by length

# ---- retrieval
APPROXIMATE_A_LIST = 64  # vectors per list that determine its centre
APPROXIMATE_CODED = 1 << 16  # vectors to learn short codes from
CANDIDATE_REPEATS = 0.05  # share of positives that a group had before: from here on its own items are candidates
CANDIDATE_VECTORS = 48  # width; Diginetica, NDCG@20 of trees: none .2927, 32 .2955, 48 .2950, 64 .2963, 96 .2962
CANDIDATES_HELD_BACK = 0.1  # share of a log's events, or sessions, whose labels are used for training; not measured
CANDIDATES_FEW_WEIGHT = 0.01  # weight of popular and near items' ranks; MovieLens-1M recall@100 .66, by equal ones .65
INDEX_FEW = 50_000  # vectors: for fewer, exact search is the fastest
INDEX_CELLS = 1 << 25  # scores in memory at a time
INDEX_HELD_OUT = 128  # queries for the choice, and as many to measure recall on
OVERLAP_QUERIES = 10_000  # ids whose neighbours are compared: the error of a share is at most .005
INDEX_AT = 100  # k of recall@k
ITEM_KNN_AT_ONCE = 1 << 16  # pairs whose similarities are in memory at a time
RANKED_CANDIDATES_FEW = 20  # candidates from models that use little of the session
RANKED_CANDIDATES_SHARE = 0.75  # share of the given time after which no more trees are grown
RANKED_CANDIDATES_LAID_OUT = 8  # rankers whose trees stay prepared for a compiled loop: some 0.5 MB each

# ---- stacking
CHOICE_ERRORS = 2.0  # standard errors by which another blend must beat the default one (see BlendChoice)
BLEND_ROWS_OF_MANY = 100_000  # rows that a blend learns from at least, if there are so many; not measured
BLEND_ROWS = 500_000  # maximum of rows that a blend of one output learns from: it has few coefficients; not measured
RANK_KNOTS = 1_001  # points of a distribution that a mean of ranks stores; bounds the size of a saved stack
FAR_GAP = 1000.0  # the gap of an infinite score to the best of its list; exp(-1000) is 0

# ---- scale
PARTS_A_WORKER = 2  # partitions per worker: the second is read while the first is processed
ROW_GROUP = 65_536  # rows of a Parquet row group: a stream's buffer mixes many
BATCH_ROWS = 65_536  # rows that XGBoost or a model gets at once; bounds memory

# ---- competition
END_SHARE = 0.05  # share of the minutes for stack, files and report, at least; more for many rows
END_SECONDS_PER_MILLION = 13.0  # seconds at the end per million predictions that a stack's blends learn from
END_SECONDS_PER_FURTHER_MILLION = 2.0  # seconds per million predictions that they do not learn from
END_METRICS = 350  # times the metric's time that the end takes besides the climbs: 320 for 33,000 rows, by a profile
END_METRICS_OF_A_MODEL = 100  # times the metric's time that climbs take per model: 82 there
FIT_SHARE = 0.95  # share of a fold's time for fitting: predicting and caching take the rest
LEAST_FIT_SECONDS = 0.5  # seconds; with less time no model is started
MARKED_BYTES = 1 << 16  # bytes at either end of a file that its mark depends on; bounds the time for many GiB
SAMPLE_ROWS = 2_000  # rows of a run's sample, which gives an export its types and verifies it
# columns: all subsets of 8 take 17 times as many predictions as two orders, and are no closer to 1,000 background rows
# (concrete, 32 background rows: 0.87 off a mean of 3.2 by both; 64 and two orders: 0.69); those of 4 take twice as many
ENUMERATED_COLUMNS = 4
BACKGROUND_ROWS = 64  # rows to compare with: evenly spaced by prediction 0.50 off (as above), at random 0.69
MIXED_CELLS = 1 << 22  # values of a row's mixtures; bounds memory of wide tables, which get fewer background rows
PERMUTED_ROWS = 10_000  # rows by which permutation importance is measured at most; not measured
EXPLAINED_ROWS = 20  # rows that a report explains if there is time; not measured
EXPLAINED_SECONDS = 30.0  # seconds after which at most three rows are explained; bounds the time
GRAPH_ROWS = 1 << 20  # rows of all tables; a streamed net on CUDA with fewer has dense gradients and a CUDA
# graph; not measured: dense gradients of more rows cost more than the graph saves
SEEN_ERRORS = 3.0  # standard errors; see SEEN_SHARE
# share of what the runs leave unexplained; none of 976 honest files (23 data sets, 10 kinds of model) was above .65
# times the square of the ratio. These memorised files were: all of 1 neighbour and a whole tree, 99 % of a forest's,
# 97 % of LightGBM's, half of 40 small trees'
SEEN_SHARE = 0.98
# a quarter of the honest files explained more than .01 (see SEEN_SHARE), 5 neighbours that had memorised them .18
UNPROVED_SHARE = 0.1

# ---- serve
REGISTRY_POLL = 0.5  # seconds between checks of a registry; bounds how late a promoted version answers
PARSE_INLINE = 64 * 1024  # bytes of a body parsed in the event loop; not measured: larger ones are parsed in a thread
SLOW_BODY = 1.0  # seconds after which an incomplete body gives way to others; bounds what slow clients hold
CLIENT_BODIES = 8  # maximum-size bodies that one client may have in memory at once; bounds memory
ANSWER_ITEMS = 5_000_000  # items of one answer of /v1/recommend; bounds memory
EXACT_FLOAT = 2.0**53  # from here on a float may represent several integers
SHORT_LOG = 64 << 20  # bytes; not measured: loading a shorter log of events is faster than writing a snapshot
ONNX_FILE_BYTES = 2_000_000_000  # bytes of constants in one file; protobuf's largest message is 2 GiB
VERIFY_DIFFERENCE = 1e-5  # largest difference between a graph's scores and the run's, relative above 1; not measured
VERIFY_TIE = 1e-6  # scores of a list that differ by less may change places; not measured
FOREST_SETS = 1_024  # sets of categories in a node; rows of thousands of columns would need much memory, not measured
PAIR_TABLE_CODES = 1 << 22  # pairs of codes looked up in a table of all pairs (32 MiB); not measured: bounds memory
NEXT_ITEM_CELLS = 1 << 24  # scores, or padded events of sessions, in memory at a time; not measured: bounds memory
FOLD_TABLE_BYTES = 32 << 20  # maximum growth of tables multiplied by a net's first layer; not measured: bounds memory
HASHED_TEXT_BYTES = 1_024  # bytes of a text that a graph hashes: all rows are as wide as the longest; bounds memory
EXPORTED_LEVEL = 0.9  # level of the intervals in an export, the default of predict_interval
CGROUP_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of versions 2 and 1
# Estimator → bytes of peak memory for fitting and predicting, besides its rows: per cell (row x column), per row and
# class, and at least. Resident memory in MiB on one core: 200,000 and 800,000 rows x 40 numbers, 2 classes, and 200,000
# x 10, 20 classes: LightGBM 206, 515, 134, XGBoost 174, 549, 171, CatBoost 189, 638, 424; net of 100,000 x 10 and 40:
# 347, 657. Scikit-learn: 150 extra trees of 30,000 x 20, 2 and 20 classes: 156, 820 (hence 12 per tree, row and class);
# a linear model of 400,000 x 5 and 10 texts, a weight for each value: 139, 223.
PEAK_BYTES = {
    "LGBMModel": (14, 20, 110_000_000),
    "XGBModel": (17, 34, 55_000_000),
    "CatBoostModel": (20, 110, 45_000_000),
    "NetModel": (110, 20, 260_000_000),
    "SKModel": (60, 12, 20_000_000),
}

# ---- auto
FIT_MINUTES = 0.05  # minimum wall time of fit; not measured: the bound of --minutes
# Rows, and minimum minutes of fit, for ten folds: ten tables of 500 to 1,700 rows then err .9 % less (BENCHMARKS.md).
# Airfoil errs 7.6 % more in two minutes, 4.8 % less in five: interrupted nets lose more than additional rows gain.
TEN_FOLDS_FROM, TEN_FOLDS_ROWS = 400, 3_000
TEN_FOLDS_MINUTES = 5
WIDE_TABLE = 50  # numeric columns; not measured: from here on row statistics are tried, above it deviations are not
COUNTED_VALUES = 12  # distinct values; from here on a category's counts are tried; not measured
MEAN_VALUES = 8  # distinct values; from here on a category's target means are tried; not measured
TREE_TRIAL_ROWS = 200_000  # rows that tree sizes are tried on; with fewer, small trees look better than they are
CODE_WIDTH = 120  # characters of a line of generated code: ruff's line-length here
SNIFFED_TEXTS = 20_000  # distinct texts of a column that are examined; bounds the time of look_at
NAMES_SMOOTH = 10  # pseudo-rows of the overall mean added to those of a value; not measured
NAMES_NEAR = 50  # rows on each side of a value that are its neighbours; not measured
NAMES_FROM = 30  # distinct whole numbers that may name something: trees separate fewer with a few splits
NAMES_ROWS = 200_000  # rows that test whether numbers name something: bounds its time to some seconds
NAMES_COMMONEST = 0.25  # share of a value; with a more frequent one, a column is a count: most are 0; not measured
IDS_FROM = 100  # distinct values of a category; CatBoost and a linear model learn most from two such columns
TRIAL_REPEATS = 60  # resamples of a trial's gain: its standard error is off by some 9 %, in a third of the time of 200
# Rows on which quick trees learn the residuals of a model, and their share of the trials' time: in 24 s of trials,
# protein gained .174 ± .012 by what they found, .160 ± .014 with 20,000 rows in a tenth of the time.
LEFT_OVER_ROWS = 10_000
LEFT_OVER_TIME = 0.2
LEFT_OVER_ROUNDS = 60  # rounds of those trees, over all classes; not measured
# Pairs of numbers, the most alike, from which arithmetic is searched. On two held-out thirds of polish companies (64
# numbers) the error of trees falls by 77 and 81 %, by 66 and 80 with 150 pairs; pairs of the 12 most informative
# columns are not kept there.
ARITHMETIC_PAIRS = 300
ARITHMETIC_KEPT = 15  # pairs of numbers that are tried together; not measured
ALIKE_R2 = 0.9  # squared rank correlation from which one feature is redundant with another; not measured
PARSED_SHARE = 0.98  # minimum share of a column's values that must match its assumed kind; not measured
FEW_CLASSES = 20  # distinct whole numbers that may be classes; not measured
GROUPS_WITH_BOTH = 0.5  # minimum share of groups with a positive and another row, for a column named like groups
PAIRS_BY_CHANCE = 10  # pairs of positives in one group expected by chance; if there is none (p = e^-10), one is chosen
GROUPS_IN_ORDER = 20  # fewer groups may have their positives in one place by chance
SAME_PLACE = 0.98  # share of groups whose positive is the first (or last) row: the file was sorted so; shown lists: .4
TWICE_IN_GROUP = 0.01  # maximum share of rows that repeat their group's item; with more, the column is not of items
RANKED_TRIAL_ROWS = 200_000  # candidates of a trial: some 5 seconds an idea on a core; by 1,000 lists MRR is off by .01
STEPS_IN_ORDER = 0.95  # minimum share of an owner's events by time with rising numbers; a step of trivago's: .99
ONE_UNIT = 10  # maximum ratio of first times of a log and of lists in the same unit; seconds, milliseconds: 1,000
LOG_KINDS = 8  # most frequent kinds of events that are counted separately; not measured: bounds the new columns
RANKED_NUMBERS = 12  # columns that are compared within groups; not measured: bounds the new columns
SEEN_KEYS = 0.2  # maximum share of a test's users that occur in train, if whole users are kept together; not measured
SLOW_RANKER_ROWS = 1_000_000  # candidates; above, CatBoost ranks none; not measured: bounds the time
OWNED_GROUPS = 0.1  # minimum share of groups after another one of their owner; not measured: fewer teach little
RANKED_CONTEXTS = 4  # columns of groups that items are crossed with; not measured: bounds the new columns
MANY_CLASSES = 200  # distinct texts that may be classes; not measured
TOLD = 0.9995  # AUC, or rank correlation, from which a single column reveals the target; not measured
TREE_TRIAL_TIME = 0.3  # minimum share of the trials' time for tree sizes; not measured

# ---- trials
TRY_ROWS = 10_000  # rows a fold's light model trains on, or some more with whole lists; not measured: bounds the time
TRY_LEAK_ROWS = 3_000  # rows the search for leaks runs on, or some more with whole keys; not measured: bounds the time
TRY_REPEATS = 5  # seeds and shuffles of a try; not measured: bounds the time of its interval's degrees of freedom

# ---- monitor
MONITOR_ROWS = 20  # rows per side; not measured: with fewer, tests of shares and shapes find nothing
MONITOR_TREE_ROWS = 20_000  # rows per side; not measured: bounds the time of the trees that tell the sides apart
LEAST_EXPECTED = 5.0  # counts of a cell; Cochran's rule for the chi-square approximation
MONITOR_ALPHA = 0.01  # level of all tests together; not measured: one false alarm per hundred comparisons of equal data
MOVED_PSI = 0.1  # rule of thumb: a lower value means no change (Siddiqi 2006, "Credit Risk Scorecards", chapter 9)
MOVED_JS = 0.1  # distance, base 2; not measured: the same value as for PSI, and so is MOVED_KS
MOVED_KS = 0.1
MOVED_MISSING = 0.02  # share of rows; not measured
MOVED_UNSEEN = 0.02  # share of rows beyond the usual; not measured
MOVED_AUC = 0.6  # AUC of trees that tell new rows from old ones; not measured: 0.5 is chance
MOVED_OVERLAP = 0.5  # share of an id's nearest: two seeds of a net .91, two halves of a log .67 (1,280 items, OTTO's)
OVERLAP_AT = 10  # number of nearest ids to compare
MOVED_METRIC = 0.02  # share of the reference's metric; not measured
GATE_UNITS = 50  # rows or lists; not measured: with fewer, a gate's decision would be chance

# ---- cli
SHOWN_TRIALS = 10  # trials that `fastrec tune` prints; bounds its table
