"""``SessionScores``: a net of sessions as a module from codes to scores of all items."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fastrec.errors import DataError, NotFittedError
from fastrec.sequences import NextItemNet
from fastrec.sequences.session_learner import item_keys


class SessionScores(nn.Module):
    """A trained ``NextItemNet`` as a module: codes int64 ``[n, length]`` → scores float32 ``[n, codes]``.

    Codes are in the order of the events; 0 is no event, at any place. Code 0 scores -inf.

    Args:
        model: the trained net.
        exclude_seen: a session's own items score -inf.

    Raises:
        NotFittedError: it has not been trained.
        DataError: its events have side features, which sessions of codes alone lack.
    """

    def __init__(self, model: NextItemNet, *, exclude_seen: bool = False) -> None:
        super().__init__()
        if model.model is None:
            raise NotFittedError("the net has not been trained", remedy="Call fit first")
        if model.model.codings:
            raise DataError("the net reads side features of events", remedy="Export a net that reads items alone")
        # a copy: the trained net stays on its device and in its mode
        self.net = copy.deepcopy(model.model).cpu().eval()
        self.reads, self.exclude_seen = self.net.reads, exclude_seen
        self.register_buffer("keys", item_keys(self.net))
        popular = model.counts / model.counts.max().clamp_min(1.0)
        self.register_buffer("popular", popular.float())

    def forward(self, codes: Tensor) -> Tensor:
        """Compute scores of all codes."""
        packed, lengths = self._packed(codes)
        scores = self.net.query(self.net.last(packed, lengths)) @ self.keys
        # an empty session gets popular items, as in the run
        scores = torch.where((lengths == 0).unsqueeze(1), self.popular, scores)
        scores = torch.cat([torch.full_like(scores[:, :1], -torch.inf), scores[:, 1:]], 1)
        if self.exclude_seen:
            scores = scores.scatter(1, codes, -torch.inf)
        return scores

    def _packed(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Move the last events that the net reads to the left, int64 ``[n, reads]``, and count them."""
        there = codes > 0
        events = there.long()
        count = events.sum(1)
        place = events.cumsum(1) - 1 - (count - self.reads).clamp_min(0).unsqueeze(1)
        place = torch.where(there & (place >= 0), place, self.reads)  # what is not read goes behind the end
        room = torch.zeros((codes.shape[0], self.reads + 1), dtype=torch.int64, device=codes.device)
        return room.scatter(1, place, codes)[:, : self.reads], count.clamp_max(self.reads)
