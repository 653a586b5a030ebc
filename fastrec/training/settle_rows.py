"""``SettleRows``: weights that have not decayed yet do so before they are looked at."""

from __future__ import annotations

from typing import Any

from fastai.callback.core import Callback

__all__ = ["SettleRows"]


class SettleRows(Callback):
    """Lets the rows of row-sparse tables decay up to now before validation, predictions and the end of training.

    An optimizer of row-sparse gradients lets a row decay when its id comes next; ids that have not come for a while
    would be validated, saved and served with weights that are too large.
    """

    def before_validate(self) -> None:
        """Settle rows before the validation of an epoch."""
        self._settle()

    def after_fit(self) -> None:
        """Settle rows at the end of training."""
        self._settle()

    def _settle(self) -> None:
        inner: Any = getattr(self.learn.opt, "opt", None)
        if hasattr(inner, "settle"):
            inner.settle()
