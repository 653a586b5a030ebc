"""The events before lists as an exported graph takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fastrec.serve.export import column_feed
from fastrec.serve.graph.list_events import PREFIX
from fastrec.validate import ListEvents


def event_feeds(about: dict[str, Any], groups: torch.Tensor, events: ListEvents) -> dict[str, np.ndarray]:
    """Build a matrix ``[rows, events]`` for each column of events, and int64 ``[rows]``, the number of events.

    Args:
        about: what ``serving.json`` says.
        groups: int64 ``[rows]``: the list of each row; lists stand whole.
        events: what was before these lists.
    """
    columns = [i for i in about["inputs"] if "events" in i]
    ids, of_list = torch.unique_consecutive(groups, return_inverse=True)
    at = events.of(ids)
    lengths = (events.ends[at] - events.starts[at]).clamp_max(max((i["events"] for i in columns), default=0))
    place = torch.arange(int(lengths.max()) if len(lengths) else 0)
    there = place < lengths[:, None]
    where = torch.where(there, (events.ends[at] - lengths)[:, None] + place, 0)
    feeds: dict[str, np.ndarray] = {about["events_count"]: lengths[of_list].numpy()}
    for said in columns:
        flat = events.log[said["name"].removeprefix(PREFIX)].take(where[there])
        dtype = object if said["type"] == "string" else said["type"]
        made = np.full(there.shape, np.nan if said["missing"] is None else said["missing"], dtype)
        made[there.numpy()] = column_feed(said, flat)
        feeds[said["name"]] = made[of_list.numpy()]
    return feeds
