"""All embedding tables of a model in as few parameters as possible: one per width; shown and saved by column names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import torch
import torch.nn.functional as F
from fastai.layers import trunc_normal_
from torch import Tensor, nn

from fastrec._core import limits
from fastrec._core.device import on_host
from fastrec.errors import DataError, MissingColumnError
from fastrec.models.embedding_layout import Grads, TableSlice, check_sizes, lay_out, padded
from fastrec.models.placement.plan import Embeddings, Placement, as_embeddings, limited, make_placed, table_kinds
from fastrec.models.placement.row_store import kind_codes, regroup
from fastrec.table import ClassList, Keys, ListBatch, load_state, save_state
from fastrec.table.vocab import MISSING

CheckIds = Literal["auto", "always", "never"]
Pool = Literal["mean", "sum", "max"]


class EmbeddingTables(nn.Module):
    """Embedding tables of several columns, those of one width held as one parameter.

    There is one gather, one scatter and one parameter per width. ``parameter_segments`` (also set as ``segments`` on
    each parameter) tells layer-wise optimizers the rows of each table.

    Args:
        emb_szs: ``(rows, width)`` for each column, in the order of the batch's columns.
        names: the columns' names; None: ``'0'``, ``'1'``, …
        pad: round every width up to a multiple of 4 floats (16 bytes).
        check_ids: when to check ids before the lookup: ``'auto'`` on the CPU only, since on CUDA the check waits for
            the device; ``'always'``; ``'never'``. Never inside a compiled or exported graph.
        std: scale of the initial truncated normal (at two scales).
        list_szs: ``(rows, width)`` for each list column; a tied one has those of the other table.
        list_names: the list columns' names; None: ``'list0'``, …
        pool: how to pool the vectors of a list; an empty list gives zeros.
        tie: list column → the column whose table it uses; both must share one vocabulary.
        grads: ``'rows'``: tables of 20,000 rows or more get row-sparse gradients, of the batch's rows only, for
            optimizers that take them (``fastrec.optim``'s do). ``'dense'``: all gradients are dense.
        placement: where tables of 20,000 rows or more are stored, see ``Embeddings``: a name, settings, or a plan of
            ``plan_embeddings``; None: on the device. A placement implies ``grads='rows'``.

    Raises:
        DeviceMemoryError: tables exceed the limit of the placement.
    """

    def __init__(
        self,
        emb_szs: Sequence[tuple[int, int]],
        *,
        names: Sequence[str] | None = None,
        pad: bool = True,
        check_ids: CheckIds = "auto",
        std: float = 0.01,
        list_szs: Sequence[tuple[int, int]] = (),
        list_names: Sequence[str] | None = None,
        pool: Pool = "mean",
        tie: Mapping[str, str] | None = None,
        grads: Grads = "dense",
        placement: Placement | Embeddings | None = None,
    ) -> None:
        super().__init__()
        names = [str(i) for i in range(len(emb_szs))] if names is None else list(names)
        lists = [f"list{i}" for i in range(len(list_szs))] if list_names is None else list(list_names)
        check_sizes([*emb_szs, *list_szs], [*names, *lists])
        own = [(n, size) for n, size in zip(lists, list_szs, strict=True) if n not in (tie or {})]
        self.check_ids, self.pool, self.n_columns, self.names = check_ids, pool, len(names), names
        tables = dict(zip([*names, *(n for n, _ in own)], [*emb_szs, *(z for _, z in own)], strict=True))
        tables = {n: (rows, padded(width, pad=pad)) for n, (rows, width) in tables.items()}
        asked = as_embeddings(placement)
        grads = grads if asked is None else "rows"
        kinds = {} if asked is None else table_kinds(limited(asked), tables)
        self.slices = lay_out([*tables.values()], [*tables], grads=grads, kinds=kinds)
        self.placed = make_placed(asked, self.slices)
        self._by_name = {s.name: s for s in self.slices}
        sizes = dict(zip([*names, *lists], [*emb_szs, *list_szs], strict=True))
        for name, other in (tie or {}).items():
            known = name in lists and other in sizes and other not in tie
            if not known or sizes[name] != sizes[other]:
                remedy = "Tie a list column to a column that has a table of its own, of the same rows and width"
                raise DataError(f"the list column cannot use the table of {other!r}", column=name, remedy=remedy)
        self._by_name |= {name: self._by_name[(tie or {}).get(name, name)] for name in lists}
        self.list_names = lists
        columns_of = self.slices[: len(names)]
        # neighbouring columns of one group, and their floats: each run is one piece of the output
        self.runs = tuple((group, sum(s.width for s in run)) for group, run in groupby(columns_of, lambda s: s.group))
        self.embedding_dim = sum(s.width for s in columns_of) + sum(self._by_name[n].width for n in lists)
        self.weights = nn.ParameterDict()
        self._adjacent: dict[str, tuple[int, int] | None] = {}
        for group in dict.fromkeys(s.group for s in self.slices):
            own = [s for s in self.slices if s.group == group]
            rows = self.placed[group].slots if group in self.placed else own[-1].stop
            self.weights[group] = nn.Parameter(torch.zeros(rows, own[0].width))
            columns = [i for i, s in enumerate(columns_of) if s.group == group]
            adjacent = columns and columns == list(range(columns[0], columns[-1] + 1))
            self._adjacent[group] = (columns[0], columns[-1] + 1) if adjacent else None  # a slice, without a copy
            columns = torch.tensor(columns, dtype=torch.int64)
            self.register_buffer(f"_columns_{group}", columns, persistent=False)
        bounds = torch.tensor([[s.start, s.stop - s.start] for s in columns_of], dtype=torch.int64).view(-1, 2)
        self.register_buffer("_offsets", bounds[:, 0].clone(), persistent=False)
        self.register_buffer("_rows", bounds[:, 1].clone(), persistent=False)
        self._tag()
        self.reset_parameters(std)
        # saved weights hold all rows, wherever they lie here
        self.register_state_dict_post_hook(_with_all_rows)
        self.register_load_state_dict_pre_hook(_take_rows)
        # load_state_dict(assign=True) puts other parameters in place
        self.register_load_state_dict_post_hook(EmbeddingTables._tag)

    def reset_parameters(self, std: float = 0.01) -> None:
        """Draw every table anew, column by column, from a normal of scale ``std`` truncated at two scales."""
        for s in self.slices:
            with self.writing(s.name, anew=True) as table:
                trunc_normal_(table, std=std)

    def forward(self, x_cat: Tensor | None, *lists: ListBatch) -> Tensor:
        """Look up ids ``[b, columns]`` and lists of ids: ``[b, embedding_dim]``, columns first.

        Raises:
            DataError: an id is out of range (see ``check_ids``), or the number of columns is another.
        """
        return side_by_side(self.pieces(x_cat, lists))

    def pieces(self, x_cat: Tensor | None, lists: Sequence[ListBatch] = ()) -> list[Tensor]:
        """Look up like ``forward``, as pieces ``[b, ·]`` that it concatenates: appending more columns saves a copy."""
        return (self._columns(x_cat) if self.n_columns else []) + self.bags(lists)

    def bags(self, lists: Sequence[ListBatch]) -> list[Tensor]:
        """Pool the list columns' vectors, ``[b, width]`` each."""
        if len(lists) != len(self.list_names):
            remedy = f"Give lists for {self.list_names}"
            raise DataError(f"{len(lists)} list columns were given, {len(self.list_names)} are needed", remedy=remedy)
        return [self._bag(name, batch) for name, batch in zip(self.list_names, lists, strict=True)]

    def ids(self, x_cat: Tensor) -> dict[str, Tensor]:
        """Return the rows that a batch looks up: group → int64 ``[b, columns of the group]``.

        Placed tables know those of the last batch alone.
        """
        return {group: self._places(group, rows) for group, rows in self.rows_by_group(x_cat).items()}

    def list_ids(self, name: str, lists: ListBatch) -> Tensor:
        """Return as ``ids`` the codes of a list column: int64 ``[m]``."""
        s = self._by_name[name]
        return self._places(s.group, lists.values.long() + s.start)

    def _places(self, group: str, rows: Tensor) -> Tensor:
        placed = self.placed.get(group)
        if placed is not None and placed.sharded:
            raise DataError("rows that ranks share have no place here", remedy="Leave out CowClip, or row-sharded")
        return rows if placed is None else placed.slots_of(rows)

    def rows_by_group(self, x_cat: Tensor) -> dict[str, Tensor]:
        """Return which rows of each group of tables a batch looks up: group → int64 ``[b, columns of the group]``."""
        ids = x_cat + self._offsets
        groups = dict.fromkeys(s.group for s in self.slices[: self.n_columns])
        if len(groups) == 1:  # no copy of the ids
            return dict.fromkeys(groups, ids)
        found = {}
        for group in groups:
            adjacent, columns = self._adjacent[group], getattr(self, f"_columns_{group}")
            found[group] = ids[:, slice(*adjacent)] if adjacent else ids.index_select(1, columns)
        return found

    def look_up(self, column: int, ids: Tensor) -> Tensor:
        """Look up one column's vectors ``[m, width]``, for ids ``[m]`` that have been checked."""
        s = self.slices[column]
        return self.vectors(s.group, ids.long()[:, None] + s.start)

    def count(self, x_cat: Tensor) -> None:
        """Count future lookups, ids ``[n, columns]``, so that ``'cached'`` tables begin with their hottest rows."""
        self.check(x_cat)
        for group, rows in self.rows_by_group(x_cat).items():
            if group.endswith("_cached_rows"):
                self.placed[group].count(rows)

    def fetch_ahead(self, x_cat: Tensor | None, lists: Sequence[ListBatch] = ()) -> None:
        """Begin to bring a batch's rows of tables on the host; ids out of range are ignored."""
        if all(placed.sharded for placed in self.placed.values()):  # ranks exchange rows only within a step
            return
        wanted: dict[str, list[tuple[str, Tensor]]] = {}
        if self.n_columns and len(x_cat):
            inside = ((x_cat >= 0) & (x_cat < self._rows)).all(1)
            for group, rows in self.rows_by_group(x_cat[inside]).items():
                wanted.setdefault(group, []).append(("columns", rows))
        for name, batch in zip(self.list_names, lists, strict=True):
            s, ids = self._by_name[name], batch.values.long()
            wanted.setdefault(s.group, []).append((name, ids[(ids >= 0) & (ids < s.stop - s.start)] + s.start))
        for group, rows in wanted.items():
            if group in self.placed and not self.placed[group].sharded:
                self.placed[group].fetch_ahead(rows)

    def vectors(self, group: str, rows: Tensor, key: str = "columns") -> Tensor:
        """Return the vectors ``[b, k · width]`` of rows ``[b, k]`` of a group of tables."""
        placed = self.placed.get(group)
        if placed is None:
            # The gradient of index_select is always dense. CUDA adds it up in any order; F.embedding's sorts the ids
            # first: a step of 4,096, 16,384 and 65,536 rows took 1.86, 3.01 and 7.03 ms with it, 1.55, 2.43 and 6.51 ms
            # without (H100). set_seed(…, reproducible=True) asks for one order.
            weight, sparse = self.weights[group], group.endswith("_rows")
            narrow = weight.shape[1] <= limits.NARROW_TABLE
            faster = narrow if on_host(rows) else not torch.backends.cudnn.deterministic
            if faster and not sparse:
                return weight.index_select(0, rows.flatten()).view(rows.shape[0], rows.shape[1] * weight.shape[1])
            return F.embedding(rows, weight, sparse=sparse).flatten(1)
        if torch.compiler.is_compiling():
            remedy = "Load the weights into a model made without placement= and export or compile that"
            raise DataError("a graph cannot hold embedding tables whose rows are not on the device", remedy=remedy)
        return placed.look_up(rows, key)

    def _columns(self, x_cat: Tensor) -> list[Tensor]:
        self.check(x_cat)
        # one lookup a group, then a piece for each run of neighbouring columns
        parts: dict[str, list[Tensor]] = {}
        for group, rows in self.rows_by_group(x_cat).items():
            found = self.vectors(group, rows)
            widths = [w for g, w in self.runs if g == group]
            parts[group] = [found] if len(widths) == 1 else list(found.split(widths, 1))
        taken = {group: iter(part) for group, part in parts.items()}
        return [next(taken[group]) for group, _ in self.runs]

    def _bag(self, name: str, lists: ListBatch) -> Tensor:
        s = self._by_name[name]
        values = lists.values
        if looks(self.check_ids, values) and len(values):
            low, high = (int(v) for v in torch.aminmax(values))
            if low < 0 or high >= s.stop - s.start:
                at = int(((values < 0) | (values >= s.stop - s.start)).nonzero()[0])
                raise _out_of_range(name, int(values[at]), s.stop - s.start, int((lists.offsets <= at).sum()) - 1)
        ids, weight = values.long() + s.start, self.weights[s.group]
        sparse = s.group.endswith("_rows") and self.pool != "max"  # torch has no row-sparse gradient of a maximum
        placed = self.placed.get(s.group)
        if placed is not None and sparse and not placed.sharded:
            weight, ids = placed.leased(ids, name)
        elif placed is not None:  # a bag of vectors of its own, whose gradient goes on as that of a lookup
            weight, ids = self.vectors(s.group, ids[:, None], name), torch.arange(len(ids), device=ids.device)
            sparse = False
        return F.embedding_bag(ids, weight, lists.offsets, mode=self.pool, sparse=sparse, include_last_offset=True)

    def table(self, name: str) -> Tensor:
        """Return one column's table ``[rows, width]``, a view that gradients flow through.

        Of a table on the host it is a view of the rows there; of a sharded one a copy, which all ranks must request.
        """
        s = self.slice_of(name)
        placed = self.placed.get(s.group)
        return (self.weights[s.group] if placed is None else placed.whole())[s.start : s.stop]

    @contextmanager
    def writing(self, name: str, *, anew: bool = False) -> Iterator[Tensor]:
        """Open one column's table ``[rows, width]`` for changes in place; ``anew``: all of it will be overwritten."""
        s = self.slice_of(name)
        placed = self.placed.get(s.group)
        with torch.no_grad():
            if placed is not None and placed.sharded:
                table = self.weights[s.group].new_empty(s.stop - s.start, s.width) if anew else self.table(name)
                yield table
                placed.own(s.start, table)
                return
            yield self.table(name)
            if placed is not None:
                placed.reload()

    def load_table(self, name: str, weights: Tensor) -> None:
        """Overwrite one column's table by weights of its shape, of any float dtype and device."""
        s = self.slice_of(name)
        if weights.shape != (s.stop - s.start, s.width):
            problem = f"the table is {[s.stop - s.start, s.width]} (rows, width), the weights are {list(weights.shape)}"
            remedy = "Give weights of the table's own shape; pad=False keeps widths that are no multiple of 4"
            raise DataError(problem, column=name, remedy=remedy)
        with self.writing(name, anew=True) as table:
            table.copy_(weights)

    def parameter_segments(self) -> dict[str, tuple[int, ...]]:
        """Return the bounds ``(0, …, rows)`` of the tables in each parameter, by its name in ``named_parameters``."""
        groups = dict.fromkeys(s.group for s in self.slices)
        return {f"weights.{g}": (0, *(s.stop for s in self.slices if s.group == g)) for g in groups}

    def extra_repr(self) -> str:
        """Show tables as ``name: rows×width``."""
        return ", ".join(f"{s.name}: {s.stop - s.start}×{s.width}" for s in self.slices)

    def slice_of(self, name: str) -> TableSlice:
        """Return the place of a column's table."""
        if name not in self._by_name:
            raise MissingColumnError("there is no such table", column=name, remedy=f"Take {[*self._by_name]}")
        return self._by_name[name]

    def check(self, x_cat: Tensor) -> None:
        """Refuse ids out of range if they are to be checked (see ``check_ids``)."""
        if x_cat.ndim != 2 or x_cat.shape[1] != self.n_columns:
            remedy = f"Give one column of ids for each of {self.names}"
            raise DataError(f"ids of shape [b, {self.n_columns}] are needed, not {list(x_cat.shape)}", remedy=remedy)
        refuse_ids(x_cat, self._rows, self.names, self.check_ids)

    def _tag(self, *_: Any) -> None:
        for name, bounds in self.parameter_segments().items():
            self.weights[name.removeprefix("weights.")].segments = bounds
        for group, placed in self.placed.items():
            placed.attach(self.weights[group])

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._tag()  # copying a parameter drops what was set on it

    def _apply(self, fn: Any, recurse: bool = True) -> EmbeddingTables:
        super()._apply(fn, recurse)
        self._tag()
        return self


def looks(check_ids: CheckIds, ids: Tensor) -> bool:
    """Tell whether ids are to be looked at before the lookup, see ``EmbeddingTables``."""
    wanted = check_ids == "always" or (check_ids == "auto" and on_host(ids))
    return wanted and not torch.compiler.is_compiling() and not torch.jit.is_tracing()  # a graph has no branches


def refuse_ids(ids: Tensor, rows: Tensor, names: Sequence[str], check_ids: CheckIds) -> None:
    """Refuse ids ``[b, columns]`` that are not below ``rows``, if they are to be checked (see ``EmbeddingTables``)."""
    if not looks(check_ids, ids) or not len(ids):
        return
    low, high = torch.aminmax(ids, dim=0)
    if ((low < 0) | (high >= rows)).any():
        row, column = ((ids < 0) | (ids >= rows)).nonzero()[0].tolist()
        raise _out_of_range(names[column], int(ids[row, column]), int(rows[column]), row)


def side_by_side(pieces: Sequence[Tensor]) -> Tensor:
    """Concatenate pieces ``[b, ·]``; a single one is not copied."""
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces), 1)


