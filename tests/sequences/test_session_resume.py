"""A training of sessions that was killed goes on and ends with the same weights."""

from __future__ import annotations

import pytest
import torch
from fastai.torch_core import set_seed

from fastrec.sequences import GRU4Rec, SASRec, SessionFrame, session_dataloaders, session_learner
from fastrec.training import Checkpoint
from tests.training.helpers import Kill, Killed, quiet_fit


def learner(model):
    set_seed(4)
    lists = [[(i * 7 + j * j) % 40 for j in range(2 + i % 6)] for i in range(80)]
    frame = SessionFrame({"items": lists}, item="items")
    dls = session_dataloaders(frame, frame.take(torch.arange(9)), tokens=64, max_len=8, augment=["mask"], seed=2)
    return session_learner(dls, model, width=8)


@pytest.mark.parametrize(("model", "at"), [(SASRec, 3), (SASRec, 11), (GRU4Rec, 8)])
def test_killed_anywhere_it_ends_with_the_same_weights(tmp_path, model, at):
    whole = quiet_fit(learner(model), 3)
    with pytest.raises(Killed):
        quiet_fit(learner(model), 3, cbs=[Checkpoint(tmp_path / "c", every=2), Kill(at)])
    again = learner(model)
    set_seed(99)
    quiet_fit(again, 3, cbs=Checkpoint(tmp_path / "c", every=2))
    for (name, a), (_, b) in zip(whole.model.state_dict().items(), again.model.state_dict().items(), strict=True):
        assert torch.equal(a, b), name
