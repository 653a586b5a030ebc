"""``CumTarget`` goes on learning: its sums from the rows that came after training, for rows that come later still."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
import torch

from fastrec.errors import DataError
from fastrec.features import CumTarget
from fastrec.features._inputs import as_list, name_of, names_of, order_keys
from fastrec.features.base import Feature
from fastrec.features.cum_target import smoothed
from fastrec.serve.online.keys import by_key, row_keys
from fastrec.serve.online.store import EventStore
from fastrec.table import Column, Table
from fastrec.table.key_types import UNITS_PER_SECOND


class Learner:
    """Counts and sums of targets by key, in order, added to what was learned in training.

    A row sees the training rows and the observed rows that are strictly earlier, as a training row does: the value that
    ``fit_transform`` would give it. Rows older than a key's newest by more than ``late`` are added up.

    Args:
        steps: the generators; those of class ``CumTarget`` are served.
        made: the columns that generators make.
        deep: the generators whose values earlier rows need too.
        store: where the sums are.
        keep: how many rows a key has before old ones are added up.
        late: see ``Online``.

    Raises:
        DataError: a generator cannot go on learning, by name.
    """

    def __init__(
        self,
        steps: Sequence[Feature],
        made: Mapping[str, Any],
        deep: Sequence[Feature],
        store: EventStore,
        keep: int,
        late: Fraction,
    ) -> None:
        self.steps = [s for s in steps if isinstance(s, CumTarget)]
        self.store, self.keep, self.late = store, keep, late
        for step in self.steps:
            why = "its sums decay" if step.half_life is not None else None
            why = "it reads what another generator makes" if set(step.inputs) & set(made) else why
            why = "a generator that looks back reads it" if step in deep else why
            if why is not None:
                raise DataError(
                    f"CumTarget ({', '.join(step.outputs)}) cannot go on learning: {why}",
                    remedy="Use learn=False: it keeps what it learned in training",
                )

    @property
    def columns(self) -> list[str]:
        """The columns that rows to learn from must have."""
        return list(dict.fromkeys(n for s in self.steps for n in s.inputs))

    @property
    def request_columns(self) -> list[str]:
        """The columns that requests must have, beside those of ``transform``."""
        return list(dict.fromkeys(n for s in self.steps for n in as_list(s.order)))

    def records(self, rows: Table) -> dict[bytes, bytes]:
        """Encode rows with their target as bytes for each key."""
        appends: dict[bytes, bytes] = {}
        for number, step in enumerate(self.steps):
            order = order_keys(rows, as_list(step.order))
            made = np.zeros(len(rows), self._dtype(step, rows))
            for i, key in enumerate(order):
                made[f"o{i}"] = key.numpy()
            for i, (weight, y) in enumerate(step._counted(rows)):
                made[f"w{i}"], made[f"s{i}"] = weight.numpy(), (weight * y).numpy()
            appends |= by_key([self._prefix(number)] * len(rows), made)
            for place, col in enumerate(as_list(step.cols)):
                appends |= by_key(row_keys(rows, names_of(col), self._prefix(number, place)), made)
        return appends

    def fold(self, lengths: Mapping[bytes, int], rows: Table) -> None:
        """Add up the old rows of keys that have many."""
        for key, length in lengths.items():
            if key[:1] != b"c":
                continue
            step = self.steps[key[1]]
            kind = self._dtype(step, rows)
            if length <= self.keep * kind.itemsize:
                continue
            (value,) = self.store.get([key])
            records = np.frombuffer(value or b"", kind)
            margin = self.late * UNITS_PER_SECOND[rows[as_list(step.order)[0]].unit or "s"]
            first = records["o0"]
            cut = first.max() - (float(margin) if first.dtype.kind == "f" else ceil(margin))
            old = first < cut
            if old.sum() < 2:
                continue
            total = records[old][:1].copy()
            total["folded"], total["o0"] = 1, cut  # nothing older than this can be told apart any more
            for name in kind.names[kind.names.index("w0") :]:
                total[name] = records[name][old].sum()
            self.store.replace(key, value or b"", total.tobytes() + records[~old].tobytes(), {})

    def compute(self, step: CumTarget, rows: Table) -> dict[str, Column]:
        """Compute the columns of rows from training rows and the rows observed before them."""
        number, state = self.steps.index(step), step._learned()[0]
        prior = self._sums(step, rows, [self._prefix(number)] * len(rows))
        made: dict[str, Column] = {}
        for place, col in enumerate(as_list(step.cols)):
            coded = rows.coded(names_of(col))
            keys = row_keys(rows, names_of(col), self._prefix(number, place))
            later, codes = self._sums(step, rows, keys), coded.recode(state["keys"][place])
            for t, target in enumerate(step.averaged):
                learned = state["columns"][place][t]
                own = [torch.cat([v.new_zeros(1), v.sum(0)])[codes] for v in (learned["count"], learned["sum"])]
                whole = [state["total"][t][n].sum() for n in ("count", "sum")]
                count, total = (a + b for a, b in zip(own, later[t], strict=True))
                rows_so_far, sum_so_far = (a + b for a, b in zip(whole, prior[t], strict=True))
                mean = torch.where(rows_so_far > 0, sum_so_far / rows_so_far.clamp_min(1e-300), 0)
                name = f"{step.name or 'cumte'}_{name_of(col)}__{target}"
                made[name] = Column("number", smoothed(count, total, 1.0, mean, step.smooth), name=name)
        return {n: made[n] for n in step.outputs}

    def _sums(
        self, step: CumTarget, rows: Table, keys: Sequence[bytes | None]
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return for each target the count and the sum over the observed rows before each row: float64 ``[n]``.

        Raises:
            DataError: a row is older than rows that were added up.
        """
        kind, n = self._dtype(step, rows), len(rows)
        places: dict[bytes, int] = {}
        of_row = np.array([-1 if k is None else places.setdefault(k, len(places)) for k in keys], np.int64)
        values = [v or b"" for v in self.store.get(list(places))]
        records = np.frombuffer(b"".join(values), kind) if any(values) else np.empty(0, kind)
        sizes = np.array([0, *(len(v) // kind.itemsize for v in values)], np.int64)
        start, length = np.cumsum(sizes)[:-1], sizes[1:]
        length = np.where(of_row >= 0, length[of_row], 0) if len(length) else np.zeros(n, np.int64)
        row = np.repeat(np.arange(n), length)  # every row beside every record of its key
        begin = np.cumsum(length) - length
        first = start[of_row] if len(places) else np.zeros(n, np.int64)
        event = records[np.arange(len(row)) - begin[row] + first[row]]
        before, tied = np.zeros(len(row), bool), np.ones(len(row), bool)
        for i, key in enumerate(order_keys(rows, as_list(step.order))):
            now = key.numpy()[row]
            before |= tied & (event[f"o{i}"] < now)
            tied &= event[f"o{i}"] == now
            if i == 0:
                self._check_late(step, row[(event["folded"] > 0) & (event["o0"] > now)])
                before |= event["folded"] > 0
        event, row = event[before], row[before]
        return [
            tuple(torch.from_numpy(np.bincount(row, event[f"{w}{t}"], n)) for w in "ws")  # type: ignore[misc]
            for t in range(len(step.averaged))
        ]

    def _check_late(self, step: CumTarget, rows: np.ndarray) -> None:
        if len(rows):
            raise DataError(
                "a request is older than rows that were added up",
                column=as_list(step.order)[0],
                row=int(rows[0]),
                remedy="Make the Online with a larger late=, or send requests in time",
            )

    @staticmethod
    def _dtype(step: CumTarget, rows: Table) -> np.dtype:
        order = order_keys(rows, as_list(step.order))
        parts = [("folded", "u1"), *((f"o{i}", "f8" if k.is_floating_point() else "i8") for i, k in enumerate(order))]
        return np.dtype([*parts, *((f"{w}{t}", "f8") for t in range(len(step.averaged)) for w in "ws")])

    @staticmethod
    def _prefix(number: int, place: int = 255) -> bytes:
        return b"c" + bytes([number, place])  # 255: the rows of all keys
