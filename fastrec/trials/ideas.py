"""``read_idea``: what a file, a generator or a function would add to a run's columns."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fastrec.errors import DataError, MissingFileError
from fastrec.features import FeatureSet
from fastrec.features.base import Feature


@dataclass(frozen=True)
class Idea:
    """What is tried.

    Args:
        features: generators, or
        function: a function from a frame of rows to their new columns. One of the two is None.
        file: where it was read from, and
        digest: of that file's text.
    """

    features: tuple[Feature, ...] = ()
    function: Callable[[Any], Any] | None = None
    file: str | None = None
    digest: str | None = None


def read_idea(given: Any) -> Idea:
    """The generators or the function that a file holds, or that are given as they are.

    A file's generators are its names that hold a generator, a list of them, or a ``FeatureSet``; one that is part of
    another is not taken a second time. A file without generators must have one function; the names of others begin with
    ``_``.

    Args:
        given: a file, a generator, a ``FeatureSet``, a list of them, or a function.

    Raises:
        MissingFileError: there is no such file.
        DataError: it cannot be run, or holds nothing to try.
    """
    if isinstance(given, str | Path):
        return _of_file(Path(given))
    features = _features(given)
    if features:
        return Idea(tuple(features))
    if callable(given) and not isinstance(given, type):
        return Idea(function=given)
    raise DataError(
        f"a {type(given).__name__} is nothing to try",
        remedy="Give a file, generators, a FeatureSet, or a function from a frame to its new columns",
    )


def _of_file(path: Path) -> Idea:
    if not path.is_file():
        raise MissingFileError("there is no such file", file=path, remedy="Give a Python file with generators")
    module = _run(path)
    named = [v for n, v in vars(module).items() if not n.startswith("_")]
    listed = [f for v in named for f in _features(v)]
    found = list({id(f): f for f in listed}.values())
    inner = {id(s) for f in found for s in FeatureSet([f]).steps if s is not f}
    features = [f for f in found if id(f) not in inner]
    mark = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    if features:
        return Idea(tuple(features), file=path.name, digest=mark)
    functions = [v for v in named if inspect.isfunction(v) and v.__module__ == module.__name__]
    if len(functions) != 1:
        said = ", ".join(f.__name__ for f in functions) or "none"
        raise DataError(
            f"it holds no generator, and {len(functions)} functions ({said}) instead of one", file=path,
            remedy="Write generators, or one function of a frame (the names of others begin with _)",
        )  # fmt: skip
    return Idea(function=functions[0], file=path.name, digest=mark)


def _features(value: Any) -> Sequence[Feature]:
    """The generators that a value is or holds."""
    if isinstance(value, Feature):
        return [value]
    if isinstance(value, FeatureSet):
        return value.features
    if isinstance(value, list | tuple) and value and all(isinstance(v, Feature | FeatureSet) for v in value):
        return [f for v in value for f in _features(v)]
    return []


def _run(path: Path) -> ModuleType:
    """The file's module, run anew; files beside it can be imported while it runs."""
    name = f"fastrec_try_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise DataError("it is no Python file", file=path, remedy="Give a file whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    before, folder = sys.modules.get(name), str(path.resolve().parent)
    sys.modules[name] = module
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise DataError(f"line {error.lineno} is no Python ({error.msg})", file=path, remedy="Mend it") from error
    except Exception as error:  # whatever a person's own code raises
        raise DataError(f"it cannot be run ({type(error).__name__}: {error})", file=path, remedy="Mend it") from error
    finally:
        sys.path.remove(folder)
        if before is None:
            sys.modules.pop(name)
        else:
            sys.modules[name] = before
    return module
