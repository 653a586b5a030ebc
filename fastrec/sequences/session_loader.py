"""``SessionLoader``: batches of sessions of like length, padded where they are used, for fastai."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from torch import Tensor

from fastrec._core import limits
from fastrec._core.device import DeviceLike, resolve_device
from fastrec.errors import DataError
from fastrec.sequences.augmentation import AUGMENTATIONS, augmented, moved
from fastrec.sequences.session_frame import SessionFrame
from fastrec.sequences.targets import TASKS, Task
from fastrec.table.offsets import offsets_of

__all__ = ["SessionLoader", "session_dataloaders"]


class SessionLoader(DataLoader):
    """Batches ``(items, lengths, *sides, target)`` of sessions.

    Items and targets are int64 ``[b, L]``, filled up behind with 0; target 0 is not asked for. An epoch has every
    session of two events or more once, cut to its last ``max_len`` inputs, in as many batches as positions need.
    Sessions of like length occur together, among those of a chunk of 32 batches.

    Args:
        sessions: a target of theirs counts as their last event.
        tokens: positions in a batch, about; at least ``4 * max_len``.
        max_len: events of a session that are read, the last ones.
        task: what is asked: the next item at all positions (``'causal'``), at the last one (``'last'``), or items that
            are hidden (``'masked'``, ``'permuted'``), see ``fastrec.sequences.targets``.
        shuffle: a new order every epoch.
        chronological: with ``shuffle``: chunks follow each other in the order of the sessions' last times (without
            times: in their order), the last ones at the end of the epoch.
        augment: changes made to training sessions anew in every epoch, see ``fastrec.sequences.augmentation``.
        masked: share of events that ``'masked'`` and ``'permuted'`` hide.
        seed: same seed, same batches.
        device: where batches are made.
    """

    def __init__(
        self,
        sessions: SessionFrame,
        *,
        tokens: int = 2048,
        max_len: int = 50,
        task: Task = "causal",
        shuffle: bool = False,
        chronological: bool = False,
        augment: Sequence[str] = (),
        masked: float = 0.2,
        seed: int | None = None,
        device: DeviceLike = None,
    ) -> None:
        if task not in TASKS or set(augment) - set(AUGMENTATIONS):
            raise DataError(
                f"task={task!r}, augment={list(augment)}: not known",
                remedy=f"Choose a task of {sorted(TASKS)} and changes of {sorted(AUGMENTATIONS)}",
            )
        if max_len < 1:
            raise DataError(f"max_len={max_len}: a session needs at least one event", remedy="Give 1 or more")
        device = resolve_device(device)
        asked = sessions.with_target() if sessions.target is not None else sessions
        self.sessions, self.tokens, self.max_len = asked, max(tokens, 4 * max_len), max_len
        self.task, self.chronological, self.masked, self.seed = task, chronological, masked, seed
        self.augment = tuple(augment)
        self.rows = (asked.lengths > 1).nonzero().squeeze(1)
        super().__init__(dataset=_SessionRows(self.rows), bs=self.tokens, shuffle=shuffle, num_workers=0, device=device)
        if seed is not None:
            self.rng = random.Random(seed)
        self.n_inp = 2 + len(asked.sides) + task.startswith("permuted")
        self._values = asked.values.to(device)
        self._sides = {n: v.to(device) for n, v in asked.sides.items()}

    def __len__(self) -> int:
        return -(-int(self._positions().sum()) // self.tokens)

    def _positions(self) -> Tensor:
        """Return how many inputs each row's session has, int64 ``[rows]``."""
        return (self.sessions.lengths[self.rows] - 1).clamp_max(self.max_len)

    def new(self, sessions: SessionFrame, **changes: Any) -> SessionLoader:
        """Return a loader of other sessions with the same settings but for those given."""
        same = {"tokens": self.tokens, "max_len": self.max_len, "task": self.task, "shuffle": self.shuffle}
        same |= {"chronological": self.chronological, "augment": self.augment, "masked": self.masked}
        return SessionLoader(sessions, **{**same, "seed": self.seed, "device": self.device, **changes})

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        self.randomize()
        self.before_iter()
        generator = torch.Generator().manual_seed(self.rng.getrandbits(62))
        ends = self.sessions.offsets[self.rows + 1]
        starts = torch.maximum(self.sessions.offsets[self.rows], ends - self.max_len - 1)
        if self.augment:
            starts, ends = augmented(
                self.augment, self.sessions.offsets[self.rows], ends, self.max_len + 1, generator=generator
            )
        for rows in self._batches(ends - starts - 1, generator):
            yield self._batch(starts[rows], ends[rows], generator)
        self.after_iter()

    def _batches(self, positions: Tensor, generator: torch.Generator) -> Sequence[Tensor]:
        """Return the rows of each batch of an epoch."""
        rows = torch.arange(len(positions))
        if self.shuffle and not self.chronological:
            rows = torch.randperm(len(positions), generator=generator)
        elif self.chronological and self.sessions.ends is not None:
            rows = torch.argsort(self.sessions.ends[self.rows].nan_to_num(), stable=True)
        count = max(len(self), 1)
        place = _shares(positions[rows], count)
        # by length within a chunk; at random among equal ones, so that batches differ from epoch to epoch
        draw = torch.rand(len(rows), generator=generator) if self.shuffle else torch.zeros(len(rows))
        key = (
            torch.div(place, limits.SESSION_LOADER_CHUNK, rounding_mode="floor") * (self.max_len + 2) + positions[rows]
        )
        rows = rows[torch.argsort(key.double() + draw.double(), stable=True)]
        batch = _shares(positions[rows], count)
        parts = list(rows.split(torch.bincount(batch, minlength=count).tolist()))
        if self.shuffle:
            chunk = torch.div(torch.arange(len(parts)), limits.SESSION_LOADER_CHUNK, rounding_mode="floor")
            order = torch.argsort(chunk + torch.rand(len(parts), generator=generator))
            parts = [parts[i] for i in order.tolist()]
        return [p for p in parts if len(p)]

    def _batch(self, starts: Tensor, ends: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        starts, ends = starts.to(self._values.device), ends.to(self._values.device)
        length = int((ends - starts).max())
        place = torch.arange(length, device=starts.device)
        inside = place < (ends - starts).unsqueeze(1)
        event = moved(self.augment, ends - starts, length, generator=generator) if self.augment else place
        index = torch.where(inside, starts.unsqueeze(1) + event, 0)
        items = self._values[index].masked_fill_(~inside, 0)
        sides = [self._values_of(v, index, inside) for v in self._sides.values()]
        asked = TASKS[self.task](items, ends - starts, sides, len(self.sessions.items), self.masked, generator)
        if "mask" in self.augment:
            asked.hide(limits.AUGMENTATION_MASKED, len(self.sessions.items), generator)
        return (asked.items, asked.lengths, *asked.sides, asked.target)

    @staticmethod
    def _values_of(values: Tensor, index: Tensor, inside: Tensor) -> Tensor:
        return values[index].masked_fill_(~inside, 0)


class _SessionRows:
    """The sessions of a loader, as fastai counts them."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> int:
        return int(self.rows[i])


def _shares(positions: Tensor, count: int) -> Tensor:
    """Return which of ``count`` batches of about as many positions each row goes to, int64 ``[n]``, ascending."""
    starts = offsets_of(positions)[:-1]
    last = int(starts[-1]) if len(starts) else 0
    return torch.div(starts * count, last + 1, rounding_mode="floor")


def session_dataloaders(
    train: SessionFrame,
    valid: SessionFrame | None = None,
    *,
    tokens: int = 2048,
    max_len: int = 50,
    task: Task = "causal",
    chronological: bool = True,
    augment: Sequence[str] = (),
    masked: float = 0.2,
    seed: int | None = None,
    device: DeviceLike | Literal["auto"] = None,
) -> DataLoaders:
    """Loaders of training sessions, and of held-out ones, of which the last item is asked.

    Args:
        train: sessions to learn from.
        valid: sessions with their target, or with it as their last event; None: the first hundred of ``train``, for
            ``show_results``.
        tokens, max_len, task, chronological, augment, masked, seed, device: see ``SessionLoader``.
    """
    device = resolve_device(device)
    common: dict[str, Any] = {"max_len": max_len, "device": device, "seed": seed, "masked": masked}
    order: dict[str, Any] = {"shuffle": True, "chronological": chronological, "augment": augment}
    first = SessionLoader(train, tokens=tokens, task=task, **order, **common)
    held = valid if valid is not None else train.take(torch.arange(min(len(train), 100)))
    last: Task = {"causal": "last", "last": "last", "masked": "hidden last", "permuted": "permuted last"}[task]  # type: ignore[assignment]
    return DataLoaders(first, SessionLoader(held, tokens=4 * tokens, task=last, **common), device=device)
