"""``SessionModel``: learns from sessions and scores all items for other sessions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import torch

from fastrec._core import limits
from fastrec._core.device import on_host
from fastrec._core.kernels import compiled, sessions, shared, view
from fastrec._core.memory import keeping_memory
from fastrec.errors import DataError, NotFittedError, check_whole
from fastrec.sequences.reading import SessionFrame
from fastrec.table import Vocab
from fastrec.table.column import rows_of
from fastrec.table.state import Saved


def best_items(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k items with the highest scores; ties go to the lower code.

    Args:
        scores: float ``[b, codes]``; -inf: never returned.

    Returns:
        Items int64 ``[b, k]`` and their scores ``[b, k]``, best first; 0 and -inf where there are fewer than k.
    """
    on_cpu = on_host(scores) and scores.dtype == torch.float32
    if on_cpu and k <= limits.RANKED_FEW and compiled(scores.numel()):
        items = torch.zeros((len(scores), k), dtype=torch.int64)
        found = torch.full((len(scores), k), -torch.inf)
        shared(sessions().best_of_rows, *map(view, (scores.contiguous(), items, found)), numbers=scores.numel())
        return items, found
    wanted = min(k, scores.shape[1])
    found, items = torch.topk(scores, wanted, dim=1)
    # topk orders equal scores at random: rows with ties are sorted again
    tied = (found[:, 1:] == found[:, :-1]).any(1) | ((scores == found[:, -1:]).sum(1) > 1)
    rows = (tied & (found[:, 0] > -torch.inf)).nonzero().squeeze(1)
    if len(rows):
        again, order = torch.sort(scores[rows], dim=1, descending=True, stable=True)
        found[rows], items[rows] = again[:, :wanted], order[:, :wanted]
    items = torch.nn.functional.pad(items.masked_fill(found == -torch.inf, 0), (0, k - wanted))
    return items, torch.nn.functional.pad(found, (0, k - wanted), value=-torch.inf)


def hide_items(scores: torch.Tensor, sessions: SessionFrame) -> None:
    """Set the scores ``[b, codes]`` of each row's own items to -inf, in place."""
    scores[rows_of(sessions.offsets), sessions.values] = -torch.inf


def of_all(blocks: Iterable[tuple[torch.Tensor, torch.Tensor]], sessions: SessionFrame) -> torch.Tensor:
    """Join blocks of scores, see ``SessionModel.score``, in the order of the sessions."""
    found = torch.empty(0, len(sessions.items))
    for rows, scores in blocks:
        if torch.equal(rows, torch.arange(len(sessions))):  # all at once: a copy takes as long as a model's sums
            return scores
        found = found if len(found) else scores.new_empty(len(sessions), len(sessions.items))
        found[rows] = scores
    return found


