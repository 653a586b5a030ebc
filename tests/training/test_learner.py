"""``rec_learner``'s Learner, and the lean one below it against fastai's own: events, schedule, weights."""

from __future__ import annotations

import cProfile
import gc
import math
import pstats
import weakref
from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from fastai.callback.core import Callback, CancelBatchException
from fastai.callback.schedule import combined_cos
from fastai.data.block import CategoryBlock, RegressionBlock
from fastai.data.transforms import Normalize
from fastai.interpret import Interpretation
from fastai.learner import AvgSmoothLoss, Learner
from fastai.losses import BCEWithLogitsLossFlat, CrossEntropyLossFlat, MSELossFlat
from fastai.metrics import F1Score, F1ScoreMulti, RocAucBinary, accuracy, accuracy_multi
from fastai.optimizer import OptimWrapper
from fastai.tabular.core import Categorify, FillMissing, TabularPandas
from fastai.tabular.learner import TabularLearner
from fastai.tabular.model import TabularModel, tabular_config
from fastai.torch_core import set_seed
from hypothesis import given
from hypothesis import strategies as st

from fastrec.errors import DataError, MissingColumnError
from fastrec.features import CountEncode, FeatureSet, TargetEncode
from fastrec.losses import BCE
from fastrec.metrics import AUC, MAP, MRR, NDCG, fastai_metric
from fastrec.models import MatrixFactorization, TabularNet, emb_sz_rule
from fastrec.optim import adamw, lamb
from fastrec.tabular import TabularFrame
from fastrec.training import RecLearner, rec_learner
from fastrec.training.learner import LeanLearner, one_cycle, plain_loss
from tests.training.helpers import clicks, predictions, quiet_fit

N, TRAIN = 1200, 960
PROCS = [Categorify, FillMissing, Normalize]


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    df = pd.DataFrame(
        {
            "city": rng.choice(list("abcdef"), N),
            "item": rng.integers(0, 40, N).astype(str),
            "x": rng.normal(size=N),
            "z": rng.normal(size=N),
            "session": np.arange(N) // 6,
        }
    )
    signal = df.city.isin(["a", "b"]) * 2.0 + df.z + 0.3 * rng.normal(size=N)
    df["rating"] = signal
    df["click"] = (signal > 1).astype(int)
    df["answer"] = df.click.map({1: "yes", 0: "no"})
    df["best"] = (signal == signal.groupby(df.session).transform("max")).astype(int)
    df.loc[5:20, "x"] = np.nan
    return df


@pytest.fixture
def dataloaders(frame, tmp_path):
    def make(target="answer", block=CategoryBlock, bs=128, cats=("city", "item"), conts=("x", "z"), **options):
        splits = (list(range(TRAIN)), list(range(TRAIN, N)))
        to = TabularPandas(frame, PROCS, list(cats), list(conts), target, y_block=block(), splits=splits)
        return to.dataloaders(bs=bs, path=tmp_path, **options)

    return make


@pytest.fixture(autouse=True)
def seeded():
    set_seed(0)


def test_four_lines_train_a_classifier(dataloaders):
    learn = quiet_fit(rec_learner(dataloaders(), metrics=accuracy), 4, 2e-2)
    with learn.no_bar():
        loss, acc = learn.validate()
    assert acc > 0.85
    assert loss < 0.4
    assert isinstance(learn, RecLearner)
    assert isinstance(learn.model, TabularNet)


def test_the_model_is_made_for_the_columns(dataloaders):
    dls = dataloaders()
    net = rec_learner(dls, emb_szs={"item": 5}, layers=[32], ps=0.1, embed_p=0.2, y_range=(0, 1)).model
    assert list(dls.cat_names) == ["city", "item", "x_na"]
    assert [(s.name, s.stop - s.start, s.width) for s in net.embeds.slices] == [
        ("city", 7, 4 * math.ceil(emb_sz_rule(7) / 4)),
        ("item", 41, 8),
        ("x_na", 3, 4),
    ]
    assert net.layers[0][0].out_features == 32
    assert net.layers[1][0].out_features == 2
    assert net.emb_drop.p == 0.2
    assert net.layers[-1].high == 1
    exact = rec_learner(dls, emb_szs=[(7, 3), (41, 5), (3, 1)], pad=False).model
    assert [tuple(exact.embeds.table(n).shape) for n in ("city", "item", "x_na")] == [(7, 3), (41, 5), (3, 1)]


