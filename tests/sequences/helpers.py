"""Sessions of lists, and all scores of a model."""

import numpy as np
import pandas as pd
import torch

from fastrec.sequences import SessionFrame, SessionModel


def frame(lists, **options) -> SessionFrame:
    return SessionFrame(pd.DataFrame({"items": lists}), item="items", **options)


def random_lists(seed: int, sessions: int, items: int, longest: int = 8) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(items, size=n).tolist() for n in rng.integers(2, longest, sessions)]


def scores_of(model: SessionModel, sessions: SessionFrame) -> torch.Tensor:
    found = torch.zeros(len(sessions), len(model.items))
    for rows, scores in model.score(sessions):
        found[rows] = scores
    return found


def lists_of(frame: SessionFrame) -> list[list]:
    """Each session's item ids."""
    return [frame.decode(p).to_pylist() for p in frame.values.split(frame.lengths.tolist())]


def cycle(n: int = 120) -> SessionFrame:
    """Every item of 0 to 11 is followed by the next one."""
    return SessionFrame({"items": [[(i + j) % 12 for j in range(2 + i % 5)] for i in range(n)]}, item="items")


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
