"""Many rows' targets changed at once, at random: which rows follow their own target, found in few runs for all rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from fastrec.features.leakage.runs import ABSOLUTE, RELATIVE, moved, typical
from fastrec.table import Column

DRAWS = 7
SIGNS = 20  # rows, changed one by one, that tell whether values move with the own target, where all values move
_MOST, _CLEAR = 512, 30.0  # rows that may follow their target; standard errors from which a row may
_LEAST_GROUP, _LEAST_PAIRS = 4, {"drawn": 500, "moved": 120, "static": 150}


def patterns(known: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Which rows' targets are changed in which run: each in some runs, but neither in none nor in all.

    Args:
        known: bool ``[n]``, rows that have a target.
        generator: of random numbers.

    Returns:
        Bool ``[DRAWS, n]``.
    """
    numbers = torch.randint(1, (1 << DRAWS) - 1, (len(known),), generator=generator)
    return ((numbers >> torch.arange(DRAWS).unsqueeze(1)) & 1).bool() & known


def change(before: Column, after: Column, scale: float | None = None, *, exact: bool = False) -> torch.Tensor:
    """By how much each value has moved: float64 ``[n]``, 0 where not at all; 1 for what is no number.

    Args:
        before, after: a column, in the same rows.
        scale: see ``moved``.
        exact: whether what may be rounding counts too.
    """
    odd = moved(before, after, scale).to("cpu")
    if not exact and not bool(odd.any()):
        return torch.zeros(len(odd), dtype=torch.float64)
    if before.kind != after.kind or before.kind not in ("number", "vector"):
        return odd.double()
    a, b = before.values.to("cpu").double(), after.values.to("cpu").double()
    if before.kind == "vector":  # vectors are told apart by one number: a sum with weights that follow no pattern
        if a.shape != b.shape:
            return odd.double()
        weights = torch.rand(a.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        delta = (b - a).nan_to_num(0, 0, 0) @ weights
    else:
        delta = (b - a).nan_to_num(0, 0, 0)
        gone, gone_too = before.is_missing().to("cpu"), after.is_missing().to("cpu")
        far = 10 * (1 + a.nan_to_num(0, 0, 0).abs().amax()) if len(a) else 1.0
        delta = torch.where(gone == gone_too, delta, torch.where(gone_too, far, -far))
        delta = torch.where(gone & gone_too, 0.0, delta)
    return delta if exact else torch.where(odd, delta, 0.0)


@dataclass(frozen=True)
class Followers:
    """Rows of a column that may follow their own target.

    Args:
        rows: int64, the likeliest first.
        effects: float64, by how much each moves with its target.
        exact: whether the column moves in its last digits alone.
    """

    rows: torch.Tensor
    effects: torch.Tensor
    exact: bool

    def left(self, delta: torch.Tensor, flipped: torch.Tensor) -> Followers:
        """Those that a further run leaves: where the target was changed they have moved, elsewhere not.

        Args:
            delta: float64 ``[n]``, by how much the values have moved.
            flipped: bool ``[n]``, whose targets were changed.
        """
        has_moved = delta[self.rows].abs() >= self.effects.abs() / 2
        stays = has_moved == flipped[self.rows]
        return Followers(self.rows[stays], self.effects[stays], self.exact)


def followers(deltas: torch.Tensor, flips: torch.Tensor, *, exact: bool) -> Followers:
    """Rows whose value moves with their own target, over runs in which targets were changed at random.

    What a row gets from other rows is independent of its own changes, as every row's are drawn for itself. A row counts
    where its moves in runs with its target changed differ from those in the others by many standard errors; by chance
    that is so too where it follows one row that happened to be changed in the same runs.

    Args:
        deltas: float64 ``[DRAWS, n]``, by how much a column has moved in each run (see ``change``).
        flips: bool ``[DRAWS, n]`` (see ``patterns``).
        exact: whether these are changes of the last digits.
    """
    on, off = flips.sum(0).double().clamp_min(1), (~flips).sum(0).double().clamp_min(1)
    with_it, without = (deltas * flips).sum(0) / on, (deltas * ~flips).sum(0) / off
    effect = with_it - without
    rest = (deltas - torch.where(flips, with_it, without)).square().sum(0)
    error = (rest / (len(deltas) - 2) * (1 / on + 1 / off)).sqrt()
    ratio = effect.abs() / torch.maximum(error, 1e-9 * effect.abs())
    if exact:  # signs of such moves mean nothing: they must be there in the same runs
        effect, ratio = effect.abs(), torch.where(((deltas != 0) == flips).all(0), torch.inf, 0.0)
        effect = torch.where(effect == 0, deltas.abs().amax(0), effect)
    chosen = ((ratio >= _CLEAR) & (effect != 0) & flips.any(0)).nonzero().squeeze(1)
    chosen = chosen[torch.argsort(ratio[chosen], descending=True, stable=True)][:_MOST]
    return Followers(chosen, effect[chosen], exact)


def movers(deltas: torch.Tensor, flips: torch.Tensor) -> torch.Tensor:
    """Rows that targets move where most rows are moved by none: int64, those first that move most with their own.

    Args:
        deltas, flips: see ``followers``.
    """
    odd = deltas != 0
    rows = odd.any(0)
    if float(rows.double().mean()) > 0.3:
        return torch.zeros(0, dtype=torch.int64)
    score = (odd & flips).sum(0) - (odd & ~flips).sum(0)
    found = rows.nonzero().squeeze(1)
    return found[torch.argsort(score[found], descending=True, stable=True)]


# Leave-one-out -------------------------------------------------------------------------------------------------------


def by_group(codes: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The order of rows by group, then by target: int64 ``[n]``."""
    order = torch.argsort(y, stable=True)
    return order[torch.argsort(codes[order], stable=True)]


def told_within(
    codes: torch.Tensor, y: torch.Tensor, values: torch.Tensor, order: torch.Tensor | None = None
) -> tuple[int, int]:
    """Whether values say the target within each group: equal where it is equal, and higher or lower where it is higher.

    Args:
        codes: int64 ``[n]``, the groups.
        y: float64 ``[n]``, the target, NaN where it is unknown.
        values: float64 ``[n]``, NaN where missing.
        order: what ``by_group`` gives for these; None: found here.

    Returns:
        How many pairs of neighbours were compared in groups of four rows or more and several targets (in smaller ones
        folds of rows leave out one row too), 0 where one pair is against it; and in how many the targets are equal.
    """
    order = by_group(codes, y) if order is None else order
    codes, y, values = codes[order], y[order], values[order]
    kept = ~(y.isnan() | values.isnan() | values.isinf())
    if not bool(kept.all()):
        codes, y, values = codes[kept], y[kept], values[kept]
    if not len(codes):
        return 0, 0
    together = codes[1:] == codes[:-1]
    rises = together & (y[1:] > y[:-1])
    step = values[1:] - values[:-1]
    allowed = RELATIVE * torch.maximum(values[1:].abs(), values[:-1].abs()) + ABSOLUTE
    up, down = step > allowed, step < -allowed
    if bool((rises & ~up).any()) and bool((rises & ~down).any()):
        return 0, 0
    several = torch.zeros(int(codes.max()) + 1, dtype=torch.bool)
    several[codes[1:][rises]] = True
    together &= several[codes[1:]]
    same = together & ~rises
    if bool((same & (up | down)).any()):
        return 0, 0
    together &= (torch.bincount(codes) >= _LEAST_GROUP)[codes[1:]]
    return int(together.sum()), int((same & together).sum())


def says_target(cases: Iterable[tuple[torch.Tensor, ...]], how: Literal["drawn", "moved", "static"]) -> bool:
    """Whether values say the target in all cases, and in more pairs of rows than chance allows.

    Args:
        cases: arguments for ``told_within``.
        how: whether all targets were changed at random, or the rows are those that one target moves, or nothing was
            changed; then most targets must be equal ones, as numbers that all differ say less.
    """
    pairs = equal = 0
    for case in cases:
        found = told_within(*case)
        if not found[0]:
            return False
        pairs, equal = pairs + found[0], equal + found[1]
    return pairs >= _LEAST_PAIRS[how] and (how != "static" or 2 * equal > pairs)


# Values that all move ------------------------------------------------------------------------------------------------


def scattered(before: Column, after: Column) -> bool:
    """Whether one target's change has moved many rows' values in disorder, as when folds are drawn by the targets.

    A statistic that holds the target moves rows of one value alike; folds drawn anew take them apart.
    """
    if before.kind != "number" or after.kind != "number":
        return False
    a, b = before.number().to("cpu"), after.number().to("cpu")
    if float(moved(before, after).double().mean()) < 0.3:
        return False
    order = torch.argsort(a, stable=True)
    a, b = a[order], b[order]
    allowed = RELATIVE * a[1:].abs() + ABSOLUTE * typical(before)
    apart = (b[1:] - b[:-1] < -allowed) | ((a[1:] - a[:-1] <= allowed) & ((b[1:] - b[:-1]).abs() > 10 * allowed))
    return float(apart.double().mean()) >= 0.05


def share_below(delta: torch.Tensor, row: int, direction: float) -> float:
    """The share of rows that move less than one row, in the direction that its target took; equal ones half."""
    signed = delta * direction
    return float(((signed < signed[row]).double() + (signed == signed[row]).double() / 2).mean())


def one_sided(shares: Sequence[float]) -> bool:
    """Whether of ``SIGNS`` rows all but one move on one side of most others: by chance 4 in 100 000."""
    above = sum(s > 0.5 for s in shares)
    below = sum(s < 0.5 for s in shares)
    return len(shares) >= SIGNS and max(above, below) >= len(shares) - 1
