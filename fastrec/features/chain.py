"""The steps of a FeatureSet at work on training rows, and how a target is kept from its own rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from fastrec.errors import DataError
from fastrec.features.base import Cells, Context, Feature, Fitted, Grouped, as_list
from fastrec.features.folds import INNER_SEED, row_folds
from fastrec.features.keyed import sort_keys
from fastrec.features.lag import take_or_missing
from fastrec.features.naming import naming
from fastrec.features.nesting import key_keeps_together, mixing_steps, reads_target, tainted_steps
from fastrec.table import Column, Table, concat


class Chain:
    """Steps in the order in which they are computed.

    Args:
        steps: the generators, those inside others before them.
        key: the columns that rows' folds are made from; empty: the row's number.
        folds: how many inner folds, where a generator does not say.
        targets: the columns that are targets, whichever step uses them.
    """

    def __init__(self, steps: Sequence[Feature], *, key: Sequence[str], folds: int, targets: Collection[str]) -> None:
        self.steps, self.key, self.folds, self.targets = steps, list(key), folds, targets

    @property
    def tainted(self) -> list[Feature]:
        """Steps that a target passes through; all others are the same in every fold."""
        return tainted_steps(self.steps, self.targets)

    def run(
        self, work: Table, context: Context, extra: Table | None = None, *, wanted: Collection[str] | None = None
    ) -> Table:
        """Learn every step, and give training rows the columns of those that are wanted (None: of all)."""
        for step in self.steps:
            used = wanted is None or bool(set(wanted) & set(step.outputs))
            work, extra = self.fit_step(step, work, context, extra, used=used)
        return work

    def run_clean(self, work: Table, context: Context, extra: Table | None) -> Table:
        """The columns of the steps that no target passes through, without learning anything."""
        tainted = self.tainted
        for step in self.steps:
            if step not in tainted:
                work, extra = self.fit_step(step, work, context, extra, learn=False)
        return work

    def fit_step(
        self,
        step: Feature,
        work: Table,
        context: Context,
        extra: Table | None,
        *,
        learn: bool = True,
        used: bool = True,
    ) -> tuple[Table, Table | None]:
        """One step's columns for training rows and, where ``scope='all'`` needs them, unlabeled ones (``extra``)."""
        read_by_all = extra is not None and self._feeds_all(step)
        with naming(step):
            if not isinstance(step, Fitted):
                made = compute(step, work, context) if used else {}
                more = compute(step, extra, context) if read_by_all else {}
            else:
                by_fold = step.uses_target and not step.causal
                cells = self._inner_cells(step, work) if by_fold else Cells(zeros(work), 1)
                state = step.collect(work, cells)
                if step.scope == "all" and extra is not None:
                    state = step.merge(state, step.collect(extra))
                if learn:
                    step.learn(state)
                excluded = torch.eye(cells.count, dtype=torch.bool) & by_fold
                made = step.compute_out_of_cell(work, state, cells, excluded) if used else {}
                more = step.compute_from(extra, state) if read_by_all else {}
        return work.with_columns(made), extra.with_columns(more) if extra is not None else None

    def all_steps(self) -> list[Feature]:
        """Steps that count unlabeled rows (``scope='all'``), and those that they read, in order."""
        found: set[str] = set()
        kept = []
        for step in reversed(self.steps):
            if step.scope == "all" or found & set(step.outputs):
                found |= set(step.inputs)
                kept.append(step)
        return kept[::-1]

    def _feeds_all(self, step: Feature) -> bool:
        outputs = set(step.outputs)
        return any(outputs & set(s.inputs) for s in self.all_steps())

    # How a target is kept from its own rows --------------------------------------------------------------------------

    def nest(self, work: Table, context: Context, hidden: torch.Tensor | None) -> Table:
        """Redo the mixing steps fold by fold, each fold's rows from encodings that hold none of that fold's targets.

        Args:
            work: all columns, the mixing steps' among them.
            context: see ``Context``.
            hidden: bool ``[n]``, rows of an outer fold whose values stay and whose targets are not seen; None: none.
        """
        together = key_keeps_together(self.steps, self.key, work, hidden)
        mixing = mixing_steps(self.steps, self.key, self.targets, together=together)
        names = [n for step in mixing for n in step.outputs]
        if not names or not len(work):
            return work
        hidden = torch.zeros(len(work), dtype=torch.bool, device=work.device) if hidden is None else hidden
        inner = row_folds(work, self.key, self.folds, seed=INNER_SEED)
        parts, places = [work.select(names).take(hidden)], [hidden.nonzero().squeeze(1)]
        for fold in range(self.folds):
            rows = ((inner == fold) & ~hidden).nonzero().squeeze(1)
            if len(rows):
                made = self.without((inner == fold) | hidden, work, context)
                parts.append(made.select(names).take(rows))
                places.append(rows)
        whole = concat(parts).take(torch.argsort(torch.cat(places)))
        return work.with_columns({n: whole[n] for n in names})

    def without(self, hidden: torch.Tensor, work: Table, context: Context) -> Table:
        """The tainted steps with the targets of the ``hidden`` rows (bool ``[n]``) in no value."""
        for step in self.tainted:
            with naming(step):
                work = work.with_columns(self._step_without(step, hidden, work, context))
        return work

    def _step_without(self, step: Feature, hidden: torch.Tensor, work: Table, context: Context) -> dict[str, Column]:
        if not isinstance(step, Fitted):
            return compute(step, self._masked(step, hidden, work), context)
        by_fold = step.uses_target and not step.causal
        inner = self._inner_cells(step, work) if by_fold else Cells(zeros(work), 1)
        # Cell 0 is the hidden rows; the others are the inner folds of the rest.
        cells = Cells(torch.where(hidden, 0, inner.codes + 1), inner.count + 1)
        excluded = torch.zeros(cells.count, cells.count, dtype=torch.bool)
        excluded[:, 0] = True
        if by_fold:
            excluded |= torch.eye(cells.count, dtype=torch.bool)
        return step.compute_out_of_cell(work, step.collect(work, cells), cells, excluded)

    def _masked(self, step: Feature, hidden: torch.Tensor, work: Table) -> Table:
        """The rows with the targets that a step reads missing where they are hidden."""
        read = [n for n in step.inputs if n in self.targets]
        if not read:
            return work
        rows = torch.where(hidden, -1, torch.arange(len(work), device=work.device))
        return work.with_columns({n: take_or_missing(work[n], rows) for n in read})

    def _inner_cells(self, step: Feature, work: Table) -> Cells:
        column = getattr(step, "fold_column", None)
        if column is not None:
            keys, codes = sort_keys(work.coded(column))
            if bool((codes == 0).any()):
                row = int((codes == 0).nonzero()[0])
                raise DataError("a row has no fold", column=column, row=row, remedy="Give every training row a fold")
            return Cells(codes - 1, max(len(keys), 1))
        count = getattr(step, "folds", None) or self.folds
        return Cells(row_folds(work, self.key, count, seed=INNER_SEED), count)

    def check_targets(self) -> None:
        """Refuse a step that would give rows their own targets.

        Raises:
            DataError: naming generator and column.
        """
        for step in self.steps:
            read = reads_target(step, self.targets)
            if read and (step.own_row or step.uses_future):
                raise DataError(
                    f"{type(step).__name__} reads the target, so that rows would be given their own",
                    column=read[0],
                    remedy="Use TargetEncode (out of fold) or CumTarget (from earlier rows)",
                )


def zeros(work: Table) -> torch.Tensor:
    """One code for all rows: int64 ``[n]``."""
    return torch.zeros(len(work), dtype=torch.int64, device=work.device)


def compute(step: Feature, work: Table, context: Context) -> dict[str, Column]:
    """A step's columns, from what it has learned."""
    return step.compute(work, context) if isinstance(step, Grouped) else step.compute(work)


def target_names(steps: Sequence[Feature], declared: str | Sequence[str] | None) -> list[str]:
    """The columns that are targets: those declared, and those of the steps that use one."""
    used = [t for s in steps if s.uses_target for t in as_list(getattr(s, "target", None))]
    return list(dict.fromkeys([*as_list(declared), *used]))
