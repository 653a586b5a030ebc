"""Contributions of a row's columns to its prediction: Shapley values of any predictor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import comb

import numpy as np
import torch

from fastrec._core import limits
from fastrec.table import Table, concat

BACKGROUND = "background.parquet"


class Mixtures:
    """Mixtures of a row with background rows, whose predictions give the Shapley values of the row's columns.

    A mixture has some columns of the row, the others of a background row. For a few columns all subsets are enumerated,
    for each background row. With more, each background row becomes the row column by column, in a random order and in
    its reverse (Štrumbelj and Kononenko 2014, algorithm 1; Mitchell et al. 2022, section 4).
    """

    def __init__(self, columns: int, background: int, *, seed: int = 0) -> None:
        if columns <= limits.ENUMERATED_COLUMNS:
            own = (np.arange(2**columns)[:, None] >> np.arange(columns)) & 1 == 1
            size = own.sum(1, keepdims=True)
            share = np.array([1 / (columns * comb(columns - 1, s)) for s in range(columns)])
            weights = np.where(own, share[size - 1], -share[np.minimum(size, columns - 1)])
            own, weights = (np.tile(a, (background, 1)) for a in (own, weights))
            walks = 1
        else:
            order = np.random.default_rng(seed).permuted(np.tile(np.arange(columns), (background, 1)), axis=1)
            place = np.argsort(np.stack([order, order[:, ::-1]], 1), axis=2)[:, :, None, :]
            step = np.arange(columns + 1)[:, None]
            own = (place < step).reshape(-1, columns)
            weights = ((place == step - 1) * 1.0 - (place == step)).reshape(-1, columns)
            walks = 2
        ends = np.stack([~own.any(1), own.all(1)], 1)  # the background rows give the base, the row its prediction
        self._own, self._of = own, np.repeat(np.arange(background), len(own) // background)
        self._weights = np.concatenate([weights, ends], 1).T / (walks * background)

    def of(self, row: np.ndarray, background: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return a row's distinct mixtures.

        ``row`` and ``background`` have codes of values, ``[columns]`` and ``[rows, columns]``. The result is the
        background row of each value, -1: the row itself, ``[m, columns]``; and numbers for ``contributions``.
        """
        mixed = np.where(self._own, row, background[self._of])
        _, first, numbers = np.unique(mixed, axis=0, return_index=True, return_inverse=True)
        return np.where(self._own, -1, self._of[:, None])[first], numbers.reshape(-1)

    def contributions(self, predicted: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return a row's contributions, base and prediction, ``[columns + 2, k]``, from its mixtures' ``[m, k]``."""
        return self._weights @ predicted[numbers]


def of_both_classes(values: np.ndarray) -> np.ndarray:
    """Return the contributions to both classes, ``[n, columns + 2, 2]``, from those to the second one.

    A row's last two entries are its base and its prediction; the first class has the complementary probabilities.
    """
    rest = -values
    rest[:, -2:] += 1
    return np.concatenate([rest, values], 2)


def background_rows(predicted: torch.Tensor, count: int) -> torch.Tensor:
    """Choose representative rows, evenly spaced by their predictions ``[n]`` or ``[n, k]``, in ascending order.

    Rows without a prediction (NaN) are skipped. Returns int64 ``[count]``, fewer if there are fewer.
    """
    wide = predicted.reshape(len(predicted), -1)
    known = (~wide.isnan().any(1)).nonzero().squeeze(1)
    wide = wide[known]
    # Sort by class, then by its probability.
    order = known[torch.argsort(wide[:, 0] if wide.shape[1] == 1 else wide.argmax(1) + wide.amax(1), stable=True)]
    count = min(count, len(order))
    return order[((torch.arange(count) + 0.5) * len(order) / max(count, 1)).long()]


def contributions(
    predict: Callable[[Table], torch.Tensor], rows: Table, background: Table, names: Sequence[str], *, seed: int = 0
) -> np.ndarray:
    """Compute the Shapley values of columns against ``background`` rows by ``Mixtures``.

    ``predict`` gives a table's predictions, float64 ``[n]`` or ``[n, k]``, from the columns ``names``. Returns float64
    ``[n, columns + 2, k]``: contributions, the background's mean prediction, and the row's prediction.
    """
    both, count = concat([rows.select(names), background.select(names)]), len(rows)
    opaque = ("list", "vector", "opaque")  # such values never compare equal
    columns = [both[n] for n in names]
    codes = [np.arange(len(both)) if c.kind in opaque else c.coded().codes.cpu().numpy() for c in columns]
    values, mixtures = np.stack(codes, 1), Mixtures(len(names), len(background), seed=seed)
    explained = []
    for i in range(count):
        taken, numbers = mixtures.of(values[i], values[count:])
        place = torch.from_numpy(np.where(taken < 0, i, taken + count)).to(both.device)
        mixed = Table({n: both[n].take(place[:, j]) for j, n in enumerate(names)})
        predicted = predict(mixed).cpu().reshape(len(mixed), -1).numpy()
        explained.append(mixtures.contributions(predicted, numbers))
    return np.stack(explained) if explained else np.zeros((0, len(names) + 2, 1))
