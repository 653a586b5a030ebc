import numpy as np
import pandas as pd
import pytest

from fastrec.errors import DataError, MissingColumnError
from fastrec.monitor import event_metrics


def log(requests=400, seed=0):
    """Lists of two to six items on three days, and clicks: some of items that were not shown, some twice."""
    rng = np.random.default_rng(seed)
    shown, clicks = [], []
    for r in range(requests):
        items = rng.permutation(30)[: rng.integers(2, 7)]
        where = rng.choice(["phone", "desk"])
        at = pd.Timestamp("2026-01-01") + pd.Timedelta(hours=int(rng.integers(0, 72)))
        shown += [{"request_id": f"r{r}", "item_id": f"i{i}", "at": at, "where": where} for i in items]
        for i in items:
            if rng.random() < 0.15:
                clicks += [{"request_id": f"r{r}", "item_id": f"i{i}"}] * int(rng.integers(1, 3))
        if rng.random() < 0.1:
            clicks.append({"request_id": f"r{r}", "item_id": "elsewhere"})
    return pd.DataFrame(shown), pd.DataFrame(clicks)


def by_hand(shown, clicks, k=99):
    clicked = set(zip(clicks["request_id"], clicks["item_id"], strict=True))
    hits, ranks, seen, taken = [], [], 0, 0
    for request, rows in shown.groupby("request_id", sort=False):
        places = [p for p, i in enumerate(rows["item_id"].head(k), 1) if (request, i) in clicked]
        hits.append(bool(places))
        ranks.append(1 / places[0] if places else 0)
        seen += min(len(rows), k)
        taken += len(places)
    return np.mean(hits), np.mean(ranks), taken / seen


def test_figures_are_those_of_plain_loops():
    shown, clicks = log()
    mixed = shown.sample(frac=1, random_state=1).sort_values("request_id", kind="stable", key=lambda s: s.str[-1])
    for some in (shown, mixed):
        for k in (None, 1, 3):
            row = event_metrics(some, clicks, k=k).iloc[0]
            assert (row["hit_rate"], row["mrr"], row["ctr"]) == pytest.approx(by_hand(some, clicks, k or 99))
            for name in ("hit_rate", "mrr", "ctr"):
                assert row[f"{name}_low"] < row[name] < row[f"{name}_high"]
    assert row["requests"] == 400


def test_by_day_and_segment():
    shown, clicks = log()
    found = event_metrics(shown, clicks, time="at", segment="where").set_index(["period", "segment"])
    assert len(found) == (1 + 3) * (1 + 2)
    day = shown["at"].dt.strftime("%Y-%m-%d")
    for period in ("all", "2026-01-02"):
        for segment in ("all", "desk"):
            some = shown[((day == period) | (period == "all")) & ((shown["where"] == segment) | (segment == "all"))]
            row = found.loc[(period, segment)]
            assert (row["hit_rate"], row["mrr"], row["ctr"]) == pytest.approx(by_hand(some, clicks))


def test_lists_in_one_row():
    shown, clicks = log(50)
    wide = shown.groupby("request_id", sort=False).agg({"item_id": list, "at": "first"}).reset_index()
    a, b = event_metrics(shown, clicks, time="at"), event_metrics(wide, clicks, time="at")
    pd.testing.assert_frame_equal(a, b)


def test_the_interval_of_the_rate_is_that_of_whole_requests():
    """Within a request all or nothing is clicked: the spread is that of requests, not of items."""
    rng = np.random.default_rng(0)
    liked = rng.random(200) < 0.5
    shown = pd.DataFrame({"request_id": np.repeat(np.arange(200), 10), "item_id": np.tile(np.arange(10), 200)})
    clicks = shown[np.repeat(liked, 10)]
    row = event_metrics(shown, clicks).iloc[0]
    width = row["ctr_high"] - row["ctr_low"]
    assert width == pytest.approx(2 * 1.96 * np.sqrt(0.25 / 200), rel=0.15)


def test_what_is_missing_is_said():
    shown, clicks = log(10)
    with pytest.raises(MissingColumnError, match="the clicks lack it"):
        event_metrics(shown, clicks.drop(columns="item_id"))
    with pytest.raises(MissingColumnError, match="the lists lack it"):
        event_metrics(shown, clicks, time="when")
    with pytest.raises(DataError, match="nothing was served"):
        event_metrics(shown.head(0), clicks)
    with pytest.raises(DataError, match="places"):
        event_metrics(shown, clicks, k=0)
