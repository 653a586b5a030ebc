"""Steps of a FeatureSet on training rows, with each target hidden from its own row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, wraps
from threading import Lock
from types import NoneType
from typing import TYPE_CHECKING, Any

import torch

from fastrec._core import limits
from fastrec._core.device import DeviceLike, on_host
from fastrec._core.memory import FEWER_FEATURES, keeping_memory, naming_out_of_memory
from fastrec._core.threads import shared_out
from fastrec._version import __version__
from fastrec.errors import DataError, MissingColumnError
from fastrec.features._engine.digests import NoDigestError, columns_digest, digest, remember
from fastrec.features._engine.folds import INNER_SEED, given_fold_keys, row_folds
from fastrec.features._engine.order import ordered_groups, run_begins, take_or_missing
from fastrec.features.base import Cells, Context, Feature, Fitted, Grouped, State, declared_parameters
from fastrec.features.columns import Selector, as_list, no_column, order_keys
from fastrec.table import Column, Table, concat

if TYPE_CHECKING:
    from fastrec.features.cache import FeatureCache


@dataclass(frozen=True)
class CachedStep:
    """Cache entry of one step on given rows; without cache or digest (``key``) everything is computed."""

    cache: FeatureCache | None = None
    key: str | None = None
    device: DeviceLike = None

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
        # key: further columns that matter: those of the folds' key; also: everything else that the result depends on:
        # numbers of folds, hidden rows, other tables
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
        if self.cache is None:
            return make()
        key = digest(self.key, "state")
        found = self.cache.get(key)
        if found is None:
            self.cache.put(key, found := {"state": make()})
        return found["state"]

    def columns(self, what: str, make: Callable[[], Mapping[str, Column]]) -> dict[str, Column]:
        """Return the step's columns, cached or computed; ``what`` names the variant for these rows."""
        if self.cache is None:
            return dict(make())
        key = digest(self.key, what)
        found = self.cache.get(key)
        made = make() if found is None else found["columns"]
        # Columns in memory are not shared, as a user might change them in place.
        copies = {n: c.copy() for n, c in made.items()} if self.cache.folder is None else made
        if found is None:
            self.cache.put(key, {"columns": copies})
        made = {n: c.to(self.device) for n, c in (made if found is None else copies).items()}
        for name, column in made.items():
            # Later steps digest these columns by origin instead of contents.
            remember(column, digest(key, name))
        return made


def reads_target(step: Feature, targets: Collection[str]) -> list[str]:
    """List the targets that a step reads as plain columns."""
    fitted = set(step.fit_only) if step.uses_target else set()
    return [n for n in step.inputs if n in targets and n not in fitted]


def tainted_steps(steps: Sequence[Feature], targets: Collection[str]) -> list[Feature]:
    """Return steps that use a target or read such a step; all others are the same in every fold."""
    names: set[str] = set()
    found = []
    for step in steps:
        if step.uses_target or reads_target(step, targets) or names & set(step.inputs):
            names |= set(step.outputs)
            found.append(step)
    return found


def steps_behind(names: Iterable[str], steps: Sequence[Feature], *, fitting: bool = True) -> list[Feature]:
    """Return the steps that produce these columns, in order; without ``fitting`` those needed by ``transform``."""
    wanted, found = set(names), []
    for step in reversed(steps):
        if wanted & set(step.outputs):
            wanted |= set(step.inputs) - (set() if fitting else set(step.fit_only))
            found.append(step)
    return found[::-1]


