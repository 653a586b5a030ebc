"""``TreeStart``: trained trees that others are grown on top of, where both read the same columns."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

from fastrec.estimators._tree_inputs import TreeInputs
from fastrec.validate import Rows
from fastrec.validate.tasks import Task


class TreeStart:
    """The trees that a model begins with.

    A split knows a category by its code alone, so that trees go on only where every value has the code that it had:
    with a new value they are grown anew.

    Args:
        inputs: the columns that the trees read, and the codes of their categories.
        parts: for each output its booster, or the constant that it is.
        task: what they were grown for.
        n_outputs: how many classes or targets there were.
        texts: the boosters in the library's own form, of which the name of the whole is made.
    """

    def __init__(
        self, inputs: TreeInputs, parts: Sequence[Any], task: Task | None, n_outputs: int, texts: Sequence[bytes]
    ) -> None:
        self.inputs, self.parts, self.task, self.n_outputs = inputs, list(parts), task, n_outputs
        digest = hashlib.sha256(repr([p for p in parts if isinstance(p, float)]).encode())
        for text in texts:
            digest.update(text)
        self._digest = digest.hexdigest()[:20]

    def __deepcopy__(self, memo: Any) -> TreeStart:
        return self  # it is never changed, and may be large

    def __repr__(self) -> str:
        return f"TreeStart({self._digest})"

    @staticmethod
    def rounds(usual: int) -> int:
        """Return the most trees that are grown on top: half as many as from the beginning."""
        return math.ceil(usual / 2)

    def differs(self, inputs: TreeInputs, rows: Rows) -> str:
        """Return why the trees cannot be continued; empty: they can.

        Args:
            inputs: the columns of the rows to learn from, and the values of their categories.
        """
        if (self.task, self.n_outputs) != (rows.task, rows.n_outputs):
            return "the classes or targets are others"
        if self.inputs.names != inputs.names:
            other = sorted(set(self.inputs.names) ^ set(inputs.names))
            return f"the columns are others ({', '.join(other[:3])})" if other else "the columns are in another order"
        if self.inputs.vocabs.keys() != inputs.vocabs.keys():
            return "other columns are categories"
        for name, vocab in inputs.vocabs.items():
            # A new value moves the codes of those behind it in sorted order.
            new = set(vocab.classes) - set(self.inputs.vocabs[name].classes)
            if new:
                return f"{name} has new values ({', '.join(map(str, sorted(new, key=str)[:3]))})"
        return ""
