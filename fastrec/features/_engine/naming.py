"""Names in a chain: no column is written twice, and every error names its generator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import NoneType

from fastrec._core.oom import FEWER_FEATURES, naming_out_of_memory
from fastrec.errors import DataError, MissingColumnError
from fastrec.features._inputs import as_list, no_column
from fastrec.features.base import Feature, declared_parameters
from fastrec.features.selectors import Selector

_NAMES: dict[str, tuple[tuple[type, ...], bool]] = {  # as declared: types, and whether there are several
    "str": ((str,), False),
    "str | None": ((str, NoneType), False),
    "str | Feature": ((str, Feature, Selector), False),
    "str | Feature | None": ((str, Feature, Selector, NoneType), False),
    "str | Sequence[str]": ((str, Selector), True),
    "str | Sequence[str] | None": ((str, Selector), True),
}


@contextmanager
def naming(step: Feature) -> Iterator[None]:
    """Name the generator in errors about data."""
    name = type(step).__name__
    try:
        with naming_out_of_memory(lambda: f"computing {name} ({', '.join(step.outputs)})", FEWER_FEATURES):
            yield
    except MissingColumnError:
        raise
    except DataError as error:
        if name in error.problem:
            raise
        raise DataError(
            f"{name}: {error.problem}", file=error.file, column=error.column, row=error.row, remedy=error.remedy
        ) from error


@contextmanager
def naming_table(name: str) -> Iterator[None]:
    """Name the other table in errors about it."""
    try:
        yield
    except (DataError, MissingColumnError) as error:
        raise type(error)(
            f"table {name!r}: {error.problem}", file=error.file, column=error.column, row=error.row, remedy=error.remedy
        ) from error


def check_names(listed: Sequence[Feature], steps: Sequence[Feature]) -> None:
    """Refuse two generators that write the same column, listed or read by those listed."""
    for group in (listed, steps):
        makers: dict[str, Feature] = {}
        for step in group:
            if not step.outputs:
                raise DataError(
                    f"{type(step).__name__} makes no column, as no column is named for it", remedy="Name one or more"
                )
            for name in step.outputs:
                if name in makers:
                    raise _made_twice(name, makers[name], step)
                makers[name] = step


def _made_twice(name: str, one: Feature, other: Feature) -> DataError:
    kind = type(other).__name__
    if one is other:
        return DataError(f"{kind} makes the column {name!r} twice", column=name, remedy="Name each column once")
    apart = "fit each in a FeatureSet of its own, and rename what the first has made before the second adds its own"
    remedy = f"Give one of them another name=, or {apart}"
    if not any("name" in step.get_params() for step in (one, other)):
        remedy = apart[0].upper() + apart[1:]
    return DataError(f"two generators make the column {name!r}: {one!r} and {other!r}", column=name, remedy=remedy)


def checked_sources(step: Feature) -> list[str | Feature | Selector]:
    """Return what a generator reads, and check that all of it is text, generators or selectors."""
    with naming(step):
        _check_parameters(step)
        sources = step.sources
        for source in (*sources, *(n for names in step.table_inputs.values() for n in names)):
            if not isinstance(source, str | Feature | Selector):
                raise no_column(source)
    return sources


def _check_parameters(step: Feature) -> None:
    for parameter, declared in declared_parameters(type(step)).items():
        if declared.annotation not in _NAMES:
            continue
        kinds, several = _NAMES[declared.annotation]
        value = getattr(step, parameter)
        if not all(isinstance(v, kinds) for v in (as_list(value) if several else [value])):
            raise DataError(f"{parameter}={value!r} is no name", remedy="Name columns and tables by text")
