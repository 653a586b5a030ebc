"""Codes and an order → sums, shifts, ranks, windows: the few kernels that all features share.

In: int64 codes ``[n]`` and columns to order by. Out: tensors ``[n]`` or ``[codes]``. ``reduce.py`` sums over codes,
``order.py`` sorts rows of groups and shifts, ranks and adds up within them, ``windows.py`` looks back over a span,
``as_of_join.py`` finds the last event before a row, ``compiled.py`` does the same by compiled loops where they pay.
"""

from fastrec.segments.as_of_join import as_of
from fastrec.segments.order import Groups, cumsum_in_group, last_in_group, lexical_order, rank_in_group, shift_in_group
from fastrec.segments.reduce import segment_count, segment_max, segment_mean, segment_min, segment_sum

__all__ = [
    "Groups",
    "as_of",
    "cumsum_in_group",
    "last_in_group",
    "lexical_order",
    "rank_in_group",
    "segment_count",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_sum",
    "shift_in_group",
]