def test_the_summary_counts_embeddings(dataloaders):
    learn = rec_learner(dataloaders(), layers=[8])
    every = sum(p.numel() for p in learn.model.parameters())
    tables = list(learn.model.embeds.weights.values())
    tables[0].requires_grad_(False)
    text, still = str(learn.summary()), tables[0].numel()
    assert f"Total params: {every:,} ({sum(p.numel() for p in tables):,} in embeddings)\n" in text
    assert f"Total trainable params: {every - still:,}\nTotal non-trainable params: {still:,}\n" in text


@pytest.mark.parametrize("block", [CategoryBlock, RegressionBlock])
def test_bce_needs_one_output_whatever_the_target_is(dataloaders, block):
    learn = rec_learner(dataloaders("click", block), layers=[32], loss_func=BCE(smoothing=0.02))
    quiet_fit(learn, 4, 2e-2)
    preds, targets = predictions(learn)
    assert preds.shape == (N - TRAIN, 1)
    assert preds.min() >= 0
    assert preds.max() <= 1
    assert ((preds > 0.5) == targets).float().mean() > 0.85
    decided, raw = learn.predict({"city": "a", "item": "3", "x": 0.0, "z": 3.0})[1:]
    assert decided.item() == 1
    assert raw.item() > 0.5


@pytest.mark.parametrize("opt_func", [None, lamb])
def test_lr_find_puts_everything_back(dataloaders, opt_func, tmp_path):
    learn = rec_learner(dataloaders(), layers=[16], path=tmp_path, **({"opt_func": opt_func} if opt_func else {}))
    before = {k: v.cpu().clone() for k, v in learn.model.state_dict().items()}
    with learn.no_bar():
        found = learn.lr_find(show_plot=False, num_it=30)
    assert 1e-7 < found.valley < 10
    assert all(torch.equal(before[k], v.cpu()) for k, v in learn.model.state_dict().items())
    quiet_fit(learn, 1)


def test_the_whole_set_as_one_batch(dataloaders):
    dls = dataloaders(bs=TRAIN)
    learn = quiet_fit(rec_learner(dls, layers=[16], opt_func=lamb), 3)
    assert len(dls.train) == 1
    assert len(learn.recorder.losses) == 3
    with pytest.raises(DataError, match=f"no batch: {TRAIN} rows, batch size {TRAIN + 1}, drop_last=True"):
        rec_learner(dataloaders(bs=TRAIN + 1))


def test_other_models_classes_and_built(dataloaders):
    dls = dataloaders()
    stock = rec_learner(dls, TabularModel, layers=[8], metrics=accuracy)
    assert isinstance(quiet_fit(stock, 1).model, TabularModel)
    built = TabularNet([(7, 4), (41, 4), (3, 4)], 2, 2, [8])
    assert quiet_fit(rec_learner(dls, built), 1).model is built
    with pytest.raises(MissingColumnError, match="'nowhere'"):
        rec_learner(dls, emb_szs={"nowhere": 4})


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (TabularNet, {"depth": 3}, "takes no 'depth'"),
        (TabularNet, {"emb_szs": [(7, 4), (41, 4)]}, "2 embedding sizes for 3"),
        ("built", {"layers": [3]}, r"'layers'.*already built"),
        (
            TabularNet,
            {"metric": accuracy},
            r"takes no 'metric', nor do rec_learner and Learner\. Did you mean 'metrics'\? T",
        ),
        (TabularNet, {"embed_ps": 0.1}, r"Did you mean 'embed_p'\?.*TabularNet takes act_cls, bn_cont.*Learner"),
        (partial(TabularNet, ps=0.1), {"bnfinal": True}, r"TabularNet takes no 'bnfinal'.*'bn_final'\?"),
        (TabularNet, {"config": {"lin_fist": True}}, r"'lin_fist', nor do .*Did you mean 'lin_first'\?"),
        (TabularModel, {"batch_norm": True, "zz": 1}, r"TabularModel takes no 'batch_norm', 'zz', nor do"),
        (MatrixFactorization, {"layers": [3]}, r"MatrixFactorization takes no 'layers'\.(?!.* layers)"),
        ("built", {"metric": accuracy}, r"TabularNet takes no 'metric'.*'metrics'\?"),
        ("built", {"config": {"ps": 0.1}}, r"\['ps'\] cannot change a model that is already built"),
    ],
)
def test_an_option_that_nobody_takes_is_refused_by_name(dataloaders, model, options, words):
    model = TabularNet([(7, 4), (41, 4), (3, 4)], 2, 2, [8]) if model == "built" else model
    with pytest.raises(DataError, match=words):
        rec_learner(dataloaders(), model, **options)


