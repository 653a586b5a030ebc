"""A model that stays good: it is retrained over days of simulated logs in which tastes change.

Every day is first scored by a model that was trained once and by the one that serves. Then its clicks are known: the
model is trained again on the newest days, and takes over if the gate lets it. Once labels go wrong, and the gate
refuses what was learned from them; and a promotion is taken back, which gives the old predictions to the byte.

Run ``python competitions/trivago2019/alive.py --out runs/alive``, or ``make demo-alive``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch

if __package__ in (None, ""):  # run as a script: the workspace is two folders up
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from competitions.trivago2019.competition import EVENT, ORDER, Trivago2019
from competitions.trivago2019.data import CLICK, read
from competitions.trivago2019.simulate import simulate
from competitions.trivago2019.simulated_world import Constants
from fastrec._core.progress import Stages
from fastrec.competition import CompetitionData, SavedRun, predict_run, run_competition
from fastrec.errors import DataError, FastrecError
from fastrec.estimators import Estimator, Ranker, XGBRanker
from fastrec.features import FeatureSet
from fastrec.metrics import Metric
from fastrec.monitor import Retrained, metric_over_time, monitor, retrain
from fastrec.registry import Registry
from fastrec.stacking import OneBase, Stack
from fastrec.table import Table
from fastrec.validate import Folds, Rows, Target
from features import clickstream, price

DAY = 86_400
_WINDOW = 4  # days: three to learn from, and the newest, by which the gate judges
_MARK = ".alive"  # a file: this folder was made here, and may be replaced
_MARGIN = 0.05  # a day's lists are few: a smaller loss could not be told from none
MODELS = {"frozen": "trained once", "served": "trained again every day, behind the gate"}


class AliveTrivago(Trivago2019):
    """The competition's recipe with few features and one model, of rows that are in memory already."""

    refit = True

    def __init__(self, found: CompetitionData) -> None:
        self._found = found

    def load(self, data: Path, *, rows: int | None, device: torch.device) -> CompetitionData:
        return self._found

    def folds(self, found: CompetitionData, target: Target | None) -> Folds:
        return Folds.group(found.train, self.fold_key, 3)

    def features(self) -> FeatureSet:
        keys = {"session": "session_id", "item": "item_id"}
        touches = clickstream.touches(
            **keys, **EVENT, order=ORDER, kinds=[CLICK], dwell="dwell", run=["run", "run_seconds"]
        )
        return FeatureSet(
            [touches, price.in_list(group="list_id", price="price", position="position")], key="session_id"
        )

    @property
    def categories(self) -> Sequence[str]:
        return ["touch_last_action_type", "session_touch_last_action_type"]

    @property
    def plain(self) -> Sequence[str]:
        return ["list_length", "price", "position"]

    def baselines(self) -> Sequence[Ranker]:
        return []

    def models(self, *, bs: int | None) -> Sequence[Ranker]:
        trees = {"max_depth": 4, "subsample": 0.8, "min_child_weight": 5, "max_bin": 64}
        return [XGBRanker("xgb", objective="binary:logistic", rounds=60, eta=0.15, **trees)]

    def stack(self) -> Stack:
        return Alone()


class Alone(Stack):
    """One model needs no blend."""

    def blends(self, models: Sequence[str], data: Rows, metric: Metric) -> list[Estimator]:
        return [OneBase(models[0])]


@dataclass
class Days:
    """A log by days, numbered from 0.

    Args:
        rows: all candidates with their labels.
        touches: all events about items.
        day: int64 ``[n]``, the day of each candidate.
    """

    rows: Table
    touches: Table
    day: np.ndarray

    @classmethod
    def simulated(cls, folder: Path, sessions: int, days: int, change_day: int, seed: int) -> Days:
        """Simulate so many days; tastes change when ``change_day`` begins."""
        share = 1 / (days + 1)  # one day more, whose clicks are withheld: it is not used
        world = Constants(days=days + 1, test_share=share, change_day=change_day)
        simulate(round(sessions * (days + 1) / days), folder, seed=seed, constants=world)
        found = read(folder, device=torch.device("cpu"))
        day = (found.train["timestamp"].integer().numpy() - world.start) // DAY
        some = day < days
        return cls(found.train.take(torch.from_numpy(some)), found.tables["touches"], day[some])

    def of(self, first: int, last: int) -> CompetitionData:
        """Return the rows of days ``first`` to ``last``, and all events until then."""
        some = torch.from_numpy((self.day >= first) & (self.day <= last))
        rows = self.rows.take(some)
        end = int(rows["timestamp"].integer().max())
        return CompetitionData(rows, tables={"touches": self.touches.take(self.touches["timestamp"].integer() <= end)})

    def write(self, folder: Path, first: int, last: int, *, wrong: Sequence[int] = ()) -> Path:
        """Write them as files that ``fastrec retrain`` takes; on ``wrong`` days clicks are noted at other items."""
        found = self.of(first, last)
        folder.mkdir(parents=True)
        rows = found.train
        if wrong:
            clicked, lists = rows["clicked"].number().clone(), rows["list_id"].integer()
            for start, length in zip(*_starts(lists), strict=True):
                if self.day[(self.day >= first) & (self.day <= last)][start] in wrong:
                    clicked[start : start + length] = clicked[start : start + length].flip(0)
            rows = rows.with_columns({"clicked": clicked})
        pq.write_table(rows.to_arrow(), folder / "train.parquet")
        pq.write_table(found.tables["touches"].to_arrow(), folder / "touches.parquet")
        return folder


