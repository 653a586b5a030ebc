"""What stands where a generator's columns are named and is none; and whether remedies can be had."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pandas as pd
import pytest

import fastrec.features as ff
import fastrec.features as registry
from fastrec.errors import DataError, FastrecError
from fastrec.features import category
from fastrec.features.base import Feature
from tests.features.examples import EXAMPLES
from tests.features.frames import columns, tables, to_pandas

PLACES = [pytest.param(name, i, id=f"{name}-{i}") for name, made in EXAMPLES.items() for i in range(len(made))]
THING = object()
NO_NAMES = [0, 1.5, b"x", True, THING, {}, [0], [None], [THING], ["city", 0], [["city"]]]  # nowhere a column's name
NOTHING = [None, [], ()]


def named_parameters(cls):
    """Parameters that hold names, of columns above all."""
    found = inspect.signature(cls.__init__).parameters.values()
    single = [(p.name, str(p.annotation)) for p in found if p.kind is not p.VAR_POSITIONAL]
    return [n for n, text in single if text == "str" or text.startswith(("str | Feature", "str | Seq"))]


@pytest.mark.parametrize(("name", "i"), PLACES)
def test_what_is_no_column_is_named_and_nothing_is_never_silent(name, i):
    cls, params = getattr(registry, name), EXAMPLES[name][i]().get_params()
    df, others, unlabeled = to_pandas(columns()), tables(), to_pandas(columns(seed=5))
    for parameter in named_parameters(cls):
        for odd in [*NO_NAMES, *NOTHING, ""]:
            try:
                feature = ff.FeatureSet([cls(**{**params, parameter: odd})], key="row")
                made = feature.fit_transform(df, tables=others, unlabeled=unlabeled)
            except FastrecError:
                continue
            assert not any(odd is thing for thing in NO_NAMES), f"{parameter}={odd!r} was taken"
            assert feature.outputs, f"{parameter}={odd!r} makes nothing"
            assert list(made.columns) == [*df.columns, *feature.outputs]


@pytest.mark.parametrize("odd", [*NO_NAMES, *NOTHING])
def test_a_cross_of_what_is_no_column_is_named(odd):
    for cols in ((odd, "city"), ("city", odd)):
        with pytest.raises(FastrecError, match="Cross"):
            ff.Cross(*cols).fit(to_pandas(columns()))


def test_the_error_names_generator_value_and_remedy():
    for make in (lambda: ff.CountEncode(0), lambda: ff.CountEncode(["a", 0])):
        with pytest.raises(DataError, match=r"CountEncode: 0 is no column's name\. Name columns by text"):
            ff.FeatureSet([make()])
    for nothing in (None, [], ()):
        with pytest.raises(DataError, match=r"CountEncode makes no column.*Name one or more"):
            ff.CountEncode(nothing).fit(pd.DataFrame({"a": [1]}))
    with pytest.raises(DataError, match=r"TargetEncode: weight=\[\] is no name"):
        ff.FeatureSet([ff.TargetEncode("a", "y", weight=[])])
    with pytest.raises(DataError, match=r"GroupRank: there is a key of no columns\. Name at least one"):
        ff.GroupRank("a", by=[]).fit_transform(pd.DataFrame({"a": [1]}))
    with pytest.raises(DataError, match=r"VectorColumns of no column"):
        ff.VectorColumns([], name="v")
    with pytest.raises(DataError, match=r"columns=\[\[\]\] is no name"):
        ff.FeatureSet([ff.JoinTable("items", "item", [[]])])
    with pytest.raises(DataError, match=r"CountEncode: 0 is no column's name"):  # and where it stands in another one
        ff.FeatureSet([ff.GroupRank(ff.CountEncode(0), by="list")])


def test_a_parameter_that_is_changed_later_is_looked_at_again():
    df, feature = pd.DataFrame({"a": [1, 1]}), ff.CountEncode("a")
    features = ff.FeatureSet([feature])
    features.fit(df)
    feature.set_params(cols=0)
    with pytest.raises(DataError, match="0 is no column's name"):
        features.fit(df)


def test_selectors_are_names_still():
    made = ff.FeatureSet([ff.CountEncode(category())]).fit_transform(pd.DataFrame({"a": ["x", "x"]}))
    assert made["count_a"].tolist() == [2, 2]


@pytest.mark.parametrize("kind", [ff.RowFunction, ff.GroupFunction])
def test_a_function_of_another_number_of_columns_is_named(kind):
    more = {"by": "a"} if kind is ff.GroupFunction else {}
    for cols in ([], ["a", "a2", "a3"]):
        feature = kind(lambda x, y: x + y, cols, "both", **more)
        with pytest.raises(DataError, match=rf"{kind.__name__}: .*cannot be called with {len(cols)} columns.*argument"):
            feature.fit_transform(pd.DataFrame({"a": [1], "a2": [2], "a3": [3]}))
    made = kind(lambda x, y=1.0: x + y, "a", "both", **more).fit_transform(pd.DataFrame({"a": [1]}))
    assert made["both"].tolist() == [2]
    assert kind(max, "a", "most", **more).function is max  # a built-in one, whose arguments are not known


def test_the_remedy_for_two_encodings_of_one_column_can_be_had():
    df = pd.DataFrame({"a": list("xxyy") * 3, "y": [0, 1] * 6})
    light, heavy = ff.TargetEncode("a", "y", smooth=1), ff.TargetEncode("a", "y", smooth=100)
    with pytest.raises(DataError, match="two generators make the column 'te_a__y'") as caught:
        ff.FeatureSet([light, heavy])
    assert "name=" not in caught.value.remedy
    assert "FeatureSet of its own, and rename" in caught.value.remedy
    assert all(text in caught.value.problem for text in ("smooth=1)", "smooth=100)"))
    # As the remedy says:
    first = ff.FeatureSet([light], key="a", folds=2).fit_transform(df).rename(columns={"te_a__y": "light"})
    both = ff.FeatureSet([heavy], key="a", folds=2).fit_transform(first)
    assert list(both.columns) == ["a", "y", "light", "te_a__y"]
    alone = [ff.FeatureSet([f], key="a", folds=2).fit_transform(df)["te_a__y"].tolist() for f in (light, heavy)]
    assert [both["light"].tolist(), both["te_a__y"].tolist()] == alone


def test_one_generator_that_makes_a_column_twice_is_not_called_two():
    for feature, name in ((ff.CountEncode(["a", "a"]), "count_a"), (ff.Lag("a", n=[1, 1]), "lag1_a")):
        with pytest.raises(DataError, match=f"{type(feature).__name__} makes the column '{name}' twice"):
            ff.FeatureSet([feature])


@pytest.mark.parametrize(("name", "i"), PLACES)
def test_another_name_helps_wherever_it_is_advised(name, i):
    one, other = EXAMPLES[name][i](), EXAMPLES[name][i]()
    with pytest.raises(DataError, match="two generators make the column") as caught:
        ff.FeatureSet([one, other])
    assert ("name=" in caught.value.remedy) == ("name" in one.get_params())
    if "name=" in caught.value.remedy:
        again = ff.FeatureSet([one, type(one)(**{**one.get_params(), "name": "another"})])
        assert len(set(again.outputs)) == 2 * len(one.outputs)


SHARED = {  # what takes the keywords of helpers
    "base": ["FeatureSet.fit_transform"],
    "cross": ["search_crosses"],
    "function": ["feature"],
}


def remedies(file):
    """The remedies that a module offers: line, the class that it is in, and text, what is filled in left out."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    within = {id(n): c.name for c in tree.body if isinstance(c, ast.ClassDef) for n in ast.walk(c)}
    for node in ast.walk(tree):
        found = []
        if isinstance(node, ast.Call):
            found = [k.value for k in node.keywords if k.arg == "remedy"]
            found += node.args[3:] if getattr(node.func, "id", "") == "refuse" else []
        elif isinstance(node, ast.Assign):
            names, value = node.targets[0], node.value
            pairs = zip(names.elts, getattr(value, "elts", [])) if isinstance(names, ast.Tuple) else [(names, value)]
            found = [v for n, v in pairs if getattr(n, "id", "") == "remedy"]
        for value in found:
            parts = [c.value for c in ast.walk(value) if isinstance(c, ast.Constant)]
            yield node.lineno, within.get(id(node)), " ".join(p for p in parts if isinstance(p, str))


