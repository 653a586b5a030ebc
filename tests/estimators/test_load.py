"""Every ranker, saved and loaded, whatever the files hold."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fastrec.models
from fastrec.errors import DataError, FastrecError, MissingFileError, NotFittedError, UnreadableFileError, WriteError
from fastrec.estimators import ColumnRanker, Estimator, NetRanker, Ranker, XGBRanker
from fastrec.models import DCNv2, TabM
from fastrec.stacking import BoostedBlend, LinearBlend, MeanBlend
from fastrec.table import Table
from fastrec.table.state import known_classes
from fastrec.validate import Lists

SMALL = {"epochs": 1, "bs": 80}
TREES = {"rounds": 3, "max_depth": 2}
BLENDED = ["a", "b"]
# How each estimator is made; a new ranker fails the suite until it stands here.
MADE = {
    "ColumnRanker": [lambda: ColumnRanker("rule", ["x", "gap[m]"])],
    "XGBRanker": [
        lambda: XGBRanker("trees", **TREES),
        lambda: XGBRanker("logit", objective="binary:logistic", columns=["city", "gap[m]"], margin="start", **TREES),
        lambda: XGBRanker("stops", early_stopping_rounds=2, **TREES),
    ],
    "NetRanker": [
        lambda: NetRanker("net", layers=[8], **SMALL),
        lambda: NetRanker("tabm", model=TabM, options={"layers": [8], "k": 3}, **SMALL),
        lambda: NetRanker("full", model="TabM", options={"variant": "full", "k": 2, "act_cls": nn.GELU}, **SMALL),
        lambda: NetRanker("dcn", model=DCNv2, layers=[8], ps=0.1, embed_p=0.1, **SMALL),
        lambda: NetRanker("dlrm", model="DLRM", options={"bottom": [8], "top": [8], "use_bn": True}, **SMALL),
        lambda: NetRanker("fm", model="DeepFM", options={"emb_dim": 4, "pad": False}, **SMALL),
        lambda: NetRanker("near", model="ModernNCA", options={"width": 8, "combine": "sigmoid"}, **SMALL),
        lambda: NetRanker("real", model="RealMLP", layers=[8], options={"max_one_hot": 3}, **SMALL),
        lambda: NetRanker("wide", model="WideAndDeep", layers=[4], **SMALL),
        lambda: NetRanker("towers", model="TwoTower", options={"query": ["city"], "item": ["item", "x"]}, **SMALL),
    ],
    "LinearBlend": [lambda: LinearBlend(BLENDED, ridge=0.5)],
    "BoostedBlend": [lambda: BoostedBlend(BLENDED, rounds=3, max_depth=2)],
    "MeanBlend": [lambda: MeanBlend(BLENDED, of="log_softmax"), lambda: MeanBlend(BLENDED, of="rank", name="borda")],
}
CASES = {f"{name}-{i}": make for name, made in MADE.items() for i, make in enumerate(made)}


def rows(seed: int, lists: int = 60, size: int = 4) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    n = lists * size
    frame = pd.DataFrame({"list": np.repeat(np.arange(lists), size), "x": rng.normal(size=n)})
    frame["gap[m]"] = np.where(rng.random(n) < 0.2, np.nan, rng.normal(size=n))
    frame["city"] = rng.choice(["oslo", "rome", None], n)
    frame["item"] = rng.integers(0, 9, n)
    frame["start"] = rng.normal(size=n)
    score = rng.normal(size=(2, n))
    for name, values in zip(BLENDED, score):
        shifted = values.reshape(lists, size)
        frame[f"{name}_log_softmax"] = (shifted - np.log(np.exp(shifted).sum(1, keepdims=True))).ravel()
        frame[f"{name}_rank"] = (-shifted).argsort(1).argsort(1).ravel() + 1
    noisy = (frame.x + frame[BLENDED[0] + "_rank"] / -3 + rng.normal(size=n)).to_numpy().reshape(lists, size)
    frame["label"] = (noisy.argmax(1)[:, None] == np.arange(size)).ravel().astype(float)
    return frame


def lists_of(frame: pd.DataFrame) -> Lists:
    table = Table.read(frame)
    label = torch.from_numpy(frame["label"].to_numpy(copy=True))
    return Lists(table, table["list"].integer(), cats=["city", "item"], conts=["x", "gap[m]"], label=label)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Every ranker, saved; and other rows."""
    folder = tmp_path_factory.mktemp("rankers")
    rankers = {case: make().fit(lists_of(rows(0)), seed=3) for case, make in CASES.items()}
    other = rows(1)
    other.loc[:3, "city"] = "unseen"
    for case, ranker in rankers.items():
        ranker.save(folder / "saved" / case)
    return folder / "saved", rankers, lists_of(other)


