"""Which steps of a chain a target passes through, and through which of them it could come back to its own row."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastrec.features.base import Feature, RowWise
from fastrec.table import Table


def tainted_steps(steps: Sequence[Feature]) -> list[Feature]:
    """Steps that use a target, or read what such a step makes; all others are the same in every fold."""
    names: set[str] = set()
    found = []
    for step in steps:
        if step.uses_target or names & set(step.inputs):
            names |= set(step.outputs)
            found.append(step)
    return found


def mixing_steps(steps: Sequence[Feature], key: Sequence[str], *, together: bool) -> list[Feature]:
    """Steps through which a row's own target may come back to it from another row's encoding, and those that they feed.

    Another row's out-of-fold encoding may hold this row's target, so that rows must not be compared unless they share a
    fold, as the rows of a group do where the group's columns hold the folds' key.

    Args:
        steps: all steps, in order.
        key: the columns that rows' folds are made from.
        together: whether the rows of one key share a fold (see ``key_keeps_together``).
    """
    tainted = tainted_steps(steps)
    encoded = {n for step in tainted for n in step.outputs}
    mixed: set[str] = set()
    found = []
    for step in tainted:
        reads = set(step.inputs)
        alone = isinstance(step, RowWise) or not reads & encoded
        in_fold = together and step.within is not None and set(key) <= set(step.within)
        if reads & mixed or not (alone or in_fold):
            mixed |= set(step.outputs)
            found.append(step)
    return found


def key_keeps_together(steps: Sequence[Feature], key: Sequence[str], work: Table, hidden: torch.Tensor | None) -> bool:
    """Whether rows of one key share their folds: the inner ones, and the outer one (bool ``[n]``) where it is given."""
    if not key or any(getattr(step, "fold_column", None) is not None for step in steps):
        return False
    if hidden is None:
        return True
    coded = work.coded(list(key))
    seen = torch.zeros(2, coded.size, dtype=torch.bool, device=work.device)
    seen[0, coded.codes[hidden]] = True
    seen[1, coded.codes[~hidden]] = True
    return not bool((seen[0] & seen[1]).any())
