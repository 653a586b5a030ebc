"""Encodings of columns: codes, counts, hashes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal

import pyarrow as pa
import torch

from fastrec.errors import DataError
from fastrec.features._engine import keyed
from fastrec.features._engine.options import OfColumns, check_columns_of, is_open
from fastrec.features.base import Cells, Cols, Fitted, Names, RowWise, Scope, State, Tensors
from fastrec.features.columns import as_list
from fastrec.segments import rank_in_group
from fastrec.table import Column, Keys, Table, Vocab
from fastrec.table.column import offsets_of, packed, rows_of
from fastrec.table.vocab import MISSING, UNSEEN, hash_codes


class Categorify(OfColumns, Fitted):
    """Codes ``code_{col}`` (int64): 0 for missing or unseen, then 1, 2, … for training values in sorted order.

    Codes equal those of fastai's ``TabularPandas``; a categorical keeps its order and its unused categories. A list
    column gives lists of codes. ``vocabs`` maps codes to values. For a ``TabularFrame`` use
    ``fastrec.tabular.Categorify``, which changes its columns in place.

    Args:
        cols: key or list columns of any type, or generators.
        min_count: values (elements of lists) with fewer training rows share the first code, ``#rare#``; a number, or
            column → number.
        max_size: the largest number of values with codes, most frequent first (ties: in sorted order); the rest are
            rare. A number, or column → number.
        buckets: hash rare and unseen values into this many codes (1 … buckets); other values follow.
        shared: use one vocabulary for all ``cols``; a text is its name in ``vocabs``.
        unseen: give unseen values the code ``#unseen#`` instead of 0.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Categorify
        >>> df = pd.DataFrame({"tags": [["A"], ["A", "E"], ["B", "C"], ["C"]]})
        >>> codes = Categorify("tags", min_count=2)
        >>> [list(map(int, row)) for row in codes.fit_transform(df)["code_tags"]]
        [[2], [2, 1], [1, 3], [3]]
        >>> codes.vocabs["tags"].classes
        ['#na#', '#rare#', 'A', 'C']
    """

    by_key = (("keys", "count", "place"),)
    codes = True
    _least: ClassVar = {"min_count": 0, "max_size": 0, "buckets": 1}

    def __init__(
        self,
        cols: Cols,
        *,
        min_count: int | Mapping[str, int] = 1,
        max_size: int | Mapping[str, int] | None = None,
        buckets: int | None = None,
        shared: bool | str = False,
        unseen: bool = False,
        scope: Scope = "train",
        name: str = "code",
    ) -> None:
        for word, option in (("min_count", self.min_count), ("max_size", self.max_size)):
            if isinstance(option, Mapping) and self.shared:
                raise DataError(f"Categorify: {word} by column where columns share", remedy="Give one number")
            if not is_open(self.cols):
                check_columns_of(self, word, self.columns)
        if self.buckets is not None and self.unseen:
            raise DataError("Categorify: buckets hold the unseen values", remedy="Leave out buckets, or unseen")

    @property
    def vocabs(self) -> dict[str, Vocab]:
        """The fitted vocabularies by column; a shared one by its name, or ``'shared'``."""
        return {n: Vocab.from_state(s) for n, s in zip(self._vocab_names(), self._learned()[1]["vocabs"], strict=True)}

    def _vocab_names(self) -> list[str]:
        if not self.shared:
            return self.columns
        return [self.shared if isinstance(self.shared, str) else "shared"]

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        found = []
        for name in self.columns:
            column = table[name]
            if column.kind == "list":
                rows, column = _elements(column)
                found.append(self._count(column, None if cells is None else Cells(cells.codes[rows], cells.count)))
            else:
                found.append(self._count(column, cells))
        if self.shared:
            whole = found[0]
            for other in found[1:]:
                whole = _merged(whole, other)
            found = [whole]
        return {"vocabs": found, "lists": [table[n].kind == "list" for n in self.columns]}

    def _count(self, column: Column, cells: Cells | None) -> State:
        """Return sorted keys, counts ``[cells, K]``, and places in the order of a categorical (else -1)."""
        coded = column.coded()
        count = keyed.count_by_cell(coded.codes, cells, coded.size)[:, 1:]
        # Columns with a shared vocabulary may have contradictory orders.
        own = column.ordered is not None and not (self.shared and len(self.columns) > 1)
        order = coded.keys.sort_order()
        if not own:  # a dictionary may hold values without rows
            order = order[(count.sum(0) > 0).cpu()[order]]
        place = order if own else torch.full_like(order, -1)
        return {"keys": coded.keys.take(order), "count": count[:, order.to(count.device)], "place": place}

    def merge(self, a: State, b: State) -> State:
        return {
            "vocabs": [_merged(x, y) for x, y in zip(a["vocabs"], b["vocabs"], strict=True)],
            "lists": [x or y for x, y in zip(a["lists"], b["lists"], strict=True)],
        }

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        made = [self._codes(v, n, keep) for n, v in zip(self._vocab_names(), state["vocabs"], strict=True)]
        return {"tables": [t for t, _ in made], "vocabs": [v for _, v in made], "lists": state["lists"]}

    def _codes(self, learned: State, name: str, keep: torch.Tensor | None) -> tuple[torch.Tensor, State]:
        # Return the code of each place of ``prepare``, and the vocabulary.
        minimum = self.min_count.get(name, 1) if isinstance(self.min_count, Mapping) else self.min_count
        largest = self.max_size.get(name) if isinstance(self.max_size, Mapping) else self.max_size
        keys, place, count = learned["keys"], learned["place"], learned["count"].cpu()
        count = (count if keep is None else count[keep.cpu()]).sum(0)
        # Values of a categorical without rows get codes too. All other keys are sorted already.
        order = torch.sort(place, stable=True).indices if bool((place >= 0).all()) else count.nonzero().squeeze(1)
        options = {"ordered": False, "name": name, "min_count": minimum, "max_size": largest}
        vocab, codes = Vocab.of_keys(keys.take(order), count[order], unseen=self.unseen, **options)
        tail = torch.tensor([vocab.reserved.index(UNSEEN) if self.unseen else 0])
        table = torch.cat([tail.new_zeros(1), tail.expand(len(keys))])
        table[order + 1] = codes[1:]
        if self.buckets is not None:
            tail, kept = torch.arange(1, self.buckets + 1), table >= len(vocab.reserved)
            table[kept] += self.buckets + 1 - len(vocab.reserved)
            kept[0] = True
            table[~kept] = self._hashed(keys.take((~kept[1:]).nonzero().squeeze(1)).columns[0])
            reserved = (MISSING, *(f"#hash{i}#" for i in range(1, self.buckets + 1)))
            vocab = Vocab(vocab.values, reserved=reserved, name=name)
        return torch.cat([table, tail]), vocab.to_state()

    def _hashed(self, values: pa.Array) -> torch.Tensor:
        return torch.from_numpy(hash_codes(keyed.key_text(values), self.buckets)) + 1

    def prepare(self, state: State, table: Table) -> Tensors:
        """Return each value's place: 0 missing, 1 … K a learned key, above K any other value (its hash bucket)."""
        tensors = {}
        for i, name in enumerate(self.columns):
            if name not in table:
                continue
            keys, coded = state["vocabs"][0 if self.shared else i]["keys"], table[name].coded()
            found = coded.keys.find_in(keys)
            absent = found < 0
            place = torch.where(absent, len(keys) + 1, found + 1)
            if self.buckets is not None and bool(absent.any()):
                place[absent] = len(keys) + self._hashed(coded.keys.take(absent.nonzero().squeeze(1)).columns[0])
            tensors[name] = keyed.of_codes(coded, place)
        return tensors

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        tables = fit["tables"] * len(self.columns) if self.shared else fit["tables"]
        return {
            f"{self.name}_{name}": table.to(tensors[name].device)[tensors[name]]
            for name, table in zip(self.columns, tables, strict=True)
            if name in tensors
        }

    def compute_from(self, table: Table, state: State) -> dict[str, Column]:
        return self._each(table, state, lambda flat, _: Fitted.compute_from(self, flat, state))

    def compute_out_of_cell(
        self, table: Table, state: State, cells: Cells, excluded: torch.Tensor
    ) -> dict[str, Column]:
        def make(flat: Table, rows: torch.Tensor | None) -> dict[str, Column]:
            own = cells if rows is None else Cells(cells.codes[rows], cells.count)
            return Fitted.compute_out_of_cell(self, flat, state, own, excluded)

        return self._each(table, state, make)

    def _each(
        self, table: Table, state: State, make: Callable[[Table, torch.Tensor | None], dict[str, Column]]
    ) -> dict[str, Column]:
        """Return the output columns; ``make`` gets all plain columns at once, and each list column's elements."""
        plain, made = [], {}
        for name, was_list in zip(self.columns, state["lists"], strict=True):
            if name not in table:  # a table of a list's elements has no other columns
                continue
            column = table[name]
            if column.kind == "list" or (was_list and column.kind == "number" and bool(column.is_missing().all())):
                rows, elements = _elements(column)
                output = f"{self.name}_{name}"
                elements = make(Table({name: elements}), rows)[output]
                if column.kind == "list":
                    offsets, missing = column.values - column.values[0], column.missing
                else:  # a column without values gives missing lists
                    missing = column.is_missing()
                    offsets = offsets_of(torch.zeros(len(column), dtype=torch.int64, device=column.values.device))
                made[output] = Column("list", offsets, name=output, missing=missing, elements=elements)
            else:
                plain.append(name)
        if plain:
            made.update(make(table.select(plain), None))
        return {o: made[o] for o in self.outputs if o in made}


