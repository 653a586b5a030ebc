"""What a learned state must look like before it is used: types, lengths that belong together, codes in range.

A state is read from a file that may be damaged, or made by a stranger; a code beyond its table would be looked up in
what lies beside it. Each class of generators has its shape here; sizes are letters, bound where they are first met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fastrec.errors import DataError, FastrecError
from fastrec.features._inputs import as_list, names_of

if TYPE_CHECKING:
    from fastrec.features.base import Feature
from fastrec.table import Keys

_INT, _FLOAT, _BOOL = (torch.int64,), (torch.float64,), (torch.bool,)


@dataclass(frozen=True)
class _Array:
    """A tensor: its dtypes, the letters of its sizes, and what its values may be.

    Args:
        dtypes: those it may have.
        sizes: one letter, or number, per dimension.
        low: the least value; None: any, NaN among them.
        below: the letter of the size that all values are below.
        rising: whether each value is larger than the one before it.
    """

    dtypes: tuple[torch.dtype, ...]
    sizes: tuple[str | int, ...]
    low: int | None = None
    below: str | None = None
    rising: bool = False


@dataclass(frozen=True)
class _Keys:
    """``Keys`` of so many columns (None: any), each key once; their number is bound to a letter."""

    size: str
    width: int | None = None


@dataclass(frozen=True)
class _Parts:
    """Any number of arrays of one shape by name; what is counted is 0 or more."""

    sizes: tuple[str | int, ...]


@dataclass(frozen=True)
class _Maybe:
    """Something that may be absent."""

    shape: Any


def check_state(step: Feature, state: Any) -> None:
    """Refuse a state that is not one of a generator's.

    Raises:
        DataError: naming the generator, the part and what is wrong with it.
    """
    shape = next((_SHAPES[c.__name__] for c in type(step).__mro__ if c.__name__ in _SHAPES), None)
    if shape is None:
        return
    try:
        _check(state, shape(step), "state", {})
        _check_groups(state)
    except _WrongError as error:
        raise DataError(
            f"{type(step).__name__}: what was learned is damaged: {error}",
            remedy="Load it from where it is whole, or fit again",
        ) from error


@contextmanager
def checked(step: Feature, state: Any) -> Iterator[None]:
    """Check a state, then name the generator in what goes wrong where it is taken up.

    Raises:
        DataError: see ``check_state``.
    """
    check_state(step, state)
    try:
        yield
    except FastrecError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(
            f"{type(step).__name__}: what was learned is damaged ({type(error).__name__}: {error})",
            remedy="Load it from where it is whole, or fit again",
        ) from error


class _WrongError(Exception):
    """A part of a state is not what it must be."""


def _check(value: Any, shape: Any, place: str, sizes: dict[str, int]) -> None:
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            raise _WrongError(f"{place} is a {type(value).__name__} instead of a dict")
        _check_names(value, shape, place)
        # Keys first: they bind the sizes that the others have.
        for name in sorted((n for n in shape if n in value), key=lambda n: not isinstance(shape[n], _Keys)):
            inner = shape[name].shape if isinstance(shape[name], _Maybe) else shape[name]
            _check(value[name], inner, f"{place}.{name}", sizes)
    elif isinstance(shape, list):
        if not isinstance(value, list | tuple) or len(value) != len(shape):
            raise _WrongError(f"{place} is no list of {len(shape)}")
        for i, (held, inner) in enumerate(zip(value, shape, strict=True)):
            _check(held, inner, f"{place}.{i}", sizes)
    elif isinstance(shape, type):
        if type(value) is not shape:
            raise _WrongError(f"{place} is a {type(value).__name__} instead of a {shape.__name__}")
    elif isinstance(shape, _Keys):
        _check_keys(value, shape, place, sizes)
    elif isinstance(shape, _Parts):
        if not isinstance(value, dict):
            raise _WrongError(f"{place} is a {type(value).__name__} instead of a dict")
        for name, held in value.items():
            counted = name == "count" or name.startswith("bin")
            part = _Array(_INT if name == "whole" else _FLOAT, shape.sizes, low=0 if counted else None)
            _check(held, part, f"{place}.{name}", sizes)
    else:
        _check_array(value, shape, place, sizes)


def _check_names(value: dict[str, Any], shape: dict[str, Any], place: str) -> None:
    absent = [n for n, s in shape.items() if n not in value and not isinstance(s, _Maybe)]
    odd = [n for n in value if n not in shape]
    if absent or odd:
        raise _WrongError(f"{place} has no {absent[0]!r}" if absent else f"{place} has an unknown {odd[0]!r}")


def _check_groups(state: dict[str, Any]) -> None:
    """Refuse keys whose first parts are none of the groups that are known: they would count for another one."""
    groups = state.get("groups")
    for keys in state.get("pairs", state.get("keys")) or () if isinstance(groups, Keys) else ():
        if bool((Keys(keys.columns[: len(groups.columns)]).find_in(groups) < 0).any()):
            raise _WrongError("state.groups lacks a group of the keys")


def _check_keys(value: Any, shape: _Keys, place: str, sizes: dict[str, int]) -> None:
    if not isinstance(value, Keys):
        raise _WrongError(f"{place} is a {type(value).__name__} instead of keys")
    if not value.columns or shape.width not in (None, len(value.columns)):
        raise _WrongError(f"{place} has {len(value.columns)} columns instead of {shape.width or 'one or more'}")
    if len({len(c) for c in value.columns}) > 1:
        raise _WrongError(f"{place} has columns of unequal length")
    if any(c.null_count for c in value.columns):
        raise _WrongError(f"{place} holds missing keys")
    if len(value.distinct()[1]) != len(value):
        raise _WrongError(f"{place} holds a key twice")
    _bind(shape.size, len(value), place, sizes)


def _check_array(value: Any, shape: _Array, place: str, sizes: dict[str, int]) -> None:
    if not isinstance(value, torch.Tensor):
        raise _WrongError(f"{place} is a {type(value).__name__} instead of a tensor")
    if value.dtype not in shape.dtypes:
        raise _WrongError(f"{place} holds {value.dtype} instead of {shape.dtypes[0]}")
    if value.ndim != len(shape.sizes):
        raise _WrongError(f"{place} has {value.ndim} dimensions instead of {len(shape.sizes)}")
    for wanted, found in zip(shape.sizes, value.shape, strict=True):
        _bind(wanted, found, place, sizes)
    if not value.numel():
        return
    if shape.low is not None and not bool((value >= shape.low).all()):
        raise _WrongError(f"{place} holds a value that is not {shape.low} or more")
    end = None if shape.below is None else _size(shape.below, sizes)
    if end is not None and not bool((value < end).all()):
        raise _WrongError(f"{place} holds a code beyond {end - 1}")
    if shape.rising and not bool((value[1:] > value[:-1]).all()):
        raise _WrongError(f"{place} does not rise")


def _bind(size: str | int, found: int, place: str, sizes: dict[str, int]) -> None:
    wanted = size if isinstance(size, int) else _size(size, sizes)
    if wanted is None:
        wanted = sizes[str(size)] = max(found, str(size)[0] == "C")  # one cell at least
    if wanted != found:
        raise _WrongError(f"{place} has {found} entries instead of {wanted}")


def _size(size: str, sizes: dict[str, int]) -> int | None:
    """What a letter is bound to, ``R+1`` and ``R*L`` likewise; None: to nothing yet."""
    if size.endswith("+1"):
        return sizes[size[:-2]] + 1
    return sizes[size[0]] * sizes[size[2]] if "*" in size else sizes.get(size)


def parts_by_key(step: Feature, state: dict[str, Any]) -> dict[str, list[Any]] | None:
    """Where a state's parts are, so that it can be taken apart by key; None: they belong together.

    Returns:
        ``keys`` and ``last``: places (names and numbers, from the outside in) of keys, and of tensors whose last
        dimension they are, each with the letter of their size; ``whole``: places of tensors about all keys together.
    """
    shape = next((_SHAPES[c.__name__] for c in type(step).__mro__ if c.__name__ in _SHAPES), None)
    found: dict[str, list[Any]] = {"keys": [], "last": [], "whole": []}
    if shape is None or not _note_parts(state, shape(step), (), found) or not found["keys"]:
        return None
    sizes = {size for _, size in found["keys"]}
    return found if all(size in sizes for _, size in found["last"]) else None


def _note_parts(value: Any, shape: Any, place: tuple[Any, ...], found: dict[str, list[Any]]) -> bool:
    """Note the parts of a state; False: one of them holds codes of keys, or is of another kind."""
    if isinstance(shape, _Maybe):
        shape = shape.shape
    if isinstance(shape, dict | list):
        inner = shape.items() if isinstance(shape, dict) else enumerate(shape)
        there = [(n, s) for n, s in inner if not (isinstance(shape, dict) and n not in value)]
        return all(_note_parts(value[n], s, (*place, n), found) for n, s in there)
    if isinstance(shape, _Keys):
        found["keys"].append((place, shape.size))
    elif isinstance(shape, _Array | _Parts):
        own_place = isinstance(shape, _Array) and shape.low == -1  # a place among declared values, no code of a key
        if isinstance(shape, _Array) and (shape.rising or (shape.below is not None and not own_place)):
            return False
        if shape.sizes[-1] == 1:
            found["whole"].append(place)
        else:
            found["last"].append((place, shape.sizes[-1]))
    return isinstance(shape, _Keys | _Array | _Parts) or shape is bool


# Shapes --------------------------------------------------------------------------------------------------------------


def _count(*sizes: str | int) -> _Array:
    return _Array(_INT, sizes, low=0)


def _key_counts(step: Any) -> Any:
    cols = as_list(step.cols)
    by = len(as_list(getattr(step, "by", None)))
    state: dict[str, Any] = {"keys": [_Keys(f"K{i}", by + len(names_of(c))) for i, c in enumerate(cols)]}
    state["count"] = [_count("C", f"K{i}") for i in range(len(cols))]
    if getattr(step, "normalise", False):
        state |= {"rows": _count("C", "G" if by else 1)}
        state |= {"groups": _Keys("G", by)} if by else {}
    return state


def _targets(step: Any) -> Any:
    cols = as_list(step.cols)
    number = len(as_list(step.target)) * len(getattr(step, "classes", None) or [0])
    columns = [[_Parts(("C", f"K{i}"))] * number for i in range(len(cols))]
    keys = [_Keys(f"K{i}", len(names_of(c))) for i, c in enumerate(cols)]
    return {"total": [_Parts(("C", 1))] * number, "keys": keys, "columns": columns}


def _tally(size: str = "") -> Any:
    length, cell = f"T{size}", _Array(_INT, (f"T{size}",), low=0)
    code = _Array(_INT, (length,), low=0, below="K")
    return {"cell": cell, "key": code, "value": _Array(_FLOAT, (length,)), "count": _count(length)}


def _group_stats(step: Any) -> Any:
    if step.over == "group":
        return {}
    columns = {}
    for i, name in enumerate(step.columns):
        code = _Array(_INT, (f"D{i}",), low=0, below="K")
        value = _Array(_INT, (f"D{i}",), low=0, below=f"V{i}")
        cell = _Array(_INT, (f"D{i}",), low=0)
        end = {"code": _Array(_INT, ("C", "K"), low=0, below=f"E{i}+1"), "order": list}
        distinct = {"values": _Keys(f"V{i}", 1), "cell": cell, "key": code, "value": value}
        ends = {"values": _Keys(f"E{i}", 1), "first": _Maybe(end), "last": _Maybe(end)}
        parts = {"moments": _Parts(("C", "K")), "tally": _tally(str(i)), "distinct": distinct, "ends": ends}
        columns[name] = {n: _Maybe(p) for n, p in parts.items()}
    return {"keys": _Keys("K", len(as_list(step.by))), "columns": columns}


def _nunique(step: Any) -> Any:
    cols, by = as_list(step.cols), len(as_list(step.by))
    pairs = [_Keys(f"P{i}", by + len(names_of(c))) for i, c in enumerate(cols)]
    return {"groups": _Keys("G", by), "pairs": pairs, "seen": [_Array(_BOOL, ("C", f"P{i}")) for i in range(len(cols))]}


def _values(i: int | str = "") -> Any:
    return {"value": _Array(_FLOAT, (f"V{i}",), rising=True), "count": _count("C", f"V{i}")}


def _moments(_: int) -> Any:
    return _Parts(("C",))


def _fill(step: Any) -> Any:
    kind = {"mean": _moments, "constant": lambda _: {}}.get(step.strategy, _values)
    return {"columns": [kind(i) for i, _ in enumerate(_names(step))]}


def _names(step: Any) -> list[str]:
    """The columns that a generator of columns reads."""
    return [n for c in as_list(step.cols) for n in names_of(c)]


def _svd(step: Any) -> Any:
    pairs = _Array(_INT, ("P",), low=0, below="R*L", rising=True)
    total = _Array(_INT + _FLOAT, ("C", "P"), low=0)
    vectors = _Array(_FLOAT, ("R+1", step.dims))
    return {"rows": _Keys("R", 1), "cols": _Keys("L", 1), "pairs": pairs, "sum": total, "vectors": vectors}


def _text_svd(step: Any) -> Any:
    pairs = _Array(_INT, ("P",), low=0, below="D*K", rising=True)
    bags = {"words": _Keys("K", 1), "count": _count("C", "D"), "pairs": pairs, "times": _Array(_INT, ("P",), low=1)}
    place = _Array(_INT, ("K+1",), low=0, below="V")
    return {**bags, "idf": _Array(_FLOAT, ("V",)), "components": _Array(_FLOAT, ("V", step.dims)), "place": place}


def _co_visit(step: Any) -> Any:
    codes = _Array(_INT, ("P",), low=0, below="K")
    own, weight = (_Array(_FLOAT, ("CF", n), low=0) for n in ("K", "P"))
    groups = _Array(_INT, ("G",), rising=True)
    return {"items": _Keys("K", 1), "own": own, "groups": groups, "low": codes, "high": codes, "weight": weight}


def _place(i: int) -> _Array:
    return _Array(_INT, (f"K{i}",), low=-1, below=f"K{i}")


def _categorify(step: Any) -> Any:
    vocabs = [
        {"keys": _Keys(f"K{i}", 1), "count": _count("C", f"K{i}"), "place": _place(i)}
        for i, _ in enumerate(step._vocab_names())
    ]
    return {"vocabs": vocabs, "lists": [bool] * len(_names(step))}


_SHAPES: dict[str, Callable[[Any], Any]] = {
    "BayesianRate": lambda _: {
        **dict.fromkeys(("clicks", "views"), _Array(_FLOAT, ("C",))),
        "rows": _Maybe(_Array(_FLOAT, ("C",), low=0)),
        **dict.fromkeys(("squares", "trials", "mean", "m2"), _Maybe(_Array(_FLOAT, ("C",)))),
    },
    "Bucketize": lambda step: _values() if step.quantiles is not None else {},
    "Categorify": _categorify,
    "Clip": lambda step: {} if step._given else {"columns": [_values(i) for i, _ in enumerate(_names(step))]},
    "CoVisit": _co_visit,
    "Cross": lambda step: {"keys": _Keys("K", len(step.inputs)), "count": _count("C", "K")},
    "CumTarget": _targets,
    "FillMissing": _fill,
    "GroupStats": _group_stats,
    "KeyCounts": _key_counts,
    "MultiHot": lambda _: {"keys": _Keys("K", 1), "count": _count("C", "K")},
    "NUnique": _nunique,
    "Normalize": lambda step: {"columns": [_moments(i) for i, _ in enumerate(_names(step))]},
    "Pca": lambda _: {
        "count": _Array(_FLOAT, ("C",), low=0),
        "mean": _Array(_FLOAT, ("C", "D")),
        "scatter": _Array(_FLOAT, ("C", "D", "D")),
    },
    "SvdEncode": _svd,
    "TargetEncode": _targets,
    "TextSvd": _text_svd,
    "TfIdfSimilarity": lambda _: {"keys": _Keys("K", 1), "count": _count("C", "K"), "lists": _count("C", 1)},
    "VectorColumns": lambda _: {"dims": _count(1)},
}
