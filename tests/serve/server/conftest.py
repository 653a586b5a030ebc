from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("starlette")
pytest.importorskip("orjson")

from fastrec.serve import make_app
from tests.serve.server.calls import CLOSE
from tests.serve.server.exports import write_export


@pytest.fixture(autouse=True)
def _close() -> Any:
    yield
    while CLOSE:
        CLOSE.pop()()


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("exports")
    return {task: write_export(folder / task, task=task) for task in ("binary", "ranking", "multiclass")}


@pytest.fixture(scope="session")
def apps(exports: dict[str, Path]) -> Any:
    made = {task: make_app(folder) for task, folder in exports.items()}
    yield made
    for app in made.values():
        app.state.service.close()
