"""Sessions that share items with a session, and what they make likely next: the sums that all session-kNN have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastrec._core import limits
from fastrec._core.kernels import compiled, sessions, shared, view
from fastrec.table.offsets import rows_of, runs


@dataclass
class Decays:
    """Weights by a distance in events, float32 ``[distances]``, the last for whatever is farther.

    Args:
        own: of an item, by how far it is from the end of the session that is asked for.
        back: of a neighbour, by how far from that end the latest shared item is.
        after, before: of a neighbour's item, by how far after or before that shared item it stands.
    """

    own: Tensor
    back: Tensor
    after: Tensor
    before: Tensor

    def __iter__(self):
        return iter((self.own, self.back, self.after, self.before))


def exponential(length: float | None) -> Tensor:
    """``exp(-distance / length)``; None: 1 at any distance."""
    if length is None:
        return torch.ones(1)
    return torch.exp(-torch.arange(limits.NEIGHBOURS_FARTHEST, dtype=torch.float64) / length).float()


@dataclass
class SessionIndex:
    """Sessions of the past, and for every item the sessions that have it.

    Args:
        values, offsets: codes of items, int64, session ``i`` at ``offsets[i]`` up to ``offsets[i + 1]``.
        sessions, places, starts: item ``j`` is in ``sessions[starts[j] : starts[j + 1]]``, last at ``places`` there.
    """

    values: Tensor
    offsets: Tensor
    sessions: Tensor
    places: Tensor
    starts: Tensor

    @classmethod
    def of(cls, values: Tensor, offsets: Tensor, n_items: int) -> SessionIndex:
        """Index packed sessions, those of the past first; codes are 0 to ``n_items - 1``."""
        session = rows_of(offsets)
        order = torch.argsort(values, stable=True)  # within an item by session, within that by place
        item, session = values[order], session[order]
        last = torch.ones(len(order), dtype=torch.bool)
        last[:-1] = (item[1:] != item[:-1]) | (session[1:] != session[:-1])
        item, session = item[last], session[last]
        places = order[last] - offsets[session]
        starts = torch.zeros(n_items + 1, dtype=torch.int64)
        starts[1:] = torch.cumsum(torch.bincount(item, minlength=n_items), 0)
        return cls(values, offsets, session, places, starts)

    def score(
        self,
        values: Tensor,
        offsets: Tensor,
        decays: Decays,
        *,
        of_session: Tensor,
        of_item: Tensor,
        prior: Tensor,
        sample: int,
        k: int,
    ) -> Tensor:
        """Return scores of all items for sessions.

        Two sessions are as alike as the weights of the items that they share, times the neighbour's factor. An item
        gets from each of the ``k`` neighbours most alike (of equal ones from the later) how alike it is, times the
        decays, times the item's factor.

        Args:
            values, offsets: the sessions that are asked for, int64; codes below 0 are items that are not known.
            decays: weights by distances.
            of_session, of_item: float32 factors, one each; those of items above 0.
            prior: float32 ``[n_items]``: what items score before any neighbour gives them something.
            sample: how many of the sessions with a shared item are looked at: the latest.
            k: how many neighbours count.

        Returns:
            float32 ``[sessions, n_items]``.
        """
        out = (prior / of_item).repeat(len(offsets) - 1, 1)
        given = ((values, offsets), tuple(decays), (of_session, of_item), (sample, k), out)
        known = values[values >= 0]
        work = int((self.starts[known + 1] - self.starts[known]).sum())
        (_compiled if compiled(work) else _with_tensors)(self, *given, work)
        return out


def _compiled(index, queries, decays, factors, at_most, out, work):
    known = (index.sessions, index.places, index.starts)
    given = (queries, (index.values, index.offsets), known, decays, factors)
    arrays = (tuple(view(x.contiguous()) for x in some) for some in given)
    shared(sessions().score_by_neighbours, *arrays, at_most, view(out), numbers=work)


def _with_tensors(index, queries, decays, factors, at_most, out, work):
    values, offsets = queries
    row, place, steps = _last_of_each(values, offsets)
    weight = decays[0][steps.clamp_max(len(decays[0]) - 1)]
    row, item, steps, weight = (x[weight > 0] for x in (row, values[place], steps, weight))
    many = torch.cumsum(index.starts[item + 1] - index.starts[item], 0)
    at = 0
    while at < len(row):  # so many whole queries as fit
        before = int(many[at - 1]) if at else 0
        fits = int(torch.searchsorted(many, before + limits.BLOCK, right=True))
        end = int(torch.searchsorted(row, row[fits])) if fits < len(row) else len(row)
        end = end if end > at else int(torch.searchsorted(row, row[at], right=True))
        part = slice(at, end)
        _score_part(index, (row[part], item[part], steps[part], weight[part]), decays, factors, at_most, out)
        at = end
    out *= factors[1]


def _score_part(
    index: SessionIndex,
    events: Sequence[Tensor],
    decays: Sequence[Tensor],
    factors: Sequence[Tensor],
    at_most: tuple[int, int],
    out: Tensor,
) -> None:
    """Add what the neighbours of some queries give; ``events`` are their items, the last of a query first."""
    row, item, steps, weight = events
    of, at = _stretches(index.starts[item], index.starts[item + 1])
    pair = row[of] * (len(index.offsets) - 1) + index.sessions[at]
    order = torch.argsort(pair, stable=True)
    pair, which = torch.unique_consecutive(pair[order], return_inverse=True)
    alike = torch.zeros(len(pair)).index_add_(0, which, weight[of][order])
    first = torch.ones(len(order), dtype=torch.bool)
    first[1:] = which[1:] != which[:-1]
    place, back = index.places[at][order][first], steps[of][order][first]
    query, session = pair // (len(index.offsets) - 1), pair % (len(index.offsets) - 1)

    kept = _place_in_run(query.flip(0)).flip(0) < at_most[0]
    query, session, place, back, alike = (x[kept] for x in (query, session, place, back, alike))
    alike = alike * factors[0][session]
    order = torch.argsort(alike.flip(0), descending=True, stable=True)  # of equal ones the later session first
    order = (len(alike) - 1 - order)[torch.argsort(query.flip(0)[order], stable=True)]
    order = order[_place_in_run(query[order]) < at_most[1]]
    query, session, place, back, alike = (x[order] for x in (query, session, place, back, alike))

    of, at = _stretches(index.offsets[session], index.offsets[session + 1])
    away = at - index.offsets[session][of] - place[of]
    near, far = decays[2], decays[3]
    by_place = torch.where(away >= 0, near[away.clamp(0, len(near) - 1)], far[(-away).clamp(0, len(far) - 1)])
    given = (alike * decays[1][back.clamp_max(len(decays[1]) - 1)])[of] * by_place
    out.view(-1).index_add_(0, query[of] * out.shape[1] + index.values[at], given)


def _last_of_each(values: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return each session's known items once, the last first: session, place among the values, steps from the end."""
    row = rows_of(offsets)
    place = torch.arange(len(values)).flip(0)
    place = place[values[place] >= 0]
    order = torch.argsort(values[place], stable=True)
    order = order[torch.argsort(row[place][order], stable=True)]
    place = place[order]
    first = torch.ones(len(place), dtype=torch.bool)
    first[1:] = (values[place][1:] != values[place][:-1]) | (row[place][1:] != row[place][:-1])
    place = place[first].sort(descending=True).values
    place = place[torch.argsort(row[place], stable=True)]
    return row[place], place, offsets[row[place] + 1] - 1 - place


def _stretches(starts: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Return all numbers from each start up to its end: which stretch, and the number."""
    offsets, places = runs(starts, ends - starts)
    return rows_of(offsets), places


def _place_in_run(codes: Tensor) -> Tensor:
    """Return the place of each row in its run of equal codes, from 0."""
    if not len(codes):
        return codes
    first = torch.ones(len(codes), dtype=torch.bool)
    first[1:] = codes[1:] != codes[:-1]
    starts = first.nonzero().squeeze(1)
    return torch.arange(len(codes)) - starts[torch.cumsum(first, 0) - 1]