def mixing_steps(
    steps: Sequence[Feature], key: Sequence[str], targets: Collection[str] = (), *, together: bool
) -> list[Feature]:
    """Return steps that could return a row's target through another row's encoding, and those they feed."""
    # Another row's out-of-fold encoding may contain this row's target. Rows may therefore only be compared within a
    # fold, as the rows of a group are if its columns include the folds' key.
    # together: whether the rows of one key share a fold (see key_keeps_together)
    tainted = tainted_steps(steps, targets)
    encoded = {n for step in tainted for n in step.outputs}
    causal: set[str] = set()
    for step in tainted:
        looks_back = bool(reads_target(step, targets)) or (step.uses_target and getattr(step, "causal", False))
        if looks_back or causal & set(step.inputs):
            causal |= set(step.outputs)
    mixed: set[str] = set()
    found = []
    for step in tainted:
        reads = set(step.inputs)
        alone = step.kind == "row" or not reads & encoded
        # Rows of one key share the fold whose targets an encoding leaves out; causal values leave out no fold.
        in_fold = together and step.within is not None and set(key) <= set(step.within) and not reads & causal
        if reads & mixed or not (alone or in_fold):
            mixed |= set(step.outputs)
            found.append(step)
    return found


def key_keeps_together(steps: Sequence[Feature], key: Sequence[str], work: Table, hidden: torch.Tensor | None) -> bool:
    """Check that rows of one key share their inner fold, and their outer one (bool ``[n]``) if given."""
    if not key or any(getattr(step, "fold_column", None) is not None for step in steps):
        return False
    if hidden is None:
        return True
    coded = work.coded(list(key))
    seen = torch.zeros(2, coded.size, dtype=torch.bool, device=work.device)
    seen[0, coded.codes[hidden]] = True
    seen[1, coded.codes[~hidden]] = True
    return not bool((seen[0] & seen[1]).any())


# Names in a chain: no column is written twice, and every error names its generator.

_NAMES: dict[str, tuple[tuple[type, ...], bool]] = {  # declared types, and whether there are several
    "str": ((str,), False),
    "str | None": ((str, NoneType), False),
    "Col": ((str, Feature, Selector), False),
    "Col | None": ((str, Feature, Selector, NoneType), False),
    "Names": ((str, Selector), True),
    "Names | None": ((str, Selector), True),
}


@contextmanager
def naming(step: Feature) -> Iterator[None]:
    """Name the generator in data errors."""
    name = type(step).__name__
    try:
        with naming_out_of_memory(lambda: f"computing {name} ({', '.join(step.outputs)})", FEWER_FEATURES):
            yield
    except DataError as error:
        if name in error.problem:
            raise
        problem = f"{name}: {error.problem}"
        raise DataError(problem, file=error.file, column=error.column, row=error.row, remedy=error.remedy) from error


@contextmanager
def naming_table(name: str) -> Iterator[None]:
    """Name the other table in errors about it."""
    try:
        yield
    except (DataError, MissingColumnError) as error:
        problem = f"table {name!r}: {error.problem}"
        raise type(error)(problem, file=error.file, column=error.column, row=error.row, remedy=error.remedy) from error


def check_names(listed: Sequence[Feature], steps: Sequence[Feature]) -> None:
    """Refuse two generators that write the same column, directly or through their inputs."""
    for group in (listed, steps):
        makers: dict[str, Feature] = {}
        for step in group:
            if not step.outputs:
                problem = f"{type(step).__name__} makes no column, as no column is named for it"
                raise DataError(problem, remedy="Name one or more")
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
    """Return a generator's inputs after checking that each is text, a generator or a selector."""
    with naming(step):
        for parameter, declared in declared_parameters(type(step)).items():
            kinds, several = _NAMES.get(declared.annotation, (object, False))
            value = getattr(step, parameter)
            if not all(isinstance(v, kinds) for v in (as_list(value) if several else [value])):
                raise DataError(f"{parameter}={value!r} is no name", remedy="Name columns and tables by text")
        sources = step.sources
        for source in (*sources, *(n for names in step.table_inputs.values() for n in names)):
            if not isinstance(source, str | Feature | Selector):
                raise no_column(source)
    return sources


_listeners: list[Callable[[], None]] = []  # per process, as steps run in threads


