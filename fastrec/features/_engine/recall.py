"""``CachedStep``: a cache's entry of one step on given rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fastrec._core.device import DeviceLike
from fastrec._version import __version__
from fastrec.features._engine.digests import NoDigestError, columns_digest, digest, remember
from fastrec.features.base import Context, Feature, State
from fastrec.table import Column, Table

if TYPE_CHECKING:
    from fastrec.features.cache import FeatureCache


class CachedStep:
    """A cache's entry of one step on given rows; without cache or digest everything is computed.

    Args:
        cache: where to look.
        key: what the step computes from, as a digest; None: not to be kept.
        device: where the columns are to be.
    """

    def __init__(self, cache: FeatureCache | None = None, key: str | None = None, device: DeviceLike = None) -> None:
        self.cache, self.key, self.device = cache, key, device

    @classmethod
    def of(
        cls,
        cache: FeatureCache | None,
        step: Feature,
        work: Table,
        context: Context,
        *,
        key: tuple[str, ...] = (),
        also: tuple[Any, ...] = (),
    ) -> CachedStep:
        """Look a step up in a cache.

        Args:
            cache: the cache, if there is one.
            step: the generator.
            work: the rows.
            context: the other tables.
            key: columns beside the step's inputs that count: those of the folds' key.
            also: whatever else the result depends on: numbers of folds, hidden rows, other tables.
        """
        if cache is None:
            return cls()
        names = dict.fromkeys([*step.inputs, *key])
        tables = [
            (n, columns_digest(context.tables[n], cols)) for n, cols in step.table_inputs.items() if n in context.tables
        ]
        try:
            found = digest(__version__, step, columns_digest(work, names), tables, list(key), list(also))
        except NoDigestError as error:
            cache.tell(step, error)
            return cls()
        return cls(cache, found, work.device)

    def state(self, make: Callable[[], State]) -> State:
        """Return the step's statistics, cached or computed."""
        if self.cache is None or self.key is None:
            return make()
        key = digest(self.key, "state")
        found = self.cache.get(key)
        state = found["state"] if found is not None else make()
        if found is None:
            self.cache.put(key, {"state": state})
        return state

    def columns(self, what: str, make: Callable[[], Mapping[str, Column]]) -> dict[str, Column]:
        """Return the step's columns, cached or computed.

        Args:
            what: which of the columns that the step makes of these rows.
            make: how they are made.
        """
        if self.cache is None or self.key is None:
            return dict(make())
        key = digest(self.key, what)
        found = self.cache.get(key)
        made = dict(make()) if found is None else found["columns"]
        # What is kept in memory is shared with nobody, who might change it in place.
        copies = {n: c.copy() for n, c in made.items()} if self.cache.folder is None else made
        if found is None:
            self.cache.put(key, {"columns": copies})
        else:
            made = copies
        made = {n: c.to(self.device) for n, c in made.items()}
        for name, column in made.items():
            # Later steps digest these columns by origin instead of contents.
            remember(column, digest(key, name))
        return made