def _merged(a: State, b: State) -> State:
    keys, left, right = keyed.union_keys(a["keys"], b["keys"])
    count = keyed.add_spread(a["count"], b["count"], keys, left, right)
    places = [keyed.spread(s["place"][None], at, len(keys), 1, -1)[0] for s, at in ((a, left), (b, right))]
    return {"keys": keys, "count": count, "place": torch.maximum(*places)}


def _elements(column: Column) -> tuple[torch.Tensor, Column]:
    """Return each element's row (int64 ``[m]``) and the elements of a list column; any other column has none."""
    if column.kind != "list":
        nothing = torch.zeros(0, dtype=torch.int64, device=column.values.device)
        return nothing, column.take(nothing)
    column = packed(column)
    return rows_of(column.values), column.elements


class HashEncode(OfColumns, RowWise):
    """Hash codes ``1 + hash(value) mod buckets`` (int64), 0 where missing.

    The hash is FNV-1a of the value's text, equal on all machines, in all libraries and for all types of numbers.
    Several hashes with different seeds separate values that collide in one.

    Args:
        cols: key columns of any type, or generators.
        buckets: the number of codes besides 0.
        seed: the seed of the hash.

    Source: Weinberger et al. 2009, "Feature hashing for large scale multitask learning".

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import HashEncode
        >>> HashEncode("city", 100).fit_transform(pd.DataFrame({"city": ["x", "y", "x", None]}))["hash_city"].tolist()
        [73, 5, 73, 0]
    """

    codes = True
    _least: ClassVar = {"buckets": 1}

    def __init__(self, cols: Cols, buckets: int, *, seed: int = 0, name: str = "hash") -> None: ...

    def prepare(self, table: Table) -> Tensors:
        tensors = {}
        for col in self.columns:
            coded = table[col].coded()
            text = keyed.key_text(coded.keys.columns[0])
            tensors[col] = keyed.of_codes(coded, torch.from_numpy(hash_codes(text, self.buckets, seed=self.seed)) + 1)
        return tensors

    def apply(self, tensors: Tensors) -> Tensors:
        return {self._name(c): tensors[c] for c in self.columns}


