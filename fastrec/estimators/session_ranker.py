"""``SessionRanker``: a net over candidates that reads the session's events before their list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from fasttransform import Transform
from torch import Tensor, nn

from fastrec._core import limits
from fastrec._core.memory import naming_out_of_memory
from fastrec.errors import DataError, check_whole
from fastrec.estimators._trained_net import values_of_codes
from fastrec.estimators.net import NetRanker
from fastrec.models import DIN, embedding_sizes
from fastrec.models.history import EventBatch, EventNet
from fastrec.table import Coded, Table, as_column, load_state, save_state
from fastrec.table.column import runs
from fastrec.tabular import Categorify, RankGauss, TabularFrame
from fastrec.tabular.procs import proc_from_state
from fastrec.validate import ListEvents, Lists

ITEM = "__item__"  # a name that no feature may have


@dataclass
class CodedEvents:
    """The last events before each list, concatenated list by list.

    Codes ``items`` int64 ``[m]`` and ``cats`` int64 ``[m, k]``, ``conts`` float32 ``[m, c]``, ``offsets`` int64
    ``[lists + 1]``. ``listed`` int64 ``[m]``: the position in its list of the candidate that is the event's item, or
    -1.
    """

    items: Tensor
    cats: Tensor
    conts: Tensor
    listed: Tensor
    offsets: Tensor

    def to(self, device: torch.device) -> CodedEvents:
        """Move the events to a device."""
        return CodedEvents(*(getattr(self, n).to(device) for n in self.__dataclass_fields__))

    def batch(self, numbers: Tensor) -> EventBatch:
        """Return the padded events of candidates; ``numbers`` int64 ``[n]``: their lists, whole and in order."""
        lists, inverse, sizes = torch.unique_consecutive(numbers, return_inverse=True, return_counts=True)
        starts = self.offsets[lists]
        lengths = self.offsets[lists + 1] - starts
        place = torch.arange(int(lengths.max()) if len(lists) else 0, device=numbers.device)
        steps = lengths[:, None] - 1 - place
        there = steps >= 0
        at = torch.where(there, starts[:, None] + place, 0)
        if not len(self.items):
            at, there = at[:, :0], there[:, :0]
            steps = steps[:, :0]
        listed = self.listed[at]
        listed = torch.where(there & (listed >= 0), (sizes.cumsum(0) - sizes)[:, None] + listed, -1)
        return EventBatch(inverse, self.items[at], self.cats[at], self.conts[at], listed, steps.clamp_min(-1))


class EventCoder:
    """Encoding of events as codes and numbers, learned from the events before training lists.

    ``frame``: an empty frame that holds the column preparation; ``most``: the maximum of last events per list;
    ``aged``: whether the age of an event is one of the numbers.
    """

    def __init__(self, frame: TabularFrame, most: int, *, aged: bool) -> None:
        self.frame, self.most, self.aged = frame, most, aged

    @classmethod
    def fit(cls, rows: Lists, most: int) -> Self:
        """Learn the columns of the events before some lists."""
        events = known_events(rows)
        log = events.log.take(events.log_rows(rows.groups))
        frame = TabularFrame(log, [Categorify, RankGauss], list(events.cats), list(events.conts))
        return cls(frame.new_empty(), most, aged=events.moments is not None)

    @property
    def sizes(self) -> dict[str, Any]:
        """Arguments that a net of these events is built with."""
        names = list(self.frame.cat_names)
        szs = [rows for rows, _ in embedding_sizes(self.frame.classes, names)] if names else []
        return {"event_szs": szs, "n_event_cont": len(self.frame.cont_names) + self.aged, "max_events": self.most}

    def __call__(self, rows: Lists, items: Categorify) -> CodedEvents:
        """Encode the events before each list; ``items`` encodes items, like the column ``ITEM``."""
        events = known_events(rows)
        if (events.moments is not None) != self.aged:
            raise DataError("events with times, or the net's without", remedy="Name time= as it was in training")
        ids, sizes = torch.unique_consecutive(rows.groups, return_counts=True)
        at = events.of(ids)
        lengths = (events.ends[at] - events.starts[at]).clamp_max(self.most)
        offsets, places = runs(events.ends[at] - lengths, lengths)
        of_list = torch.repeat_interleave(torch.arange(len(ids)), lengths)
        used, back = torch.unique(places, return_inverse=True)  # lists of one session share events
        log = events.log.take(used)
        frame = self.frame.new(log)
        frame.process()
        conts = frame.x_cont[back]
        if self.aged:
            time = log[events.time].number().double()[back]
            age = (events.moments[at][of_list] - time).clamp_min(0).nan_to_num(0)
            conts = torch.cat([conts, age.log1p().float()[:, None] / 10], 1)
        coded = log[events.item].coded()
        table = items.encode(ITEM, Coded(torch.arange(len(coded.keys) + 1), coded.keys))
        theirs = rows.table[events.item].coded().recode(coded.keys).cpu()
        listed = _place_in_list(theirs, torch.repeat_interleave(sizes), coded.codes[back], of_list, sizes)
        return CodedEvents(table[coded.codes][back].long(), frame.x_cat[back].long(), conts, listed, offsets)

    def write(self, folder: Path) -> dict[str, Any]:
        """Write what was learned, for ``read``."""
        save_state(folder / "events", {p.name: p.to_state() for p in self.frame.procs.fs if hasattr(p, "to_state")})
        names = {"cats": list(self.frame.cat_names), "conts": list(self.frame.cont_names)}
        return {"events": {**names, "most": self.most, "aged": self.aged}}

    @classmethod
    def read(cls, folder: Path, about: Mapping[str, Any]) -> Self:
        """Restore what ``write`` wrote."""
        own = about["events"]
        procs = [proc_from_state(state) for state in load_state(folder / "events").values()]
        frame = TabularFrame(Table({}), procs, own["cats"], own["conts"], do_setup=False)
        return cls(frame, own["most"], aged=own["aged"])


class AddEvents(Transform):
    """Transform that appends a batch's events to its columns; the list of a row is its second target."""

    order = 10

    def __init__(self, events: CodedEvents) -> None:
        super().__init__()
        self.events, self._copies = events, {events.offsets.device: events}

    def __call__(self, b: Sequence[Tensor], **kwargs: Any) -> tuple[Tensor, ...]:
        """Return ``(cats, conts, *events, targets)``."""
        cats, conts, targets = b
        if targets.device not in self._copies:
            self._copies[targets.device] = self.events.to(targets.device)
        events = self._copies[targets.device].batch(targets.as_subclass(Tensor)[:, 1].long())
        return cats, conts, *events, targets


