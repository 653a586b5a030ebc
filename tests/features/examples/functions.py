"""Examples of generators made of functions."""

from __future__ import annotations

import math

import torch

from fastrec.features import Combine, GroupFunction, RowFunction, feature
from fastrec.segments import cumsum_in_group


@feature(inputs=["clicks", "views"], outputs=["ctr", "seen"])
def ctr_and_seen(clicks, views):
    return torch.where(views > 0, clicks / views, torch.nan), views > 0


@feature(inputs=Combine("clicks", "+", "views"), outputs="total")
def total(both):
    return both


@feature(inputs="text", outputs="letters")
def letters(text):
    return torch.tensor([len(t) if isinstance(t, str) else math.nan for t in text], dtype=torch.float64)


@feature(inputs="clicks", outputs="over_mean", by="user")
def over_mean(clicks):
    return clicks - clicks.nanmean()


@feature(inputs=["clicks", "when"], outputs=["first", "span"], by=["user"], order="when", uses_future=True)
def first_and_span(clicks, when):
    return clicks[0], when.max() - when.min()


@feature(inputs="views", outputs="views_before", by="user", order="when")
def views_before(views, groups):
    return cumsum_in_group(views.nan_to_num(0), groups)


@feature(inputs=["price", "t"], outputs="mixed")
def mixed(price, t):
    return price + t


@feature(inputs="price", outputs="run", by="user", order="t")
def run(price):
    return torch.arange(len(price))


EXAMPLES = {
    "RowFunction": [lambda: ctr_and_seen, lambda: total, lambda: letters],
    "GroupFunction": [lambda: over_mean, lambda: first_and_span, lambda: views_before],
}
EXAMPLES = {n: [lambda m=m: type(m())(**m().get_params()) for m in made] for n, made in EXAMPLES.items()}
ROW_WISE = [mixed]
CAUSAL = [run]
assert (RowFunction, GroupFunction) == (type(mixed), type(run))
