"""How the contract suite makes each model, and what a model is excused from.

A new model joins with an entry here. The suite's columns are ``city`` and ``item`` (categorical), ``x`` and ``z``
(continuous), ``tags`` (lists) and ``v`` (vectors).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

# What a model may be excused from, each with its reason in the example.
EXCUSES = (
    "conts",  # it takes no continuous columns
    "lists",  # it takes no list columns
    "vectors",  # it takes no vector columns
    "no cats",  # it needs categorical columns
    "no conts",  # it needs continuous columns
    "several outputs",  # it has one output only
)

# Names in the registry that are modules and no models.
PARTS = {
    "BST": "it takes events beside columns: tests/models/test_event_nets.py",
    "DIN": "it takes events beside columns: tests/models/test_event_nets.py",
    "EventNet": "the base of DIN and BST",
    "EmbeddingTables": "the tables that models hold",
    "FieldNet": "the base of models, which has no forward",
    "PiecewiseLinear": "an embedding of numbers that models hold",
}


Options = Mapping[str, Any] | Callable[[Any], Mapping[str, Any]]


@dataclass(frozen=True)
class Example:
    """One way to make a model.

    Args:
        options: options of the class; or a function that gives them for the columns (``cats``, ``conts``, ``lists``
            and ``vectors``: names).
        direct: the same, for those that ``rec_learner`` takes from the data.
        loss: what a stock Learner's loss becomes, from the net and the loss.
        excused: a name in ``EXCUSES`` → why.
    """

    options: Options = field(default_factory=dict)
    direct: Options = field(default_factory=dict)
    loss: Callable[[Any, Any], Any] = lambda net, loss: loss
    excused: Mapping[str, str] = field(default_factory=dict)

    def options_for(self, columns: Any, *, by_hand: bool) -> dict[str, Any]:
        """Options of the class for these columns."""
        wanted = [self.options, self.direct] if by_hand else [self.options]
        return {k: v for given in wanted for k, v in (given(columns) if callable(given) else given).items()}


EXAMPLES: dict[str, list[Example]] = {
    "DCNv2": [
        Example({"layers": [16, 8], "ps": 0.1}),
        Example({"layers": [16], "structure": "stacked", "low_rank": 3, "cross_layers": 2, "use_bn": False}),
    ],
    "DLRM": [
        Example({"bottom": [12, 8], "top": [16, 8], "ps": 0.1}),
        Example({"bottom": [8], "top": [16], "use_bn": True, "self_interaction": True, "embed_p": 0.1}),
    ],
    "DeepFM": [Example({"emb_dim": 8, "layers": [16, 8], "ps": 0.1})],
    "MatrixFactorization": [
        Example(
            {"dim": 8},
            excused={
                "conts": "its two columns are ids",
                "lists": "its two columns are ids",
                "vectors": "its two columns are ids",
                "no cats": "its two columns are ids",
                "several outputs": "a score of two ids is one number",
            },
        )
    ],
    "ModernNCA": [
        Example(
            {"width": 16, "d_embedding": 4},
            direct=lambda c: {
                "known": [torch.randint(0, 7, (20, len(c.cats))), torch.randn(20, len(c.conts)), torch.randn(20, 3)]
            },
            loss=lambda net, loss: net.wrap_loss(loss),
            excused=dict.fromkeys(["lists", "vectors"], "it keeps ids and numbers of the training rows alone"),
        )
    ],
    "RealMLP": [
        Example({"layers": [16, 8], "frequencies": 4}),
        Example({"layers": [16], "act": "mish", "max_one_hot": 20, "ps": 0.0, "d_embedding": 2}),
    ],
    "TabM": [
        Example(
            {"layers": [16, 8], "k": 4},
            direct=lambda c: {"bins": [torch.tensor([-1.0, 0.0, 1.0]), torch.tensor([-2.0, 2.0])][: len(c.conts)]},
            loss=lambda net, loss: net.wrap_loss(loss),
        ),
        Example({"layers": [16], "k": 3, "variant": "full", "ps": 0}, loss=lambda net, loss: net.wrap_loss(loss)),
    ],
    "TabularNet": [Example({"layers": [16, 8], "ps": 0.1, "embed_p": 0.1})],
    "TwoTower": [
        Example(
            lambda c: {"query": ["city", "x", *c.lists], "item": ["item", "z", *c.vectors], "layers": [16], "dim": 8},
            direct=lambda c: {"cont_names": c.conts, "vector_names": c.vectors},
            excused={
                "no cats": "the towers' columns are named",
                "no conts": "the towers' columns are named",
                "several outputs": "a score of two vectors is one number",
            },
        )
    ],
    "WideAndDeep": [Example({"layers": [16, 8], "ps": 0.1})],
}
