"""Time fastrec's features beside what one would use today: ``make bench-features``, or this file with options.

Cases:
  nvtabular  fit and transform of NVTabular's peer script, from the same Parquet files, each in a process of its own
             (needs the script and its environment: see --peer-python; left out with a message otherwise).
  eight      one FeatureSet of eight features on shared keys, fit_transform, beside pandas, polars (lazy) and DuckDB;
             integer and text keys, sorted and unsorted input.

Systems start from their own frames in memory and have all cores; what they make is compared once, before the clock
starts. ``ratio`` is a peer's seconds over fastrec's on the same frame (DuckDB's: over fastrec's on an Arrow table).

Every peer is written in the fastest of the ways that were tried. In pandas that is ``transform``, with out-of-fold sums
as a difference, which is exact for clicks; the loop over folds that most people write stands beside it. In polars
windows beat group-by and join, and a shift beats ``diff``; in DuckDB group-by and join beat windows for sums. Where the
input is known to be sorted, pandas and polars are told so and sort nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from _e2e_stock import target_by_difference, target_by_fold
from _frames import event_log
from _timing import NVTABULAR, Options, Record, check_same, race, record, run_cases

from fastrec.features import CountEncode, Cross, CumStat, Diff, FeatureSet, GroupRank, Lag, TargetEncode

SMOOTH = 20
NAMES = ("te_item__clicked", "te_item_x_city__clicked", "count_item", "count_user", "rank_price__session")
NAMES += ("diff1_price__session", "lag1_price__user", "cummean_price__user")


def with_fastrec(frame: Any) -> Any:
    """Add the eight to a frame, in the library that came in."""
    targets = {"target": "clicked", "fold_column": "fold", "smooth": SMOOTH}
    counts = [CountEncode(["item", "user"]), GroupRank("price", by="session")]
    in_time = [cls("price", by=by, order="timestamp") for cls, by in ((Diff, "session"), (Lag, "user"))]
    in_time.append(CumStat("price", by="user", order="timestamp", stats="mean"))
    encoded = [TargetEncode("item", **targets), TargetEncode(Cross("item", "city"), **targets)]
    return FeatureSet([*encoded, *counts, *in_time]).fit_transform(frame)


def with_pandas(df: Any, *, ordered: bool, by_fold: bool = False) -> Any:
    made = df.copy(deep=False)
    for keys in (["item"], ["item", "city"]):
        values = target_by_fold(df, df, keys) if by_fold else target_by_difference(df, df["clicked"], keys)
        made[f"te_{'_x_'.join(keys)}__clicked"] = values
    made["count_item"] = df.groupby("item", sort=False)["price"].transform("size")
    made["count_user"] = df.groupby("user", sort=False)["price"].transform("size")
    made["rank_price__session"] = df.groupby("session", sort=False)["price"].rank("min")
    in_order = df if ordered else df.sort_values("timestamp")
    made["diff1_price__session"] = in_order.groupby("session", sort=False)["price"].diff()
    of_user = in_order.groupby("user", sort=False)["price"]
    made["lag1_price__user"] = of_user.shift(1)
    made["cummean_price__user"] = (of_user.cumsum() - in_order["price"]) / of_user.cumcount()
    return made


def with_polars(frame: Any, *, ordered: bool) -> Any:
    import polars as pl

    def target(keys: list[str]) -> Any:
        clicks, rows = pl.col("clicked").cast(pl.Int64).sum(), pl.len().cast(pl.Int64)
        own = [*keys, "fold"]
        prior = (clicks - clicks.over("fold")) / (rows - rows.over("fold"))
        total, count = clicks.over(keys) - clicks.over(own), rows.over(keys) - rows.over(own)
        return (total + SMOOTH * prior) / (count + SMOOTH)

    price = pl.col("price")
    by_time = {} if ordered else {"order_by": "timestamp"}
    earlier = (price.cum_sum() - price) / (price.cum_count().cast(pl.Int64) - 1)
    query = frame.lazy().with_columns(
        target(["item"]).alias("te_item__clicked"),
        target(["item", "city"]).alias("te_item_x_city__clicked"),
        pl.len().over("item").alias("count_item"),
        pl.len().over("user").alias("count_user"),
        price.rank("min").over("session").alias("rank_price__session"),
        (price - price.shift(1).over("session", **by_time)).alias("diff1_price__session"),
        price.shift(1).over("user", **by_time).alias("lag1_price__user"),
        earlier.over("user", **by_time).alias("cummean_price__user"),
    )
    return query.collect()


_QUERY = f"""
with
  of_fold as (select fold, sum(clicked) as s, count(*) as n from log group by fold),
  prior as (select fold, (sum(s) over () - s) / (sum(n) over () - n) as p from of_fold),
  item_fold as (select item, fold, sum(clicked) as s, count(*) as n from log group by item, fold),
  of_item as (select item, sum(s) as s, sum(n) as n from item_fold group by item),
  pair_fold as (select item, city, fold, sum(clicked) as s, count(*) as n from log group by item, city, fold),
  of_pair as (select item, city, sum(s) as s, sum(n) as n from pair_fold group by item, city),
  of_user as (select "user", count(*) as n from log group by "user")