def rewritten(folder: Path, target: Path, **change) -> Path:
    """A copy of a saved estimator whose own file says other things."""
    shutil.copytree(folder, target, dirs_exist_ok=True)
    about = json.loads((folder / "estimator.json").read_text())
    (target / "estimator.json").write_text(json.dumps({**about, **change}))
    return target


def test_every_ranker_is_among_the_cases():
    apart = {"SessionRanker"}  # its lists have events: ``test_session_ranker.py`` saves and loads it
    assert {name for name in known_classes(Ranker) if ":" not in name} - apart <= set(MADE)


@pytest.mark.parametrize("case", CASES)
def test_a_loaded_ranker_has_the_settings_and_learns_the_same_again(saved, case, tmp_path):
    folder, rankers, data = saved
    kind = known_classes(Estimator)[case.split("-")[0]]
    loaded = kind.load(folder / case)
    assert type(loaded) is type(rankers[case])
    assert loaded.name == rankers[case].name
    torch.testing.assert_close(loaded.predict(data), rankers[case].predict(data), rtol=0, atol=1e-6)
    assert json.loads(json.dumps(loaded.settings())) == json.loads(json.dumps(rankers[case].settings()))
    loaded.save(tmp_path / "again")
    assert torch.equal(Estimator.load(tmp_path / "again").predict(data), loaded.predict(data))
    if loaded.learns:
        again = loaded.fresh().fit(lists_of(rows(0)), seed=3)
        torch.testing.assert_close(again.predict(data), rankers[case].predict(data), rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_damaged_files_are_named(saved, case, tmp_path):
    """Each file in turn cut short, emptied, filled with noise, and taken away."""
    source = saved[0] / case
    files = [p.relative_to(source) for p in source.rglob("*") if p.is_file()]
    for file in files:
        for damage in (lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\x00\xff{" * 40, None):
            copy = shutil.copytree(source, tmp_path / "copy", dirs_exist_ok=True)
            if damage is None:
                (copy / file).unlink()
            else:
                (copy / file).write_bytes(damage((source / file).read_bytes()))
            with pytest.raises((UnreadableFileError, MissingFileError)) as caught:
                Estimator.load(copy)
            assert str(copy) in caught.value.file
            assert caught.value.remedy


@pytest.mark.parametrize(
    "change",
    [
        {"class": 5},
        {"settings": None},
        {"settings": {"name": "x", "more": 1}},
        {"conts": ["x"]},
        {"flags": 3},
        {"cats": ["city", "item", "ghost"]},
    ],
)
def test_a_file_that_says_other_things_is_refused(saved, tmp_path, change):
    copy = rewritten(saved[0] / "NetRanker-0", tmp_path / "copy", **change)
    with pytest.raises(FastrecError):
        Estimator.load(copy).predict(saved[2])


@pytest.mark.parametrize(
    "name", ["os:system", "../../x:Y", "antigravity:Net", "/etc/passwd", "torch.nn:Linear", "Ranker"]
)
def test_a_class_that_a_file_names_is_neither_imported_nor_made(saved, tmp_path, name):
    before = set(sys.modules)
    copy = rewritten(saved[0] / "NetRanker-0", tmp_path / "copy", **{"class": name})
    with pytest.raises(FastrecError, match=r"estimator\.json"):
        Estimator.load(copy)
    rewritten(saved[0] / "NetRanker-0", copy)
    state = json.loads((copy / "net" / "state.json").read_text())
    for model in (name, "antigravity:Net", "os:path"):
        (copy / "net" / "state.json").write_text(json.dumps({**state, "model": model}))
        with pytest.raises(UnreadableFileError):
            Estimator.load(copy)
    assert "antigravity" not in set(sys.modules) - before


def test_nothing_is_loaded_where_nothing_is_or_written_over_other_things(saved, tmp_path):
    with pytest.raises(DataError, match="is no XGBRanker"):
        XGBRanker.load(saved[0] / "NetRanker-0")
    with pytest.raises(MissingFileError, match=r"estimator\.json"):
        Estimator.load(tmp_path / "none")
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(WriteError, match="other things"):
        ColumnRanker("rule", ["x"]).save(tmp_path)
    with pytest.raises(NotFittedError):
        NetRanker().save(tmp_path / "net")
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


# ----------------------------------------------------------------------------------------------------- of one's own


class Constant(Ranker):
    """A ranker of one's own: the mean of a column of the training rows."""

    learned = ("mean",)

    def __init__(self, column: str) -> None:
        self.name, self.column, self.mean = column, column, None

    def fit(self, train, valid=None, *, seed=0, device=None):
        self.mean = float(train.table[self.column].number().mean())
        return self

    def predict(self, data):
        return torch.full((len(data),), self.mean, dtype=torch.float64)


def test_a_ranker_of_ones_own(tmp_path):
    Constant("x").fit(lists_of(rows(0))).save(tmp_path / "x")
    mean = float(lists_of(rows(0)).table["x"].number().mean())
    assert Estimator.load(tmp_path / "x").mean == mean
    # known by another module's name, a class is taken where it is the one that is asked
    renamed = rewritten(tmp_path / "x", tmp_path / "renamed", **{"class": "elsewhere:Constant"})
    assert Constant.load(renamed).mean == mean
    with pytest.raises(DataError, match="not known here"):
        Estimator.load(renamed)


def test_what_no_file_holds_is_not_saved(tmp_path):
    class Silent(Constant):
        learned = ()

    odd = XGBRanker("t", rounds=1, base_score=np.float32(0.5))
    for model, match in (
        (Silent("x"), r"Silent does not say what it has learned.*in learned"),
        (odd, "t has a setting that cannot be saved"),
    ):
        with pytest.raises(DataError, match=match):
            model.fit(lists_of(rows(0))).save(tmp_path / "m")
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------------------------------------------------------- any model


def test_every_model_can_be_the_net_of_a_run():
    tried = {make().architecture.model.__name__ for make in MADE["NetRanker"]}
    models = {n for n in fastrec.models.__all__ if hasattr(getattr(fastrec.models, n), "forward")}
    parts = {"EmbeddingTables", "EventNet", "FieldNet", "PiecewiseLinear"}  # no models
    of_sessions = {"BST", "DIN"}  # of a SessionRanker
    assert models - parts - of_sessions - tried == {"MatrixFactorization"}  # it takes two columns alone: see the next
    data = replace(lists_of(rows(0)), conts=[])
    data = data.with_table(data.table.select(["city", "item"]))
    got = NetRanker(model="MatrixFactorization", options={"dim": 4}, **SMALL).fit(data, seed=1).predict(data)
    assert got.isfinite().all()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": "TabN"}, "TabN.*TabM"),
        ({"model": "nowhere:Net"}, "no class of models"),
        ({"model": dict}, "no class of models"),
        ({"model": "DLRM", "layers": [4]}, "DLRM takes no option 'layers'"),
        ({"options": {"widths": 3}}, "TabularNet takes no option 'widths'"),
        ({"options": {"cat_names": ["a"]}}, "takes no option 'cat_names'"),
        ({"options": {"act_cls": nn.GELU()}}, "'act_cls' is a GELU"),
        ({"options": {"act_cls": lambda: nn.ReLU()}}, "'act_cls' is a function"),
    ],
)
def test_what_no_net_can_be_made_of_is_refused_at_once(given, words):
    with pytest.raises(DataError, match=words):
        NetRanker(**given)