def takers(module):
    """What takes the keywords of a module's remedies: its public generators, or those that it is a part of."""
    if module in SHARED:
        return [inspect.signature(_find(path)) for path in SHARED[module]]
    own = importlib.import_module(f"fastrec.features.{module}")
    public = [getattr(registry, n) for n in registry.__all__]
    found = [c for c in public if isinstance(c, type) and issubclass(c, Feature)]
    made_here = [c for c in found if c.__module__ == own.__name__]
    users = [c for c in found if any(vars(importlib.import_module(c.__module__)).get(n) is v for n, v in _public(own))]
    return [inspect.signature(c.__init__) for c in made_here or users]


def _find(path):
    first, *more = path.split(".")
    return getattr(getattr(registry, first), more[0]) if more else getattr(registry, first)


def _public(module):
    return [(n, v) for n, v in vars(module).items() if getattr(v, "__module__", None) == module.__name__]


def test_every_option_that_a_remedy_names_is_one():
    checked = 0
    for file in sorted(Path(registry.__file__).parent.glob("*.py")):
        for line, kind, text in remedies(file):
            for option in re.findall(r"\b(\w+)=", text):
                if file.stem == "naming" or (file.stem, option) == ("target_values", "classes"):
                    continue  # these look first: above, and below
                public = kind in registry.__all__ and issubclass(getattr(registry, kind), Feature)
                signatures = [inspect.signature(getattr(registry, kind).__init__)] if public else takers(file.stem)
                assert signatures, f"{file.name}, line {line}: who takes {option}=?"
                # A helper's remedy is for some of the generators of its file.
                named = [option in s.parameters for s in signatures]
                assert all(named) if public else any(named), f"{file.name}, line {line}: {option}="
                checked += 1
    assert checked > 20


def test_a_target_of_classes_is_told_to_name_them():
    df = pd.DataFrame({"a": list("xy"), "t": [1, 2], "y": ["no", "yes"]})
    with pytest.raises(DataError, match=r"TargetEncode\(…, classes=\['no', 'yes'\]\)"):
        ff.TargetEncode("a", "y").fit(df)
    ff.TargetEncode("a", "y", classes=["no", "yes"]).fit(df)
    with pytest.raises(DataError, match=r"CumTarget\(…, classes=\['no', 'yes'\]\)"):
        ff.CumTarget("a", "y", order="t").fit(df)
