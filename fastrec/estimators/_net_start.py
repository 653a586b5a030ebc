"""``NetStart``: what a trained net hands on to one that is trained anew: weights by name, embeddings by value."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fastrec.estimators._trained_net import TrainedNet
from fastrec.models import EmbeddingTables, EventNet
from fastrec.models.one_hot import OneHotTables
from fastrec.tabular import TabularFrame
from fastrec.tabular.procs import Categorify

STARTED = "began with the weights that were there"  # what is said of a net that did


class NetStart:
    """The weights that a net begins with.

    Rows of embedding tables go by the value that they are of: a vocabulary may have grown, and rows of new values keep
    their first weights. An ``EventNet``'s vectors of items and of events' categories go by value as well, the latter by
    the name of their column. Everything else goes by name where its shape is the same.

    Args:
        trained: the net to begin with.
        events: of a net of events, each of their categorical columns → the values of its codes, in their order.
    """

    def __init__(self, trained: TrainedNet, *, events: Mapping[str, list[Any]] | None = None) -> None:
        self._trained, self._events = trained, dict(events or {})

    def __deepcopy__(self, memo: Any) -> NetStart:
        return self  # it is never changed, and may be large

    def __repr__(self) -> str:
        digest = hashlib.sha256()
        for name, values in sorted(self._trained.net.state_dict().items()):
            digest.update(name.encode())
            digest.update(values.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return f"NetStart({digest.hexdigest()[:20]})"

    @property
    def model(self) -> type[nn.Module]:
        """The net's class."""
        return self._trained.architecture.model  # type: ignore[return-value]

    def planned(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Keep the embeddings of a plan as wide as they were: a grown vocabulary would make them wider."""
        old = self._trained.plan
        widths = {n: width for n, (_, width) in zip(old["cats"], old["emb_szs"], strict=True)}
        sizes = [(rows, widths.get(n, width)) for n, (rows, width) in zip(plan["cats"], plan["emb_szs"], strict=True)]
        return {**plan, "emb_szs": sizes}

    @staticmethod
    def epochs(usual: int) -> int:
        """Return the epochs of a warm start: half as many."""
        return math.ceil(usual / 2)

    def give_to(
        self, net: nn.Module, frame: TabularFrame, *, events: Mapping[str, list[Any]] | None = None
    ) -> list[str]:
        """Put the weights into a net.

        Args:
            net: a net of the same class, with first weights.
            events: as in ``NetStart``, of the events that this net reads.

        Returns:
            The names of the parameters that keep their first weights, as their shape is another.
        """
        old, new = values_of_codes(self._trained.frame), values_of_codes(frame)
        if any(isinstance(m, OneHotTables) for m in net.modules()) and old != new:
            return list(net.state_dict())  # which number stands for which value has changed
        mine, theirs = dict(net.named_modules()), dict(self._trained.net.named_modules())
        by_value: set[str] = set()
        with torch.no_grad():
            for path, module in mine.items():
                other = theirs.get(path)
                if isinstance(module, EmbeddingTables):
                    prefix = f"{path}." if path else ""
                    by_value |= {f"{prefix}weights.{group}" for group in module.weights}
                    if isinstance(other, EmbeddingTables):
                        _give_tables(other, module, old, new)
            if isinstance(net, EventNet):
                by_value |= {n for n in net.state_dict() if n == "item.weight" or n.startswith("kinds.")}
                items = new[frame.cat_names[-1]], old[self._trained.frame.cat_names[-1]]
                _give_events(self._trained.net, net, items, self._events, events or {})
            unchanged, given = [], self._trained.net.state_dict()
            for name, values in net.state_dict().items():
                if name in by_value:
                    continue
                if name in given and given[name].shape == values.shape:
                    values.copy_(given[name])
                else:
                    unchanged.append(name)
        return unchanged


def _give_tables(
    old: EmbeddingTables, new: EmbeddingTables, before: Mapping[str, list[Any]], now: Mapping[str, list[Any]]
) -> None:
    known = {s.name: s for s in old.slices}
    for s in new.slices:
        other = known.get(s.name)
        if other is None or other.width != s.width or s.name not in before or s.name not in now:
            continue
        starts = s.start, other.start
        _give_rows(new.weights[s.group], old.weights[other.group], now[s.name], before[s.name], starts)


def _give_events(
    old: nn.Module, new: EventNet, items: tuple[list[Any], list[Any]], before: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    """Copy the vectors of items, and of the events' categories column by column, that both nets know."""
    if not isinstance(old, EventNet) or old.width != new.width:
        return
    if old.item is not None and new.item is not None:
        _give_rows(new.item.weight, old.item.weight, *items)
    known = dict(zip(before, old.kinds, strict=True))
    for name, table in zip(now, new.kinds, strict=True):
        if name in known:
            _give_rows(table.weight, known[name].weight, now[name], before[name])


def _give_rows(
    target: Tensor, given: Tensor, now: list[Any], before: list[Any], starts: tuple[int, int] = (0, 0)
) -> None:
    """Copy the rows of the values that both vocabularies have."""
    places = {value: i for i, value in enumerate(before)}
    pairs = [(starts[0] + i, starts[1] + places[v]) for i, v in enumerate(now) if v in places]
    to, source = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).unbind(1)
    target[to.to(target.device)] = given[source.to(given.device)].to(target.device, target.dtype)


def values_of_codes(frame: TabularFrame) -> dict[str, list[Any]]:
    """Return categorical column of a frame → the values of its codes, in their order."""
    procs = [p for p in frame.procs.fs if isinstance(p, Categorify)]
    return {n: list(c) for p in procs for n, c in p.classes.items()}