def _starts(lists: torch.Tensor) -> tuple[list[int], list[int]]:
    _, length = torch.unique_consecutive(lists, return_counts=True)
    return (torch.cumsum(length, 0) - length).tolist(), length.tolist()


@dataclass
class Alive:
    """The outcome of all days.

    Args:
        by_day: one row for each day and model: ``day``, ``model``, ``rows``, ``value``, ``low``, ``high`` (MRR).
        decisions: one row for each retraining: ``day``, ``promoted``, ``gain``, ``low``, ``high``, ``why``.
        refused: the gate's verdict on the model of wrong labels.
        rolled_back: whether the predictions after the rollback are those of before, to the byte.
        found: the findings of ``monitor`` on the last day beside the frozen model's rows.
        change_day: when tastes changed.
        seconds: wall time.
    """

    by_day: pd.DataFrame
    decisions: pd.DataFrame
    refused: str
    rolled_back: bool
    found: str
    change_day: int
    seconds: float


def stay_alive(
    out: Path, *, sessions: int = 6000, days: int = 14, first: int = 5, change_day: int = 7, seed: int = 0
) -> Alive:
    """Simulate the days, and score, monitor and retrain on each.

    Args:
        out: the folder to make; one that an earlier call has made is replaced.
        sessions: of all days together.
        days: how many.
        first: so many days are there to begin with.
        change_day: from which day on, counted from 0, tastes are others.
        seed: of everything random.

    Raises:
        DataError: the folder holds something that no earlier call has put there.
    """
    began = time.perf_counter()
    out = out.resolve()  # as a registry notes its sources
    _clear(out)
    log = Days.simulated(out / "log", sessions, days, change_day, seed)
    quiet = Stages(quiet=True)
    frozen = run_competition(
        AliveTrivago(log.of(0, first - 1)), out / "log", out / "runs" / "frozen", resume=True, seed=seed, stages=quiet
    )
    registry = Registry(out / "registry")
    registry.promote(frozen, why="the first")
    scored, decisions, refused = [], [], None
    for day in range(first, days):
        found = log.of(day, day)
        serving = Path(registry.current.source)  # type: ignore[union-attr] - one was promoted
        scored += [_scored(day, name, run, found) for name, run in (("frozen", frozen), ("served", serving))]
        if refused is None and day >= change_day + 4:
            refused = _wrong_labels(log, out, _before(registry, day - 2, frozen), day, seed)
        since = first if serving == frozen else int(serving.name.removeprefix("day")) + 1
        data = log.write(out / "days" / f"{day:02d}", since, day)  # all that the serving model has not learned from
        made = retrain(
            registry.folder, data, out / "runs" / f"day{day:02d}", time="timestamp", scored=1, window=_WINDOW,
            margin=_MARGIN, seed=seed, stages=quiet,
        )  # fmt: skip
        decisions.append(_decision(day, made))
    by_day = _by_day(scored)
    report = monitor(
        frozen, out / "days" / f"{days - 1:02d}", drop=["timestamp", "session_id", "place"],
        over_time=by_day[by_day["model"] == "frozen"].rename(columns={"day": "period"}),
    )  # fmt: skip
    report.save_html(out / "monitor.html")
    rolled = _rolled_back(registry, out, log, days - 1)
    return Alive(
        by_day, pd.DataFrame(decisions), refused or "", rolled, str(report), change_day, time.perf_counter() - began
    )


def _clear(out: Path) -> None:
    """Make the folder anew; only one with the mark of an earlier call is replaced."""
    if out.exists():
        if not out.is_dir() or (any(out.iterdir()) and not (out / _MARK).is_file()):
            raise DataError("the folder holds other things", file=out, remedy="Choose a new or empty folder")
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / _MARK).touch()


def _before(registry: Registry, day: int, frozen: Path) -> Path:
    """Return the newest promoted run that was not trained on the day."""
    promoted = [Path(v.source) for v in registry.versions if Path(v.source).name < f"day{day:02d}"]
    return promoted[-1] if promoted else frozen


def _wrong_labels(log: Days, out: Path, serving: Path, day: int, seed: int) -> str:
    """Retrain on three days, two of them with clicks at the wrong items, and return the gate's verdict."""
    data = log.write(out / "wrong_labels", day - 2, day, wrong=(day - 2, day - 1))
    made = retrain(
        serving, data, out / "runs" / "wrong", time="timestamp", scored=1, window=3, margin=_MARGIN, seed=seed,
        stages=Stages(quiet=True),
    )  # fmt: skip
    return str(made.verdict)


