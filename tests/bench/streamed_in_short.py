"""The streamed trivago recipe with ten rounds of each model's trees, for measuring memory.

What growing trees takes of it does not depend on their number, and hours of it would say no more.

    fastrec run tests/bench/streamed_in_short.py --data DIR --out RUN
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from competitions.trivago2019.streamed import StreamedTrivago


class ShortTrivago(StreamedTrivago):
    """The recipe with few trees."""

    name = "RecSys Challenge 2019 (trivago), larger than memory, with few trees"

    def models(self, *, bs: int | None) -> Sequence[Any]:
        models = super().models(bs=bs)
        for model in models:
            model.rounds = 10
        return models
