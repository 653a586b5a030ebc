"""Saved features that were damaged, or made by a stranger: named errors, and no code that was not asked for."""

from __future__ import annotations

import json
import sys

import pandas as pd
import pytest

from fastrec._core.atomic import is_plain_name
from fastrec.competition.table_run import check_models
from fastrec.errors import DataError, UnreadableFileError
from fastrec.estimators import ColumnRanker
from fastrec.features import CountEncode, FeatureSet, RowFunction, TargetEncode
from fastrec.tabular import Features

MODULE = """
from pathlib import Path
from fastrec.features import feature
Path(__file__).with_name("ran").touch()

@feature(inputs="x", outputs="twice")
def twice(x):
    return 2 * x
"""


def saved(folder):
    df = pd.DataFrame({"item": ["a", "a", "b"], "y": [1, 0, 1]})
    FeatureSet([CountEncode("item"), TargetEncode("item", "y")]).fit(df).save(folder)
    return folder / "features.json"


def rewrite(path, change):
    """The configuration changed, and its digests taken out, as someone who means harm would."""
    config = json.loads(path.read_text())
    config.pop("digests", None)
    change(config)
    path.write_text(json.dumps(config))


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A folder with saved features of a function in a module that is not imported."""
    (tmp_path / "fastrec_test_own.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "fastrec_test_own", raising=False)
    import fastrec_test_own

    FeatureSet([fastrec_test_own.twice]).save(tmp_path / "f")
    monkeypatch.delitem(sys.modules, "fastrec_test_own")
    (tmp_path / "ran").unlink()
    yield tmp_path
    sys.modules.pop("fastrec_test_own", None)


def test_a_module_that_is_not_imported_is_not_run(own_module):
    with pytest.raises(UnreadableFileError, match=r"features\.json.*fastrec_test_own.*trust='fastrec_test_own'"):
        FeatureSet.load(own_module / "f")
    for trust in ("fastrec_test", "fastrec_test_own.deep", ["other"]):
        with pytest.raises(UnreadableFileError, match="not imported"):
            FeatureSet.load(own_module / "f", trust=trust)
    assert not (own_module / "ran").exists()


@pytest.mark.parametrize("trust", ["fastrec_test_own", ["other", "fastrec_test_own"]])
def test_a_module_that_is_trusted_is_imported(own_module, trust):
    made = FeatureSet.load(own_module / "f", trust=trust).transform(pd.DataFrame({"x": [1.0, 2.0]}))
    assert made["twice"].tolist() == [2, 4]
    assert RowFunction.load(own_module / "f").outputs == ["twice"]  # imported by now


@pytest.mark.parametrize("name", ["this:x", "antigravity:geohash", "os:system", ":x", "", "fastrec.features:feature"])
def test_nothing_but_generators_is_taken(tmp_path, name):
    path = saved(tmp_path / "f")
    params = {"function": {"$function": name}, "cols": "x", "columns": "y"}
    rewrite(path, lambda c: c["steps"].append({"class": "RowFunction", "params": params, "state": None}))
    before = set(sys.modules)
    with pytest.raises(UnreadableFileError, match=r"features\.json"):
        FeatureSet.load(tmp_path / "f")
    assert not {"this", "antigravity"} & (set(sys.modules) - before)


OUTSIDE = ["../other", "..", ".", "", "/etc", "000_CountEncode/../../other", "a\\b", "a\0b", 3, ["x"], {"x": 1}]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_state_outside_the_folder_is_refused(tmp_path, name):
    path = saved(tmp_path / "f")
    (tmp_path / "f" / "000_CountEncode").rename(tmp_path / "other")
    rewrite(path, lambda c: c["steps"][0].update(state=name))
    with pytest.raises(UnreadableFileError, match="no folder beside this file"):
        FeatureSet.load(tmp_path / "f")


@pytest.mark.parametrize("what", ["folder", "state.json", "state.safetensors"])
def test_a_link_is_refused(tmp_path, what):
    saved(tmp_path / "f")
    inside = tmp_path / "f" / "000_CountEncode" / ("" if what == "folder" else what)
    inside.rename(tmp_path / "elsewhere")
    inside.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnreadableFileError, match="is a link"):
        FeatureSet.load(tmp_path / "f")


def test_a_folder_that_is_reached_by_a_link_is_read(tmp_path):
    saved(tmp_path / "f")
    (tmp_path / "link").symlink_to(tmp_path / "f")
    assert FeatureSet.load(tmp_path / "link").outputs == ["count_item", "te_item__y"]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/b"])
def test_a_state_of_a_proc_is_written_nowhere_else(tmp_path, name):
    proc = Features(FeatureSet([CountEncode("item")]).fit(pd.DataFrame({"item": ["a"]})))
    state = proc.to_state()
    assert Features.from_state(state).feature_set.outputs == ["count_item"]
    state["states"] = {name: {"x": 1}}
    with pytest.raises(UnreadableFileError, match="no folder beside this file"):
        Features.from_state(state)


def test_every_changed_byte_is_noticed(tmp_path):
    saved(tmp_path / "f")
    files = [p for p in sorted((tmp_path / "f").rglob("*")) if p.is_file()]
    assert len(files) == 5
    for file in files:
        whole = file.read_bytes()
        for place in range(0, len(whole), max(len(whole) // 12, 1)):
            changed = bytearray(whole)
            changed[place] ^= 1
            file.write_bytes(bytes(changed))
            if file.suffix == ".json" and _equal(whole, bytes(changed)):
                continue
            with pytest.raises(UnreadableFileError):
                FeatureSet.load(tmp_path / "f")
        file.write_bytes(whole)
    assert FeatureSet.load(tmp_path / "f").outputs == ["count_item", "te_item__y"]


def _equal(a, b):
    try:
        return json.loads(a) == json.loads(b) and "digests" not in json.loads(a)
    except ValueError:
        return False


def test_files_of_two_saves_are_not_mixed(tmp_path):
    saved(tmp_path / "f")
    FeatureSet([CountEncode("item")]).fit(pd.DataFrame({"item": ["a", "c"]})).save(tmp_path / "g")
    for name in ("state.json", "state.safetensors"):
        (tmp_path / "g" / "000_CountEncode" / name).replace(tmp_path / "f" / "000_CountEncode" / name)
    with pytest.raises(UnreadableFileError, match=r"000_CountEncode.*not those that were written"):
        FeatureSet.load(tmp_path / "f")


def test_what_was_saved_before_there_were_digests_is_read(tmp_path):
    rewrite(saved(tmp_path / "f"), lambda c: None)
    assert FeatureSet.load(tmp_path / "f").outputs == ["count_item", "te_item__y"]


SHAPES = {
    "deep": "[" * 100_000,
    "a list of steps that are none": '{"steps": [1], "listed": []}',
    "steps that are text": '{"steps": "abc", "listed": []}',
    "steps that are null": '{"steps": null}',
    "digests that are none": '{"steps": [], "listed": [], "digests": 3}',
    "no option": '{"steps": [], "listed": []}',
    "a step that comes later": '{"steps": [{"class": "CountEncode", "params": {"cols": {"$step": 7}}, "state": null}]}',
    "parameters of a list": '{"steps": [{"class": "CountEncode", "params": [1], "state": null}]}',
    "a class that is a list": '{"steps": [{"class": ["CountEncode"], "params": {}, "state": null}]}',
    "another class": '{"steps": [{"class": "FeatureSet", "params": {"features": []}, "state": null}]}',
    "a function": '{"steps": [{"class": "search_crosses", "params": {}, "state": null}]}',
    "a selector": '{"steps": [{"class": "CountEncode", "params": {"cols": {"$selector": 3}}, "state": null}]}',
    "a function that is a number": (
        '{"steps": [{"class": "RowFunction", "params": {"function": {"$function": 3}}, "state": null}]}'
    ),
}


@pytest.mark.parametrize("what", SHAPES)
def test_a_configuration_of_another_shape_is_named(tmp_path, what):
    (tmp_path / "features.json").write_text(SHAPES[what])
    with pytest.raises(UnreadableFileError, match=r"features\.json"):
        FeatureSet.load(tmp_path)


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/b", "..", "", "a\\b", "C:x"])
def test_a_models_name_is_no_path(name):
    class Recipe:
        name = "tiny"

        def baselines(self):
            return []

        def models(self, *, bs=None):
            return [ColumnRanker("fine", ["x"]), self.model]

    recipe = Recipe()
    recipe.model = ColumnRanker("display_order.2 (new)", ["x"])
    check_models(recipe, None)
    recipe.model = ColumnRanker(name, ["x"])
    with pytest.raises(DataError, match="name"):
        check_models(recipe, None)
    assert not is_plain_name(name)
