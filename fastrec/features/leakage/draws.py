"""Statistics over runs with many targets changed at random: which rows follow their own target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from fastrec._core import limits
from fastrec.features.leakage.rows import moved, typical
from fastrec.table import Column

# Pairs of rows that must agree before chance is ruled out.
_LEAST_PAIRS = {"drawn": 500, "moved": 120, "static": 150}


def patterns(known: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draw whose targets are changed in which run, bool ``[LEAK_DRAWS, n]``: each ``known`` one in some, not in all."""
    count = limits.LEAK_DRAWS
    numbers = torch.randint(1, (1 << count) - 1, (len(known),), generator=generator)
    return ((numbers >> torch.arange(count).unsqueeze(1)) & 1).bool() & known


def change(before: Column, after: Column, scale: float | None = None, *, exact: bool = False) -> torch.Tensor:
    """Return by how much each value has moved: float64 ``[n]``, 0 if not at all; 1 for values that are no numbers."""
    # exact: count moves that may be rounding too
    odd = moved(before, after, scale).to("cpu")
    if not exact and not bool(odd.any()):
        return torch.zeros(len(odd), dtype=torch.float64)
    if before.kind != after.kind or before.kind not in ("number", "vector"):
        return odd.double()
    a, b = before.values.to("cpu").double(), after.values.to("cpu").double()
    if before.kind == "vector":  # a sum with random weights tells vectors apart by one number
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
    """Rows of a column that may follow their own target, the likeliest first: int64."""

    # effects: by how much each moves with its target; exact: only the last digits move

    rows: torch.Tensor
    effects: torch.Tensor
    exact: bool

    def left(self, delta: torch.Tensor, flipped: torch.Tensor) -> Followers:
        """Keep the rows that moved in a further run (``delta``) if, and only if, their target was ``flipped``."""
        has_moved = delta[self.rows].abs() >= self.effects.abs() / 2
        stays = has_moved == flipped[self.rows]
        return Followers(self.rows[stays], self.effects[stays], self.exact)


def followers(deltas: torch.Tensor, flips: torch.Tensor, *, exact: bool) -> Followers:
    """Find rows whose value moves with their own target, over runs in which targets were changed at random."""
    # Each row's changes are drawn by themselves, so effects of other rows are independent of them. A row counts if its
    # moves with and without its target changed (deltas, flips: [LEAK_DRAWS, n]) differ by many standard errors. By
    # chance a row does too that follows another one changed in the same runs
    on, off = flips.sum(0).double().clamp_min(1), (~flips).sum(0).double().clamp_min(1)
    with_it, without = (deltas * flips).sum(0) / on, (deltas * ~flips).sum(0) / off
    effect = with_it - without
    rest = (deltas - torch.where(flips, with_it, without)).square().sum(0)
    error = (rest / (len(deltas) - 2) * (1 / on + 1 / off)).sqrt()
    ratio = effect.abs() / torch.maximum(error, 1e-9 * effect.abs())
    if exact:  # signs of such moves mean nothing: they must be there in the same runs
        effect, ratio = effect.abs(), torch.where(((deltas != 0) == flips).all(0), torch.inf, 0.0)
        effect = torch.where(effect == 0, deltas.abs().amax(0), effect)
    chosen = ((ratio >= limits.LEAK_ERRORS) & (effect != 0) & flips.any(0)).nonzero().squeeze(1)
    chosen = chosen[torch.argsort(ratio[chosen], descending=True, stable=True)][: limits.LEAK_FOLLOWERS]
    return Followers(chosen, effect[chosen], exact)


def movers(deltas: torch.Tensor, flips: torch.Tensor) -> torch.Tensor:
    """Return the rows that moved, those first that move most with their own target; none if 30 % of rows moved."""
    odd = deltas != 0
    rows = odd.any(0)
    if float(rows.double().mean()) > 0.3:
        return torch.zeros(0, dtype=torch.int64)
    score = (odd & flips).sum(0) - (odd & ~flips).sum(0)
    found = rows.nonzero().squeeze(1)
    return found[torch.argsort(score[found], descending=True, stable=True)]


def by_group(codes: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Order rows by group, then by target: int64 ``[n]``."""
    order = torch.argsort(y, stable=True)
    return order[torch.argsort(codes[order], stable=True)]


def told_within(
    codes: torch.Tensor, y: torch.Tensor, values: torch.Tensor, order: torch.Tensor | None = None
) -> tuple[int, int]:
    """Count the pairs that tell the target within groups: equal values for equal targets, all higher or all lower else.

    Returns:
        The pairs of neighbours in groups of at least four rows and several targets (in smaller ones folds leave out one
        row too), 0 if one pair contradicts; and the pairs with equal targets.
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
    allowed = limits.LEAK_RELATIVE * torch.maximum(values[1:].abs(), values[:-1].abs()) + limits.LEAK_ABSOLUTE
    up, down = step > allowed, step < -allowed
    if bool((rises & ~up).any()) and bool((rises & ~down).any()):
        return 0, 0
    several = torch.zeros(int(codes.max()) + 1, dtype=torch.bool)
    several[codes[1:][rises]] = True
    together &= several[codes[1:]]
    same = together & ~rises
    if bool((same & (up | down)).any()):
        return 0, 0
    together &= (torch.bincount(codes) >= 4)[codes[1:]]
    return int(together.sum()), int((same & together).sum())


def says_target(cases: Iterable[tuple[torch.Tensor, ...]], how: Literal["drawn", "moved", "static"]) -> bool:
    """Decide whether values tell the target in all cases, in more pairs of rows than chance allows.

    Args:
        cases: arguments for ``told_within``.
        how: ``drawn``: all targets were changed at random; ``moved``: the rows that one target moves; ``static``:
            nothing was changed; then most targets must be equal, as numbers that all differ tell less.
    """
    pairs = equal = 0
    for case in cases:
        count, same = told_within(*case)
        if not count:
            return False
        pairs, equal = pairs + count, equal + same
    return pairs >= _LEAST_PAIRS[how] and (how != "static" or 2 * equal > pairs)


def scattered(before: Column, after: Column) -> bool:
    """Detect that one target's change moved many values in disorder: folds drawn by the targets."""
    # A statistic that holds the target moves rows of one value alike; folds drawn anew take them apart.
    if before.kind != "number" or after.kind != "number":
        return False
    a, b = before.number().to("cpu"), after.number().to("cpu")
    if float(moved(before, after).double().mean()) < 0.3:
        return False
    order = torch.argsort(a, stable=True)
    a, b = a[order], b[order]
    allowed = limits.LEAK_RELATIVE * a[1:].abs() + limits.LEAK_ABSOLUTE * typical(before)
    apart = (b[1:] - b[:-1] < -allowed) | ((a[1:] - a[:-1] <= allowed) & ((b[1:] - b[:-1]).abs() > 10 * allowed))
    return float(apart.double().mean()) >= 0.05


def share_below(delta: torch.Tensor, row: int, direction: float) -> float:
    """Return the share of rows that move less than ``row`` in the direction of its target; equal ones count half."""
    signed = delta * direction
    return float(((signed < signed[row]).double() + (signed == signed[row]).double() / 2).mean())


def one_sided(shares: Sequence[float]) -> bool:
    """Test whether of ``LEAK_SIGNS`` rows all but one move on one side of most others: by chance 4 in 100 000."""
    above = sum(s > 0.5 for s in shares)
    below = sum(s < 0.5 for s in shares)
    return len(shares) >= limits.LEAK_SIGNS and max(above, below) >= len(shares) - 1
