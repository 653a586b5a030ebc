"""The step that explains some rows of a run by its own files."""

from __future__ import annotations

import time
from typing import Any

import pandas as pd
import torch

from fastrec._core import limits
from fastrec._core.atomic import write_json
from fastrec.competition.explain import background_rows
from fastrec.competition.predict import SavedRun
from fastrec.competition.run_record import TableRun


def explain(run: TableRun) -> None:
    """Write the contributions to some predictions from low to high, if rows have a target and time is left.

    They are of the first fold's models: all folds' would take as many times as long.
    """
    if run.target is None:
        return
    budget, seconds, made = run.budget, limits.EXPLAINED_SECONDS, []
    if budget is not None:  # half of the remaining time, as for a permutation
        seconds = min(seconds, (budget.began + 60 * budget.minutes - budget.clock()) / 2)
    if seconds <= 0:
        return
    ends = time.monotonic() + seconds
    chosen = background_rows(run.predictions["stack"].oof, limits.EXPLAINED_ROWS)
    rows, count = run.found.train.take(chosen), len(chosen)
    # The lowest, the middle and the highest first, in case time runs out.
    order = sorted(range(count), key=lambda i: (i not in (0, count // 2, count - 1), 7 * i % count))
    with run.stages.stage("explain"):
        try:
            saved = SavedRun(run.part)
            of = run.target.names[0] if len(run.target.names) > 1 else None
            few, took = rows.slice(order[0], order[0] + 1), []
            for size in (1, 8):  # the time grows with the background rows
                began = time.monotonic()
                saved.explain(few, of=of, tables=run.found.tables, fold=0, background=size)
                took.append(time.monotonic() - began)
            if 3 * (took[0] + max(took[1] - took[0], 0) / 7 * len(saved.background())) > ends - time.monotonic():
                return
            for i in order:
                if len(made) > 2 and time.monotonic() > ends:
                    break
                made.append(saved.explain(rows.slice(i, i + 1), of=of, tables=run.found.tables, fold=0))
        except Exception as error:  # custom code, features of other rows: an error here must not cost the run
            run.stages.say(f"not explained: {error}")
            return
    found, names = pd.concat(made), list(made[0].columns[: len(saved.inputs)])
    about = {n: found[e].tolist() for n, e in zip(("base", "prediction", "class"), found.columns[len(names) :])}

    def text(value: Any) -> str:
        shown = f"{value:.4g}" if isinstance(value, float) else str(value).removesuffix(" 00:00:00")
        return "missing" if value is None else shown

    values = rows.take(torch.tensor(order[: len(made)])).select(names).to_arrow().to_pylist()
    about |= {"columns": names, "values": [list(map(text, row.values())) for row in values]}
    about |= {"background": len(saved.background()), "contributions": found[names].to_numpy().tolist()}
    write_json(run.part / "explanation.json", about)
