"""``SessionRanker``: a net over candidates that reads what the session did before their list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastrec._core import limits
from fastrec._core.oom import naming_out_of_memory
from fastrec.errors import DataError
from fastrec.estimators._list_events import ITEM, AddEvents, EventCoder, with_items
from fastrec.estimators._net_start import values_of_codes
from fastrec.estimators.net import NetRanker
from fastrec.models import DIN
from fastrec.models.event_net import EventNet
from fastrec.tabular import Categorify, TabularFrame
from fastrec.validate import Lists


class SessionRanker(NetRanker):
    """A net over candidates that attends to the events before their list, trained as ``NetRanker`` is.

    The lists come with their events (``Lists(…, events=ListEvents.before(…))``). Inputs of an event are its item,
    its categories and numbers, its age, the number of later events, and the candidate's own columns if its item is in
    the list.

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

    def _with_columns(self, rows: Lists) -> Lists:
        return with_items(rows)

    def _event_inputs(self, train: Lists, frame: TabularFrame) -> tuple[dict[str, Any], dict[str, Any]]:
        self._events = EventCoder.fit(train, self.most_events)
        return {"after_batch": AddEvents(self._events(train, _items(frame)))}, self._events.sizes

    def _event_values(self) -> dict[str, list[Any]]:
        if self._events is None:
            return {}
        values = values_of_codes(self._events.frame)
        return {n: values[n] for n in self._events.frame.cat_names}

    def _scorer(self, data: Lists) -> Callable[[], Tensor]:
        assert self._trained is not None
        assert self._events is not None
        trained = self._trained
        device = next(trained.net.parameters()).device
        frame = trained.frame_of(with_items(data))
        events = self._events(data, _items(trained.frame)).to(device)
        _, numbers, sizes = torch.unique_consecutive(data.groups, return_inverse=True, return_counts=True)
        # Lists stay whole: their events are padded to the longest of a block.
        blocks = torch.arange(len(data)).split(_blocks(sizes))

        def scored() -> Tensor:
            scores = []
            with torch.no_grad(), naming_out_of_memory("scoring rows", "Score fewer rows at once"):
                for rows in blocks:
                    part = slice(int(rows[0]), int(rows[-1]) + 1)
                    given = frame.x_cat[part].to(device), frame.x_cont[part].to(device)
                    scores.append(trained.net(*given, *events.batch(numbers[part].to(device))).double().cpu())
            return torch.cat(scores).squeeze(1)

        return scored

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments but ``model`` and its options, which ``write`` keeps."""
        return {**super().settings(), "most_events": self.most_events}

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the net as ``NetRanker`` does, and how events are prepared (``events/``)."""
        about = super().write(folder)
        assert self._events is not None
        return {**about, **self._events.write(folder)}

    def read(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Restore what ``write`` wrote."""
        super().read(folder, about)
        self._events = EventCoder.read(folder, about)


def _items(frame: TabularFrame) -> Categorify:
    return next(p for p in frame.procs.fs if isinstance(p, Categorify))


def _blocks(sizes: Tensor) -> list[int]:
    """Return sizes of blocks of whole lists, each of about ``limits.ROWS_AT_ONCE`` candidates."""
    ends = sizes.cumsum(0)
    block = (ends - 1) // limits.ROWS_AT_ONCE
    _, lists = torch.unique_consecutive(block, return_counts=True)
    stops = ends[lists.cumsum(0) - 1]
    return torch.diff(stops, prepend=stops.new_zeros(1)).tolist()
