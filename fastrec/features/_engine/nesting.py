"""Steps that a target passes through, and those through which it could return to its own row."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from fastrec.features.base import Feature
from fastrec.table import Table


def reads_target(step: Feature, targets: Collection[str]) -> list[str]:
    """Return the targets that a step reads as plain columns."""
    fitted = set(step.fit_only) if step.uses_target else set()
    return [n for n in step.inputs if n in targets and n not in fitted]


def tainted_steps(steps: Sequence[Feature], targets: Collection[str] = ()) -> list[Feature]:
    """Return steps that use a target or read such a step; all others are the same in every fold."""
    names: set[str] = set()
    found = []
    for step in steps:
        if step.uses_target or reads_target(step, targets) or names & set(step.inputs):
            names |= set(step.outputs)
            found.append(step)
    return found


def mixing_steps(
    steps: Sequence[Feature], key: Sequence[str], targets: Collection[str] = (), *, together: bool
) -> list[Feature]:
    """Return steps that could return a row's target through another row's encoding, and those they feed.

    Another row's out-of-fold encoding may hold this row's target, so that rows must not be compared unless they share a
    fold, as the rows of a group do where the group's columns hold the folds' key.

    Args:
        steps: all steps, in order.
        key: the columns that rows' folds are made from.
        targets: the columns that are targets.
        together: whether the rows of one key share a fold (see ``key_keeps_together``).
    """
    tainted = tainted_steps(steps, targets)
    encoded = {n for step in tainted for n in step.outputs}
    causal: set[str] = set()
    for step in tainted:
        if (bool(reads_target(step, targets)) or (step.uses_target and getattr(step, "causal", False))) or causal & set(
            step.inputs
        ):
            causal |= set(step.outputs)
    mixed: set[str] = set()
    found = []
    for step in tainted:
        reads = set(step.inputs)
        alone = step.kind == "row" or not reads & encoded
        # Rows of one key share the fold whose targets an encoding leaves out; a causal value leaves out no fold.
        in_fold = together and step.within is not None and set(key) <= set(step.within) and not reads & causal
        if reads & mixed or not (alone or in_fold):
            mixed |= set(step.outputs)
            found.append(step)
    return found


def key_keeps_together(steps: Sequence[Feature], key: Sequence[str], work: Table, hidden: torch.Tensor | None) -> bool:
    """Tell whether rows of one key share their inner fold, and their outer one (bool ``[n]``) if given."""
    if not key or any(getattr(step, "fold_column", None) is not None for step in steps):
        return False
    if hidden is None:
        return True
    coded = work.coded(list(key))
    seen = torch.zeros(2, coded.size, dtype=torch.bool, device=work.device)
    seen[0, coded.codes[hidden]] = True
    seen[1, coded.codes[~hidden]] = True
    return not bool((seen[0] & seen[1]).any())