def counted(do: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that computes a step to notify the listeners afterwards."""
    if not _listeners:
        return do

    @wraps(do)
    def done(*arguments: Any) -> Any:
        made = do(*arguments)
        for listener in list(_listeners):
            listener()
        return made

    return done


@contextmanager
def step_by_step(advance: Callable[[int], None], units: int, steps: int) -> Iterator[None]:
    """Advance the progress (by the units just done) with each of ``steps``; further steps advance by nothing."""
    lock, done, told = Lock(), 0, 0

    def listen() -> None:
        nonlocal done, told
        with lock:
            done += 1
            now = units * min(done, steps) // max(steps, 1)
            advance(now - told)
            told = now

    _listeners.append(listen)
    try:
        yield
    finally:
        _listeners.remove(listen)
    advance(units - told)


Made = dict[str, Column]
Do = Callable[[Feature, Table, Table | None], tuple[Made, Made]]


def walk(
    steps: Sequence[Feature], work: Table, extra: Table | None, do: Do, *, release: bool = False
) -> tuple[Table, Table | None]:
    """Add every step's columns, computed by ``do``, to the rows and to the other (unlabeled) rows, if any.

    Torch's number of threads bounds the number of steps that run at once; values do not depend on it. With over a
    million rows, steps run one by one with all threads. ``release``: drop a column's codes and groups after its last
    reader.
    """
    do = counted(do)
    if on_host(work) and len(work) >= limits.PARALLEL_STEPS_FROM:
        with keeping_memory():
            workers = min(torch.get_num_threads(), len(steps), limits.PARALLEL_STEPS)
            # A user's function may not be thread-safe; on many rows two steps at once hold too much memory.
            if len(work) > limits.PARALLEL_STEPS_TO or any(hasattr(s, "function") for s in steps):
                workers = 1
            return _walk(steps, work, extra, _releasing(steps, work, do) if release else do, workers)
    return _walk(steps, work, extra, do, 1)


def _releasing(steps: Sequence[Feature], work: Table, do: Do) -> Do:
    """Wrap ``do`` to drop the codes and groups of columns without further readers."""
    kept = {n for n in work.names if "coded" in work[n]._cache}
    readers = Counter(n for step in steps for n in set(step.inputs))
    lock = Lock()

    def done(step: Feature, here: Table, there: Table | None) -> tuple[Made, Made]:
        made = do(step, here, there)
        with lock:
            readers.subtract(set(step.inputs))
            last = [n for n in set(step.inputs) if not readers[n] and n in here and n not in kept]
        for name in last:
            for table in (here, work) if name in work else (here,):
                table.forget(name)
        return made

    return done


def _walk(
    steps: Sequence[Feature], work: Table, extra: Table | None, do: Do, workers: int
) -> tuple[Table, Table | None]:
    if workers < 2:
        for step in steps:
            work, extra = _added(work, extra, do(step, work, extra))
        return work, extra

    def task(step: Feature, needed: list[Future]) -> tuple[Made, Made]:
        here, there = work, extra
        for future in needed:
            here, there = _added(here, there, future.result())
        return do(step, here, there)

    done: list[Future] = []
    with shared_out(workers) as pool:
        for step in steps:
            reads = set(step.inputs)
            # A task's dependencies were submitted before it, so they are done or running.
            needed = [future for other, future in zip(steps, done) if reads & set(other.outputs)]
            done.append(pool.submit(task, step, needed))
    for future in done:  # the first error in the steps' order
        work, extra = _added(work, extra, future.result())
    return work, extra


def _added(work: Table, extra: Table | None, made: tuple[Made, Made]) -> tuple[Table, Table | None]:
    work = work.with_columns(made[0]) if made[0] else work
    return work, extra.with_columns(made[1]) if extra is not None and made[1] else extra


@dataclass(eq=False)
class Chain:
    """Steps in the order of computation."""

    steps: Sequence[Feature]  # inner generators before outer ones
    key: list[str]  # the columns that determine rows' folds; empty: the row number
    folds: int  # number of inner folds unless a generator sets it
    targets: Collection[str]  # target columns of any step
    cache: FeatureCache | None = None  # of states and columns

    @property
    def tainted(self) -> list[Feature]:
        """Steps that depend on a target; all others are the same in every fold."""
        return tainted_steps(self.steps, self.targets)

    def run(
        self,
        work: Table,
        context: Context,
        extra: Table | None = None,
        *,
        wanted: Collection[str] | None = None,
        again: bool = False,
    ) -> Table:
        """Fit every step and return training rows with the columns of the wanted ones (None: all)."""
        # again: tainted steps are recomputed afterwards, so the codes of columns are not released

        def do(step: Feature, here: Table, there: Table | None) -> tuple[Made, Made]:
            used = wanted is None or bool(set(wanted) & set(step.outputs))
            return self._fit_step(step, here, context, there, used=used)

        # Later recomputation fold by fold needs the codes again.
        once = not again and not mixing_steps(self.steps, self.key, self.targets, together=False)
        return walk(self.steps, work, extra, do, release=once)[0]

    def run_clean(self, work: Table, context: Context, extra: Table | None) -> Table:
        """Add the columns of the steps that do not depend on a target, without fitting."""
        tainted = self.tainted
        clean = [step for step in self.steps if step not in tainted]
        return walk(clean, work, extra, lambda s, a, b: self._fit_step(s, a, context, b, learn=False))[0]

    def apply(self, work: Table, context: Context) -> Table:
        def do(step: Feature, here: Table, _: Table | None) -> tuple[Made, Made]:
            with naming(step):
                learned = step.state_ if isinstance(step, Fitted) else None
                kept = CachedStep.of(self.cache, step, here, context, also=("learned", learned))
                return kept.columns("rows", lambda: compute(step, here, context)), {}

        return walk(self.steps, work, None, do)[0]

    def _fit_step(
        self,
        step: Feature,
        work: Table,
        context: Context,
        extra: Table | None,
        *,
        learn: bool = True,
        used: bool = True,
    ) -> tuple[Made, Made]:
        read_by_all = extra is not None and self._feeds_all(step)
        with naming(step):
            kept = self._recall(step, work, context, extra if read_by_all or step.scope == "all" else None)
            if not isinstance(step, Fitted):
                made = kept.columns("rows", lambda: compute(step, work, context)) if used else {}
                more = kept.columns("extra", lambda: compute(step, extra, context)) if read_by_all else {}
            else:
                with step.using(context):
                    made, state = self._fit(step, work, extra, kept, learn=learn, used=used)
                    more = kept.columns("extra", lambda: step.compute_from(extra, state)) if read_by_all else {}
        return made, more

    def _fit(
        self, step: Fitted, work: Table, extra: Table | None, kept: CachedStep, *, learn: bool, used: bool
    ) -> tuple[dict[str, Column], State]:
        @cache  # folds are hashed when first needed: never if all is cached
        def cells() -> Cells:
            return self._inner_cells(step, work)

        def collect() -> State:
            state = step.collect(work, cells())
            return step.merge(state, step.collect(extra)) if step.scope == "all" and extra is not None else state

        def columns() -> dict[str, Column]:
            return step.compute_out_of_cell(work, state, cells(), excluded_cells(cells().count, _by_fold(step)))

        state = kept.state(collect)
        if learn:
            step.learn(state)
        return kept.columns("rows", columns) if used else {}, state

    def _recall(self, step: Feature, work: Table, context: Context, extra: Table | None, *also: Any) -> CachedStep:
        folds = (self.folds, self.key) if _by_fold(step) else None
        seen = None if extra is None or self.cache is None else columns_digest(extra, step.inputs)
        key = self.key if folds else []
        return CachedStep.of(self.cache, step, work, context, key=key, also=(folds, seen, *also))

    def all_steps(self) -> list[Feature]:
        """Return the steps that count unlabeled rows (``scope='all'``) and their inputs, in order."""
        return steps_behind([n for s in self.steps if s.scope == "all" for n in s.outputs], self.steps)

    def unlabeled_columns(self) -> list[str] | None:
        """Return the columns of unlabeled rows that these steps read; None: no step counts such rows."""
        steps = self.all_steps()
        made = {n for s in steps for n in s.outputs}
        needed = [n for s in steps for n in s.inputs if n not in made and n not in s.fit_only]
        return list(dict.fromkeys(needed)) if steps else None

    def _feeds_all(self, step: Feature) -> bool:
        return any(set(step.outputs) & set(s.inputs) for s in self.all_steps())

    def nest(self, work: Table, context: Context, hidden: torch.Tensor | None) -> Table:
        """Recompute the mixing steps fold by fold, each from encodings without that fold's targets."""
        # hidden: bool [n], rows of an outer fold whose values stay and whose targets are hidden; None: none
        together = key_keeps_together(self.steps, self.key, work, hidden)
        mixing = mixing_steps(self.steps, self.key, self.targets, together=together)
        names = [n for step in mixing for n in step.outputs]
        if not names or not len(work):
            return work
        hidden = torch.zeros(len(work), dtype=torch.bool, device=work.device) if hidden is None else hidden
        inner = row_folds(work, self.key, self.folds, seed=INNER_SEED)
        folds = torch.unique(inner[~hidden]).tolist()
        made = ((k, self.without((inner == k) | hidden, work, context)) for k in folds)
        whole = by_fold(work.select(names), inner, hidden, made)
        return work.with_columns({n: whole[n] for n in names})

    def without(self, hidden: torch.Tensor, work: Table, context: Context) -> Table:
        """Recompute the tainted steps without the targets of the ``hidden`` rows (bool ``[n]``)."""

        def do(step: Feature, here: Table, _: Table | None) -> tuple[Made, Made]:
            masked = [n for n in step.inputs if n in self.targets]
            with naming(step):
                kept = self._recall(step, here, context, None, "without", hidden, masked)
                return kept.columns("rows", lambda: self._made_without(step, hidden, here, context)), {}

        return walk(self.tainted, work, None, do)[0]

    def _made_without(self, step: Feature, hidden: torch.Tensor, work: Table, context: Context) -> dict[str, Column]:
        if not isinstance(step, Fitted):
            return compute(step, masked(work, [n for n in step.inputs if n in self.targets], hidden), context)
        folded = _by_fold(step)
        inner = self._inner_cells(step, work)
        # Cell 0 holds the hidden rows; the others are the inner folds of the rest.
        cells = Cells(torch.where(hidden, 0, inner.codes + 1), inner.count + 1)
        with step.using(context):
            state = step.collect(work, cells)
            return step.compute_out_of_cell(work, state, cells, excluded_cells(cells.count, folded, hidden=True))

    def _inner_cells(self, step: Feature, work: Table) -> Cells:
        if not _by_fold(step):
            return Cells(torch.zeros(len(work), dtype=torch.int64, device=work.device), 1)
        column = getattr(step, "fold_column", None)
        count = getattr(step, "folds", None) or self.folds

        def make() -> Cells:
            if column is not None:
                keys, codes = given_fold_keys(work, column)
                return Cells(codes, max(len(keys), 1))
            folds = row_folds(work, self.key, count, seed=INNER_SEED)
            if count <= len(work):
                return Cells(folds, count)
            present, codes = torch.unique(folds, return_inverse=True)  # only used cells, as each takes memory
            return Cells(codes, max(len(present), 1))

        key = ("cells", column) if column is not None else ("cells", count, tuple(self.key))
        return work.remember(key, [column] if column is not None else self.key, make)

    def check_targets(self) -> None:
        """Refuse a step that would give rows their own targets."""
        for step in self.steps:
            read = reads_target(step, self.targets)
            placed = {*as_list(getattr(step, "by", None)), *as_list(getattr(step, "order", None))}
            if read and (step.own_row or step.uses_future or placed & set(read)):
                problem = f"{type(step).__name__} reads the target, so that rows would be given their own"
                remedy = "Use TargetEncode (out of fold) or CumTarget (from earlier rows)"
                if step.uses_target or placed & set(read):
                    remedy = "Name other columns, without the target"
                elif step.uses_future:
                    remedy = "Take earlier rows, not later ones: n above 0, or no ahead"
                elif hasattr(step, "function"):
                    remedy += ". If your function reads targets of earlier rows alone, give FeatureSet(…, target=[])"
                raise DataError(problem, column=read[0], remedy=remedy)
            for table, names in step.table_inputs.items():
                known = [n for n in names if n in self.targets]
                if known:
                    who = type(step).__name__
                    problem = f"{who} reads the target from the table {table!r}, where no fold is hidden"
                    remedy = "Read the frame's own rows, or give the column another name if it is known before the rows"
                    raise DataError(problem, column=known[0], remedy=remedy)

    def check_history(self, work: Table, past: int) -> None:
        """Refuse a row that would get the target of one of the first ``past`` rows at the same moment."""
        for step in self.steps:  # that row may be the row itself
            by, order = as_list(getattr(step, "by", None)), as_list(getattr(step, "order", None))
            read = reads_target(step, self.targets) if step.sees_ties and order else []
            if not read:
                continue
            groups, outside = ordered_groups(work, by, order)
            begins = run_begins(groups.codes, *map(groups.sort, order_keys(work, order)))
            rows = groups.sort(torch.arange(len(work), device=work.device))
            odd = ~begins[1:] & (rows[:-1] < past) & (rows[1:] >= past) & ~groups.sort(outside)[1:]
            if bool(odd.any()):
                alike = " and ".join([*by, *order])
                problem = f"{type(step).__name__} would read {read[0]!r} of a row of history with the same {alike}"
                remedy = "Leave such rows out of history: one may be the row itself. Or order by one more column"
                raise DataError(problem, column=order[-1], row=int(rows[1:][odd].min()) - past, remedy=remedy)


def excluded_cells(count: int, by_fold: bool, hidden: bool = False) -> torch.Tensor:
    """Return bool ``[count, count]``: row ``c`` marks the cells that rows of cell ``c`` must not see."""
    # The cell itself if cells are folds (by_fold), and the first cell if it holds hidden rows
    excluded = torch.eye(count, dtype=torch.bool) & by_fold
    if hidden:
        excluded[:, 0] = True
    return excluded


def by_fold(table: Table, fold: torch.Tensor, hidden: torch.Tensor, made: Iterable[tuple[int, Table]]) -> Table:
    """Take each row's columns from the table of its ``fold``; hidden rows (bool ``[n]``) keep theirs."""
    parts, places = [table.take(hidden)], [hidden.nonzero().squeeze(1)]
    for number, other in made:
        rows = ((fold == number) & ~hidden).nonzero().squeeze(1)
        parts.append(other.select(table.names).take(rows))
        places.append(rows)
    return concat(parts).take(torch.argsort(torch.cat(places)))


def masked(table: Table, names: Sequence[str], hidden: torch.Tensor) -> Table:
    """Return the table with these columns missing in ``hidden`` rows (bool ``[n]``)."""
    if not names:
        return table
    rows = torch.where(hidden, -1, torch.arange(len(table), device=table.device))
    return table.with_columns({n: take_or_missing(table[n], rows) for n in names})


def _by_fold(step: Feature) -> bool:
    return isinstance(step, Fitted) and step.uses_target and not step.causal


def compute(step: Feature, work: Table, context: Context) -> dict[str, Column]:
    """Compute a step's columns with the context that its class needs."""
    if isinstance(step, Grouped):
        return step.compute(work, context)
    with step.using(context) if isinstance(step, Fitted) else nullcontext():
        return step.compute(work)
