"""``SessionRanker``: a net over candidates that reads what the session did before their list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastrec._core.oom import naming_out_of_memory
from fastrec.errors import DataError
from fastrec.estimators._list_events import ITEM, AddEvents, EventCoder, with_items
from fastrec.estimators._net_start import values_of_codes
from fastrec.estimators._trained_net import net_columns
from fastrec.estimators.net import NetRanker
from fastrec.models import DIN
from fastrec.models.event_net import EventNet
from fastrec.tabular import Categorify, TabularFrame
from fastrec.validate import Lists

_AT_ONCE = 1 << 12  # candidates that are scored at once, about


class SessionRanker(NetRanker):
    """A net over candidates that attends to the events before their list, trained as ``NetRanker`` is.

    The lists come with their events (``Lists(…, events=ListEvents.before(…))``). What an event says: its item, its
    categories and numbers, how long ago it was, how many came after, and the candidate's own columns where the item
    stands in the list.

    Args:
        name: the ranker's name.
        model: ``DIN``, ``BST``, or their names: a net of ``fastrec.models.EventNet``.
        most_events: of those before a list the last ones, so many.
        options: the model's own (``width``, ``heads``, …).
        **training: as for ``NetRanker`` (``layers``, ``epochs``, ``max_rows``, ``lr``, ``bs``, ``wd``, ``ps``,
            ``embed_p``).

    Raises:
        DataError: there is no such model, or it reads no events, or it takes no such option.
    """

    reads_events = True

    def __init__(
        self,
        name: str = "din",
        *,
        model: type[nn.Module] | str = DIN,
        most_events: int = 20,
        options: Mapping[str, Any] | None = None,
        **training: Any,
    ) -> None:
        super().__init__(name, model=model, options=options, **training)
        if not issubclass(self.architecture.model, EventNet):
            raise DataError(f"{self.architecture.model.__name__} reads no events", remedy="Take DIN or BST")
        if most_events < 1:
            raise DataError(f"most_events={most_events}", remedy="Give 1 or more")
        self.most_events = most_events

    def forget(self) -> None:
        """Drop the net and what its columns and events were prepared with."""
        super().forget()
        self._events: EventCoder | None = None

    def _cats(self, train: Lists) -> list[str]:
        return [*train.cats, ITEM]

    def _laid_out(self, rows: Lists) -> Lists:
        return with_items(rows)

    def _beside(self, rows: Sequence[Lists], frame: TabularFrame) -> tuple[dict[str, Any], dict[str, Any]]:
        self._events = EventCoder.fit(rows[0], self.most_events)
        coded = [self._events(part, _items(frame)) for part in rows]
        events = coded[0] if len(coded) == 1 else coded[0].joined(coded[1])
        return {"after_batch": AddEvents(events)}, self._events.sizes

    def _event_values(self) -> dict[str, list[Any]]:
        if self._events is None:
            return {}
        values = values_of_codes(self._events.frame)
        return {n: values[n] for n in self._events.frame.cat_names}

    def predict(self, data: Lists) -> Tensor:
        """Scores of the candidates: float64 ``[n]`` on the CPU.

        Raises:
            NotFittedError: it was not trained.
            DataError: it is not known what was before a list.
        """
        if self._trained is None or self._events is None:
            raise self.not_fitted()
        if not len(data):
            return torch.zeros(0, dtype=torch.float64)
        trained = self._trained
        device = next(trained.net.parameters()).device
        names = [*trained.frame.cat_names, *trained.frame.cont_names]
        frame = trained.frame.new(net_columns(with_items(data), trained.flags, names))
        frame.process()
        events = self._events(data, _items(trained.frame)).to(device)
        _, numbers, sizes = torch.unique_consecutive(data.groups, return_inverse=True, return_counts=True)
        made = []
        with torch.no_grad(), naming_out_of_memory("scoring rows", "Score fewer rows at once"):
            for rows in torch.arange(len(data)).split(_blocks(sizes)):
                part = slice(int(rows[0]), int(rows[-1]) + 1)
                beside = events.batch(numbers[part].to(device))
                scores = trained.net(frame.x_cat[part].to(device), frame.x_cont[part].to(device), *beside)
                made.append(scores.double().cpu())
        return torch.cat(made).squeeze(1)

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but ``model`` and its options, which ``write`` keeps."""
        return {**super().settings(), "most_events": self.most_events}

    def write(self, folder: Path) -> dict[str, Any]:
        """What ``NetRanker`` writes, and how events are prepared (``events/``)."""
        about = super().write(folder)
        assert self._events is not None
        return {**about, **self._events.write(folder)}

    def read(self, folder: Path, about: Mapping[str, Any]) -> None:
        """The inverse of ``write``."""
        super().read(folder, about)
        self._events = EventCoder.read(folder, about)


def _items(frame: TabularFrame) -> Categorify:
    return next(p for p in frame.procs.fs if isinstance(p, Categorify))


def _blocks(sizes: Tensor) -> list[int]:
    """How many candidates are scored at a time: whole lists, about ``_AT_ONCE``."""
    ends = sizes.cumsum(0)
    block = (ends - 1) // _AT_ONCE
    _, lists = torch.unique_consecutive(block, return_counts=True)
    stops = ends[lists.cumsum(0) - 1]
    return torch.diff(stops, prepend=stops.new_zeros(1)).tolist()
