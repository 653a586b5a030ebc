"""XGBoost on the device: rows a second that it grows on and that it predicts."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from _gpu_trace import seconds_of
from _logs import event_log
from _timing import Record, bare

from fastrec.estimators import XGBModel
from fastrec.table import Table
from fastrec.validate import Rows


def measure(device: torch.device, *, rows: int, rounds: int) -> Iterator[Record]:
    """Training and prediction of one model, columns and trees on the device.

    Args:
        device: where.
        rows: of the event log.
        rounds: trees.
    """
    table = Table.read(event_log(rows, ordered=True), device=device)
    label = table["clicked"].number().cpu()
    data = Rows(table, "binary", conts=["price", "item", "user"], label=label)
    model = XGBModel("trees", rounds=rounds)
    for case, run in (
        ("trees, training", lambda: model.fit(data, seed=0, device=device)),
        ("trees, predicting", lambda: model.predict(data)),
    ):
        yield bare(case, f"XGBoost, {rounds} rounds", rows, seconds_of(run, device, 1))
