"""Sessions in which the next number comes next."""

from __future__ import annotations

import numpy as np


def chains(seed: int, sessions: int, items: int) -> list[list[int]]:
    """Each event is most often the number after the one before it."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(sessions):
        walk = [int(rng.integers(items))]
        for _ in range(rng.integers(1, 7)):
            walk.append((walk[-1] + 1) % items if rng.random() < 0.8 else int(rng.integers(items)))
        found.append(walk)
    return found
