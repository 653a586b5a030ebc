"""``self_test``: run a small competition with a known distribution, from its files to the submission."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from fastrec._core.atomic import read_json
from fastrec._core.device import DeviceLike
from fastrec._core.progress import Stages
from fastrec.competition.forms.check import check_submission
from fastrec.competition.forms.rows import SubmissionForm
from fastrec.competition.predict import SavedRun, predict_run
from fastrec.competition.recipe import Competition
from fastrec.competition.run import run_competition
from fastrec.estimators import Estimator, NetModel, XGBModel
from fastrec.features import CountEncode, FeatureSet, TargetEncode
from fastrec.metrics import get_metric
from fastrec.table import Table

_ROWS, _TEST, _CITIES = 1500, 500, 12
_LEAST, _ABOVE = 0.65, 0.03  # least AUC of a working model; largest excess over the true probabilities' by chance


@dataclass(frozen=True)
class SelfCheck:
    """A check: its name, whether it passed, figures or the error, and its seconds."""

    name: str
    ok: bool
    said: str
    seconds: float


class _Clicks(Competition):
    name = "self-test"
    task = "binary"
    metric = "auc"
    target = "clicked"
    ids = ("id",)
    submission = SubmissionForm(ids=("id",), values=("clicked",), probabilities=True)

    def features(self) -> FeatureSet:
        return FeatureSet([CountEncode("city"), TargetEncode("city", "clicked")], key="id")

    def models(self, *, bs: int | None) -> Sequence[Estimator]:
        trees = XGBModel("xgb", rounds=60, eta=0.15, max_depth=3, early_stopping_rounds=None)
        return [NetModel("net", model="TabularNet", options={"layers": [32]}, epochs=12, bs=bs or 64), trees]


def self_test(*, device: DeviceLike = "auto", stages: Stages | None = None) -> list[SelfCheck]:
    """Run a small competition in a temporary folder, and compare its results with the known distribution of its data.

    Returns the checks in order; if the run raises an error, they end with it.
    """
    checks: list[SelfCheck] = []
    with tempfile.TemporaryDirectory(prefix="fastrec-self-test-") as folder:
        world = World(Path(folder), device, stages or Stages(quiet=True))
        models = {name: partial(world.model, name) for name in ("net", "xgb", "stack")}
        steps = {"run": world.carry_out, "features": world.features, **models, "submission": world.submission}
        for name, step in {**steps, "predict": world.predict}.items():
            began = time.perf_counter()
            try:
                ok, said = step()
            except Exception as error:  # any error is a result of the test
                ok, said = False, f"{type(error).__name__}: {error}"
            checks.append(SelfCheck(name, ok, said, time.perf_counter() - began))
            if not ok and name == "run":
                break
    return checks


class World:
    """The data, their known distribution, and the checks; each returns whether it passed, and figures."""

    def __init__(self, folder: Path, device: DeviceLike, stages: Stages) -> None:
        self.data, self.run, self.device, self.stages = folder / "data", folder / "run", device, stages
        rng = np.random.default_rng(2019)
        n = _ROWS + _TEST
        taste = rng.normal(size=_CITIES)
        city, x, z = rng.integers(0, _CITIES, n), rng.normal(size=n), rng.normal(size=n)
        p = 1 / (1 + np.exp(-(1.3 * taste[city] + 1.2 * x - z**2 + 0.8)))
        clicked = (rng.random(n) < p).astype(int)
        rows = pd.DataFrame({"id": range(n), "city": [f"c{c}" for c in city], "x": x, "z": z, "clicked": clicked})
        for column in ("x", "z"):
            rows.loc[rng.random(n) < 0.03, column] = np.nan
        self.data.mkdir()
        rows[:_ROWS].to_csv(self.data / "train.csv", index=False)
        rows[_ROWS:].drop(columns="clicked").to_csv(self.data / "test.csv", index=False)
        self.city, self.test_city = city[:_ROWS], city[_ROWS:]
        self.clicked, self.truth = clicked[:_ROWS], clicked[_ROWS:]
        self.oracle = get_metric("auc")(self.truth, p[_ROWS:])

    def carry_out(self) -> tuple[bool, str]:
        """Run the recipe."""
        run_competition(_Clicks(), self.data, self.run, device=self.device, stages=self.stages)
        return True, f"{_ROWS} rows, 5 folds, written and reported"

    def features(self) -> tuple[bool, str]:
        """Compare the test rows' features with counts and shares of the training rows."""
        made = SavedRun(self.run).rows(Table.read(self.data / "test.csv")).table
        counts = np.bincount(self.city, minlength=_CITIES)
        shares = np.bincount(self.city, self.clicked, minlength=_CITIES) / counts
        count, share = (made[n].number().cpu().numpy() for n in ("count_city", "te_city__clicked"))
        if not (count == counts[self.test_city]).all():
            return False, "count_city is not the number of rows of each city"
        off = float(abs(share - shares[self.test_city]).max())
        return off < 0.1, f"counts are exact, shares of a city within {off:.3f} of its rows' own"

    def model(self, name: str) -> tuple[bool, str]:
        """Compare a model's scores with that of the true probabilities."""
        oof = read_json(self.run / "scores.json")["oof"]
        test = get_metric("auc")(self.truth, _column(self.run / "test" / f"{name}.parquet", "prediction"))
        said = f"auc {oof[name]:.4f} out of fold, {test:.4f} on the test ({self.oracle:.4f} is the law's own)"
        if not all(_LEAST < score < self.oracle + _ABOVE for score in (oof[name], test)):
            return False, said
        best = max(oof["net"], oof["xgb"])
        if name == "stack" and oof[name] < best - 0.01:  # the best of two models may exceed the stack by chance
            return False, f"auc {oof[name]:.4f} out of fold, below its best model's {best:.4f}"
        return True, said

    def submission(self) -> tuple[bool, str]:
        """Check the submission's form, and compare its score with the stack's."""
        report = check_submission(self.run / "submission.csv", self.data / "test.csv", _Clicks.submission)
        values = _column(self.run / "submission.csv", "clicked")
        if not ((values >= 0) & (values <= 1)).all():
            return False, "a probability is not between 0 and 1"
        auc = get_metric("auc")(self.truth, values)
        stack = get_metric("auc")(self.truth, _column(self.run / "test" / "stack.parquet", "prediction"))
        return abs(auc - stack) < 1e-4, f"{report.rows} rows in the official form, auc {auc:.4f}"

    def predict(self) -> tuple[bool, str]:
        """Compare the saved run's predictions with the submission."""
        again = predict_run(self.run, self.data / "test.csv", self.run.parent / "again.csv", device=self.device)
        off = float(abs(_column(again, "clicked") - _column(self.run / "submission.csv", "clicked")).max())
        return off < 1e-5, f"what was saved predicts within {off:.1e} of the run"


def _column(path: Path, name: str) -> np.ndarray:
    return Table.read(path)[name].number().cpu().numpy().astype(np.float64)
