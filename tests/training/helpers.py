"""What tests of trainings share."""

from __future__ import annotations

import fastai.callback.progress
import fastai.callback.schedule  # noqa: F401  (both give Learner its no_bar and fit_one_cycle)
import numpy as np
import pandas as pd
from fastai.callback.core import Callback


def clicks(n):
    """Two columns of categories, two of numbers, what was clicked, and sessions of five rows."""
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"c": rng.integers(0, 20, n), "d": rng.integers(0, 9, n), "x": rng.normal(size=n)})
    df["z"] = rng.normal(size=n)
    df["y"] = (df.x + (df.c % 3) + rng.normal(size=n) > 1).astype(np.float32)
    return df.assign(session=np.arange(n) // 5)


def quiet_fit(learn, epochs=2, lr=1e-2, *, by="fit_one_cycle", **options):
    """Train without a bar or a log; the learner."""
    with learn.no_bar(), learn.no_logging():
        getattr(learn, by)(epochs, lr, **options)
    return learn


def predictions(learn, **options):
    """What ``get_preds`` returns, without a bar."""
    with learn.no_bar(), learn.no_logging():
        return learn.get_preds(**options)


class Killed(BaseException):
    """Nothing in between catches it, as nothing catches a signal."""


class Kill(Callback):
    """Ends the process' training at a place; ``at`` counts training batches, ``event`` may be any of fastai's."""

    order = 99

    def __init__(self, at, event="after_batch"):
        self.at = at
        setattr(self, event, self._perhaps)

    def _perhaps(self):
        if self.learn.train_iter == self.at:
            raise Killed