def test_sizes_of_ones_own_model_may_be_positional(dataloaders):
    class Net(TabularNet):
        def __init__(self, emb_szs, n_cont, out_sz, /, width=8):
            super().__init__(emb_szs, n_cont, out_sz, [width])

    assert rec_learner(dataloaders(), Net, width=5).model.layers[0][0].out_features == 5


def test_fastais_config_is_taken(dataloaders):
    dls = dataloaders()
    config = tabular_config(embed_p=0.3, ps=0.2, y_range=(0, 5), use_bn=False)
    given = dict(config)
    net = rec_learner(dls, config=config, ps=0.4).model
    assert config == given
    assert net.emb_drop.p == 0.3
    assert [m.p for m in net.layers.modules() if isinstance(m, torch.nn.Dropout)] == [0.4, 0.4]
    assert net.layers[-1].high == 5
    assert not any(isinstance(m, torch.nn.BatchNorm1d) for m in net.layers.modules())
    config = tabular_config(embed_p=0.3, act_cls=torch.nn.SiLU())
    stock = rec_learner(dls, TabularModel, layers=[8], config=config).model
    assert stock.emb_drop.p == 0.3
    assert any(isinstance(m, torch.nn.SiLU) for m in stock.modules())


class Wrapped(TabularNet):
    def __init__(self, *sizes, **rest):
        super().__init__(*sizes, **rest)
        self.given = set(rest)


class Plain(torch.nn.Module):
    """Not one of this library's; what its keywords are called says nothing."""

    def __init__(self, emb_szs, n_cont, out_sz, **inputs):
        super().__init__()
        self.given, self.out = set(inputs), torch.nn.Linear(n_cont, out_sz)

    def forward(self, x_cat, x_cont):
        return self.out(x_cont)


def test_what_a_model_is_given_does_not_hang_on_what_its_keywords_are_called(dataloaders):
    sizes = {"cat_names", "list_szs", "list_names", "vector_szs"}
    assert rec_learner(dataloaders(), Wrapped, ps=0.1).model.given == {*sizes, "ps"}
    assert rec_learner(dataloaders(), Plain, depth=3).model.given == {"depth"}


# ---- before the first batch


class Counted(torch.nn.Module):
    """A net that counts its batches."""

    def __init__(self, outputs):
        super().__init__()
        self.layer, self.batches = torch.nn.Linear(2, outputs), 0

    def forward(self, x_cat, x_cont):
        self.batches += 1
        return self.layer(x_cont)


@pytest.mark.parametrize(
    ("target", "metric", "words"),
    [
        ("city", AUC(), "auc takes one score a row, but there are 6 classes"),
        ("city", MAP(np.zeros(N - TRAIN, int), 3), "map@3 takes one score a row, but there are 6 classes"),
        ("answer", MRR(np.zeros(7, int)), "mrr has 7 groups for 240 validated rows"),
        ("answer", NDCG(np.zeros(N - TRAIN)), "not integers"),
    ],
)
def test_a_metric_that_cannot_be_scored_is_refused_before_the_first_batch(dataloaders, target, metric, words):
    net = Counted(6 if target == "city" else 2)
    learn = rec_learner(dataloaders(target, cats=("item",)), net, metrics=metric)
    with pytest.raises(DataError, match=words):
        quiet_fit(learn, 1, by="fit")
    assert net.batches == 0