class SumsByKey(Fitted):
    """Generator whose statistics add up: by key for those in ``by_key``, all others as arrays ``[cells, 1]``."""

    def merge(self, a: State, b: State) -> State:
        merged: State = {}
        for name, *parts in self.by_key:
            if name not in a:
                continue
            pairs = {n: zip(*([s[n]] if isinstance(s[name], Keys) else s[n] for s in (a, b))) for n in (name, *parts)}
            joined = [keyed.union_keys(x, y) for x, y in pairs[name]]
            found = {name: [keys for keys, _, _ in joined]}
            for part in parts:
                both = zip(joined, pairs[part], strict=True)
                found[part] = [keyed.add_spread(x, y, *places) for places, (x, y) in both]
            merged |= {n: v[0] for n, v in found.items()} if isinstance(a[name], Keys) else found
        one = torch.zeros(1, dtype=torch.int64)
        return {n: merged[n] if n in merged else keyed.add_spread(a[n], b[n], one, one, one) for n in a}


class KeyCounts(OfColumns, SumsByKey):
    """Generator of one output per column, computed from counts of its keys."""

    by_key = (("keys", "count"), ("groups", "rows"))

    def _key(self, col: str) -> list[str]:
        return [*as_list(getattr(self, "by", None)), col]

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        made = [count_keys(table, self._key(col), cells) for col in self.columns]
        return {"keys": [keys for keys, _ in made], "count": [count for _, count in made]}

    def prepare(self, state: State, table: Table) -> Tensors:
        pairs = zip(self.columns, state["keys"], strict=True)
        return {col: table.coded(self._key(col)).recode(keys) for col, keys in pairs}

    def lookups(self) -> dict[str, str]:
        return {self._name(col): col for col in self.columns}


