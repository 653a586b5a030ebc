"""``read_idea``: the generators or the function to try on a run."""

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
    """Generators or a function to try, with the file's name and the digest of its text if it was read from one."""

    features: tuple[Feature, ...] = ()
    function: Callable[[Any], Any] | None = None
    file: str | None = None
    digest: str | None = None


def read_idea(given: Any) -> Idea:
    """Read the generators or the function to try, from a file or as they are given.

    A file's generators are its names that hold a generator, a list of them, or a ``FeatureSet``. A file without
    generators must have one function; the names of helpers begin with ``_``.

    Args:
        given: a file, a generator, a ``FeatureSet``, a list of them, or a function.

    Raises:
        MissingFileError: there is no such file.
        DataError: it cannot be run, or holds nothing to try.
    """
    if not isinstance(given, str | Path):
        features = _features(given)
        if features:
            return Idea(tuple(features))
        if callable(given) and not isinstance(given, type):
            return Idea(function=given)
        raise DataError(
            f"a {type(given).__name__} is nothing to try",
            remedy="Give a file, generators, a FeatureSet, or a function from a frame to its new columns",
        )
    path = Path(given)
    if not path.is_file():
        raise MissingFileError("there is no such file", file=path, remedy="Give a Python file with generators")
    module = _run(path)
    named = [v for n, v in vars(module).items() if not n.startswith("_")]
    distinct = list({id(f): f for v in named for f in _features(v)}.values())
    # a generator that is part of another is fitted with it
    inner = {id(s) for f in distinct for s in FeatureSet([f]).steps if s is not f}
    features = [f for f in distinct if id(f) not in inner]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    if features:
        return Idea(tuple(features), file=path.name, digest=digest)
    functions = [v for v in named if inspect.isfunction(v) and v.__module__ == module.__name__]
    if len(functions) != 1:
        names = ", ".join(f.__name__ for f in functions) or "none"
        raise DataError(
            f"it holds no generator, and {len(functions)} functions ({names}) instead of one", file=path,
            remedy="Write generators, or one function of a frame (the names of others begin with _)",
        )  # fmt: skip
    return Idea(function=functions[0], file=path.name, digest=digest)


def _features(value: Any) -> Sequence[Feature]:
    if isinstance(value, Feature):
        return [value]
    if isinstance(value, FeatureSet):
        return value.features
    if isinstance(value, list | tuple) and value and all(isinstance(v, Feature | FeatureSet) for v in value):
        return [f for v in value for f in _features(v)]
    return []


def _run(path: Path) -> ModuleType:
    """Import the file anew; files in its folder can be imported meanwhile."""
    name = f"fastrec_try_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise DataError("it is no Python file", file=path, remedy="Give a file whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    # classes of the file must find their module while it runs
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
