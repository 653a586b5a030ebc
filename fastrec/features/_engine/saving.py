"""A FeatureSet as a folder: ``features.json`` with the configuration, and ``states`` of the fitted generators."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fastrec._core.atomic import atomic_folder, check_replaceable, digests_below, recover
from fastrec.errors import DataError, FastrecError, MissingFileError, NotFittedError, UnreadableFileError
from fastrec.features.base import GENERATORS, Feature, generator_named
from fastrec.features.columns import Selector, as_list, names_of, selector_from
from fastrec.table import Column, Table, load_state, save_state
from fastrec.table.keys import is_numeric


def same(a: Feature, b: Feature) -> bool:
    """Tell whether two generators are identical or equal in class and parameters."""
    return a is b or (type(a) is type(b) and a.signature == b.signature)


def index_of(steps: Sequence[Feature], feature: Feature) -> int:
    """Find the position of an equal generator in the chain."""
    return next(i for i, s in enumerate(steps) if same(s, feature))


def replace_features(value: Any, change: Callable[[Feature | Selector], Any]) -> Any:
    """Replace generators and selectors in a parameter's value, and convert numpy's numbers to Python's."""
    if isinstance(value, Feature | Selector):
        return change(value)
    if isinstance(value, dict):
        return {k: replace_features(v, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([replace_features(v, change) for v in value])
    return value.item() if isinstance(value, np.generic) else value


def clone_steps(steps: Sequence[Feature], choose: Callable[[Selector], Selector] | None = None) -> list[Feature]:
    """Return unfitted copies, inner generators before outer ones; shared ones are cloned once."""
    # choose returns the replacement of a selector; None: an unresolved copy
    made: list[Feature] = []

    def fresh(thing: Feature | Selector) -> Any:
        if isinstance(thing, Selector):
            return choose(thing) if choose else selector_from({**thing.config(), "names": None})
        return made[index_of(steps, thing)]

    for step in steps:
        made.append(type(step)(**replace_features(step.get_params(), fresh)))
    return made


def selectors_of(steps: Sequence[Feature]) -> list[Selector]:
    """Return the distinct selectors among the parameters of generators."""
    found: list[Selector] = []
    for step in steps:
        replace_features(step.get_params(), partial(_note_selectors, found=found))
    return found


def _note_selectors(thing: Feature | Selector, found: list[Selector]) -> None:
    if isinstance(thing, Feature):  # an equal generator is the same step, but has different selector objects
        replace_features(thing.get_params(), partial(_note_selectors, found=found))
    elif not any(thing is s for s in found):
        found.append(thing)


_STATES = "states"


def described(steps: Sequence[Feature], config: dict[str, Any]) -> dict[str, Any]:
    """Return generators, inner before outer, as JSON values (``config``), and their fitted states (``states``)."""
    # config: further JSON values to save
    states: list[dict[str, Any] | None] = []
    for step in steps:
        states.append(None)
        with suppress(NotFittedError):
            states[-1] = step.get_state() or None
        name = type(step).__name__
        if GENERATORS.get(name) is not type(step):
            raise DataError(f"{name} cannot be saved: it is not among fastrec's generators", remedy="Save without it")
    entries = [
        {"class": type(step).__name__, "params": _plain_params(step, steps), "state": state is not None}
        for step, state in zip(steps, states)
    ]
    return {"config": {**config, "steps": entries}, "states": states}


def restored(state: Mapping[str, Any], trust: str | Sequence[str] = ()) -> list[Feature]:
    """Create the generators that ``described`` returned.

    ``trust``: modules that may be imported for user functions, besides those imported already.
    """
    steps: list[Feature] = []
    for i, entry in enumerate(state["config"]["steps"]):
        kind = generator_named(entry["class"]) if isinstance(entry["class"], str) else None
        if kind is None:
            raise ValueError(f"there is no generator {entry['class']!r}")
        steps.append(kind(**_revive(entry["params"], steps, [trust] if isinstance(trust, str) else list(trust))))
        if entry["state"]:
            steps[-1].set_state(state["states"][i])
    return steps


def write_features(folder: str | Path, state: dict[str, Any]) -> None:
    """Write the output of ``described``, replacing an earlier save."""
    check_replaceable(folder, "features.json")
    with atomic_folder(folder) as part:
        if any(learned is not None for learned in state["states"]):
            save_state(part / _STATES, {"steps": state["states"]})
        text = json.dumps({**state["config"], "digests": _digests(part, state["config"])}, indent=1, ensure_ascii=False)
        (part / "features.json").write_text(text, encoding="utf-8")


@contextmanager
def reading_features(folder: str | Path) -> Iterator[dict[str, Any]]:
    """Yield what ``write_features`` wrote; failures while restoring it become ``UnreadableFileError``."""
    # Digests detect accidental damage of any file. They do not protect against tampering.
    folder = Path(folder)
    recover(folder)
    path, place = folder / "features.json", folder / _STATES
    if not path.exists():
        problem = "there is no such file"
        raise MissingFileError(problem, file=path, remedy="Give the folder that the features were saved to")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        link = next((p for p in (place, place / "state.json", place / "state.safetensors") if p.is_symlink()), None)
        if link is not None:  # it could point outside the folder
            remedy = "Save the features again, and do not load what strangers made"
            raise UnreadableFileError("the state is a link", file=link, remedy=remedy)
        # Before any state is used, as damage could show only as wrong numbers.
        known = config.pop("digests", None)
        found = {} if known is None else _digests(folder, config)
        odd = None if known is None else next((n for n in ("features", *known) if found.get(n) != known.get(n)), None)
        if odd is not None:
            raise UnreadableFileError(
                "the contents are not those that were written",
                file=folder / ("features.json" if odd == "features" else odd),
                remedy="Copy the folder again from a whole one, or save the features again",
            )
        learned = any(entry["state"] for entry in config["steps"])
        yield {"config": config, "states": load_state(place)["steps"] if learned else []}
    except (MissingFileError, UnreadableFileError):
        raise
    except (ArithmeticError, AttributeError, FastrecError, LookupError, RuntimeError, TypeError, ValueError) as error:
        problem = error.problem if isinstance(error, FastrecError) else f"{type(error).__name__}: {error}"
        remedy = error.remedy if isinstance(error, FastrecError) else None
        problem = f"the saved features cannot be read ({problem})"
        raise UnreadableFileError(problem, file=path, remedy=remedy or "Save them again") from error


def _digests(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Return name → SHA-256 of the configuration and of the files beside it."""
    text = json.dumps(config, sort_keys=True).encode("utf-8", "surrogatepass")
    return {"features": hashlib.sha256(text).hexdigest(), **digests_below(folder, but="features.json")}


def _plain_params(step: Feature, steps: Sequence[Feature]) -> dict[str, Any]:
    def plain(thing: Feature | Selector) -> dict[str, Any]:
        if isinstance(thing, Selector):
            return {"$selector": thing.config()}
        return {"$step": index_of(steps, thing)}

    params = replace_features(step.get_params(), plain)
    if hasattr(step, "function"):
        params["function"] = {"$function": function_name(step)}
    try:
        json.dumps(params)
    except (TypeError, ValueError) as error:
        problem = f"{type(step).__name__} has a parameter that cannot be saved ({error})"
        raise DataError(problem, remedy="Use text, numbers and lists") from error
    return params


def _revive(value: Any, steps: list[Feature], trust: Sequence[str]) -> Any:
    if isinstance(value, dict) and "$selector" in value:
        return selector_from(value["$selector"])
    if isinstance(value, dict) and "$function" in value:
        return function_at(value["$function"], trust)
    if isinstance(value, dict):
        return steps[value["$step"]] if "$step" in value else {k: _revive(v, steps, trust) for k, v in value.items()}
    return [_revive(v, steps, trust) for v in value] if isinstance(value, list) else value


class _Function(Feature):
    """Base of generators from functions: names, call, and the function's location."""

    function: Callable[..., Any]
    cols: str | Feature | Sequence[str | Feature]
    columns: str | Sequence[str]

    @property
    def outputs(self) -> list[str]:
        return as_list(self.columns)

    @property
    def signature(self) -> str:
        return f"{self!r} at {id(self.function)}"

    def _values(self, table: Table) -> list[Any]:
        values = [_value(table[n]) for c in as_list(self.cols) for n in names_of(c)]
        try:
            taken = inspect.signature(self.function)
        except ValueError:  # a built-in function may have no signature
            return values
        try:
            taken.bind(*range(len(values)), **{n: None for n in taken.parameters if n == "groups"})
        except TypeError as error:
            problem = f"{_path(self.function)} cannot be called with {len(values)} columns ({error})"
            raise DataError(problem, remedy="Name one for each argument") from error
        return values

    def _results(self, made: Any, size: int | None) -> list[Any]:
        """Split the function's result by output; ``size``: required number of rows; None: any."""
        if isinstance(made, Mapping):
            made = [made[n] for n in self.outputs if n in made]
        results = list(made) if isinstance(made, list | tuple) and len(self.outputs) > 1 else [made]
        if len(results) != len(self.outputs):
            problem = f"{_path(self.function)} returned {len(results)} columns for {len(self.outputs)} outputs"
            raise DataError(problem, remedy=f"Return one value for each of {', '.join(self.outputs)}")
        if size is None:
            return results
        for name, result in zip(self.outputs, results, strict=True):
            found = len(result) if hasattr(result, "__len__") and getattr(result, "ndim", 1) else None
            if found != size:
                count = "one value" if found is None else f"{found} values"
                problem = f"{_path(self.function)} returned {count} for {size} rows"
                raise DataError(problem, column=name, remedy="Return one value per row, in the rows' order")
        return results

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        params = {n: v for n, v in self.get_params().items() if n != "function" and v not in (None, False)}
        return f"{type(self).__name__}({_path(self.function)}, {', '.join(f'{n}={v!r}' for n, v in params.items())})"


def function_name(feature: Feature) -> str:
    """Return ``module:name`` of a generator's function."""
    function = feature.function
    where = f"{function.__module__}:{function.__qualname__}"
    try:
        found = function_at(where)
    except (DataError, ValueError):
        found = None
    if found is not function or function.__module__ == "__main__":
        problem = f"{_path(function)} cannot be found again when it is loaded"
        raise DataError(problem, remedy="Define it with @feature at the top of a module that can be imported")
    return where


def function_at(where: str, trust: Collection[str] = ()) -> Callable[..., Any]:
    """Return the function named by a generator's ``module:name``."""
    # Modules outside trust must be imported already
    module, _, name = where.partition(":")
    if module not in sys.modules and module not in trust:
        raise DataError(
            f"the function {name!r} is in the module {module!r}, which is not imported: to import it runs its code",
            remedy=f"Import {module} first, or load with trust={module!r} if you trust it",
        )
    try:
        found = vars(importlib.import_module(module)).get(name)
    except Exception as error:
        raise ValueError(f"the module {module!r} cannot be imported ({error})") from error
    if not isinstance(found, _Function):
        raise ValueError(f"there is no generator {name!r} in {module!r}")
    return found.function


def _value(column: Column) -> Any:
    if column.kind in ("number", "datetime") or (column.kind == "category" and is_numeric(column.distinct.type)):
        return column.number()
    return column.to_arrow().to_pylist()


def _path(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function)).replace("<locals>.", "")
