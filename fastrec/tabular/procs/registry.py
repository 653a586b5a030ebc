"""Procs by name: what a user gave, fastai's own among them, as ours; saved ones read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastai.data.transforms import Categorize, RegressionSetup
from fastai.data.transforms import Normalize as FastaiNormalize
from fastai.tabular.core import Categorify as FastaiCategorify
from fastai.tabular.core import FillMissing as FastaiFillMissing
from fastcore.foundation import L
from fasttransform import Pipeline

from fastrec.errors import DataError
from fastrec.table.state import class_named
from fastrec.tabular.procs.base import MAKES_FEATURES, FrameProc
from fastrec.tabular.procs.procs import Categorify, FillMissing, Normalize


def proc_from_state(state: Mapping[str, Any]) -> FrameProc:
    """Make the proc that ``to_state`` described."""
    return class_named(FrameProc, state["kind"]).from_state(state)


def as_procs(procs: Any) -> list[FrameProc]:
    """Return procs in the order they work in: classes instantiated, fastai's translated, a ``Pipeline`` taken apart."""
    given = procs.fs if isinstance(procs, Pipeline) else L(procs)
    found = [_as_proc(p) for p in given if not isinstance(p, Categorize | RegressionSetup)]
    kinds = [type(p) for p in found if not p.several]
    if len(set(kinds)) < len(kinds):
        raise DataError(f"{[k.__name__ for k in kinds]} names a proc twice", remedy="Give each kind of proc once")
    return sorted(found, key=lambda p: p.order)


def _as_proc(proc: Any) -> FrameProc:
    if all(hasattr(proc, n) for n in MAKES_FEATURES):
        kind = proc if isinstance(proc, type) else type(proc)
        remedy = "Give it in features=FeatureSet([…])"
        if kind.__name__ in (c.__name__ for c in (Categorify, FillMissing, Normalize)):
            remedy += f", or the proc of that name: fastrec.tabular.{kind.__name__}"
        shown = kind.__name__ if proc is kind else repr(proc)
        raise DataError(f"{shown} makes columns of features and is no proc", remedy=remedy)
    made = proc() if isinstance(proc, type) else proc
    if isinstance(made, FrameProc):
        return made
    if isinstance(made, FastaiCategorify):
        return Categorify()
    if isinstance(made, FastaiFillMissing):
        rule = made.fill_strategy
        name = rule if isinstance(rule, str) else rule.__name__
        return FillMissing(name if name in ("median", "constant", "mode") else rule, made.add_col, made.fill_vals)
    if isinstance(made, FastaiNormalize):
        return Normalize()
    raise DataError(
        f"{made!r} cannot prepare a TabularFrame's columns",
        remedy="Use Categorify, FillMissing and Normalize (fastrec's or fastai's), LogTransform, RankGauss, "
        "RobustScale, Features, or subclass fastrec.tabular.procs.ContProc",
    )
