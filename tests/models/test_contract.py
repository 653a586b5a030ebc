"""One suite over every model in ``fastrec.models.__all__``: a model fails it until ``examples`` says how it is made."""

from __future__ import annotations

import copy
import inspect
from functools import cache
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.data.block import CategoryBlock, RegressionBlock
from fastai.learner import Learner, load_learner
from fastai.losses import MSELossFlat
from fastai.optimizer import Adam
from fastai.torch_core import set_seed
from torch import nn

import fastrec.models as registry
from fastrec._core.device import on_host, resolve_device
from fastrec.errors import DataError, MissingColumnError
from fastrec.models import EmbeddingTables, embedding_sizes
from fastrec.table import ListBatch
from fastrec.tabular import Categorify, Normalize, TabularFrame
from fastrec.training import rec_learner
from tests.models.examples import EXAMPLES, EXCUSES, PARTS
from tests.training.helpers import predictions, quiet_fit

MODULES = {n: c for n in registry.__all__ if isinstance(c := getattr(registry, n), type) and issubclass(c, nn.Module)}
MODELS = {n: c for n, c in MODULES.items() if n not in PARTS}
CASES = {f"{name}-{i}": (MODELS.get(name), e) for name, all_ in EXAMPLES.items() for i, e in enumerate(all_)}

DEVICE = resolve_device()
NAMES, SIZES, LIST_ROWS, VECTOR = ["city", "item"], [(7, 4), (12, 8)], 9, 5
TRAIN, VALID = 64, 16


def cases(*needed):
    """Every example that is not excused from these."""
    return pytest.mark.parametrize("case", [k for k, (_, e) in CASES.items() if not set(needed) & set(e.excused)])


def parts_of(case, *, cats=True, conts=True, extras=True):
    """The kinds of columns to test a model with: those that are asked for, and that it takes."""
    excused = CASES[case][1].excused
    return SimpleNamespace(
        cats=NAMES if cats else [],
        conts=["x", "z"] if conts and "conts" not in excused else [],
        lists=["tags"] if extras and "lists" not in excused else [],
        vectors=["v"] if extras and "vectors" not in excused else [],
    )


def make(case, parts, *, out=1, sizes=SIZES, seed=0, **options):
    """The model by its class alone, on the device, in evaluation mode."""
    cls, example = CASES[case]
    torch.manual_seed(seed)
    inputs = {"cat_names": parts.cats, "list_szs": [(LIST_ROWS, 4)] * len(parts.lists), "list_names": parts.lists}
    inputs |= {"vector_szs": [VECTOR] * len(parts.vectors)}
    made = {**inputs, **example.options_for(parts, by_hand=True), **options}
    return cls(sizes[: len(parts.cats)], len(parts.conts), out, **made).to(DEVICE).eval()


def batch(parts, b=6, *, sizes=SIZES, seed=1):
    """Inputs of a model; of the lists the first is empty, the second missing."""
    g = torch.Generator().manual_seed(seed)
    cats = torch.stack([torch.randint(0, n, (b,), generator=g) for n, _ in sizes], 1) if parts.cats else None
    drawn = torch.randint(0, LIST_ROWS, (b, 3), generator=g).tolist()
    lists = [ListBatch.of([[], None, *drawn[2:]][:b]) for _ in parts.lists]
    conts = torch.randn(b, len(parts.conts), generator=g) if parts.conts else None
    given = cats, conts, *lists, *[torch.randn(b, VECTOR, generator=g) for _ in parts.vectors]
    return tuple(None if x is None else x.to(DEVICE) for x in given)


@cache
def frame():
    rng = np.random.default_rng(0)
    n = TRAIN + VALID
    df = pd.DataFrame({"city": rng.choice(list("abcdef"), n), "item": rng.choice(list("mnopqrstuvw"), n)})
    df["x"], df["z"] = rng.normal(size=(2, n))
    df["tags"] = [list(rng.choice(list("efgh"), rng.integers(0, 4))) for _ in range(n)]
    df["v"] = list(rng.normal(size=(n, VECTOR)).astype("float32"))
    df["rating"] = df.z + 2.0 * df.city.isin(["a", "b"]) + df["item"].isin(["m", "n"])
    df["answer"] = np.where(df.rating > 1, "yes", "no")
    return df