@pytest.mark.parametrize(
    ("metric", "name"), [(accuracy, "accuracy"), (RocAucBinary(), "roc_auc_score"), (F1Score(), "f1_score")]
)
@pytest.mark.parametrize("options", [{"loss_func": BCE()}, {"loss_func": BCEWithLogitsLossFlat(), "n_out": 1}])
def test_a_metric_of_the_likeliest_output_is_refused_where_there_is_one(dataloaders, metric, name, options):
    dls = dataloaders("click", RegressionBlock)
    learn = rec_learner(dls, layers=[4], metrics=metric, **options)
    with pytest.raises(DataError, match=rf"{name} takes the likeliest of several outputs.*AUC\(\)"):
        quiet_fit(learn, 1, by="fit")
    one = [fastai_metric("accuracy"), accuracy_multi, F1ScoreMulti(average="binary"), AUC()]
    got, same, f1, _ = quiet_fit(rec_learner(dls, layers=[4], metrics=one, **options), 2).recorder.values[-1][2:]
    assert got == pytest.approx(same)
    assert f1 > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dls": "frame"}, r"takes dataloaders, and this is of DataFrame.*RecDataLoaders"),
        ({"dls": "to"}, r"takes dataloaders, and this is of TabularFrame.*to\.dataloaders\(\)"),
        ({"model": "DLRM"}, "the model is 'DLRM', which is no class.*the class itself"),
        ({"metrics": "auc"}, r"the metric is 'auc', which is none.*AUC\(\)"),
        ({"metrics": [AUC, "auc"]}, "the metric is 'auc'"),
        ({"loss_func": "bce"}, r"the loss is 'bce', which is none.*BCE\(\)"),
    ],
)
def test_arguments_of_another_kind_are_refused_by_what_to_give(dataloaders, frame, change, words):
    given = {"dls": dataloaders(), **change}
    if isinstance(given["dls"], str):
        given["dls"] = frame if given["dls"] == "frame" else TabularFrame(frame, PROCS, ["city"], ["x"], "answer")
    with pytest.raises(DataError, match=words):
        rec_learner(**given)


def test_a_batch_of_one_row_is_refused_where_there_are_batch_norms(dataloaders):
    learn = rec_learner(dataloaders(bs=1), layers=[8])
    with pytest.raises(DataError, match=r"batch of one row has no spread.*bs=2.*use_bn=False, bn_cont=False"):
        quiet_fit(learn, 1, by="fit")


# ---- over a TabularFrame


@pytest.mark.parametrize(
    ("target", "block", "words"),
    [
        ("session", None, "'session', row 12: BCE takes targets of 0, 1 or probabilities, and this one is 2"),
        ("city", CategoryBlock, "'city', row 0: .* and this one is 5"),
        ("sign", None, "'sign', row 7: .* and this one is -1.* y_block=CategoryBlock"),
        (["click", "best"], None, "BCE takes one target, and there are 2: click, best.*BCEWithLogitsLossFlat"),
    ],
)
def test_bce_refuses_targets_that_it_cannot_take(loaders, frame, target, block, words):
    df = frame.assign(sign=np.where(np.arange(N) == 7, -1, 1))
    learn = rec_learner(loaders(target, df, cats=["item"], y_block=block), layers=[4], loss_func=BCE())
    with pytest.raises(DataError, match=words):
        quiet_fit(learn, 1, by="fit")
    smooth = loaders("p", frame.assign(p=frame.click * 0.8 + 0.1))
    quiet_fit(rec_learner(smooth, layers=[4], loss_func=BCE()), 1, by="fit")


@pytest.mark.parametrize(("loss", "outputs"), [(None, 2), (BCE(), 1)])
def test_no_rows_have_no_predictions(loaders, frame, loss, outputs):
    learn = rec_learner(loaders("click", y_block=CategoryBlock), layers=[4], loss_func=loss)
    empty = learn.dls.test_dl(frame[:0].drop(columns="click"))
    assert [None if x is None else tuple(x.shape) for x in predictions(learn, dl=empty)] == [(0, outputs), None]
    _, preds, _, decoded = predictions(learn, dl=empty, with_input=True, with_decoded=True)
    assert (tuple(preds.shape), tuple(decoded.shape)) == ((0, outputs), (0,))