def _out_of_range(name: str, found: int, rows: int, row: int) -> DataError:
    problem = f"id {found} is outside the table's 0 to {rows - 1}"
    remedy = "Encode rows with the vocabulary that the model was built from (the row is counted in the batch)"
    return DataError(problem, column=name, row=row, remedy=remedy)


def _with_all_rows(module: EmbeddingTables, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Extend a state dict to all rows of a table; of sharded tables each rank's own."""
    for group, placed in module.placed.items():
        if not placed.sharded:
            state[f"{prefix}weights.{group}"] = placed.whole()
    if module.placed:
        state[f"{prefix}where"] = kind_codes(module.slices)
    if (share := _share_of(module)) is not None:
        state[f"{prefix}share"] = share


def _share_of(module: EmbeddingTables) -> Tensor | None:
    return next((torch.tensor([p.rank, p.ranks]) for p in module.placed.values() if p.sharded), None)


def _take_rows(module: EmbeddingTables, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Take rows that are not on the device from a state dict before it is loaded."""
    own_rows = regroup(state, prefix, module.slices, _share_of(module))
    for group, placed in module.placed.items():
        given, weight = state.get(f"{prefix}weights.{group}"), module.weights[group]
        whole = (max(s.stop for s in module.slices if s.group == group), weight.shape[1])
        if given is None or tuple(given.shape) != whole or (placed.sharded and own_rows):
            continue
        placed.take_all(given)
        state[f"{prefix}weights.{group}"] = weight.detach()


def table_frame(embeds: EmbeddingTables, classes: Mapping[str, Sequence[Any]], name: str) -> Any:
    """Return a column's table as a pandas frame of vectors, with the categories as its index.

    Args:
        embeds: the tables of a model (``learn.model.embeds``).
        classes: column → its categories (``dls.classes``).
        name: the column.
    """
    import pandas as pd

    weights = embeds.table(name).detach().float().cpu().numpy()
    return pd.DataFrame(weights.copy(), index=pd.Index(list(_classes(classes, name)), name=name))


def save_tables(
    embeds: EmbeddingTables,
    classes: Mapping[str, Sequence[Any]],
    folder: str | Path,
    names: Iterable[str] | None = None,
) -> None:
    """Save tables with the categories that their rows belong to, as JSON and safetensors.

    Args:
        embeds: the tables of a model (``learn.model.embeds``).
        classes: column → its categories (``dls.classes``).
        folder: the target folder; an earlier save is replaced in one step.
        names: the columns; None: all.
    """
    wanted = [s.name for s in embeds.slices] if names is None else list(names)
    state = {}
    for name in wanted:
        reserved, values = _parts(_classes(classes, name))
        weights = embeds.table(name).detach().float().cpu().clone()
        state[name] = {"reserved": reserved, "values": values, "weights": weights}
    save_state(folder, {"kind": "embedding tables", "tables": state})


def load_tables(
    embeds: EmbeddingTables,
    classes: Mapping[str, Sequence[Any]],
    folder: str | Path,
    names: Iterable[str] | None = None,
) -> dict[str, int]:
    """Load what ``save_tables`` wrote, by the names of columns and categories.

    Args:
        embeds: the tables to write to; rows of categories that were not saved stay as they are.
        classes: column → its categories (``dls.classes``).
        folder: the folder of the saved tables.
        names: the columns; None: all saved ones that the model has.

    Returns:
        Column → how many of its categories were found.

    Raises:
        MissingColumnError: a column of ``names`` was not saved or is not in the model; or no saved one is.
        DataError: the widths differ, or the folder holds something else.
    """
    state = load_state(folder)
    if state.get("kind") != "embedding tables":
        raise DataError("holds no embedding tables", file=folder, remedy="Give a folder that save_tables wrote")
    saved, here = state["tables"], {s.name for s in embeds.slices}
    wanted = [n for n in saved if n in here] if names is None else list(names)
    if missing := [n for n in wanted if n not in saved] or ([] if wanted else [*saved][:1]):
        problem = "has no table of that column, or the model has none"
        remedy = f"Saved are {list(saved)}, the model has {sorted(here)}"
        raise MissingColumnError(problem, file=folder, column=missing[0], remedy=remedy)
    return {name: _load(embeds, classes, name, saved[name], folder) for name in wanted}


def _load(
    embeds: EmbeddingTables, classes: Mapping[str, Sequence[Any]], name: str, saved: Mapping[str, Any], folder: Any
) -> int:
    weights, width = saved["weights"], embeds.slice_of(name).width
    if weights.shape[1] != width:
        problem = f"its vectors have {weights.shape[1]} numbers, the model's {width}"
        remedy = f"Make the model with emb_szs={{{name!r}: {weights.shape[1]}}}"
        raise DataError(problem, file=folder, column=name, remedy=remedy)
    reserved, values = _parts(_classes(classes, name))
    rows = [reserved.index(r) if r in reserved else -1 for r in saved["reserved"]]
    found = Keys((saved["values"],), (name,)).find_in(Keys((values,), (name,)))
    places = torch.cat([torch.tensor(rows, dtype=torch.int64), torch.where(found >= 0, found + len(reserved), -1)])
    known = places >= 0
    with embeds.writing(name) as table:
        table[places[known].to(table.device)] = weights[known].to(table.device, table.dtype)
    return int(known.sum())


def _classes(classes: Mapping[str, Sequence[Any]], name: str) -> Sequence[Any]:
    if name not in classes:
        raise MissingColumnError("has no categories here", column=name, remedy=f"Known are {list(classes)}")
    return classes[name]


def _parts(classes: Sequence[Any]) -> tuple[list[str], pa.Array]:
    if isinstance(classes, ClassList):
        return list(classes.vocab.reserved), classes.vocab.values
    return [MISSING], pa.array(list(classes)[1:])
