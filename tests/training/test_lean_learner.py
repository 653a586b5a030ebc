"""The lean Learner against fastai's own: the same events, the same schedule, the same weights."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.callback.core import Callback, CancelBatchException
from fastai.callback.schedule import combined_cos
from fastai.data.block import CategoryBlock
from fastai.learner import AvgSmoothLoss, Learner
from fastai.losses import BCEWithLogitsLossFlat, CrossEntropyLossFlat, MSELossFlat
from hypothesis import given
from hypothesis import strategies as st

from fastrec.models import TabularNet
from fastrec.optim import adamw
from fastrec.tabular import Categorify, Normalize, TabularFrame
from fastrec.training import rec_learner
from fastrec.training.learner import LeanLearner, one_cycle, plain_loss
from tests.training.helpers import quiet_fit


@given(pct=st.floats(0.05, 0.95), done=st.floats(0, 1), values=st.tuples(*[st.floats(1e-6, 1)] * 3))
def test_the_cycle_is_fastais(pct, done, values):
    expected = combined_cos(pct, *values)(done)
    near = {"rtol": 1e-6, "atol": 1e-6 * max(values)}  # fastai rounds to float32 on the way
    np.testing.assert_allclose(one_cycle(pct, *values)(done), expected, **near)
    arrays = [np.array([v, 2 * v]) for v in values]
    np.testing.assert_allclose(one_cycle(pct, *arrays)(done), combined_cos(pct, *arrays)(done), **near)


@pytest.fixture(scope="module")
def dls():
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"a": rng.integers(0, 9, 300), "x": rng.normal(size=300)})
    df["y"] = (df["x"] + rng.normal(size=300) > 0).astype(int)
    frame = TabularFrame(df, [Categorify, Normalize], ["a"], ["x"], "y", CategoryBlock(), (range(240), range(240, 300)))
    return frame.dataloaders(32, seed=3)


class Trace(Callback):
    """Which events came, and what they saw."""

    order = 70

    def __init__(self):
        super().__init__()
        self.seen = []

    def before_batch(self):
        self.seen.append(("before", self.training, float(self.opt.hypers[-1]["lr"])))
        if self.training and self.iter == 2:
            raise CancelBatchException

    def after_cancel_batch(self):
        self.seen.append(("cancelled", self.iter))

    def after_loss(self):
        self.seen.append(("loss", float(self.loss.detach())))

    def after_step(self):
        self.seen.append(("step", self.iter))


def trained(kind, dls):
    torch.manual_seed(0)
    dls.train.rng.seed(1)
    net, trace = TabularNet([(10, 4)], 1, 2, [8]), Trace()
    learn = kind(dls, net, opt_func=adamw, cbs=trace)
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(2, 1e-2)
        added = Trace()
        learn.add_cb(added)
        learn.fit_one_cycle(1, slice(1e-3, 1e-2))
        learn.remove_cb(added)
        learn.fit(1, 1e-3)
    return [p.detach().clone() for p in net.parameters()], trace.seen, added.seen, learn


def test_events_and_weights_are_those_of_fastais_learner(dls):
    (ours, seen, added, learn), (theirs, other, more, stock) = (trained(kind, dls) for kind in (LeanLearner, Learner))
    for found, hoped in ((seen, other), (added, more)):
        assert [e[:1] + tuple(x for x in e[1:] if not isinstance(x, float)) for e in found] == [
            e[:1] + tuple(x for x in e[1:] if not isinstance(x, float)) for e in hoped
        ]
        numbers = [[x for e in events for x in e if isinstance(x, float)] for events in (found, hoped)]
        np.testing.assert_allclose(*numbers, rtol=1e-4)  # schedules differ in the last bits of float32
    assert any(e[0] == "cancelled" for e in added)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    for name in ("lr", "mom"):
        np.testing.assert_allclose(learn.recorder.hps[name], stock.recorder.hps[name], rtol=1e-5)
    np.testing.assert_allclose(
        np.array(learn.recorder.values, dtype=float), np.array(stock.recorder.values, dtype=float), rtol=1e-3
    )


def test_hypers_are_fastais(dls):
    from fastai.optimizer import OptimWrapper

    learn = rec_learner(dls, layers=[8])
    learn.create_opt()
    assert learn.opt.hypers == OptimWrapper.hypers.fget(learn.opt)[:1]


def test_a_callback_that_gets_an_event_on_the_object_is_heard(dls):
    seen = []
    learn = rec_learner(dls, layers=[8], cbs=Callback(after_step=lambda self: seen.append(1)))
    quiet_fit(learn, 1, by="fit")
    assert len(seen) == len(dls.train)


def test_optimizers_without_momentum_have_a_cycle_too(dls):
    learn = rec_learner(dls, layers=[8], opt_func=torch.optim.Adagrad)
    quiet_fit(learn, 1, 1e-2)
    assert set(learn.recorder.hps) == {"lr"}


@pytest.mark.parametrize(
    ("loss", "shape", "target"),
    [
        (CrossEntropyLossFlat(), (6, 3), torch.randint(0, 3, (6, 1), dtype=torch.int32)),
        (CrossEntropyLossFlat(axis=1, label_smoothing=0.1), (6, 3, 4), torch.randint(0, 3, (6, 4))),
        (CrossEntropyLossFlat(weight=torch.tensor([1.0, 2.0, 5.0])), (6, 3), torch.randint(0, 3, (6,))),
        (MSELossFlat(), (6, 1), torch.randn(6, 1)),
        (BCEWithLogitsLossFlat(), (6, 2), torch.randint(0, 2, (6, 2))),
    ],
    ids=["classes", "another axis", "weighted", "numbers", "labels"],
)
def test_fastais_losses_are_computed_without_its_tensors(loss, shape, target):
    pred = torch.randn(shape)
    found = plain_loss(loss, pred, target)
    assert type(found) is torch.Tensor
    torch.testing.assert_close(found, loss(pred, target).as_subclass(torch.Tensor))


def test_a_loss_with_a_call_of_its_own_is_called(dls):
    class Doubled(CrossEntropyLossFlat):
        def __call__(self, *args, **kwargs):
            return 2 * super().__call__(*args, **kwargs)

    plain, doubled = (rec_learner(dls, layers=[8], loss_func=f) for f in (CrossEntropyLossFlat(), Doubled()))
    doubled.model.load_state_dict(plain.model.state_dict())
    assert float(doubled.validate()[0]) == pytest.approx(2 * float(plain.validate()[0]), rel=1e-5)


def test_the_smoothed_loss_is_fastais(dls):
    learn = rec_learner(dls, layers=[8])
    theirs, seen = AvgSmoothLoss(), []

    class Beside(Callback):
        def after_batch(self):
            if self.training:
                theirs.accumulate(self.learn)
                seen.append(float(theirs.value))

    quiet_fit(learn, 1, 1e-2, cbs=Beside(), by="fit")
    assert [float(x) for x in learn.recorder.losses] == pytest.approx(seen, rel=1e-6)
    assert float(learn.recorder.values[0][0]) == pytest.approx(seen[-1], rel=1e-6)


def test_a_batch_goes_to_the_models_device_and_stays_where_it_is_there(dls):
    learn = rec_learner(dls, TabularNet, layers=[4], loss_func=CrossEntropyLossFlat())
    batch = dls.one_batch()
    assert learn._set_device(batch) is batch
    assert [type(x) for x in learn._set_device([*batch])] == [torch.Tensor] * 3  # fastai's way
    learn.model.to("meta")
    assert {x.device.type for x in learn._set_device(batch)} == {"meta"}
