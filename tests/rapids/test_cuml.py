"""Models that cuML trains: its arguments, and scikit-learn's twin that is saved. Without a GPU, on its rehearsal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fastrec.estimators import CuMLModel
from fastrec.estimators.base import Estimator
from fastrec.table import Table
from fastrec.validate import Rows
from tests.rapids import rehearsal

CUDA = torch.device("cuda")
CASES = [(kind, task) for kind in ("linear", "knn", "random_forest", "svm") for task in ("binary", "regression")]


@pytest.mark.parametrize(("kind", "task"), [*CASES, ("svm", "multiclass")])
def test_a_model_of_cuml_is_saved_as_scikit_learn_s(
    kind: str, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not torch.cuda.is_available():
        rehearsal.bring(monkeypatch)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2))
    y = {"binary": x[:, 0] > 0, "multiclass": (x[:, 0] > 0) + (x[:, 1] > 0), "regression": x[:, 0]}[task]
    table = Table({"a": x[:, 0], "b": x[:, 1], "y": y.astype(float if task == "regression" else int)})
    label, count = table["y"].values, 3 if task == "multiclass" else 1
    rows = Rows(table.select(["a", "b"]), task, conts=["a", "b"], label=label, n_outputs=count)
    model = CuMLModel(kind).fit(rows, seed=0, device=CUDA)
    trained = model._parts[0]
    assert type(getattr(trained, "estimator", trained)).__module__.startswith("cuml.")
    said = model.predict(rows)
    if task == "binary":
        assert ((said > 0.5).numpy() == y).mean() > 0.9
    model.save(tmp_path / "m")
    monkeypatch.undo()  # it is read where there is no cuML
    loaded = Estimator.load(tmp_path / "m")
    assert torch.allclose(loaded.predict(rows), said, atol=1e-6)
    assert type(loaded._parts[0]).__module__.startswith("sklearn.")