select
  row,
  (of_item.s - item_fold.s + {SMOOTH} * p) / (of_item.n - item_fold.n + {SMOOTH}) as te_item__clicked,
  (of_pair.s - pair_fold.s + {SMOOTH} * p) / (of_pair.n - pair_fold.n + {SMOOTH}) as te_item_x_city__clicked,
  of_item.n as count_item,
  of_user.n as count_user,
  rank() over (partition by session order by price) as rank_price__session,
  price - lag(price) over (partition by session order by timestamp) as diff1_price__session,
  lag(price) over in_time as lag1_price__user,
  avg(price) over (in_time rows between unbounded preceding and 1 preceding) as cummean_price__user
from log
  join prior using (fold)
  join item_fold using (item, fold) join of_item using (item)
  join pair_fold using (item, city, fold) join of_pair using (item, city)
  join of_user using ("user")
window in_time as (partition by log."user" order by timestamp)
"""


def duckdb_log(table: Any, threads: int) -> Any:
    """Connect to a database in memory that holds the Arrow table as ``log``."""
    import duckdb

    connection = duckdb.connect(config={"threads": threads, "preserve_insertion_order": False})
    connection.sql("set enable_progress_bar = false")
    connection.register("given", table)
    connection.sql("create table log as select * from given")
    connection.unregister("given")
    return connection


def nvtabular(options: Options) -> Iterator[Record]:
    import _nvtabular

    peer = _nvtabular.peer(options.peer_python)
    stages = {} if peer is None else _nvtabular.compare_stages(options, peer)
    for stage, timings in stages.items():
        for system, timing in timings.items():
            yield record(f"nvtabular, {stage}", system, options.rows, timing, timings["fastrec"])


def eight(options: Options) -> Iterator[Record]:
    for keys, ordered in itertools.product(("int", "str"), (True, False)):
        log = event_log(options.rows, keys=keys, ordered=ordered)
        frame = log.to_pandas().copy()
        # what to run, and the fastrec system on the same frame, that it is measured by
        systems: dict[str, tuple[str, Callable[[], Any]]] = {
            "fastrec, pandas": ("fastrec, pandas", partial(with_fastrec, frame)),
            "pandas": ("fastrec, pandas", partial(with_pandas, frame, ordered=ordered)),
        }
        if find_spec("polars"):
            import polars as pl

            theirs = pl.from_arrow(log, rechunk=True)
            systems["fastrec, polars"] = ("fastrec, polars", partial(with_fastrec, theirs))
            systems["polars lazy"] = ("fastrec, polars", partial(with_polars, theirs, ordered=ordered))
        by_fold = partial(with_pandas, frame, ordered=ordered, by_fold=True)
        systems["pandas, fold by fold"] = ("fastrec, pandas", by_fold)
        systems["fastrec, Arrow"] = ("fastrec, Arrow", partial(with_fastrec, log))
        if find_spec("duckdb"):
            connection = duckdb_log(log, options.threads)
            # its rows come in any order
            systems["DuckDB"] = ("fastrec, Arrow", lambda c=connection: c.sql(_QUERY).to_arrow_table())
        case = f"eight, {keys}, {'sorted' if ordered else 'unsorted'}"
        timings, made = race({n: run for n, (_, run) in systems.items()}, options.repeats)
        expected: dict[str, np.ndarray] = {}
        for name in list(made):
            found = as_floats(made.pop(name))
            expected = expected or found
            check_same(f"{case}: fastrec and {name}", expected, found)
        for name, (own, _) in systems.items():
            yield record(case, name, options.rows, timings[name], timings[own])


def as_floats(frame: Any) -> dict[str, np.ndarray]:
    """Return the eight of any library's frame as float64, NaN where missing, in the order of its column ``row``."""
    if type(frame).__module__.startswith("polars"):
        frame = frame.to_arrow()
    columns = {n: frame[n].to_pandas() if hasattr(frame[n], "to_pandas") else frame[n] for n in ("row", *NAMES)}
    place = np.argsort(columns.pop("row").to_numpy(), kind="stable")
    return {n: c.to_numpy(dtype=np.float64, na_value=np.nan)[place] for n, c in columns.items()}


if __name__ == "__main__":
    run_cases(
        __doc__,
        {"nvtabular": nvtabular, "eight": eight},
        "features",
        rows=(2_000_000, "of every case"),
        repeats=(5, "timed runs of every system"),
        peer_python=NVTABULAR,
    )
