"""How often the host waits for the device: a budget for a training step, and for every generator."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.tabular.all import Categorify, Normalize
from fastai.tabular.all import FillMissing as Fill

from fastrec.features import FeatureSet
from fastrec.models import EmbeddingTables
from fastrec.optim import AdamW, Lamb, adamw, lamb
from fastrec.tabular import RecDataLoaders
from fastrec.training import rec_learner
from tests.device import standin
from tests.features import frames
from tests.features.examples import EXAMPLES
from tests.training.helpers import quiet_fit

DEVICE = standin.NAME
# Waits (copies to the host, values read) of one ``transform``, by example: the most of a generator. The values of a
# column, its dictionary and what is refused are looked at once, whatever the number of rows.
WAITS = json.loads(Path(__file__).with_name("waits.json").read_text())


@pytest.fixture(scope="module")
def dls():
    rng, n = np.random.default_rng(0), 2_000
    made = {"a": rng.integers(0, 50, n).astype(str), "b": rng.integers(0, 5, n), "x": rng.normal(size=n)}
    made |= {"z": np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)), "y": rng.integers(0, 2, n) * 1.0}
    options = {"cat_names": ["a", "b"], "cont_names": ["x", "z"], "procs": [Categorify, Fill, Normalize]}
    found = RecDataLoaders.from_df(pd.DataFrame(made), y_names="y", seed=1, bs=64, **options)
    assert found.device == torch.device(DEVICE, 0)  # batches stay where the rows are
    return found


def test_a_shuffled_epoch_of_rows_on_the_device(dls):
    next(iter(dls.train))
    with standin.counting() as trips:
        batches = list(dls.train)
    assert len(batches) == 25
    assert not trips.waits, trips.table()


def test_batches_for_the_host_are_counted_as_copies(dls):
    """The count sees what it is there to see."""
    loader = dls.train.new(device=torch.device("cpu"))
    with standin.counting() as trips:
        list(loader)
    assert trips.count("to host") >= 1, trips.table()


def waits_of(learn, epochs):
    with standin.counting() as trips:
        quiet_fit(learn, epochs, by="fit")
    return trips


@pytest.mark.parametrize("opt", [adamw, lamb])
def test_a_training_step_waits_for_nothing(dls, opt):
    learn = rec_learner(dls.__class__(dls.train), layers=[8], opt_func=opt)
    learn._do_epoch_validate = lambda *args, **kwargs: None
    waits_of(learn, 1)
    one, two = (waits_of(learn, epochs).waits for epochs in (1, 2))
    assert two - one <= 4  # at an epoch's end: its losses, whether they are finite, the mean; 25 steps between
    assert waits_of(learn, 1).count("scalar") <= 2


def test_the_bar_reads_one_loss_a_step(dls, capsys):
    learn = rec_learner(dls.__class__(dls.train), layers=[8])
    learn._do_epoch_validate = lambda *args, **kwargs: None
    quiet = waits_of(learn, 1).count("scalar")  # at the epoch's end
    with standin.counting() as trips:
        learn.fit(1)
    assert trips.count("scalar") - quiet <= len(dls.train), trips.table()


def test_the_numbers_gradient_lies_in_one_piece_and_tables_add_up_in_any_order_but_if_asked(dls, monkeypatch):
    """CUDA sums a gradient that is part of a wider tensor by a block a column, and sorts the ids of F.embedding."""
    learn, embedding, seen = rec_learner(dls, layers=[8]), torch.nn.functional.embedding, []
    net = learn.model.to(dls.device)
    monkeypatch.setattr(torch.nn.functional, "embedding", lambda *a, **k: seen.append("sorts") or embedding(*a, **k))
    net.bn_cont.register_full_backward_hook(lambda module, inner, outer: seen.append(outer[0].is_contiguous()))
    x_cat, x_cont, _ = dls.one_batch()
    assert not x_cont.is_contiguous()
    for one_order, wanted in ((False, {True}), (True, {True, "sorts"})):
        monkeypatch.setattr(torch.backends.cudnn, "deterministic", one_order)
        seen.clear()
        net(x_cat, x_cont.requires_grad_()).sum().backward()
        assert set(seen) == wanted


@pytest.mark.parametrize("make", [AdamW, Lamb])
@pytest.mark.parametrize("grads", ["dense", "rows"])
def test_embeddings_and_their_optimizer(make, grads):
    tables = EmbeddingTables([(30_000, 4), (50, 4)], grads=grads).to(DEVICE)
    optimizer = make(tables.parameters(), lr=0.1)
    ids = torch.stack([torch.randint(0, size, (64,), device=DEVICE) for size in (30_000, 50)], 1)

    def step():
        with standin.counting() as backward:
            tables(ids).square().sum().backward()
        with standin.counting() as stepped:
            optimizer.step()
        optimizer.zero_grad()
        return backward, stepped

    step()
    backward, stepped = step()
    assert not backward.waits, backward.table()
    # a row's gradient is added up over its places in the batch: how many different rows there are must be known
    assert stepped.waits <= (2 if grads == "rows" else 0), stepped.table()


@pytest.fixture(scope="module")
def rows():
    """Columns by their number of rows, read anew each time: a column remembers its codes."""
    return {n: lambda n=n: frames.to_table(frames.columns(n, 50)) for n in (2_200, 4_400)}


def transform_trips(make, rows):
    tables = frames.tables(0)
    made = FeatureSet([make()], key="row").fit(frames.to_table(frames.columns(120)), tables=tables)
    made.transform(frames.to_table(frames.columns(2_200, 51)), tables=tables)  # what it learned goes to the device once
    found = []
    for read in rows.values():
        table = read()
        with standin.counting() as trips:
            made.transform(table, tables=tables)
        found.append(trips)
    return found


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_waits_of_a_generator_do_not_depend_on_rows(name, rows):
    most = 0
    for make in EXAMPLES[name]:
        few, many = transform_trips(make, rows)
        assert many.waits <= few.waits, f"{few.table()}\n\n{many.table()}"
        most = max(most, many.waits)
    assert most <= WAITS.get(name, 0), many.table()