def known_events(rows: Lists) -> ListEvents:
    """Return the events of lists."""
    if rows.events is None:
        remedy = "Give Lists(…, events=ListEvents.before(…))"
        raise DataError("the lists came without the events before them", remedy=remedy)
    return rows.events


def with_items(rows: Lists) -> Lists:
    """Add the candidates' items as one more categorical column, the last one."""
    events = known_events(rows)
    if events.item not in rows.table:
        raise DataError("candidates lack the column of items", column=events.item, remedy="Keep it in the table")
    table = rows.table.with_columns({ITEM: as_column(rows.table[events.item], name=ITEM)})
    return replace(rows, table=table, cats=[*rows.cats, ITEM])


def _place_in_list(candidates: Tensor, lists: Tensor, events: Tensor, of_list: Tensor, sizes: Tensor) -> Tensor:
    """Find the position in its list of each event's item: int64 ``[m]``, -1 for none. Code 0 is no item."""
    if not len(candidates) or not len(events):
        return torch.full((len(events),), -1)
    codes = int(max(candidates.max(), events.max())) + 1
    # One sort and one search for all lists: an item's key combines its list's number and its code.
    keys, rows = torch.sort(lists * codes + candidates, stable=True)
    wanted = of_list * codes + events
    place = torch.searchsorted(keys, wanted).clamp_max(len(keys) - 1)
    return torch.where((keys[place] == wanted) & (events > 0), rows[place] - (sizes.cumsum(0) - sizes)[of_list], -1)


class SessionRanker(NetRanker):
    """A net over candidates that attends to the events before their list, trained like ``NetRanker``.

    The lists need their events (``Lists(…, events=ListEvents.before(…))``). Inputs of an event are its item, its
    categories and numbers, its age and the number of later events. If its item is in the list, the candidate's own
    columns are added.

    Args:
        model: ``DIN``, ``BST``, or their names: a net of ``fastrec.models.EventNet``.
        most_events: the maximum of events per list; the last ones are used.
        options: the model's own options (``width``, ``heads``, …).
        **training: as for ``NetRanker`` (``layers``, ``epochs``, ``max_rows``, ``lr``, ``bs``, ``wd``, ``ps``,
            ``embed_p``).
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
        check_whole(name, most_events=most_events)
        self.most_events = most_events

    def forget(self) -> None:
        """Drop the net and the preparation of its columns and events."""
        super().forget()
        self._events: EventCoder | None = None

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
        trained = self._trained
        frame = trained.frame_of(with_items(data))
        events = self._events(data, _items(trained.frame))
        _, numbers, sizes = torch.unique_consecutive(data.groups, return_inverse=True, return_counts=True)
        # Lists stay whole: their events are padded to the longest of a block.
        blocks = torch.arange(len(data)).split(_blocks(sizes))

        def scored() -> Tensor:
            device, scores = next(trained.net.parameters()).device, []  # training moves the net to another device
            with torch.no_grad(), naming_out_of_memory("scoring rows", "Score fewer rows at once"):
                there = events.to(device)
                for rows in blocks:
                    part = slice(int(rows[0]), int(rows[-1]) + 1)
                    given = frame.x_cat[part].to(device), frame.x_cont[part].to(device)
                    scores.append(trained.net(*given, *there.batch(numbers[part].to(device))).double().cpu())
            return torch.cat(scores).squeeze(1)

        return scored

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments except ``model`` and its options, which ``write`` saves."""
        return {**super().settings(), "most_events": self.most_events}

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the net like ``NetRanker``, and the preparation of events (``events/``)."""
        return {**super().write(folder), **self._events.write(folder)}

    def read(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Restore what ``write`` wrote."""
        super().read(folder, about)
        self._events = EventCoder.read(folder, about)


def _items(frame: TabularFrame) -> Categorify:
    return next(p for p in frame.procs.fs if isinstance(p, Categorify))


def _blocks(sizes: Tensor) -> list[int]:
    """Return sizes of blocks of whole lists, each of about ``limits.ROWS_AT_ONCE`` candidates."""
    ends = sizes.cumsum(0)
    _, lists = torch.unique_consecutive((ends - 1) // limits.ROWS_AT_ONCE, return_counts=True)
    stops = ends[lists.cumsum(0) - 1]
    return torch.diff(stops, prepend=stops.new_zeros(1)).tolist()
