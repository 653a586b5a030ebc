from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fastrec.serve.onnx_builder import ROWS, Graph


def same(amounts: np.ndarray) -> np.ndarray:
    return amounts


def above_one(amounts: np.ndarray) -> np.ndarray:
    return amounts > 1


def classes(amounts: np.ndarray) -> np.ndarray:
    return np.clip(amounts.round(), 0, 3)


def model_of(forest: Any) -> Any:
    graph = Graph()
    x = graph.input("x", np.float64 if forest.wide else np.float32, (ROWS, forest.columns))
    graph.output("margin", forest.margins(x, graph), np.float64, forest.targets)
    return graph.model()


@pytest.fixture(scope="session")
def run() -> Callable[..., np.ndarray]:
    """Runs an ONNX model on one thread, as one that adds up in order."""
    pytest.importorskip("onnx")
    ort = pytest.importorskip("onnxruntime")

    def run(model: Any, **inputs: np.ndarray) -> np.ndarray:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        return ort.InferenceSession(model.SerializeToString(), options).run(None, inputs)[0]

    return run


@pytest.fixture(scope="session")
def margins(run: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def margins(forest: Any, rows: np.ndarray) -> np.ndarray:
        return run(model_of(forest), x=rows.astype(np.float64 if forest.wide else np.float32))

    return margins


@pytest.fixture(scope="session")
def rows() -> np.ndarray:
    """Rows of few values, so that thresholds are hit, with holes; column 2 holds categories 0 to 39."""
    rng = np.random.default_rng(0)
    made = rng.normal(size=(400, 5)).astype(np.float32).round(1)
    made[:, 2] = rng.integers(0, 40, 400)
    made[rng.random((400, 5)) < 0.1] = np.nan
    return made


@pytest.fixture(scope="session")
def odd_rows(rows: np.ndarray) -> np.ndarray:
    """The same with numbers and categories that are no one's: large, negative, between two, unseen."""
    made = rows.copy()
    made[:60, 2] = np.tile(np.array([-1, -0.5, 0.5, 40, 63.9, 64, 2**20, 1e38, -1e38, np.nan], np.float32), 6)
    made[60:70, 0], made[70:80, 0], made[80:90, 1] = 1e38, -1e38, 0
    return made


@pytest.fixture(scope="session")
def amounts(rows: np.ndarray) -> np.ndarray:
    """What is to be learned of ``rows``: from -3 to 6."""
    rng = np.random.default_rng(1)
    effect = rng.normal(size=40)[np.nan_to_num(rows[:, 2]).astype(int)]
    return np.clip(np.nan_to_num(rows[:, 0]) + effect + rng.integers(0, 3, 400), -3, 6).round(2)


@pytest.fixture(scope="session")
def linked(run: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def linked(forest: Any, values: np.ndarray) -> np.ndarray:
        graph = Graph()
        given = graph.input("m", np.float64, (ROWS, forest.targets))
        graph.output("y", forest.linked(given, graph), np.float64, forest.targets)
        return run(graph.model(), m=values.astype(np.float64))

    return linked
