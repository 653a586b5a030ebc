"""Kernels that all features share: sums by code; shifts, ranks, sums and windows in ordered groups.

They take int64 codes ``[n]`` and columns to order by.
"""

from fastrec.segments.groups import (
    Groups,
    as_of,
    cumsum_in_group,
    last_in_group,
    lexical_order,
    rank_in_group,
    segment_count,
    segment_max,
    segment_mean,
    segment_min,
    segment_sum,
    shift_in_group,
)

__all__ = [
    "Groups", "as_of", "cumsum_in_group", "last_in_group", "lexical_order", "rank_in_group", "segment_count",
    "segment_max", "segment_mean", "segment_min", "segment_sum", "shift_in_group",
]  # fmt: skip