@pytest.fixture
def loaders(frame, tmp_path):
    def make(target="answer", df=None, cats=("city", "item"), conts=("x", "z"), bs=128, wgts=None, **options):
        df = frame if df is None else df
        splits = (range(len(df) * 4 // 5), range(len(df) * 4 // 5, len(df)))
        to = TabularFrame(df, PROCS, list(cats), list(conts), target, splits=splits, **options)
        grouped = {"groups": True} if "groups" in options else {}
        return to.dataloaders(bs=bs, path=tmp_path, wgts=wgts, **grouped)

    return make


# fastai's Categorify meets an unseen category so, under pandas 3.1
@pytest.mark.filterwarnings("ignore:Constructing a Categorical with a dtype and values containing")
@pytest.mark.parametrize("target", ["answer", "rating", "fastai's loaders"])
def test_predict_takes_rows_of_every_library(dataloaders, loaders, frame, target):
    ours = target in frame
    learn = quiet_fit(rec_learner(loaders(target) if ours else dataloaders(), layers=[16]), 1)
    row = frame.iloc[TRAIN]
    raw = {k: row[k] for k in ("city", "item", "x", "z")}
    rows = [raw, row, frame.iloc[[TRAIN]], *([{**raw, target: "of no known class"}] if ours else [])]
    rows += [pl.DataFrame([raw]), pl.DataFrame([raw]).row(0, named=True), pl.DataFrame([raw]).to_dicts()]
    wanted = predictions(learn)[0][0]
    with learn.no_bar():
        stock = TabularLearner.predict(learn, row) if ours else None
        for given in rows:
            decoded, decided, outputs = learn.predict(given)
            assert torch.allclose(outputs, wanted, atol=1e-6)
            if ours:
                assert torch.allclose(outputs, stock[2], atol=1e-6)
                assert torch.allclose(decided, stock[1], atol=1e-6)
                pd.testing.assert_frame_equal(decoded.decode().items, stock[0].decode().items, rtol=1e-4)
        if target != "rating":
            assert decided == wanted.argmax()
            assert decoded.decode().items[["city", "answer"]].values.tolist() == [[raw["city"], ["no", "yes"][decided]]]
        unseen, empty = (learn.predict({**raw, "city": c, "x": x})[2] for c, x in (("zz", None), (None, float("nan"))))
        assert torch.equal(unseen, empty)
        assert unseen.isfinite().all()
        with pytest.raises(MissingColumnError, match="'z'"):
            learn.predict({k: v for k, v in raw.items() if k != "z"})
        for bad in (frame[:2], [raw, raw], 7, "a"):
            with pytest.raises(DataError, match="one row is needed"):
                learn.predict(bad)
        with pytest.raises(DataError, match=r"not DataFrame of 240 rows.*get_preds\(dl=learn\.dls\.test_dl\(frame\)\)"):
            learn.predict(frame[TRAIN:])


def test_rows_with_features_go_through_a_frame(loaders, frame):
    learn = rec_learner(loaders(features=FeatureSet([CountEncode("item")])), layers=[8])
    row = frame.iloc[5].drop(["best"])
    with learn.no_bar():
        decoded, _, outputs = learn.predict({**row, "answer": "of no known class"})
        want = learn.get_preds(dl=learn.dls.test_dl(frame.iloc[[5]]))[0][0]
        assert torch.allclose(outputs, want, atol=1e-6)
        assert decoded.decode().items["count_item"].item() == pytest.approx(
            (frame["item"][:TRAIN] == row["item"]).sum()
        )
        with pytest.raises(MissingColumnError, match="'item'"):
            learn.predict(row.drop("item"))


def calls_of(run):
    """Calls of functions, of Python and of C, that ``run`` makes the second time."""
    run()
    profile = cProfile.Profile()
    profile.runcall(run)
    return pstats.Stats(profile).total_calls


@pytest.mark.parametrize(("path", "most"), [("predict", 20), ("test_dl", 400)])
def test_work_for_a_row_grows_with_its_columns_not_their_square(loaders, path, most):
    calls = []
    for half in (100, 400):
        rng = np.random.default_rng(0)
        numbers = {f"x{i}": rng.normal(size=40) for i in range(half)}
        words = {f"c{i}": rng.choice(list("abc"), 40) for i in range(half)}
        df = pd.DataFrame({**numbers, **words, "y": rng.normal(size=40)})
        df.loc[::5, ["x0", "x3"]] = np.nan
        learn = rec_learner(loaders("y", df, words, numbers, bs=16), layers=[4])
        row, one = df.iloc[0].to_dict(), df.head(1)
        with learn.no_bar():
            calls.append(calls_of(lambda: learn.predict(row) if path == "predict" else learn.dls.test_dl(one)))  # noqa: B023
    assert calls[1] < 4.2 * calls[0]
    assert (calls[1] - calls[0]) / 600 < most


@pytest.mark.parametrize("options", [{"groups": "session"}, {"features": "count"}, {"wgts": np.ones(16000)}])
def test_an_export_is_the_weights_and_little_more(loaders, frame, tmp_path, options):
    df = pd.concat([frame] * 17, ignore_index=True).head(20000).assign(session=np.arange(20000) // 5)
    if "features" in options:
        options = {"features": FeatureSet([CountEncode("item"), TargetEncode("city", "rating")])}
    learn = quiet_fit(rec_learner(loaders("answer", df, bs=4000, **options), layers=[300], opt_func=lamb), 1)
    learn.export()
    weights = sum(t.numel() * t.element_size() for t in learn.model.state_dict().values())
    assert (tmp_path / "export.pkl").stat().st_size < weights + 100_000
    reference, test = weakref.ref(df), learn.dls.test_dl(df)
    del df
    gc.collect()
    assert reference() is None
    assert len(test.dataset) == 20000


@pytest.mark.parametrize("target", ["answer", "rating"])
def test_fastai_interprets_a_learner_of_a_frame(loaders, frame, target, monkeypatch):
    interp = Interpretation.from_learner(quiet_fit(rec_learner(loaders(target), layers=[8]), 1))
    shown = []
    monkeypatch.setattr("fastrec.tabular.frame.display_df", shown.append)
    with interp.learn.no_bar():
        losses, places = interp.top_losses(3)
        interp.plot_top_losses(3)
        interp.show_results(places)
        torch.testing.assert_close(interp[places][4], losses)
    rows = frame.iloc[TRAIN + places.numpy()]
    assert shown[0].city.tolist() == rows.city.tolist()
    np.testing.assert_allclose(shown[0].z, rows.z, rtol=1e-5)
    if target == "answer":
        assert shown[0].answer.tolist() == rows.answer.tolist()
        assert set(shown[0].answer_pred) <= {"yes", "no"}
    else:
        np.testing.assert_allclose(shown[0].rating, rows.rating, rtol=1e-6)


# ---- less Python between two batches


@given(pct=st.floats(0.05, 0.95), done=st.floats(0, 1), values=st.tuples(*[st.floats(1e-6, 1)] * 3))
def test_the_cycle_is_fastais(pct, done, values):
    expected = combined_cos(pct, *values)(done)
    near = {"rtol": 1e-6, "atol": 1e-6 * max(values)}  # fastai rounds to float32 on the way
    np.testing.assert_allclose(one_cycle(pct, *values)(done), expected, **near)
    arrays = [np.array([v, 2 * v]) for v in values]
    np.testing.assert_allclose(one_cycle(pct, *arrays)(done), combined_cos(pct, *arrays)(done), **near)


@pytest.fixture(scope="module")
def dls():
    splits = (range(240), range(240, 300))
    return TabularFrame(clicks(300), PROCS, ["c"], ["x"], "y", CategoryBlock(), splits).dataloaders(32, seed=3)


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
    net, trace = TabularNet([(21, 4)], 1, 2, [8]), Trace()
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
    values = (np.array(one.recorder.values, dtype=float) for one in (learn, stock))
    np.testing.assert_allclose(*values, rtol=1e-3)


def test_hypers_are_fastais_and_callbacks_with_events_on_the_object_are_heard(dls):
    seen = []
    learn = rec_learner(dls, layers=[8], cbs=Callback(after_step=lambda self: seen.append(1)))
    learn.create_opt()
    assert learn.opt.hypers == OptimWrapper.hypers.fget(learn.opt)[:1]
    quiet_fit(learn, 1, by="fit")
    assert len(seen) == len(dls.train)
    learn = quiet_fit(rec_learner(dls, layers=[8], opt_func=torch.optim.Adagrad), 1, 1e-2)
    assert set(learn.recorder.hps) == {"lr"}  # a cycle without momentum


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
    learn.model.to(batch[0].device)
    assert learn._set_device(batch) is batch
    assert [type(x) for x in learn._set_device([*batch])] == [torch.Tensor] * 3  # fastai's way
    learn.model.to("meta")
    assert {x.device.type for x in learn._set_device(batch)} == {"meta"}
