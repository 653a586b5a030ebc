"""``self_test``: a small competition whose law is known, carried out from its files to the submission."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from fastrec._core.device import DeviceLike
from fastrec._core.progress import Stages
from fastrec.competition.forms.check import check_submission
from fastrec.competition.forms.values import ValueForm
from fastrec.competition.predict import SavedRun, predict_run
from fastrec.competition.recipe import Competition
from fastrec.competition.run import run_competition
from fastrec.competition.runs import _scores
from fastrec.estimators import Estimator, NetModel, XGBModel
from fastrec.features import CountEncode, FeatureSet, TargetEncode
from fastrec.metrics import get_metric
from fastrec.table import Table

_ROWS, _TEST, _CITIES = 1500, 500, 12
_LEAST, _ABOVE = 0.65, 0.03  # an AUC below is no learning; so far above the true probabilities' is no luck


@dataclass(frozen=True)
class SelfCheck:
    """One thing that was looked at, whether it is as it should be, figures (or what is wrong), and what it took."""

    name: str
    ok: bool
    said: str
    seconds: float


class _Clicks(Competition):
    """Rows with a known law: a city's taste, a number's slope, another's bend."""

    name = "self-test"
    task = "binary"
    metric = "auc"
    target = "clicked"
    ids = ("id",)
    submission = ValueForm(ids=("id",), values=("clicked",), probabilities=True)

    def features(self) -> FeatureSet:
        return FeatureSet([CountEncode("city"), TargetEncode("city", "clicked")], key="id")

    def models(self, *, bs: int | None) -> Sequence[Estimator]:
        trees = XGBModel("xgb", rounds=60, eta=0.15, max_depth=3, early_stopping_rounds=None)
        return [NetModel("net", model="TabularNet", options={"layers": [32]}, epochs=12, bs=bs or 64), trees]


@dataclass(frozen=True)
class _World:
    """The rows that were written, and what is true of them."""

    city: np.ndarray
    clicked: np.ndarray
    test_city: np.ndarray
    truth: np.ndarray
    oracle: float


def self_test(*, device: DeviceLike = "auto", stages: Stages | None = None) -> list[SelfCheck]:
    """Carry a small competition out in a folder that is gone afterwards, and hold what comes out against what is known.

    Returns what was looked at, in order; after a run that raises an error nothing more is looked at.
    """
    stages = stages or Stages(quiet=True)
    checks: list[SelfCheck] = []
    with tempfile.TemporaryDirectory(prefix="fastrec-self-test-") as folder:
        data, run = Path(folder) / "data", Path(folder) / "run"
        world = _write(data)
        steps: list[tuple[str, Callable[[], str]]] = [
            ("run", lambda: _run(data, run, device, stages)),
            ("features", lambda: _features(data, run, world)),
            *((name, lambda name=name: _model(run, name, world)) for name in ("net", "xgb", "stack")),
            ("submission", lambda: _submission(data, run, world)),
            ("predict", lambda: _predict(data, run, device)),
        ]
        for name, step in steps:
            began = time.perf_counter()
            try:
                ok, said = True, step()
            except Exception as error:  # whatever is wrong here is what is asked for
                ok, said = False, str(error) if isinstance(error, _Wrong) else f"{type(error).__name__}: {error}"
            checks.append(SelfCheck(name, ok, said, time.perf_counter() - began))
            if not ok and name == "run":
                break
    return checks


class _Wrong(Exception):
    """Something is not as it should be."""


def _expect(ok: bool, said: str) -> str:
    if not ok:
        raise _Wrong(said)
    return said


def _write(folder: Path) -> _World:
    rng = np.random.default_rng(2019)
    n = _ROWS + _TEST
    taste = rng.normal(size=_CITIES)
    city, x, z = rng.integers(0, _CITIES, n), rng.normal(size=n), rng.normal(size=n)
    p = 1 / (1 + np.exp(-(1.3 * taste[city] + 1.2 * x - z**2 + 0.8)))
    clicked = (rng.random(n) < p).astype(int)
    rows = pd.DataFrame({"id": range(n), "city": [f"c{c}" for c in city], "x": x, "z": z, "clicked": clicked})
    for column in ("x", "z"):
        rows.loc[rng.random(n) < 0.03, column] = np.nan  # some are missing
    folder.mkdir()
    rows[:_ROWS].to_csv(folder / "train.csv", index=False)
    rows[_ROWS:].drop(columns="clicked").to_csv(folder / "test.csv", index=False)
    test = slice(_ROWS, n)
    oracle = get_metric("auc")(clicked[test], p[test])
    return _World(city[:_ROWS], clicked[:_ROWS], city[test], clicked[test], oracle)


def _run(data: Path, run: Path, device: DeviceLike, stages: Stages) -> str:
    run_competition(_Clicks(), data, run, device=device, stages=stages)
    return f"{_ROWS} rows, 5 folds, written and reported"


def _features(data: Path, run: Path, world: _World) -> str:
    made = SavedRun(run).rows(Table.read(data / "test.csv")).table
    counts = np.bincount(world.city, minlength=_CITIES)
    shares = np.bincount(world.city, world.clicked, minlength=_CITIES) / counts
    count, share = (made[n].number().cpu().numpy() for n in ("count_city", "te_city__clicked"))
    _expect(bool((count == counts[world.test_city]).all()), "count_city is not the number of rows of each city")
    off = float(abs(share - shares[world.test_city]).max())
    return _expect(off < 0.1, f"counts are exact, shares of a city within {off:.3f} of its rows' own")


def _model(run: Path, name: str, world: _World) -> str:
    oof = _scores(run)["oof"]
    test = get_metric("auc")(world.truth, _column(run / "test" / f"{name}.parquet", "prediction"))
    said = f"auc {oof[name]:.4f} out of fold, {test:.4f} on the test ({world.oracle:.4f} is the law's own)"
    _expect(_LEAST < oof[name] < world.oracle + _ABOVE and _LEAST < test < world.oracle + _ABOVE, said)
    if name == "stack":
        best = max(oof["net"], oof["xgb"])
        # The best of two models may exceed the stack by chance.
        _expect(oof[name] >= best - 0.01, f"auc {oof[name]:.4f} out of fold, below its best model's {best:.4f}")
    return said


def _submission(data: Path, run: Path, world: _World) -> str:
    report = check_submission(run / "submission.csv", data / "test.csv", _Clicks.submission)
    values = _column(run / "submission.csv", "clicked")
    _expect(bool(((values >= 0) & (values <= 1)).all()), "a probability is not between 0 and 1")
    auc = get_metric("auc")(world.truth, values)
    stack = get_metric("auc")(world.truth, _column(run / "test" / "stack.parquet", "prediction"))
    return _expect(abs(auc - stack) < 1e-4, f"{report.rows} rows in the official form, auc {auc:.4f}")


def _predict(data: Path, run: Path, device: DeviceLike) -> str:
    again = predict_run(run, data / "test.csv", run.parent / "again.csv", device=device)
    off = float(abs(_column(again, "clicked") - _column(run / "submission.csv", "clicked")).max())
    return _expect(off < 1e-5, f"what was saved predicts within {off:.1e} of the run")


def _column(path: Path, name: str) -> np.ndarray:
    return Table.read(path)[name].number().cpu().numpy().astype(np.float64)
