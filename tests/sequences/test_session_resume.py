"""A training of sessions that was killed goes on and ends with the same weights."""

from __future__ import annotations

import pytest
import torch
from fastai.callback.core import Callback
from fastai.torch_core import set_seed

from fastrec.sequences import GRU4Rec, SASRec, SessionFrame, session_dataloaders, session_learner
from fastrec.training import Checkpoint


class Killed(BaseException):
    """Nothing in between catches it, as nothing catches a signal."""


class Kill(Callback):
    """Ends the training after some batches."""

    order = 99

    def __init__(self, at: int) -> None:
        self.at = at

    def after_batch(self) -> None:
        if self.learn.train_iter == self.at:
            raise Killed


def learner(model):
    set_seed(4)
    lists = [[(i * 7 + j * j) % 40 for j in range(2 + i % 6)] for i in range(80)]
    frame = SessionFrame({"items": lists}, item="items")
    dls = session_dataloaders(frame, frame.take(torch.arange(9)), tokens=64, max_len=8, augment=["mask"], seed=2)
    return session_learner(dls, model, width=8)


@pytest.mark.parametrize(("model", "at"), [(SASRec, 3), (SASRec, 11), (GRU4Rec, 8)])
def test_killed_anywhere_it_ends_with_the_same_weights(tmp_path, model, at):
    whole = learner(model)
    with whole.no_bar(), whole.no_logging():
        whole.fit_one_cycle(3, 1e-2)
    first = learner(model)
    with pytest.raises(Killed), first.no_bar(), first.no_logging():
        first.fit_one_cycle(3, 1e-2, cbs=[Checkpoint(tmp_path / "c", every=2), Kill(at)])
    again = learner(model)
    set_seed(99)
    with again.no_bar(), again.no_logging():
        again.fit_one_cycle(3, 1e-2, cbs=Checkpoint(tmp_path / "c", every=2))
    for (name, a), (_, b) in zip(whole.model.state_dict().items(), again.model.state_dict().items(), strict=True):
        assert torch.equal(a, b), name
