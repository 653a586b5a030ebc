"""``Features``: a FeatureSet as one of a ``TabularFrame``'s procs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fastrec._core.memory import FEWER_FEATURES, naming_out_of_memory
from fastrec.errors import DataError
from fastrec.table import Table, attach, column_names
from fastrec.tabular.procs.base import MAKES_FEATURES, FrameProc


class Features(FrameProc):
    """A FeatureSet among the procs: the same as ``features=`` of ``TabularFrame``.

    It is fitted on the training rows, which get their out-of-fold or causal values, and goes before all other procs.
    Its numeric outputs become continuous columns, codes (of ``Cross``, say) categorical ones; others are used where
    ``cat_names`` lists them. Of several the later ones may read what the earlier ones made; a target encoding of
    another one's output belongs in one FeatureSet with it, which nests the two.

    Args:
        feature_set: a ``FeatureSet``, or anything with ``fit_transform(df)``, ``transform(df)`` and ``outputs``, names.

    Raises:
        DataError: it is no such thing.
    """

    order = -1
    several = True

    def __init__(self, feature_set: Any) -> None:
        super().__init__()
        self.feature_set = _as_set(feature_set)

    def reset(self, names: Sequence[str]) -> None:
        """Do nothing: a feature set is reset by its own fit."""

    def to_state(self) -> dict[str, Any]:
        """Return configuration and state of a FeatureSet; of any other object the names of its outputs."""
        state = {"kind": self.name, "outputs": list(self.feature_set.outputs)}
        return {**state, **self.feature_set.to_state()} if hasattr(self.feature_set, "to_state") else state

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Features:
        """Make the proc of a state.

        Raises:
            DataError: it was not a FeatureSet.
        """
        from fastrec.features import FeatureSet

        if "config" not in state:
            raise DataError("the features were not a FeatureSet and cannot be restored", remedy="Make them anew")
        return cls(FeatureSet.from_state(dict(state)))


class FeatureChain:
    """Several feature sets, one after the other."""

    def __init__(self, sets: Sequence[Any]) -> None:
        self.sets = list(sets)

    @property
    def outputs(self) -> list[str]:
        """The columns that they add."""
        return list(dict.fromkeys(n for s in self.sets for n in s.outputs))

    @property
    def inputs(self) -> list[str]:
        """The columns that a frame to transform must have (known only where every set says so)."""
        return self._needed("inputs")

    @property
    def fit_inputs(self) -> list[str]:
        """The columns that a frame to fit on must have (known only where every set says so)."""
        return self._needed("fit_inputs")

    def _needed(self, kind: str) -> list[str]:
        found: dict[str, None] = {}
        made: set[str] = set()
        for one in self.sets:
            found |= dict.fromkeys(n for n in getattr(one, kind) if n not in made)
            made |= set(one.outputs)
        return list(found)

    def fit_transform(self, df: Any) -> Any:
        """Fit each set on the training rows with the outputs of those before it; return all outputs."""
        for feature_set in self.sets:
            df = fit_features(feature_set, df)
        return df

    def transform(self, df: Any, history: Any = None) -> Any:
        """Return any rows with all outputs; ``history``: earlier rows that they may look back to."""
        for i, feature_set in enumerate(self.sets):
            df = apply_features(feature_set, df, history)
            if history is not None and looking_back(FeatureChain(self.sets[i + 1 :])):
                history = apply_features(feature_set, history)
        return df


def features_of(procs: Sequence[FrameProc], features: Any = None) -> Any:
    """Combine ``features=`` and every ``Features`` proc into one object; None if there are none."""
    sets: list[Any] = []
    for given in [features, *(p.feature_set for p in procs if isinstance(p, Features))]:
        parts = given.sets if isinstance(given, FeatureChain) else [_as_set(given)] if given is not None else []
        sets += [p for p in parts if not any(p is s for s in sets)]
    return FeatureChain(sets) if len(sets) > 1 else sets[0] if sets else None


def _as_set(given: Any) -> Any:
    absent = [n for n in MAKES_FEATURES if not hasattr(given, n)]
    if absent:
        remedy = "Give a FeatureSet, as in FeatureSet([CountEncode('city')])"
        raise DataError(f"{given!r} is no set of features: it has no {absent[0]}", remedy=remedy)
    return given


def fit_features(features: Any, df: Any) -> Any:
    """Fit features and return training rows with them; columns that ``keep`` leaves out stay."""
    with naming_out_of_memory("making the features of training rows", FEWER_FEATURES):
        return _joined(df, features.fit_transform(df), features.outputs)


def apply_features(
    features: Any, df: Any, history: Any = None, *, targets: Sequence[str] = (), hidden: torch.Tensor | None = None
) -> Any:
    """Return any rows with their features; columns that ``keep`` leaves out stay.

    ``history`` holds earlier rows, for features that look back. They do not see the ``targets`` of ``hidden`` rows
    (bool ``[n]``; None: all), which are unknown when such rows are predicted.
    """
    given, read = {} if history is None or not looking_back(features) else {"history": history}, set[str]()
    if targets and (steps := _steps(features)):
        from fastrec.features._engine.chain import masked, reads_target

        read = {n for s in steps for n in reads_target(s, targets)} & set(column_names(df))
    with naming_out_of_memory("making features", FEWER_FEATURES):
        if not read:
            return _joined(df, features.transform(df, **given), features.outputs)
        known = Table.read(df)
        hidden = torch.ones(len(known), dtype=torch.bool) if hidden is None else hidden
        blank = masked(known, sorted(read), hidden.to(known.device))
        made = _joined(blank, features.transform(blank, **given), features.outputs)
        return made.with_columns({n: known[n] for n in read})


def looking_back(features: Any) -> list[str]:
    """List the outputs of FeatureSets that are made from earlier rows of the frame, not of a log, when applied.

    A generator without an order, such as ``GroupRank``, reads groups whole; these do not span training and test.
    """
    ordered = [s for s in _steps(features) if s.online == "history" and hasattr(s, "order")]
    return [n for s in ordered if getattr(s, "table", None) is None for n in s.outputs]


def _steps(features: Any) -> list[Any]:
    return [step for one in getattr(features, "sets", [features]) for step in getattr(one, "steps", ())]


def _joined(df: Any, made: Any, outputs: Sequence[str]) -> Any:
    there = set(column_names(made))
    if there.issuperset(column_names(df)):
        return made
    table = Table.read(made, [n for n in outputs if n in there])
    return attach(df, {n: table[n] for n in table.names})
