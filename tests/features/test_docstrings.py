from __future__ import annotations

import doctest
import importlib
import inspect
import re

import pytest

import fastrec.features as registry

PUBLIC = [n for n in registry.__all__ if n != "FeatureSet"]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_docstring_has_an_example_that_runs(name):
    thing = getattr(registry, name)
    module = importlib.import_module(thing.__module__)
    found = doctest.DocTestFinder(recurse=False).find(thing, name, module=module)
    assert sum(len(t.examples) for t in found) > 0, "no example"
    report = []
    for test in found:
        failed, _ = doctest.DocTestRunner().run(test, out=report.append)
        assert not failed, "".join(report)


@pytest.mark.parametrize("name", registry.__all__)
def test_the_docstring_says_what_its_arguments_are(name):
    thing = getattr(registry, name)
    text = thing.__doc__
    assert text.splitlines()[0].endswith(".")
    if "Arguments as" not in text:
        assert "Args:" in text
    if isinstance(thing, type):
        for word in list(inspect.signature(thing).parameters):
            if "Arguments as" not in text and word != "more":
                names = r"(?:[*\w]+, )*"
                assert re.search(rf"^ +{names}\**{word}(?:, [*\w]+)*: ", text, flags=re.M), word
