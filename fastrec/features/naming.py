"""Names in a chain: no column made twice, and every error says which generator met it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fastrec.device_memory import FEWER_FEATURES, naming_out_of_memory
from fastrec.errors import DataError, MissingColumnError
from fastrec.features.base import Feature


@contextmanager
def naming(step: Feature) -> Iterator[None]:
    """An error about data says which generator met it."""
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
    """An error about one of the other tables says which."""
    try:
        yield
    except (DataError, MissingColumnError) as error:
        raise type(error)(
            f"table {name!r}: {error.problem}", file=error.file, column=error.column, row=error.row, remedy=error.remedy
        ) from error


def check_names(listed: Sequence[Feature], steps: Sequence[Feature]) -> None:
    """Refuse two generators that would write the same column, among those listed or among those that they read.

    Raises:
        DataError: naming the column.
    """
    for outputs in ([n for f in listed for n in f.outputs], [n for s in steps for n in s.outputs]):
        twice = sorted({n for n in outputs if outputs.count(n) > 1})
        if twice:
            raise DataError(
                f"two generators make the column {twice[0]!r}",
                column=twice[0],
                remedy="Give one of them another name=, or make them by two FeatureSets and rename",
            )
