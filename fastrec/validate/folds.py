"""``Folds``: the rows that each fold trains on and scores, frozen and stored on disk for every model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fastrec._core.atomic import atomic_file
from fastrec.errors import DataError, LeakageError, MissingFileError, UnreadableFileError, refuse_rows
from fastrec.table import Table
from fastrec.validate import cuts
from fastrec.validate.mirror import AUTO, mirror

_KEY = b"fastrec.folds"  # the saved file's metadata besides its columns


class Folds:
    """Frozen folds: the rows that each fold trains on and the rows that it scores.

    Iterating yields ``(train_rows, valid_rows)``, int64 row numbers in ascending order on the CPU. The class methods
    cut like scikit-learn's splitters; this constructor takes folds that were cut elsewhere.

    ``data`` of a class method is a table of any library, a file, or the number of rows. A column argument is the name
    of a column in ``data``, or ``[n]`` values (tensor, array, Series, list).

    Args:
        codes: the fold in which each row is scored, integers ``[n]`` from 0; -1: in none. ``[r, n]`` if rows are scored
            in up to ``r`` folds (numbered consecutively: 0…4 in the first line, 5…9 in the second).
        train: fold → bool ``[n]``, the rows it trains on; other folds train on all rows that they do not score.
        method: how they were cut, in plain words, parameters included.
        why: the reason for this cut, in plain words; '' if the user chose it.

    Raises:
        DataError: there are no folds, or a fold has no row to score or to train on.
        LeakageError: a fold trains on a row that it scores.
    """

    def __init__(
        self, codes: Any, train: Mapping[int, torch.Tensor] | None = None, *, method: str = "given", why: str = ""
    ) -> None:
        layers = codes.cpu() if isinstance(codes, torch.Tensor) else torch.from_numpy(np.array(codes))
        if layers.dim() not in (1, 2) or layers.is_floating_point() or layers.dtype == torch.bool or not layers.numel():
            remedy = "Give integers [n] or [r, n]"
            raise DataError(f"folds are {layers.dtype} of shape {tuple(layers.shape)}", remedy=remedy)
        if int(layers.min()) < -1 or not 0 <= int(layers.max()) < layers.numel():
            remedy = "Number the folds 0, 1, 2, …, and give -1 to rows that none scores"
            raise DataError(f"folds are numbered {int(layers.min())} to {int(layers.max())}", remedy=remedy)
        # A copy: folds are frozen, even if the given array changes.
        self._layers = layers.to(torch.int32, copy=True).view(-1, layers.shape[-1])
        self._train = {int(k): rows.cpu().clone() for k, rows in (train or {}).items()}
        self.method, self.why = method, why
        self._count = int(self._layers.max()) + 1
        odd = self._train.keys() - set(range(self._count))
        if odd:
            raise DataError(f"there are training rows of fold {min(odd)}, and no such fold", remedy="Leave them out")
        by_layer = [torch.bincount(layer[layer >= 0].long(), minlength=self._count) for layer in self._layers]
        sizes = torch.stack(by_layer)
        # A fold's rows are all in one line, which is looked up once.
        self._layer_of = sizes.argmax(0)
        if bool(((sizes > 0).sum(0) > 1).any()):
            raise DataError("a fold stands in two lines", remedy="Number the folds through: 0…4, then 5…9")
        sizes = sizes.sum(0)
        for k in range(self._count):
            mask = self._train.get(k)
            if mask is not None and (mask.dtype != torch.bool or mask.shape != (self.size,)):
                raise DataError(f"training rows of fold {k} are no bool [{self.size}]", remedy="Give one for each row")
            both = None if mask is None else mask & (self._layers[self._layer_of[k]] == k)
            problem, remedy = f"fold {k} trains on a row that it scores", "Leave it out of one"
            refuse_rows([] if both is None else both, problem, LeakageError, remedy=remedy)
            trained = self.size - int(sizes[k]) if mask is None else int(mask.sum())
            if not int(sizes[k]) or not trained:
                what = "to score" if not int(sizes[k]) else "to train on"
                raise DataError(f"fold {k} of {self._count} has no row {what}", remedy="Use fewer folds, or more data")

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return (self[k] for k in range(len(self)))

    def __getitem__(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows that fold ``k`` trains on and those it scores."""
        if not -len(self) <= k < len(self):
            raise IndexError(f"there are {len(self)} folds, and no fold {k}")
        k %= len(self)
        valid = self._layers[self._layer_of[k]] == k
        return self._train.get(k, ~valid).nonzero().squeeze(1), valid.nonzero().squeeze(1)

    def __repr__(self) -> str:
        return f"Folds({len(self)} folds of {self.size} rows: {self.method})"

    @property
    def size(self) -> int:
        """The number of rows."""
        return self._layers.shape[1]

    @property
    def scored(self) -> torch.Tensor:
        """Bool ``[n]``: the rows that some fold scores (with time-based folds, the first block is in none)."""
        return (self._layers >= 0).any(0)

    @property
    def is_partition(self) -> bool:
        """Whether every row is scored in exactly one fold, and trained on in all others."""
        return not self._train and len(self._layers) == 1 and bool(self.scored.all())

    @property
    def is_repeated(self) -> bool:
        """Whether some row is scored in several folds."""
        return bool(self._twice().any())

    def _twice(self) -> torch.Tensor:
        return (self._layers >= 0).sum(0) > 1

    @property
    def codes(self) -> torch.Tensor:
        """The fold in which each row is scored: int64 ``[n]``, -1 if none does.

        Raises:
            DataError: a row is scored in several folds.
        """
        problem = f"the row is scored in several folds ({self.method}), and has no one fold"
        refuse_rows(self._twice(), problem, remedy="Take the folds one by one: for train_rows, valid_rows in folds")
        return self.last_codes

    @property
    def last_codes(self) -> torch.Tensor:
        """The last fold in which each row is scored: int64 ``[n]``, -1 if none does."""
        return self._layers.max(0).values.long()

    @property
    def digest(self) -> str:
        """SHA-256 over rows, folds and method: equal folds have equal digests."""
        about = [*self._layers.shape, self.method, self.why, sorted(self._train)]
        digest = hashlib.sha256(json.dumps(about).encode())
        digest.update(self._layers.numpy().astype("<i4").tobytes())
        for k in sorted(self._train):
            digest.update(np.packbits(self._train[k].numpy()).tobytes())
        return digest.hexdigest()

    @classmethod
    def _repeated(cls, cut: Callable[..., torch.Tensor], folds: int, repeats: int, seed: int, method: str) -> Folds:
        """Cut several times, and number all folds consecutively: codes ``[repeats, n]``."""
        codes = torch.stack([cut(folds, seed=seed + r) + folds * r for r in range(repeats)])
        said = f"seed {seed}" if repeats == 1 else f"{repeats} times, seeds {seed} to {seed + repeats - 1}"
        return cls(codes, method=f"{method}, {said}")

    @classmethod
    def kfold(cls, data: Any, folds: int = 5, *, repeats: int = 1, seed: int = 0) -> Folds:
        """Cut at random into folds of equal size.

        Args:
            data: the rows, or their number.
            folds: the number of folds, at least 2.
            repeats: the number of repeats; the r-th uses ``seed + r``, and there are ``folds * repeats`` folds.
            seed: other seeds give other folds.

        Raises:
            DataError: fewer than two folds, or fewer rows than folds.
        """
        rows = _check_counts(cuts.rows_in(data), folds, repeats)
        return cls._repeated(partial(cuts.random_folds, rows), folds, repeats, seed, f"{folds} folds at random")

    @classmethod
    def stratified(
        cls, data: Any, target: Any, folds: int = 5, *, bins: int | None = None, repeats: int = 1, seed: int = 0
    ) -> Folds:
        """Cut at random, with the same share of each class in every fold.

        Args:
            data, folds, repeats, seed: as for :meth:`kfold`.
            target: the column of classes, or of numbers to predict.
            bins: the number of quantile bins of the target to use as classes; 0: its values are classes, however many;
                None: 10 for numbers with fractions or with more than 50 distinct values, else classes.

        Raises:
            DataError: fewer than two folds, or every class has fewer rows than there are folds.
        """
        _check_counts(cuts.rows_in(data), folds, repeats)
        strata, words = cuts.strata_of(cuts.given_column(data, target, "target"), bins, folds)
        method = f"{folds} folds at random, stratified by {words}"
        return cls._repeated(partial(cuts.stratified_folds, strata), folds, repeats, seed, method)

    @classmethod
    def group(cls, data: Any, groups: Any, folds: int = 5, *, repeats: int = 1, seed: int = 0) -> Folds:
        """Cut by a stable hash of a key, whose rows stay together: the folds of :func:`group_folds`.

        Adding rows or features changes no row's fold. Few groups give folds of unequal size; in that case use
        :meth:`stratified_group`. Rows without a key share a fold.

        Args:
            data, folds, repeats, seed: as for :meth:`kfold`.
            groups: the column that must not be split (a session, a user), or the names of several.

        Raises:
            DataError: fewer than two folds, or a fold would be empty.
        """
        key = cuts.given_key(data, groups, "groups")
        _check_counts(len(key), folds, repeats)
        method = f"{folds} folds by a hash of {_names(key)}"
        return cls._repeated(partial(cuts.group_folds, key, key.names), folds, repeats, seed, method)

    @classmethod
    def stratified_group(
        cls,
        data: Any,
        target: Any,
        groups: Any,
        folds: int = 5,
        *,
        bins: int | None = None,
        repeats: int = 1,
        seed: int = 0,
    ) -> Folds:
        """Cut whole groups, so that every fold has about the same share of each class and as many rows.

        Args:
            data, folds, repeats, seed: as for :meth:`kfold`.
            target: the column of classes, or of numbers to predict.
            groups: the column that must not be split, or the names of several; rows without a key form one group.
            bins: as for :meth:`stratified`.

        Raises:
            DataError: fewer than two folds, or fewer groups than folds.
        """
        key = cuts.given_key(data, groups, "groups")
        _check_counts(len(key), folds, repeats)
        strata, words = cuts.strata_of(cuts.given_column(data, target, "target"), bins, folds)
        codes = key.coded(key.names).codes.cpu()
        method = f"{folds} folds of whole {_names(key)}, stratified by {words}"
        return cls._repeated(partial(cuts.stratified_group_folds, strata, codes), folds, repeats, seed, method)

    @classmethod
    def time_series(
        cls, data: Any, time: Any, folds: int = 5, *, gap: Any = 0, window: Any = None, horizon: Any = None
    ) -> Folds:
        """Cut by time: every fold trains only on rows before those it scores; equal times are never on both sides.

        Args:
            data: the rows, or their number; in any order.
            time: the column of dates (including ISO 8601 text) or numbers.
            folds: the number of folds; one holds the end out.
            gap: training rows are more than this before the fold's first scored row. It is a timedelta (or ``'7D'``)
                for dates, a number for numbers.
            window: no training row is more than ``gap + window`` before it (a sliding window); None: expanding.
            horizon: the duration that a fold scores; the last fold's ends at the last row. None: ``folds + 1`` blocks
                of about equal size. Rows before the first scored ones are never scored.

        Raises:
            DataError: a time is missing, or a fold has no row to score or to train on.
        """
        times = cuts.given_times(data, time, "time")
        _check_counts(len(times.ticks), folds, 1, least=1)
        spans = {n: None if v is None else times.span(v, n) for n, v in (("window", window), ("horizon", horizon))}
        wait = times.span(gap, "gap")
        codes, train = cuts.time_folds(times.ticks, folds, gap=wait, name=times.name, **spans)
        words = [f"{folds} fold{'s' * (folds > 1)} by time ({times.name})"]
        words += [f"gap {times.shown(wait)}"] if wait else []
        words.append("expanding" if window is None else f"training on the last {times.shown(spans['window'])}")
        words += [f"scoring {times.shown(spans['horizon'])} each"] if horizon is not None else []
        return cls(codes, train, method=", ".join(words))

    @classmethod
    def last(cls, data: Any, groups: Any, of: Any, time: Any, folds: int = 5, *, seed: int = 0) -> Folds:
        """Score the last group of each value of a column, in random folds; earlier groups are always trained on.

        It mirrors a test set that has the last list of each session, with the answers to its earlier lists known.

        Args:
            data, folds, seed: as for :meth:`kfold`.
            groups: the column of groups, such as lists, whose rows stay together.
            of: the column of the owners of groups, such as sessions; rows without an owner or group are never scored.
            time: the column of dates or numbers that tells which group is the last; ties go to the last row's group.

        Raises:
            DataError: fewer than two folds, a fold would be empty, or a time is missing.
        """
        key, lists = cuts.given_key(data, of, "of"), cuts.given_key(data, groups, "groups")
        times = cuts.given_times(data, time, "time")
        _check_counts(len(key), folds, 1)
        owners, codes = (t.coded(t.names).codes.long().cpu() for t in (key, lists))
        order = times.ticks.cpu().argsort(stable=True)
        order = order[owners[order].argsort(stable=True)]
        ends = torch.cat([owners[order].diff() != 0, torch.ones(1, dtype=torch.bool)])
        scored = torch.isin(codes, codes[order[ends]]) & (owners > 0) & (codes > 0)
        made = torch.where(scored, cuts.group_folds(key, key.names, folds, seed=seed), -1)
        return cls(made, method=f"{folds} folds of the last {_names(lists)} of each {_names(key)}, by {times.name}")

    @classmethod
    def purged(cls, data: Any, start: Any, end: Any, folds: int = 5, *, embargo: Any = 0) -> Folds:
        """Cut by time, training on past and future, but not on rows whose labels overlap those of scored rows.

        This is López de Prado's method (Advances in Financial Machine Learning, 2018, section 7.4), for labels that
        depend on what happens from ``start`` to ``end``, both included.

        Args:
            data: the rows, or their number; in any order.
            start: the column with the time of each row, dates or numbers.
            end: the column of the times at which each row's label is known.
            folds: the number of folds, at least 2: blocks of about equal size.
            embargo: also exclude training rows that start within this time after the end of the scored rows.

        Raises:
            DataError: a time is missing, a span ends before it starts, or a fold has no row to train on.
        """
        starts, ends = cuts.in_one_unit(cuts.given_times(data, start, "start"), cuts.given_times(data, end, "end"))
        _check_counts(len(starts.ticks), folds, 1)
        wait = starts.span(embargo, "embargo")
        names = (starts.name, ends.name)
        codes, train = cuts.purged_folds(starts.ticks, ends.ticks, folds, embargo=wait, names=names)
        method = f"{folds} blocks of time, purged of labels ({starts.name} to {ends.name}) that overlap"
        return cls(codes, train, method=method + (f", embargo {starts.shown(wait)}" if wait else ""))

    @classmethod
    def predefined(cls, data: Any, column: Any) -> Folds:
        """Cut by a given column: its distinct values, in order, are the folds.

        Args:
            data: the rows, or their number.
            column: fold numbers or names; rows with a missing value or -1 are never scored and always trained on.

        Raises:
            DataError: there are more folds than half as many as rows, or none.
        """
        given = cuts.given_column(data, column, "folds").plain()
        codes = given.coded().in_order().codes.cpu()
        if given.kind == "number":
            codes = torch.where(given.number().cpu() == -1, 0, codes)
        folds, codes = torch.unique(codes, return_inverse=True)
        codes = codes if int(folds[0]) == 0 else codes + 1
        if 2 * int(codes.max()) > len(codes):
            remedy = "Give a column with the number of each row's fold"
            raise DataError(f"holds {int(codes.max())} folds for {len(codes)} rows", column=given.name, remedy=remedy)
        return cls(codes - 1, method=f"{int(codes.max())} folds of the column {given.name}")

    @classmethod
    def like(
        cls,
        train: Any,
        test: Any,
        *,
        target: Any = None,
        time: str | None = AUTO,
        group: str | None = AUTO,
        folds: int = 5,
        seed: int = 0,
    ) -> Folds:
        """Cut as the test was cut: by time, by group, or at random; ``folds.why`` gives the reason.

        By time, if test times are after train times in a column of dates (or of numbers with a name for time). Folds
        last as long as the test and have the same distance to their training rows; if train is too short, there are
        fewer folds. By group, if an id-like column repeats in train but has new values in the test. Otherwise at
        random, stratified if a target is given.

        Args:
            train: the rows to cut: a table of any library.
            test: the test rows.
            target: train's target, a column's name or ``[n]`` values.
            time: the column of times, in both; ``'auto'``: look for one; None: there is none.
            group: the column of groups, in both; ``'auto'``: look for one; None: there is none.
            folds: the number of folds.
            seed: the seed of random or group folds.

        Raises:
            DataError: as for the class method that is used.
        """
        named = target if isinstance(target, str) else None
        seen = mirror(train, test, target=named, time=time, group=group, folds=folds)
        if seen.by == "time":
            cut = cls.time_series(train, seen.column, seen.folds, gap=seen.gap, horizon=seen.horizon)
        elif seen.by == "group":
            cut = cls.group(train, seen.column, folds, seed=seed)
        elif target is not None:
            cut = cls.stratified(train, target, folds, seed=seed)
        else:
            cut = cls.kfold(train, folds, seed=seed)
        cut.why = seen.why
        return cut

    def check_groups(self, groups: Any, data: Any = None) -> Folds:
        """Return these folds, unless they train on a group of rows and score other rows of it.

        Args:
            groups: ``[n]`` values that must not be split, or the name of a column (or several) in ``data``; rows
                without a value are ignored.
            data: the rows.

        Raises:
            LeakageError: names the group, a row that is trained on and one that is scored.
        """
        key = cuts.given_key(self.size if data is None else data, groups, "groups")
        self._check_rows(len(key), _names(key))
        coded = key.coded(key.names)
        codes = coded.codes.cpu()
        for k, (train, valid) in enumerate(self):
            # a mask over groups needs one pass over the rows, whatever the number of groups
            scored = torch.zeros(coded.size, dtype=torch.bool)
            scored[codes[valid]] = True
            scored[0] = False  # no key
            split = scored[codes[train]]
            if bool(split.any()):
                row = int(train[split][0])
                other = int(valid[codes[valid] == codes[row]][0])
                values = ", ".join(str(c[int(codes[row]) - 1].as_py()) for c in coded.keys.columns)
                problem = f"the group {values} is split: fold {k} trains on row {row} and scores row {other}"
                remedy = "Cut by it: Folds.group(data, groups)"
                raise LeakageError(problem, column=_names(key), row=row, remedy=remedy)
        return self

    def check_time(self, time: Any, data: Any = None) -> Folds:
        """Return these folds, unless they train on rows later than one they score.

        Args:
            time: ``[n]`` dates or numbers, or the column's name in ``data``.
            data: the rows.

        Raises:
            LeakageError: names a row that is trained on and an earlier one that is scored.
        """
        times = cuts.given_times(self.size if data is None else data, time, "time")
        self._check_rows(len(times.ticks), times.name)
        for k, (train, valid) in enumerate(self):
            # if the latest training row is not too late, none is
            late, early = int(train[times.ticks[train].argmax()]), int(valid[times.ticks[valid].argmin()])
            if bool(times.ticks[late] > times.ticks[early]):
                problem = f"time runs backwards: fold {k} trains on row {late}, which is later than row {early}"
                remedy = "Cut by time: Folds.time_series(data, time)"
                raise LeakageError(f"{problem} that it scores", column=times.name, row=late, remedy=remedy)
        return self

    def _check_rows(self, rows: int, name: str) -> None:
        if rows != self.size:
            problem = f"{rows} values for folds of {self.size} rows"
            raise DataError(problem, column=name, remedy="Give those of the rows that were cut")

    def save(self, path: str | Path) -> None:
        """Write one Parquet file that every library can read; an earlier one is replaced in one step.

        It has a column ``fold`` (or ``fold_0``, ``fold_1``, …), ``train_k`` if training rows were given, and a digest.

        Raises:
            WriteError: the file system refused.
        """
        one = len(self._layers) == 1
        columns = {"fold" if one else f"fold_{i}": layer.numpy() for i, layer in enumerate(self._layers)}
        columns |= {f"train_{k}": rows.numpy() for k, rows in sorted(self._train.items())}
        about = {"method": self.method, "why": self.why, "digest": self.digest}
        table = pa.table(columns).replace_schema_metadata({_KEY: json.dumps(about).encode()})
        with atomic_file(path) as part:
            pq.write_table(table, part, compression="zstd")

    @classmethod
    def load(cls, path: str | Path) -> Folds:
        """Read folds that :meth:`save` wrote.

        Raises:
            MissingFileError: there is no such file.
            UnreadableFileError: it is damaged or holds no folds.
        """
        if not Path(path).is_file():
            raise MissingFileError("there is no such file", file=path, remedy="Save the folds first: folds.save(path)")
        remedy = "Save them again, or cut them anew"
        try:
            table = pq.read_table(path, partitioning=None)
            about = json.loads((table.schema.metadata or {})[_KEY])
            columns = {n: torch.from_numpy(table[n].to_numpy().copy()) for n in table.column_names}
            layers = torch.stack([v for n, v in columns.items() if n.startswith("fold")])
            train = {int(n.removeprefix("train_")): v for n, v in columns.items() if n.startswith("train_")}
            folds = cls(layers, train, method=about["method"], why=about["why"])
            whole = folds.digest == about["digest"]
        except Exception as error:  # Arrow, JSON and torch raise their own exceptions for a damaged file
            problem = f"the folds cannot be read ({type(error).__name__}: {error})"
            raise UnreadableFileError(problem, file=path, remedy=remedy) from error
        if not whole:
            problem = "the folds are not those that were saved: their digest differs"
            raise UnreadableFileError(problem, file=path, remedy=remedy)
        return folds


def _check_counts(rows: int, folds: int, repeats: int, *, least: int = 2) -> int:
    if folds < least or repeats < 1 or isinstance(folds, float) or isinstance(repeats, float):
        remedy = f"Use at least {least} fold{'s' * (least > 1)}, once or more: whole numbers"
        raise DataError(f"{folds} folds, {repeats} times", remedy=remedy)
    if rows < folds:
        raise DataError(f"{rows} rows for {folds} folds", remedy="Use fewer folds, or more data")
    return rows


def _names(key: Table) -> str:
    return ", ".join(key.names)