def _scored(day: int, model: str, run: Path, found: CompetitionData) -> pd.DataFrame:
    """Predict the rows of a day that are scored: the last click of every session."""
    saved = SavedRun(run)
    rows = found.train
    scores = saved.predict_rows(saved.rows(rows.drop(["clicked"]), dict(found.tables)))
    last = rows["is_last"].integer().numpy() > 0
    columns = {"list": rows["list_id"].integer().numpy(), "clicked": rows["clicked"].number().numpy(), "score": scores}
    return pd.DataFrame({"day": day, "model": model, **{n: np.asarray(v) for n, v in columns.items()}})[last]


def _by_day(scored: Sequence[pd.DataFrame]) -> pd.DataFrame:
    made = []
    for model, rows in pd.concat(scored).groupby("model", sort=False):
        columns = (rows[n].to_numpy() for n in ("clicked", "score", "day"))
        table = metric_over_time("mrr", *columns, every="value", groups=rows["list"].to_numpy())
        made.append(table.rename(columns={"period": "day"}).astype({"day": int}).assign(model=model))
    return pd.concat(made, ignore_index=True)


def _decision(day: int, made: Retrained) -> dict[str, object]:
    v = made.verdict
    gain = {"gain": v.gain.mean, "low": v.gain.low, "high": v.gain.high}
    return {"day": day, "promoted": v.promote, **gain, "why": "; ".join(v.reasons)}


def _rolled_back(registry: Registry, out: Path, log: Days, day: int) -> bool:
    """Return whether a rollback, and another, restore the earlier predictions."""
    data = log.write(out / "rows", day, day)
    (data / "train.parquet").rename(data / "test.parquet")

    def said(name: str) -> bytes:
        run = registry.current.run  # type: ignore[union-attr]
        return predict_run(run, data, out / f"{name}.csv").read_bytes()  # type: ignore[arg-type]

    now = said("now")
    registry.rollback(why="to look at what was before")
    before = said("before")
    registry.rollback(why="and back")
    return now == said("again") and before != now


def plot(alive: Alive, path: Path | None = None) -> object:
    """Plot MRR by day of the frozen model and the one that is trained again, with 95 % intervals."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for model, colour in zip(MODELS, ("tab:gray", "tab:blue"), strict=True):
        rows = alive.by_day[alive.by_day["model"] == model]
        axes.plot(rows["day"] + 1, rows["value"], "o-", color=colour, label=f"{model}: {MODELS[model]}")
        axes.fill_between(rows["day"] + 1, rows["low"], rows["high"], color=colour, alpha=0.15)
    axes.axvline(alive.change_day + 0.5, color="tab:red", linestyle="--", label="tastes change")
    for row in alive.decisions[~alive.decisions["promoted"]].itertuples():
        axes.annotate("kept", (row.day + 1, axes.get_ylim()[0]), ha="center")
    axes.set(xlabel="day", ylabel="MRR of the day's last clicks", title="A model that stays good")
    axes.legend()
    if path is not None:
        figure.savefig(path, dpi=110)
        plt.close(figure)
    return figure


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: ``alive.py --out DIR [--sessions N] [--seed S]``."""
    parser = argparse.ArgumentParser(description="A model that stays good while tastes change.")
    parser.add_argument("--out", type=Path, required=True, help="folder to make")
    parser.add_argument("--sessions", type=int, default=6000, help="of all 14 days together (default 6000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random numbers (default 0)")
    args = parser.parse_args(argv)
    try:
        alive = stay_alive(args.out, sessions=args.sessions, seed=args.seed)
    except FastrecError as error:
        parser.exit(2, f"{error}\n")
    plot(alive, args.out / "alive.png")
    wide = alive.by_day.pivot(index="day", columns="model", values="value")
    wide.index = wide.index + 1
    print(f"MRR by day; tastes change on day {alive.change_day + 1}")
    print(wide.to_string(float_format="%.4f"))
    print("\nretraining")
    print(alive.decisions.assign(day=alive.decisions["day"] + 1).to_string(index=False, float_format="%.4f"))
    print(f"\nof wrong labels: {alive.refused}")
    print(f"rollback: predictions are {'the same to the byte' if alive.rolled_back else 'OTHERS'}")
    print(f"\nmonitor: {alive.found}")
    (args.out / "alive.json").write_text(json.dumps({"by_day": alive.by_day.to_dict("records")}, indent=1))
    print(f"\n{args.out / 'alive.png'}, {args.out / 'monitor.html'}; {alive.seconds:.0f} s")
    return 0 if alive.rolled_back and "kept what serves" in alive.refused else 1


if __name__ == "__main__":
    raise SystemExit(main())
