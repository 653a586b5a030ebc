"""What ``from fastrec.all import *`` gives, and the two things that one name stands for."""

from __future__ import annotations

import importlib
import pkgutil

import fastai.tabular.all
import pandas as pd
import pytest
import torch

import fastrec
import fastrec.all
from fastrec import features, tabular
from fastrec.errors import DataError

# Rooms whose names a notebook imports from the room itself, and why.
ROOMS_APART = {
    "all": "the subject",
    "cli": "the command line",
    "segments": "tensor operations for writing generators and functions of features",
}
# Names of other rooms that stay there, and why.
NAMES_APART = {
    "Metric": "fastai has another class of this name",
    "GroupFunction": "made by feature, never by its name",
    "RowFunction": "made by feature, never by its name",
    "concat": "fastai has another function of this name",
    "emb_sz_rule": "fastai has another function of this name",
    **dict.fromkeys(
        ["ClassList", "Coded", "Column", "Keys", "ListBatch", "as_column", "attach", "column_names"],
        "what frames become inside the library",
    ),
    **dict.fromkeys(
        ["load_state", "save_state", "select_columns", "take_rows", "to_library"],
        "how the library handles frames and files inside",
    ),
}
# Public names that are in no room.
ROOMLESS = dict.fromkeys(["keep_memory", "share_pool", "without_compiled"], "of _core, which is no room of its own")
TWICE = ["Categorify", "FillMissing", "Normalize"]
FRAME = pd.DataFrame({"city": list("abab"), "price": [1.0, 2, None, 4], "y": [0, 1, 0, 1]})


def rooms() -> dict[str, object]:
    names = [m.name for m in pkgutil.iter_modules(fastrec.__path__) if not m.name.startswith("_")]
    return {n: importlib.import_module(f"fastrec.{n}") for n in names if n not in ROOMS_APART}


def test_all_has_what_every_room_makes_public():
    public = {name for room in rooms().values() for name in room.__all__}
    assert NAMES_APART.keys() <= public
    assert set(fastrec.all.__all__) == (public - NAMES_APART.keys()) | ROOMLESS.keys()


def test_names_are_one_thing_but_for_three_that_are_procs():
    for room, module in rooms().items():
        other = [
            n for n in module.__all__ if n not in NAMES_APART and getattr(fastrec.all, n) is not getattr(module, n)
        ]
        assert other == (TWICE if room == "features" else [])
    assert all(getattr(fastrec.all, n) is getattr(tabular, n) for n in TWICE)


def test_names_of_fastai_are_taken_over_on_purpose_only():
    taken = {n for n in fastrec.all.__all__ if hasattr(fastai.tabular.all, n)}
    assert taken == {*TWICE, "Lamb", "Recall", "Table"}


@pytest.mark.parametrize("name", TWICE)
@pytest.mark.parametrize("library", [tabular, fastai.tabular.all], ids=["ours", "fastai"])
def test_a_proc_is_no_generator(name, library):
    proc = getattr(library, name)
    for given in (proc, proc()):
        with pytest.raises(DataError, match=rf"not a generator.*from fastrec import features.*features\.{name}\("):
            features.FeatureSet([given])


@pytest.mark.parametrize("name", TWICE)
def test_a_proc_given_a_column_names_the_generator(name):
    for columns in ("price", ["price", "city"]):
        with pytest.raises(DataError, match=rf"{name}.*proc.*from fastrec import features.*features\.{name}\("):
            getattr(tabular, name)(columns)


@pytest.mark.parametrize("name", [*TWICE, "CountEncode"])
def test_a_generator_is_no_proc(name):
    generator = getattr(features, name)
    for given in (generator, generator("price"), features.FeatureSet([generator("price")])):
        with pytest.raises(DataError, match=r"no proc.*features=FeatureSet\(\[") as error:
            tabular.TabularFrame(FRAME, [given], ["city"], ["price"], "y", splits=([0, 1], [2, 3]))
        is_set = isinstance(given, features.FeatureSet)
        assert (f"fastrec.tabular.{name}" in str(error.value)) == (name in TWICE and not is_set)


@pytest.mark.parametrize("given", [tabular.Normalize(), [features.CountEncode("city")]], ids=["proc", "list"])
def test_a_frames_features_are_a_set(given):
    with pytest.raises(DataError, match=r"no set of features.*FeatureSet\(\["):
        tabular.TabularFrame(FRAME, [], ["city"], ["price"], "y", splits=([0, 1], [2, 3]), features=given)


def test_each_of_the_two_works_where_it_belongs():
    fs = features.FeatureSet([features.Normalize("price"), features.Categorify("city")], keep="outputs")
    procs = [tabular.Categorify, tabular.FillMissing, tabular.Normalize]
    to = tabular.TabularFrame(FRAME, procs, ["city"], ["price"], "y", splits=([0, 1, 3], [2]), features=fs)
    assert torch.isfinite(to.dataloaders(bs=4, shuffle=False).one_batch()[1]).all()
