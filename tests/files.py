"""Files that many tests write or read: tables of a folder, and what a run says of itself."""

import json
from pathlib import Path
from typing import Any

import pandas as pd


def write_csv(folder: Path, **tables: pd.DataFrame | None) -> Path:
    """Write each table to the file of its name, but None, and return the folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        if table is not None:
            table.to_csv(folder / f"{name}.csv", index=False)
    return folder


def scores_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "scores.json").read_text())
