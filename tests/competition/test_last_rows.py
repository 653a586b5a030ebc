"""What a net says of the last training rows before it learns from them, against a loop of its own; blends by it."""

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.callback.core import Callback

from fastrec.competition.streamed.clicks import LastRows, blend_by_last_rows
from fastrec.losses import BCE
from fastrec.models import TabularNet
from fastrec.stacking import MeanBlend
from fastrec.tabular import Categorify, Normalize, TabularFrame
from fastrec.training import rec_learner


class BeforeEachStep(Callback):
    """The oracle: the net is asked itself, before the batch is trained on."""

    def before_fit(self) -> None:
        self.said, self.label = [], []

    def before_batch(self) -> None:
        if self.learn.training:
            with torch.no_grad():
                self.said += self.learn.model(*self.learn.xb).sigmoid().flatten().tolist()
            self.label += self.learn.yb[0].flatten().tolist()


def test_rows_are_kept_as_they_were_before_they_were_learned(tmp_path) -> None:
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"c": rng.integers(0, 9, 500), "x": rng.normal(size=500)})
    df["y"] = (df.x + rng.normal(size=500) > 0).astype(np.float32)
    frame = TabularFrame(df, [Categorify, Normalize], ["c"], ["x"], "y", splits=(range(400), range(400, 500)))
    last, oracle = LastRows(150), BeforeEachStep()
    dls = frame.dataloaders(bs=64, path=tmp_path)
    learn = rec_learner(dls, TabularNet, layers=[8], use_bn=False, loss_func=BCE(), cbs=[last, oracle])
    with learn.no_bar(), learn.no_logging():
        learn.fit(1, 0.05)
    assert last.seen == len(oracle.said) == 384  # whole batches
    assert len(last.said) == 192  # whole batches, 150 rows or more
    np.testing.assert_allclose(last.said, oracle.said[-192:], atol=1e-6)
    assert last.label.tolist() == oracle.label[-192:]


def kept(said: torch.Tensor, label: torch.Tensor, seen: int = 1000) -> LastRows:
    last = LastRows()
    last._parts.append((said, label))
    last.seen = seen
    return last


def test_a_net_that_knows_nothing_gets_no_weight() -> None:
    draw = torch.Generator().manual_seed(0)
    p = torch.rand(4_000, generator=draw)
    label = (torch.rand(4_000, generator=draw) < p).float()
    noise = torch.rand(4_000, generator=draw)
    logit = torch.logit(p)
    one, two = ((logit + torch.randn(4_000, generator=draw)).sigmoid() for _ in range(2))
    made = blend_by_last_rows({"good": kept(p, label), "noise": kept(noise, label)}, "auc", [1, 1])
    assert made.trace.importance == {"good": 1.0, "noise": 0.0}
    both = blend_by_last_rows({"one": kept(one, label), "two": kept(two, label)}, "auc", [1, 1])
    assert both.trace.importance["one"] == pytest.approx(0.5, abs=0.15)


def test_what_cannot_be_compared_is_averaged() -> None:
    p, label = torch.tensor([0.2, 0.8, 0.4]), torch.tensor([0.0, 1.0, 0.0])
    other = torch.tensor([0.0, 1.0, 1.0])
    for pair, epochs in (
        ((kept(p, label), kept(p, other)), [1, 1]),  # other rows
        ((kept(p, label), kept(p, label, 999)), [1, 1]),  # one was ended earlier
        ((kept(p, label), kept(p, label)), [1, 2]),  # rows that were learned by heart
        ((kept(p, label * 0), kept(p, label * 0)), [1, 1]),  # one class alone
    ):
        made = blend_by_last_rows(dict(zip("ab", pair, strict=True)), "auc", epochs)
        assert isinstance(made, MeanBlend)
    one = blend_by_last_rows({"a": kept(p, label)}, "auc", [1])
    assert one.models == ["a"]