def loaders(parts, path, target="rating"):
    block = CategoryBlock if target == "answer" else RegressionBlock
    options = {"y_block": block(), "splits": (range(TRAIN), range(TRAIN, TRAIN + VALID))}
    options |= {"list_names": parts.lists, "vector_names": parts.vectors}
    to = TabularFrame(frame(), [Categorify, Normalize], parts.cats, parts.conts, target, **options)
    return to.dataloaders(bs=TRAIN // 2, path=path)


def per_table(net, of):
    """``of`` of every table by name, in every part of the net."""
    parts = [(where, m) for where, m in net.named_modules() if isinstance(m, EmbeddingTables)]
    return {f"{where}.{s.name}": of(m, s) for where, m in parts for s in m.slices}


def tables_of(net):
    return per_table(net, lambda tables, s: tables.table(s.name))


def state_of(net):
    return {k: v.detach().cpu().clone() for k, v in {**dict(net.named_parameters()), **tables_of(net)}.items()}


def fit_two_steps(learn):
    """Train on two batches and see that every parameter, and every table, moved by its gradient."""
    before = state_of(learn.model)
    quiet_fit(learn, 1, 1e-2, wd=0.0, by="fit")
    assert len(learn.recorder.losses) == 2
    assert torch.stack(list(learn.recorder.losses)).isfinite().all()
    after = state_of(learn.model)
    assert [k for k in before if torch.equal(before[k], after[k])] == []
    return learn


def learner(case, path, parts=None, target="rating", **options):
    cls, example = CASES[case]
    parts = parts or parts_of(case)
    return rec_learner(loaders(parts, path, target), cls, **example.options_for(parts, by_hand=False), **options)


# The registry --------------------------------------------------------------------------------------------------------


def test_every_model_has_an_example_and_every_excuse_a_reason():
    assert sorted(EXAMPLES) == sorted(MODELS)
    assert set(PARTS) <= set(MODULES)
    for _, example in CASES.values():
        assert set(example.excused) <= set(EXCUSES)
        assert all(example.excused.values())


@pytest.mark.parametrize("name", sorted(MODELS))
def test_constructors_and_forward_are_alike(name):
    parameters = inspect.signature(MODELS[name]).parameters
    assert list(parameters)[:3] == ["emb_szs", "n_cont", "out_sz"]
    assert [k for k, p in parameters.items() if p.kind is p.VAR_KEYWORD] == ["inputs"]
    positional = [k for k, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional[3:] in ([], ["layers"])  # as in fastai's TabularModel
    assert list(inspect.signature(MODELS[name].forward).parameters)[:3] == ["self", "x_cat", "x_cont"]
    assert "Args:" in MODELS[name].__doc__


# Training ------------------------------------------------------------------------------------------------------------


@cases()
def test_a_stock_learner_trains_it(case, tmp_path):
    parts = parts_of(case)
    dls, (cls, example) = loaders(parts, tmp_path), CASES[case]
    (tags,) = embedding_sizes(dls.classes, ["tags"]) if parts.lists else [None]
    inputs = {"cat_names": parts.cats, "list_names": parts.lists, "list_szs": [tags] if tags else []}
    inputs |= {"vector_szs": [VECTOR] * len(parts.vectors)}
    inputs |= example.options_for(parts, by_hand=True)
    net = cls(embedding_sizes(dls.classes, parts.cats), len(parts.conts), 1, **inputs)
    fit_two_steps(Learner(dls, net, example.loss(net, MSELossFlat())))


@cases("several outputs")
def test_it_classifies(case, tmp_path):
    learn = fit_two_steps(learner(case, tmp_path, target="answer", opt_func=Adam))
    found = predictions(learn)[0]
    assert found.shape == (VALID, 2)
    assert torch.allclose(found.sum(1), torch.ones(VALID))


@cases("no cats", "conts")
def test_it_does_without_categorical_columns(case, tmp_path):
    fit_two_steps(learner(case, tmp_path, parts_of(case, cats=False, extras=False), opt_func=Adam))


@cases("no conts")
def test_it_does_without_continuous_columns(case, tmp_path):
    fit_two_steps(learner(case, tmp_path, parts_of(case, conts=False, extras=False), opt_func=Adam))


@cases()
def test_rec_learner_makes_and_trains_it_and_the_same_seed_gives_the_same_weights(case, tmp_path):
    found = []
    for seed in (1, 1, 2):
        set_seed(seed, reproducible=True)
        learn = fit_two_steps(learner(case, tmp_path))
        found.append(torch.cat([p.detach().flatten() for p in learn.model.parameters()]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert type(learn.model) is CASES[case][0]
    assert predictions(learn)[0].shape == (VALID, 1)


@cases()
def test_an_export_predicts_the_same(case, tmp_path):
    learn = learner(case, tmp_path)
    quiet_fit(learn, 1, 1e-2)
    test = frame()[TRAIN:].drop(columns=["rating", "answer"])
    wanted = predictions(learn, dl=learn.dls.test_dl(test))[0]
    learn.export()
    loaded = load_learner(tmp_path / "export.pkl", cpu=on_host(DEVICE))
    assert torch.equal(predictions(loaded, dl=loaded.dls.test_dl(test))[0], wanted)
    with loaded.no_bar():
        assert loaded.predict(test.iloc[0])[2] == pytest.approx(wanted[0].item(), abs=1e-5)


# The model by itself -------------------------------------------------------------------------------------------------


@cases()
def test_state_dict_and_copies(case):
    parts = parts_of(case)
    one, other = make(case, parts), make(case, parts, seed=5)
    inputs = batch(parts)
    drawn = zip(tables_of(one).values(), tables_of(other).values(), strict=True)
    assert not any(torch.equal(a, b) for a, b in drawn)
    assert not torch.equal(one(*inputs), other(*inputs))
    one.train()(*inputs)  # moves the running statistics
    other.load_state_dict(one.state_dict())
    wanted = one.eval()(*inputs)
    assert torch.equal(other(*inputs), wanted)
    assert torch.equal(copy.deepcopy(one)(*inputs), wanted)


@cases()
def test_ids_out_of_range_are_named_before_any_lookup(case):
    parts = parts_of(case)
    net = make(case, parts, check_ids="auto" if on_host(DEVICE) else "always")
    for bad in (SIZES[1][0], -1):
        cats, *others = batch(parts)
        cats[3, 1] = bad
        with pytest.raises(DataError, match=rf"column 'item', row 3: id {bad} .* 0 to 11"):
            net(cats, *others)
    if parts.lists:
        cats, conts, _, *vectors = batch(parts)
        wrong = ListBatch.of([[0], [], None, [1, LIST_ROWS], [2], [3]]).to(DEVICE)
        with pytest.raises(DataError, match=rf"column 'tags', row 3: id {LIST_ROWS} .* 0 to 8"):
            net(cats, conts, wrong, *vectors)


@cases("lists")
def test_lists_and_vectors_count(case):
    parts = parts_of(case)
    net = make(case, parts)
    cats, conts, tags, *vectors = batch(parts)
    wanted = net(cats, conts, tags, *vectors)
    other = ListBatch.of([[1, 2], *tags.tolist()[1:]]).to(DEVICE)
    changed = (net(cats, conts, other, *vectors) != wanted).any(1)
    assert changed.tolist() == [True, *[False] * 5]
    if vectors:
        # a vector enters through a LayerNorm, which takes no notice of its scale
        moved = vectors[0].clone()
        moved[4, 0] += 3
        assert (net(cats, conts, tags, moved) != wanted).any(1).tolist() == [False] * 4 + [True, False]


@cases()
def test_rows_do_not_matter_to_each_other_in_evaluation(case):
    parts = parts_of(case)
    net, inputs = make(case, parts), batch(parts)
    wanted = net(*inputs)
    assert wanted.shape == (6, 1)
    for row in range(6):
        one = [None if x is None else x[row : row + 1] for x in inputs]
        assert torch.allclose(net(*one), wanted[row : row + 1], atol=1e-6)
    assert net(*[None if x is None else x[:0] for x in inputs]).shape == (0, 1)


@cases()
def test_inputs_stay_as_they_are_and_ids_may_be_of_any_width(case):
    parts = parts_of(case, extras=False)
    net, (cats, conts) = make(case, parts), batch(parts)
    kept = None if conts is None else conts.clone()
    wanted = net(cats, conts)
    assert torch.equal(net(cats.int(), conts), wanted)
    net.train()(cats, conts)
    assert kept is None or torch.equal(conts, kept)


@cases()
def test_half_precision_keeps_the_weights_whole(case):
    parts = parts_of(case)
    net, inputs = make(case, parts), batch(parts, 32)
    wanted = net(*inputs)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        near = net(*inputs).float()
        out = net.train()(*inputs)
        loss = out.float().square().mean()
    loss.backward()
    assert (near - wanted).abs().max() < 0.05 * (1 + wanted.abs().max())
    assert out.isfinite().all()
    for p in net.parameters():
        assert p.dtype == p.grad.dtype == torch.float32
        assert p.grad.isfinite().all()


@cases()
def test_row_sparse_gradients_are_the_dense_ones(case):
    parts = parts_of(case, extras=False)
    sizes = [(20_001, 4), SIZES[1]]
    dense, rows = make(case, parts, sizes=sizes), make(case, parts, sizes=sizes, grads="rows")
    shared = {k: v for k, v in dense.state_dict().items() if k in rows.state_dict() and "embeds" not in k}
    rows.load_state_dict({k: v for k, v in shared.items() if v.shape == rows.state_dict()[k].shape}, strict=False)
    with torch.no_grad():
        for table, other in zip(tables_of(rows).values(), tables_of(dense).values(), strict=True):
            table.copy_(other)
    inputs = batch(parts, sizes=sizes)
    outs = [net(*inputs) for net in (dense, rows)]
    assert torch.equal(*outs)
    for out in outs:
        (out * torch.linspace(1, 2, 6, device=DEVICE)[:, None]).sum().backward()
    sparse = {n for n, p in rows.named_parameters() if p.grad.is_sparse}
    assert sparse == {n for n, _ in rows.named_parameters() if n.endswith("_rows")}
    slices = [s for m in rows.modules() if isinstance(m, EmbeddingTables) for s in m.slices]
    assert all(s.group.endswith("_rows") == (s.stop - s.start == 20_001) for s in slices)

    def gradient(tables, s):
        grad = tables.weights[s.group].grad
        return (grad.to_dense() if grad.is_sparse else grad)[s.start : s.stop]

    for (name, one), other in zip(per_table(dense, gradient).items(), per_table(rows, gradient).values(), strict=True):
        assert torch.allclose(one, other, atol=1e-6), name


@pytest.mark.parametrize("case", [k for k, (c, _) in CASES.items() if "y_range" in inspect.signature(c).parameters])
def test_outputs_keep_to_a_range(case):
    parts = parts_of(case)
    net, inputs = make(case, parts, y_range=(2, 3)), batch(parts)
    found = net(*inputs)
    assert ((found > 2) & (found < 3)).all()
    assert not torch.equal(found, make(case, parts)(*inputs))


@cases()
def test_options_that_are_none_are_refused(case):
    with pytest.raises(TypeError, match="depth"):
        make(case, parts_of(case), depth=3)
    none = SimpleNamespace(cats=[], conts=[], lists=[], vectors=[])
    with pytest.raises((DataError, MissingColumnError)):
        make(case, none)
