"""``apply`` of every generator that has one, as an exported graph.

The graph must give the same bits as ``apply`` does, on the rows that it was traced with and on another number of rows.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from fastrec._core.device import on_host, resolve_device
from fastrec.features import CumTarget, Cyclic, Digits, FeatureSet, RoundTo
from fastrec.features.base import GENERATORS, Context, Fitted, RowWise
from fastrec.table import Table
from tests.features.examples import EXAMPLES
from tests.features.frames import columns, tables, to_table

KINDS = sorted(n for n, kind in GENERATORS.items() if n in EXAMPLES and issubclass(kind, RowWise | Fitted))
# What cannot be exported, and why.
NOT_YET = {"TfIdfSimilarity": "torch.unique joins equal elements of a row's lists, block by block, to bound the memory"}
# Constants that float32 would round.
FINE = {
    "CumTarget": [lambda: CumTarget("city", "y", order="when", half_life=0.7, smooth=0.3)],
    "Cyclic": [lambda: Cyclic("clicks", 30.4)],
    "Digits": [lambda: Digits("z", 17, decimals=9)],
    "RoundTo": [lambda: RoundTo("z", 0.3, stats=["value", "gap", "is_round"])],
}


class Applied(torch.nn.Module):
    """Several generators' ``apply``; the tensors that they have learned are buffers."""

    def __init__(self, features):
        super().__init__()
        self.features = features
        self.learned = [pytree.tree_flatten(f._learned()[1] if isinstance(f, Fitted) else {}) for f in features]
        for i, (values, _) in enumerate(self.learned):
            for j, value in enumerate(values):
                if isinstance(value, torch.Tensor):
                    self.register_buffer(f"learned_{i}_{j}", value)

    def forward(self, *inputs):
        return [self.apply_one(i, tensors) for i, several in enumerate(inputs) for tensors in several]

    def apply_one(self, i, tensors):
        if isinstance(self.features[i], RowWise):
            return self.features[i].apply(tensors)
        values, form = self.learned[i]
        values = [getattr(self, f"learned_{i}_{j}", v) for j, v in enumerate(values)]
        return self.features[i].apply(pytree.tree_unflatten(values, form), tensors)


OTHERS = {name: Table.read(t) for name, t in tables().items()}


def fitted(feature, table):
    return FeatureSet([feature], key="row").fit(table, tables=OTHERS)


def inputs_of(fitted_set, table):
    """What ``apply`` is given for a table: its tensors, of lists by themselves."""
    feature = fitted_set.features[0]
    for step in fitted_set.steps:  # those that it reads come first
        if step is not feature:
            alone = step.compute(table) if isinstance(step, RowWise | Fitted) else step.compute(table, Context(OTHERS))
            table = table.with_columns(alone)
    seen, apply = [], feature.apply
    feature.apply = lambda *given: (seen.append(given[-1]), apply(*given))[1]
    try:
        if isinstance(feature, RowWise):
            feature.compute(table)
            return seen or [feature.prepare(table)]  # some have a faster way to the same
        with feature.using(Context(OTHERS)):
            feature.compute(table)
        return seen
    finally:
        del feature.apply


def is_traced(feature, inputs):
    if getattr(feature, "over", None) == "group":
        return False  # it learns nothing: a row's value is made of its group's rows
    return all(isinstance(t, torch.Tensor) for tensors in inputs for t in tensors.values())  # a function of text is not


def test_only_what_is_listed_is_left_out():
    assert set(NOT_YET) < set(KINDS)
    # What makes a row's tensors needs no other rows, one generator's excepted: it looks up what it has learned of the
    # items of earlier rows.
    assert {n for n in EXAMPLES if GENERATORS[n].online != "history"} == set(KINDS) - {"CoVisit"}


@pytest.mark.parametrize("name", [n for n in KINDS if n not in NOT_YET])
def test_apply_is_exported_with_the_same_bits(name):
    first, second = (to_table(columns(n, seed=n)) for n in (40, 57))
    sets = [fitted(make(), first) for make in [*EXAMPLES[name], *FINE.get(name, [])]]
    both = [(s.features[0], inputs_of(s, first), inputs_of(s, second)) for s in sets]
    both = [(f, a, b) for f, a, b in both if is_traced(f, a)]
    module = Applied([f for f, _, _ in both])
    rows = torch.export.Dim.AUTO
    here, there = (tuple(several) for several in list(zip(*both, strict=True))[1:])
    shapes = pytree.tree_map(lambda t: [rows, *[None] * (t.ndim - 1)] if t.ndim else None, here)
    program = torch.export.export(module, here, dynamic_shapes=(shapes,), strict=False)
    for inputs in (here, there):
        made, expected = program.module()(*inputs), module(*inputs)
        rounding = 0.0 if on_host(resolve_device()) else 1e-14  # a device adds up in any order
        torch.testing.assert_close(made, expected, rtol=0, atol=rounding, equal_nan=True)
    for node in program.graph.nodes:  # ONNX holds a Python float as a float32
        for value in pytree.tree_leaves((node.args, node.kwargs)):
            if isinstance(value, float) and math.isfinite(value):
                assert float(np.float32(value)) == value, node.format_node()
