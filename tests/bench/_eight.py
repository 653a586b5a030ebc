"""Eight features of an event log, as fastrec, pandas, polars and DuckDB make them: the same values in each.

Every peer is written as one who knows it well would write it, and in the fastest of the ways that were tried. In pandas
that is ``transform``, out-of-fold sums as a difference, which is exact for clicks; the loop over folds that most people
write stands beside it. In polars windows beat group-by and join, and a shift beats ``diff``; in DuckDB group-by and
join beat windows for sums. Where the input is known to be sorted, pandas and polars are told so and sort nothing.
"""

from __future__ import annotations

from typing import Any

from fastrec.features import CountEncode, Cross, CumStat, Diff, FeatureSet, GroupRank, Lag, TargetEncode

SMOOTH = 20
NAMES = (
    "te_item__clicked",
    "te_item_x_city__clicked",
    "count_item",
    "count_user",
    "rank_price__session",
    "diff1_price__session",
    "lag1_price__user",
    "cummean_price__user",
)


def with_fastrec(frame: Any) -> Any:
    """The frame and the eight, in the library that came in."""
    return features().fit_transform(frame)


def features() -> FeatureSet:
    """The eight, not yet fitted."""
    return FeatureSet(
        [
            TargetEncode("item", "clicked", fold_column="fold", smooth=SMOOTH),
            TargetEncode(Cross("item", "city"), "clicked", fold_column="fold", smooth=SMOOTH),
            CountEncode("item"),
            CountEncode("user"),
            GroupRank("price", by="session"),
            Diff("price", by="session", order="timestamp"),
            Lag("price", by="user", order="timestamp"),
            CumStat("price", by="user", order="timestamp", stats="mean"),
        ]
    )


def with_pandas(df: Any, *, ordered: bool, by_fold: bool = False) -> Any:
    """The frame and the eight, in pandas; the target encodings by ``transform``, or fold by fold."""
    made = df.copy(deep=False)
    encode = pandas_target_by_fold if by_fold else pandas_target
    made["te_item__clicked"] = encode(df, ["item"])
    made["te_item_x_city__clicked"] = encode(df, ["item", "city"])
    made["count_item"] = df.groupby("item", sort=False)["price"].transform("size")
    made["count_user"] = df.groupby("user", sort=False)["price"].transform("size")
    made["rank_price__session"] = df.groupby("session", sort=False)["price"].rank("min")
    in_order = df if ordered else df.sort_values("timestamp")
    made["diff1_price__session"] = in_order.groupby("session", sort=False)["price"].diff()
    of_user = in_order.groupby("user", sort=False)["price"]
    made["lag1_price__user"] = of_user.shift(1)
    made["cummean_price__user"] = (of_user.cumsum() - in_order["price"]) / of_user.cumcount()
    return made


def pandas_target(df: Any, keys: list[str]) -> Any:
    """Out-of-fold target encoding in pandas."""
    whole = df.groupby(keys, sort=False)["clicked"]
    own = df.groupby([*keys, "fold"], sort=False)["clicked"]
    of_fold = df.groupby("fold")["clicked"].agg(["sum", "count"])
    rest = of_fold.sum() - of_fold
    prior = df["fold"].map(rest["sum"] / rest["count"])
    total = whole.transform("sum") - own.transform("sum")
    count = whole.transform("count") - own.transform("count")
    return (total + SMOOTH * prior) / (count + SMOOTH)


def pandas_target_by_fold(df: Any, keys: list[str]) -> Any:
    """Out-of-fold target encoding in pandas as it is mostly written: learned on the other folds, joined to the fold."""
    import pandas as pd

    made = pd.Series(0.0, index=df.index)
    for fold in sorted(df["fold"].unique()):
        inside = df["fold"] == fold
        others = df[~inside]
        prior = others["clicked"].mean()
        stats = others.groupby(keys, sort=False)["clicked"].agg(["sum", "count"])
        mean = (stats["sum"] + SMOOTH * prior) / (stats["count"] + SMOOTH)
        made[inside] = df.loc[inside, keys].join(mean.rename("mean"), on=keys)["mean"].fillna(prior)
    return made


def with_polars(frame: Any, *, ordered: bool) -> Any:
    """The frame and the eight, as one lazy query of polars."""
    import polars as pl

    price = pl.col("price")
    by_time = {} if ordered else {"order_by": "timestamp"}
    earlier = (price.cum_sum() - price) / (price.cum_count().cast(pl.Int64) - 1)
    query = frame.lazy().with_columns(
        polars_target(["item"]).alias("te_item__clicked"),
        polars_target(["item", "city"]).alias("te_item_x_city__clicked"),
        pl.len().over("item").alias("count_item"),
        pl.len().over("user").alias("count_user"),
        price.rank("min").over("session").alias("rank_price__session"),
        (price - price.shift(1).over("session", **by_time)).alias("diff1_price__session"),
        price.shift(1).over("user", **by_time).alias("lag1_price__user"),
        earlier.over("user", **by_time).alias("cummean_price__user"),
    )
    return query.collect()


def polars_target(keys: list[str]) -> Any:
    """Out-of-fold target encoding as an expression of polars."""
    import polars as pl

    clicks, rows = pl.col("clicked").cast(pl.Int64).sum(), pl.len().cast(pl.Int64)
    own = [*keys, "fold"]
    prior = (clicks - clicks.over("fold")) / (rows - rows.over("fold"))
    total, count = clicks.over(keys) - clicks.over(own), rows.over(keys) - rows.over(own)
    return (total + SMOOTH * prior) / (count + SMOOTH)


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
    """A connection to a database in memory that holds the Arrow table as ``log``."""
    import duckdb

    connection = duckdb.connect(config={"threads": threads, "preserve_insertion_order": False})
    connection.sql("set enable_progress_bar = false")
    connection.register("given", table)
    connection.sql("create table log as select * from given")
    connection.unregister("given")
    return connection


def with_duckdb(connection: Any) -> Any:
    """The rows' numbers and the eight, by one query of DuckDB, as an Arrow table; its rows come in any order."""
    return connection.sql(_QUERY).to_arrow_table()
