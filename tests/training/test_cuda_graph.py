from __future__ import annotations

import os
import shutil
from functools import partial

import pytest
import torch
from fastai.callback.core import Callback
from fastai.callback.training import GradientAccumulation, GradientClip
from fastai.optimizer import Adam
from fastai.torch_core import set_seed

from fastrec.errors import TrainingError
from fastrec.losses import BCE
from fastrec.optim import adamw, lamb, split_embeddings
from fastrec.table import ListBatch
from fastrec.tabular import Categorify, Normalize, TabularFrame
from fastrec.training import CompiledModel, CowClip, CudaGraph, rec_learner
from fastrec.training import acceleration as amp
from tests.training.helpers import clicks, quiet_fit

fit = partial(quiet_fit, epochs=3)

N, TRAIN, BS = 500, 410, 50
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def make(tmp_path, device="cpu", lists=(), train=TRAIN, **options):
    splits = (range(train), range(train, N))
    df = clicks(N).assign(tags=[list(map(str, range(i % 4))) for i in range(N)])
    to = TabularFrame(df, [Categorify, Normalize], ["c"], ["x", "z"], "y", splits=splits, list_names=[*lists])
    dls = to.dataloaders(bs=BS, path=tmp_path, device=device, seed=3, drop_last=False)
    set_seed(0)
    options["cbs"] = [Contiguous(), *options.get("cbs", [])]
    return rec_learner(dls, **{"layers": [16, 8], "ps": 0.2, "loss_func": BCE(), **options})


class Contiguous(Callback):
    """Batches laid out as a graph's inputs are, so that sums add up in the same order."""

    def before_batch(self):
        self.learn.xb = tuple(x if isinstance(x, ListBatch) else x.contiguous() for x in self.learn.xb)
        self.learn.yb = tuple(y.contiguous() for y in self.learn.yb)


class Replays:
    """Stands for a CUDA graph: does again what it was given, and counts."""

    def __init__(self):
        self.done = []

    def __call__(self, run, device, warm_up):
        number = len(self.done)
        self.done.append(0)

        def replay():
            self.done[number] += 1
            return run()

        return replay


def same(a, b, **tolerance):
    for name, weight in a.model.state_dict().items():
        other = b.model.state_dict()[name]
        assert torch.allclose(weight, other, **tolerance) if tolerance else torch.equal(weight, other), name
    losses = [[float(x) for x in learn.recorder.losses] for learn in (a, b)]
    assert losses[0] == (pytest.approx(losses[1], rel=1e-4) if tolerance else losses[1])


BATCHES = 3 * (TRAIN // BS) - 3  # of full size in three epochs, less those before recording


@pytest.mark.parametrize("opt_func", [adamw, lamb, Adam, partial(adamw, wd=0.1)])
def test_steps_on_kept_inputs_train_as_steps_on_batches(tmp_path, opt_func):
    plain, replays = fit(make(tmp_path, opt_func=opt_func)), Replays()
    ours = fit(make(tmp_path, opt_func=opt_func, cbs=[CudaGraph(record=replays)]))
    assert ours.graph_reason is None
    assert replays.done == [BATCHES]  # the momentum is scheduled, so the optimizer's step is not recorded
    assert len(ours.recorder.losses) == 3 * (TRAIN // BS + 1)
    same(plain, ours)
    assert [v[:2] for v in plain.recorder.values] == [v[:2] for v in ours.recorder.values]


def test_a_fused_step_is_recorded_where_only_the_rate_changes(tmp_path):
    moms, replays = (0.9, 0.9, 0.9), Replays()
    plain = fit(make(tmp_path, splitter=split_embeddings), moms=moms)
    ours = fit(make(tmp_path, splitter=split_embeddings, cbs=[CudaGraph(record=replays)]), moms=moms)
    assert replays.done == [BATCHES, BATCHES - 1]
    assert all(isinstance(g["lr"], float) for g in ours.opt.opt.param_groups)
    same(plain, ours, atol=1e-6)
    plain, replays = fit(make(tmp_path, cbs=[ChangeDecay()]), moms=moms), Replays()
    ours = fit(make(tmp_path, cbs=[CudaGraph(record=replays), ChangeDecay()]), moms=moms)
    assert replays.done == [BATCHES, 9]  # until the decay changes
    same(plain, ours, atol=1e-6)


class ChangeDecay(Callback):
    def before_batch(self):
        if self.learn.training:
            self.learn.opt.set_hyper("wd", 0.01 if self.learn.train_iter < 14 else 0.3)


def test_callbacks_around_the_step_do_their_work(tmp_path):
    for cbs in ([GradientClip(0.05)], [CowClip(r=0.1, zeta=1e-7)]):
        plain, replays = fit(make(tmp_path, cbs=[*cbs])), Replays()
        ours = fit(make(tmp_path, cbs=[*cbs, CudaGraph(record=replays)]))
        assert replays.done == [BATCHES]
        same(plain, ours)

    class Doubling(Callback):
        def before_step(self):
            self.learn.model.layers[0][0].weight.grad.mul_(2)

    same(fit(make(tmp_path, cbs=[Doubling()])), fit(make(tmp_path, cbs=[Doubling(), CudaGraph(record=Replays())])))


def test_with_autocast(tmp_path, monkeypatch):
    monkeypatch.setattr(amp, "_cpu_is_fast", lambda: True)
    replays = Replays()
    plain, ours = fit(make(tmp_path, amp="bf16")), fit(make(tmp_path, amp="bf16", cbs=[CudaGraph(record=replays)]))
    assert replays.done == [BATCHES]
    same(plain, ours)
    assert not torch.is_autocast_enabled("cpu")


def test_a_loss_that_is_no_number_stops_it(tmp_path):
    class Spoil(Callback):
        def before_batch(self):
            if self.learn.training and self.learn.train_iter == 12:
                with torch.no_grad():
                    self.learn.model.layers[0][0].weight[0, 0] = float("nan")

    with pytest.raises(TrainingError, match=r"layers\.0\.0\.weight .* in batch 3 of epoch 1"):
        fit(make(tmp_path, cbs=[Spoil(), CudaGraph(record=Replays())]))


def reason_of(learn, match):
    with pytest.warns(UserWarning, match=f"without a CUDA graph: .*({match})") as told:
        fit(learn)
    assert len(told) == 1
    fit(learn, epochs=1)  # a second warning would be an error
    return learn.graph_reason


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_off_cuda_it_trains_as_ever_and_says_so_once(tmp_path):
    learn = make(tmp_path, graph=True)
    with pytest.warns(UserWarning, match="the device cpu"):
        fit(learn)
    assert learn.graph_reason == "the model is on the device cpu, and graphs are for CUDA"
    same(fit(make(tmp_path)), learn)


class OtherLoss(Callback):
    """As fastai's mixing callbacks do."""

    def before_train(self):
        self.plain, self.learn.loss_func = self.learn.loss_func, lambda p, y: BCE()(p, y)

    def after_train(self):
        self.learn.loss_func = self.plain


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"cbs": [GradientAccumulation(100)]}, "GradientAccumulation does something in after_loss"),
        ({"cbs": [OtherLoss()]}, "replaces the loss"),
        ({"lists": ["tags"]}, "lists have another length"),
        ({"emb_szs": [(20_000, 4)], "grads": "rows"}, "row-sparse"),
    ],
)
def test_what_a_graph_cannot_hold_runs_without(tmp_path, options, match):
    learn = make(tmp_path, **{**options, "cbs": [*options.get("cbs", []), CudaGraph(record=Replays())]})
    reason_of(learn, match)
    plain = make(tmp_path, **options)
    fit(plain)
    fit(plain, epochs=1)
    same(plain, learn)


