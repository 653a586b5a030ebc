"""Options that cannot be: every generator refuses them by its own name, and says what to do."""

from __future__ import annotations

from functools import partial
from math import inf, nan

import pytest

from fastrec import features as f
from fastrec.errors import FastrecError


def each(**options):
    """One option at a time."""
    return [{name: value} for name, values in options.items() for value in values]


def with_horizon(make):
    rows = partial(make, "x")
    return [
        (rows, each(n=[0, [1, 0]]), "n is 0"),
        (rows, [{"horizon": "42D"}, {"horizon": "42D", "order": ["a", "b"]}], "one order column"),
        (rows, [{"horizon": "42D", "order": "t", "n": [1, -1]}], "looks back"),
        (rows, [{"horizon": "42 days", "order": "t"}], "42 days"),
        (rows, [{"horizon": 0, "order": "t"}], "horizon=0"),
        (rows, [{"horizon": -7, "order": "t"}], "horizon=-7"),
    ]


a_histogram = [{"stats": "histogram", "bins": bins} for bins in ([1], [1, 1], [2, 1])]
weights = [{"event": "kind", "weights": {"a": w}} for w in (-1, inf)]
never_repeated = [[], ["a", "a"], [1, 1.0], ["a", 1], [None], ["a", None], [1.0, nan], [[1]], [2**64]]
cum_target = partial(f.CumTarget, "k", "y", order="t")
target = partial(f.TargetEncode, "k", "y")
rolling = partial(f.Rolling, "x", window=2)
ewm = partial(f.Ewm, "x")