@keeping_memory()
def recommended(
    blocks: Iterable[tuple[torch.Tensor, torch.Tensor]],
    sessions: SessionFrame,
    k: int,
    exclude_seen: bool,
    done: Callable[[int], None] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best items of sessions from blocks of scores, see ``SessionModel.recommend``.

    ``done`` is called with the number of sessions just scored.

    Raises:
        DataError: ``k`` is below 1.
    """
    check_whole("recommend", k=k)
    items = torch.zeros(len(sessions), k, dtype=torch.int64)
    best = torch.full((len(sessions), k), -torch.inf)
    for rows, scores in blocks:
        if exclude_seen:
            hide_items(scores, sessions.take(rows))
        # on the scores' device: copying all to the host took 2.9 s for 50,000 sessions and 20,000 items (H100)
        items[rows], best[rows] = (found.cpu() for found in best_items(scores, k))
        if done is not None:
            done(len(rows))
    return items, best


def standardised(scores: torch.Tensor, reserved: int) -> torch.Tensor:
    """Scale each row of scores ``[b, codes]`` to mean 0 and deviation 1, in place; reserved codes get 0."""
    # in parts that fit the processor's cache
    for part in scores.split(max(1, limits.BLOCK_WORDS // max(scores.shape[1], 1))):
        known = part[:, reserved:]
        known.clamp_(min=-1e30)
        known.sub_(known.mean(1, keepdim=True))
        deviation = torch.linalg.vector_norm(known, dim=1, keepdim=True) / max(known.shape[1], 1) ** 0.5
        if not bool(deviation.isfinite().all()):  # squares are too large for float32; this takes ten times as long
            deviation = known.std(1, keepdim=True, correction=0)
        known.div_(deviation.clamp_min(1e-30))
        part[:, :reserved] = 0.0
    return scores


def checked(sessions: Any) -> SessionFrame:
    """Return the sessions; refuse anything but a ``SessionFrame``."""
    if isinstance(sessions, SessionFrame):
        return sessions
    remedy = "Read it: SessionFrame(log, session=…, item=…, order=…), or .new(log) of the sessions learned from"
    raise DataError(f"a {type(sessions).__name__} is no SessionFrame", remedy=remedy)


class SessionModel(Saved, ABC):
    """Base of models that learn from sessions and score every item as the next of a session: higher is likelier.

    Scores are float32 ``[b, len(items)]`` by the codes of the training vocabulary (``items``); code 0 (no item) is
    -inf. Sessions with another vocabulary are recoded first. Before ``fit``, methods raise ``NotFittedError``.

    Your own class defines ``_fit`` and ``_block``, and its learned state as ``Saved`` describes.
    """

    items: Vocab | None = None
    fitted_to = ("items",)

    @abstractmethod
    def _fit(self, sessions: SessionFrame, *, seed: int, minutes: float | None) -> None:
        """Learn; ``sessions`` have the codes of ``self.items``."""

    @abstractmethod
    def _block(self, sessions: SessionFrame) -> torch.Tensor:
        """Score all codes for some sessions: float32 ``[b, codes]``, on any device; column 0 is not read."""

    def fit(self, sessions: SessionFrame, *, seed: int = 0, minutes: float | None = None) -> Self:
        """Learn from sessions.

        Args:
            sessions: every event but a session's first is an example of what follows the events before it.
            seed: of everything random.
            minutes: limit of wall time; None: none. Models that train in seconds may ignore it.

        Raises:
            DataError: no session has two events.
        """
        if not bool((checked(sessions).lengths > 1).any()):
            remedy = "Check the columns of sessions and items, and that items are known to the vocabulary"
            raise DataError("no session has two events: nothing says what follows what", remedy=remedy)
        self.items = sessions.items
        self._fit(sessions, seed=seed, minutes=minutes)
        return self

    def refit(self, sessions: SessionFrame, *, seed: int = 0, minutes: float | None = None) -> Self:
        """Learn from other sessions; settings that the last ``fit`` chose on held-out sessions stay."""
        return self.fit(sessions, seed=seed, minutes=minutes)

    def score(self, sessions: SessionFrame) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield scores of all items in blocks of sessions of similar length.

        Yields:
            Session numbers int64 ``[b]`` and their scores float32 ``[b, len(items)]`` on the CPU, which may be changed.
            Every session comes once, also an empty one.
        """
        return ((rows, scores.cpu()) for rows, scores in self._blocks(sessions))

    def _blocks(self, sessions: SessionFrame) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the same as ``score``, on the model's device."""
        items = self._known()
        sessions = checked(sessions).recode(items)
        for rows in torch.argsort(sessions.lengths, stable=True).split(max(1, limits.BLOCK // len(items))):
            scores = self._block(sessions.take(rows))
            scores[:, : len(items.reserved)] = -torch.inf
            yield rows, scores

    def standard_scores(self, sessions: SessionFrame) -> torch.Tensor:
        """Return scores with mean 0 and deviation 1 in every session: float32 ``[n, codes]``."""
        sessions = checked(sessions).recode(self._known())
        return standardised(of_all(self.score(sessions), sessions), len(sessions.items.reserved))

    def recommend(
        self, sessions: SessionFrame, k: int, exclude_seen: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the best items of each session.

        Args:
            k: number of items.
            exclude_seen: leave out the session's own items.

        Returns:
            Codes int64 ``[n, k]`` and scores float32 ``[n, k]``, best first (ties: the lower code); 0 and -inf where
            there are fewer.

        Raises:
            DataError: ``k`` is below 1.
        """
        sessions = checked(sessions).recode(self._known())
        return recommended(self._blocks(sessions), sessions, k, exclude_seen)

    def _known(self) -> Vocab:
        if self.items is None:
            raise NotFittedError(f"{type(self).__name__} has not been trained", remedy="Call fit first")
        return self.items


def target_ranks(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the rank of each row's target among all items, from 1; ties: the lower code first.

    Args:
        scores: float ``[b, codes]``; -inf or NaN: never shown.
        target: codes int64 ``[b]``; 0: an unknown item.

    Returns:
        int64 ``[b]``; the largest int64 if the target is never shown.
    """
    own = scores.gather(1, target.unsqueeze(1))
    codes = torch.arange(scores.shape[1], device=scores.device)
    better = (scores > own).sum(1) + ((scores == own) & (codes < target.unsqueeze(1))).sum(1)
    return torch.where((target > 0) & (own.squeeze(1) > -torch.inf), better + 1, torch.iinfo(torch.int64).max)


def sequence_metrics(
    ranking: torch.Tensor | Iterable[tuple[torch.Tensor, torch.Tensor]],
    target: torch.Tensor,
    k: int = 20,
    *,
    codes: int | None = None,
) -> dict[str, float]:
    """Compute HR, MRR and NDCG of one target per session among its best ``k`` items, and the share of items shown.

    Args:
        ranking: scores float ``[n, codes]``; or blocks ``(rows, scores)``, as ``SessionModel.score`` yields them; or
            the best items, int64 ``[n, at least k]``, 0 for none.
        target: codes int64 ``[n]``; 0: an unknown item, which is never found.
        k: number of items shown; ties: the lower code first.
        codes: number of codes with 0, for the coverage of best items.

    Returns:
        ``hr@k``, ``mrr@k``, ``ndcg@k`` and, if ``codes`` are known, ``coverage@k``.

    Raises:
        DataError: no sessions, numbers of targets and sessions differ, or fewer than ``k`` items per session.
    """
    if target is None:  # as SessionFrame.target may be
        raise DataError("the sessions have no targets", remedy="Read them (target=…), or cut them by leave_one_out")
    shown = torch.zeros(0, dtype=torch.bool)
    ranks = torch.full((len(target),), -1, dtype=torch.int64)  # -1: not scored yet
    blocks: Any = ranking
    if isinstance(ranking, torch.Tensor):
        blocks = [(torch.arange(len(ranking)), ranking)]
        if len(ranking) != len(target):
            raise DataError(f"{len(target)} targets for {len(ranking)} sessions", remedy="Give one for each")
    for rows, part in blocks:
        right, items = target[rows].to(part.device), part
        if part.is_floating_point():
            codes, items = part.shape[1], best_items(part, k)[0]
        ranks[rows] = (item_ranks(items, right, k) if items is part else target_ranks(part, right)).cpu()
        if codes is not None:
            shown = shown if len(shown) else torch.zeros(codes, dtype=torch.bool)
            shown[items[:, :k].cpu().reshape(-1)] = True
    if not len(target) or bool((ranks < 0).any()):
        raise DataError("not every session has been scored, or there is none", remedy="Score each exactly once")
    covered = {f"coverage@{k}": float(shown[1:].double().mean())} if len(shown) > 1 else {}
    return mean_gains(ranks, k) | covered


#: name → what a right item at a place (float64, from 1) counts
GAINS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "hr": torch.ones_like,
    "mrr": lambda place: 1 / place,
    "ndcg": lambda place: 1 / torch.log2(place + 1),
}


def mean_gains(ranks: torch.Tensor, k: int) -> dict[str, float]:
    """Return the mean HR, MRR and NDCG from the targets' ranks (``[n]``, from 1) among the best ``k``."""
    of = {f"{name}@{k}": torch.where(ranks <= k, gain(ranks.double()), 0.0) for name, gain in GAINS.items()}
    return {name: float(gains.mean()) for name, gains in of.items()}


def item_ranks(items: torch.Tensor, target: torch.Tensor, k: int) -> torch.Tensor:
    """Return the rank of each ``target``, int64 ``[n]``, among its row's ``k`` items, from 1; ``k + 1``: absent.

    Items are codes int64 ``[n, at least k]``, best first; code 0 is never found.
    """
    if items.shape[1] < k:
        raise DataError(f"{items.shape[1]} items a session for a metric at {k}", remedy=f"Give {k} or more")
    same = (items[:, :k] == target.unsqueeze(1)) & (target > 0).unsqueeze(1)
    return torch.where(same.any(1), same.long().argmax(1) + 1, k + 1)