def count_keys(table: Table, names: Sequence[str], cells: Cells | None) -> tuple[Keys, torch.Tensor]:
    """Return the distinct keys in sorted order, and their counts by cell: int64 ``[cells, K]``."""
    keys, codes = keyed.sort_keys(table.coded(names))
    return keys, keyed.count_by_cell(codes, cells, len(keys) + 1)[:, 1:]


def merge_counts(ka: Keys, a: torch.Tensor, kb: Keys, b: torch.Tensor) -> tuple[Keys, torch.Tensor]:
    """Add the counts of two partitions: return the union of keys, and their counts by cell."""
    keys, left, right = keyed.union_keys(ka, kb)
    return keys, keyed.add_spread(a, b, keys, left, right)


class RankByCount(KeyCounts):
    """Rank of the row's key by its count in training rows: 1 is the most frequent; 0 if missing or unseen.

    Args:
        cols: key columns, or generators.
        method: keys with equal counts share the best rank (``min``), or a rank without gaps (``dense``), or are ranked
            by key (``ordinal``).

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import RankByCount
        >>> df = pd.DataFrame({"city": ["x", "y", "z", "z", None]})
        >>> RankByCount("city").fit_transform(df)["countrank_city"].tolist()
        [2, 2, 1, 1, 0]
    """

    def __init__(
        self, cols: Cols, *, method: Literal["min", "dense", "ordinal"] = "min", scope: Scope = "train"
    ) -> None: ...

    @property
    def _word(self) -> str:
        return f"{'' if self.method == 'min' else self.method + '_'}countrank"

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        tables = {}
        for col, counts in zip(self.columns, state["count"], strict=True):
            total = keyed.sum_kept(counts, keep)
            rank = rank_in_group(-total, torch.zeros_like(total), method=self.method)  # sorted keys: ties by key
            rank = torch.where(total > 0, rank, 0).long()
            tables[self._name(col)] = torch.cat([rank.new_zeros(1), rank])
        return tables