REFUSED = [
    (partial(f.BayesianRate, "c", "n"), each(weight=[0, -1, inf], prior=[nan]), ""),
    (partial(f.Bucketize, "x"), each(edges=[None, [], [2, 1], [1, 1], [nan]]), ""),
    (partial(f.Bucketize, "x"), each(quantiles=[1, 2.5, [], [0.5, 0.2], [1.2]]), ""),
    (partial(f.Bucketize, "x"), [{"edges": [1], "quantiles": 2}, {"quantiles": 3, "scope": "test"}], ""),
    (partial(f.Categorify, "k"), each(min_count=[-1, {"other": 2}], max_size=[-1], buckets=[0], scope=["test"]), ""),
    (partial(f.Categorify, "k"), [{"min_count": {"k": 2}, "shared": True}, {"buckets": 2, "unseen": True}], ""),
    (partial(f.Collect, "x", by="user"), each(max_len=[0], table=["log"]), ""),
    (partial(f.Collect, f.Collect("x", by="user"), by="user"), [{"order": "t", "table": "log"}], ""),
    (partial(f.Combine, "a", b="b"), each(how=["%"]), ""),
    (partial(f.CountEncode, "k"), [{"log": True, "normalise": True}], "logarithm"),
    (partial(f.CountEncode, "k"), each(scope=["test"]), "scope"),
    (
        partial(f.CoVisit, "item", by="s", order="t"),
        each(stats=["min"], window=[0], last=[0], folds=[1], order=[[]]),
        "",
    ),
    (partial(f.CoVisit, "item", by="s", order="t"), each(half_life=[0, nan], event=["kind"], weights=[{"a": 1}]), ""),
    (partial(f.CoVisit, "item", by="s", order="t"), weights, ""),
    (f.Cross, each(cols=["a", []]), ""),
    (partial(f.Cross, "a", "b"), each(buckets=[0]), ""),
    (f.CumCount, each(by=[[]]), ""),
    (partial(f.CumStat, "x", by="g"), each(stats=["median"]), "median"),
    (cum_target, each(smooth=[-1, nan]), "smooth"),
    (cum_target, each(half_life=[0, inf]), "half-life"),
    (cum_target, [{"half_life": 1, "order": ["a", "b"]}], "order columns"),
    (cum_target, each(order=[[]]), "earlier"),
    (partial(f.Cyclic, "t"), each(period=["year", 0, -1, nan, inf]), "period"),
    (partial(f.DatePart, "t"), each(parts=["fortnight", ["year", "decade"], []]), ""),
    (partial(f.DeviationFromGroup, "x", by="g"), each(how=["log"], stat=["max"], over=["all"], scope=["all"]), ""),
    (partial(f.Digits, "x"), [{"digits": d, "decimals": n} for d, n in ((0, 0), (19, 0), (1, -1), (1, 10))], ""),
    (ewm, each(half_life=[0]), "half_life=0"),
    (ewm, each(half_life=[[1, -2.0]]), "half_life=-2.0"),
    (ewm, each(half_life=[nan]), "half_life=nan"),
    (ewm, each(half_life=[[]]), "no half_life"),
    (ewm, each(half_life=["7D"]), "one order column"),
    (ewm, [{"half_life": "soon", "order": "t"}], "soon"),
    (partial(f.GroupPick, "x", by="g", order="t"), each(nth=[0]), ""),
    (partial(f.GroupRank, "x", by="g"), each(method=["first"]), ""),
    (
        partial(f.GroupStats, "x", by="g"),
        each(stats=["mode", "q5", "quantile", "first", "histogram"], bins=[[0, 1]]),
        "",
    ),
    (partial(f.GroupStats, "x", by="g"), [*each(over=["test"], scope=["test"]), {"over": "group", "scope": "all"}], ""),
    (partial(f.GroupStats, "x", by="g"), a_histogram, ""),
    (partial(f.HashEncode, "k"), each(buckets=[0]), ""),
    (partial(f.History, ["u", "i"], order="t"), each(stats=["median"], kinds=[["x"]]), ""),
    (partial(f.History, "u", order="t"), [{"by_kind": True, "event": "k"}, {"stats": "is_last"}], ""),
    *[case for make in (f.Lag, f.Diff, f.PctChange) for case in with_horizon(make)],
    (partial(f.LastAction, "user", action="kind", order="t"), each(n=[0, [1, -1]], order=[None]), ""),
    (partial(f.LastAction, "user", action="kind", order=None), [{"since": False, "table": "log"}], ""),
    (partial(f.ListSlice, "x", 0, 1, pad=0), each(pad_side=["up"]), "'up'"),
    (partial(f.MultiHot, "x"), each(values=never_repeated, max_size=[0], scope=["test"]), ""),
    (partial(f.Neighbours, "x", by="g"), each(what=["left"], n=[0, [1, -1]]), ""),
    (partial(f.NUnique, "v", by="g"), each(by=[[]], scope=["test"]), ""),
    (partial(f.RankByCount, "k"), each(method=["max"], scope=["test"]), ""),
    (rolling, each(stats=["mode"]), "no statistic 'mode'"),
    (rolling, each(closed=["middle"]), "closed 'middle'"),
    (rolling, each(window=[0]), "window=0"),
    (rolling, each(window=[-3]), "window=-3"),
    (rolling, each(window=[1.5]), "not whole"),
    (rolling, each(window=[True]), "window=True"),
    (rolling, each(window=[[]]), "no window"),
    (rolling, each(min_count=[-1]), "min_count"),
    (rolling, [{"window": "7 days", "order": "t"}], "7 days"),
    (rolling, [{"window": "7D"}, {"window": "7D", "order": ["s", "t"]}], "one order column"),
    (partial(f.RoundTo, "x"), [*each(to=[0, -5, nan, inf, []]), {"to": 1, "stats": "x"}], ""),
    (partial(f.RowStats, "a"), each(stats=[[], "median", ["mean", "mean"], ["mean", 3], None]), ""),
    (partial(f.SvdEncode, "item", "user"), each(dims=[0], scope=["x"]), ""),
    (target, each(stats=["median"]), "median"),
    (target, [*each(smooth=[-1, nan]), {"smooth": 0, "stats": "woe"}], "smooth"),
    (target, each(folds=[1, 0]), "folds"),
    (target, each(classes=[[], "ab", ["a", "a"], ["a", None], [1, "b"]]), "classes"),
    (partial(f.TextSvd, "text"), each(dims=[0], max_words=[0], scope=["x"], pattern=["("]), ""),
    (partial(f.TimeSince, "e"), each(order=[None, [], ["a", "b"]]), "a time needs one order column"),
    (partial(f.Tokens, "x"), each(pattern=["(", 7]), "pattern"),
    (partial(f.Tokens, "x"), each(pattern=["(a)(b)"]), "2 groups"),
    (f.VectorColumns, [*each(cols=[["a", "b"], []]), {"cols": "a", "dims": 0}], ""),
    (partial(f.VectorColumns, ["a", "b"]), [{"name": "v", "dims": 3}], ""),
]


@pytest.mark.parametrize(("make", "options", "words"), [(m, o, w) for m, options, w in REFUSED for o in options])
def test_options_that_cannot_be(make, options, words):
    with pytest.raises(FastrecError, match=words or None) as caught:
        make(**options)
    assert getattr(make, "func", make).__name__ in str(caught.value)
    assert caught.value.remedy
