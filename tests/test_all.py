"""What ``from fastrec.all import *`` gives, and the two things that one name stands for."""

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

TWICE = ["Categorify", "FillMissing", "Normalize"]
FRAME = pd.DataFrame({"city": list("abab"), "price": [1.0, 2, None, 4], "y": [0, 1, 0, 1]})


def test_its_names_are_those_of_the_rooms():
    assert len(fastrec.all.__all__) == len(set(fastrec.all.__all__)) <= 100
    names = [m.name for m in pkgutil.iter_modules(fastrec.__path__) if m.name != "all" and not m.name.startswith("_")]
    rooms = [fastrec, *(importlib.import_module(f"fastrec.{n}") for n in names)]
    for name in fastrec.all.__all__:
        homes = [room for room in rooms if name in getattr(room, "__all__", ())]
        assert any(getattr(room, name) is getattr(fastrec.all, name) for room in homes), name
    assert all(getattr(fastrec.all, n) is getattr(tabular, n) for n in TWICE)


def test_names_of_fastai_are_taken_over_on_purpose_only():
    taken = {n for n in fastrec.all.__all__ if hasattr(fastai.tabular.all, n)}
    assert taken == {*TWICE, "Table"}


@pytest.mark.parametrize("name", TWICE)
@pytest.mark.parametrize("library", [tabular, fastai.tabular.all], ids=["ours", "fastai"])
def test_a_proc_is_no_generator(name, library):
    proc = getattr(library, name)
    for given in (proc, proc()):
        with pytest.raises(DataError, match=rf"not a generator.*from fastrec import features.*features\.{name}\("):
            features.FeatureSet([given])
    for columns in ("price", ["price", "city"]) if library is tabular else ():
        with pytest.raises(DataError, match=rf"{name}.*proc.*from fastrec import features.*features\.{name}\("):
            proc(columns)


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