class CountEncode(KeyCounts):
    """Number of training rows with the row's key; 0 if the key is missing or unseen.

    Args:
        cols: key columns, or generators.
        log: return ``log(1 + count)``.
        by: the columns of groups to count in; 0 if one is missing.
        normalise: return ``count / rows``, with all rows (of the group), including those without a key.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import CountEncode
        >>> df = pd.DataFrame({"city": ["x", "y", "x", None], "user": [1, 1, 1, 2]})
        >>> CountEncode("city").fit_transform(df)["count_city"].tolist()
        [2, 1, 2, 0]
        >>> CountEncode("city", normalise=True).fit_transform(df)["share_city"].tolist()
        [0.5, 0.25, 0.5, 0.0]
        >>> CountEncode("city", by="user").fit_transform(df)["count_city__user"].tolist()
        [2, 1, 2, 0]
    """

    def __init__(
        self, cols: Cols, *, log: bool = False, scope: Scope = "train", by: Names | None = None, normalise: bool = False
    ) -> None:
        if log and normalise:
            raise DataError("CountEncode: a share has no logarithm of 1 + count", remedy="Use log or normalise, or two")

    @property
    def _word(self) -> str:
        return "share" if self.normalise else "log_count" if self.log else "count"

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        state = super().collect(table, cells)
        if self.normalise and as_list(self.by):
            state["groups"], state["rows"] = count_keys(table, as_list(self.by), cells)
        elif self.normalise:
            one = torch.zeros(len(table), dtype=torch.int64, device=table.device)
            state["rows"] = keyed.sum_by_cell(torch.ones_like(one), one, cells, 1)
        return state

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        tables = {}
        for col, keys, counts in zip(self.columns, state["keys"], state["count"], strict=True):
            total = keyed.sum_kept(counts, keep)
            if self.normalise:
                rows = keyed.sum_kept(state["rows"], keep)
                if "groups" in state:
                    group = Keys(keys.columns[: len(as_list(self.by))]).find_in(state["groups"])
                    rows = rows[group.to(rows.device)] if len(rows) else total
                total = total.double() / rows.clamp_min(1)
            table = torch.cat([total.new_zeros(1), total])
            tables[self._name(col)] = torch.log1p(table.double()) if self.log else table
        return tables


class NaNPattern(OfColumns, RowWise):
    """Code ``Σ 2^i · [column i is missing]`` (int64) of the missing values of a row.

    Args:
        cols: columns of any type (an empty list is not missing), or generators; at most 62.
        name: the output's name.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import NaNPattern
        >>> df = pd.DataFrame({"age": [None, 30.0, None], "city": [None, "x", "y"]})
        >>> NaNPattern(["age", "city"]).fit_transform(df)["nan_pattern"].tolist()
        [3, 0, 1]
    """

    codes = True

    def __init__(self, cols: Cols, *, name: str = "nan_pattern") -> None:
        if not is_open(cols):
            self._check()

    def _check(self) -> None:
        if not 1 <= len(self.columns) <= 62:
            problem = f"NaNPattern: {len(self.columns)} columns, where one code holds 1 to 62"
            raise DataError(problem, remedy="Use several of them, each with a name= of its own")

    @property
    def outputs(self) -> list[str]:
        return [self.name]

    def prepare(self, table: Table) -> Tensors:
        self._check()  # selectors are resolved now
        return {c: table[c].is_missing().to(table.device) for c in self.columns}

    def apply(self, tensors: Tensors) -> Tensors:
        masks = [tensors[c] for c in self.columns]
        code = torch.zeros(masks[0].shape, dtype=torch.int64, device=masks[0].device)
        for i, missing in enumerate(masks):
            code = code | missing.long() << i
        return {self.name: code}