def test_a_recording_that_fails_changes_nothing(tmp_path):
    def fails(run, device, warm_up):
        for _ in range(warm_up):
            run()
        raise RuntimeError("operation not permitted when stream is capturing")

    learn = make(tmp_path, cbs=[CudaGraph(record=fails)])
    assert "not permitted" in reason_of(learn, "recording failed")
    plain = fit(make(tmp_path))
    same(fit(plain, epochs=1), learn)


def test_other_learner_calls_are_as_ever(tmp_path):
    replays = Replays()
    learn = fit(make(tmp_path, cbs=[CudaGraph(record=replays)]))
    with learn.no_bar():
        wanted = fit(make(tmp_path)).get_preds()[0]
        assert torch.equal(learn.get_preds()[0], wanted)
        learn.lr_find(show_plot=False, num_it=20)
    learn.export()
    assert len(replays.done) >= 1


@needs_cuda
@pytest.mark.parametrize("opt_func", [adamw, lamb])
@pytest.mark.parametrize("moms", [None, (0.9, 0.9, 0.9)])
def test_cuda_graphs_train_as_steps_do(tmp_path, opt_func, moms):
    plain = fit(make(tmp_path, "cuda", opt_func=opt_func, ps=0.0), moms=moms)
    ours = fit(make(tmp_path, "cuda", opt_func=opt_func, ps=0.0, graph=True), moms=moms)
    assert ours.graph_reason is None
    same(plain, ours, atol=1e-4)


@needs_cuda
def test_cuda_graphs_with_dropout_and_autocast(tmp_path):
    learn = fit(make(tmp_path, "cuda", graph=True, amp="bf16"), epochs=6)
    assert learn.graph_reason is None
    assert learn.recorder.losses[-1] < learn.recorder.losses[0]


# ---- torch.compile


@pytest.mark.filterwarnings("default")  # the compiler's own
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="there is no compiler here")
def test_a_compiled_model_trains_as_the_model(tmp_path):
    # one layer and batches of one size: every kernel and every other size is compiled for seconds
    options = {"ps": 0.0, "layers": [], "bn_cont": False, "train": N - BS}
    plain, ours = fit(make(tmp_path, **options), epochs=1), fit(make(tmp_path, compile=True, **options), epochs=1)
    assert ours.compile_reason is None
    assert ours.model.state_dict().keys() == plain.model.state_dict().keys()
    same(plain, ours, atol=1e-4)
    ours.export()


@pytest.mark.filterwarnings("default")
def test_without_a_compiler_the_model_trains_as_it_is_and_so_with_lists(tmp_path, monkeypatch):
    torch.compiler.reset()
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    learn = make(tmp_path, compile=True)
    with pytest.warns(UserWarning, match="the model is not compiled"):
        fit(learn)
    assert learn.compile_reason
    same(fit(make(tmp_path)), learn)
    assert CompiledModel in {type(cb) for cb in learn.cbs}
    with pytest.warns(UserWarning, match="does not take lists"):
        fit(make(tmp_path, lists=["tags"], compile=True), epochs=1)
