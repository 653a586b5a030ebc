"""Small files in the official form, and their events read back with plain Python."""

import csv
import random
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from competitions.trivago2019.data import COLUMNS, ITEM_ACTIONS, OTHER_ACTIONS, read
from fastrec.errors import DataWarning

CLICK = "clickout item"
TRUTH = ["user_id", "session_id", "timestamp", "step", "reference", "impressions"]


def event(session: str, step: int, action: str, reference: str = "", **more: object) -> dict[str, str]:
    """One row of a log; a clickout without impressions lists items 11, 12 and 13."""
    row = {"user_id": f"u{session}", "session_id": session, "timestamp": 1_000 + 10 * step, "step": step}
    row |= {"action_type": action, "reference": reference, "platform": "DE", "city": "Berlin", "device": "mobile"}
    if action == CLICK:
        row |= {"impressions": "11|12|13", "prices": "50|70|60"}
    return {name: str({**row, **more}.get(name, "")) for name in COLUMNS}


def write(folder: Path, train: list[dict], test: list[dict], truth: list[dict] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows, columns in (("train", train, COLUMNS), ("test", test, COLUMNS), ("ground_truth", truth, TRUTH)):
        if rows is not None:
            with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
    return folder


def items(folder: Path, properties: dict[str, str]) -> None:
    lines = [f"{item},{text}" for item, text in properties.items()]
    (folder / "item_metadata.csv").write_text("\n".join(["item_id,properties", *lines]) + "\n", encoding="utf-8")


def random_rows(seed: int, *, sessions: int = 14, steps: int = 12) -> tuple[list[dict], list[dict], list[dict]]:
    """Rows of train, test and ground truth with all that is odd in real files: ties in time, (session, step) twice, an
    item listed twice, clicks outside the list, an unknown action, sessions without a target, rows in no order."""
    r = random.Random(seed)
    names = [str(n) for n in range(10, 24)]
    train, test, truth = [], [], []
    for s in range(sessions):
        time, user = 1_000 + r.randrange(60), f"u{r.randrange(6)}"
        rows: list[dict] = []
        for step in range(1, r.randrange(2, steps) + 1):
            time += r.choice([0, 1, 2, 5, 9, 9, 5000] if s % 3 == 0 else [0, 1, 2, 5, 9])
            action = r.choice([CLICK, CLICK, CLICK, *ITEM_ACTIONS, *ITEM_ACTIONS, *OTHER_ACTIONS, "interaction video"])
            listed = [r.choice(names) for _ in range(r.choice([1, 2, 4, 6]))]
            reference = r.choice(names) if action in ITEM_ACTIONS else f"text {r.randrange(3)}"
            if action == CLICK and r.random() < 0.9:
                reference = r.choice(listed)
            more = {"user_id": user, "timestamp": time, "platform": r.choice(["DE", "UK"])}
            more["current_filters"] = "|".join(["Pool", "Bar", "Spa"][: r.randrange(4)])
            if action == CLICK:
                more |= {"impressions": "|".join(listed), "prices": "|".join(str(r.randrange(30, 99)) for _ in listed)}
            rows.append(event(f"s{s}", step if r.random() < 0.95 else max(1, step - 1), action, reference, **more))
        clicks = [k for k, row in enumerate(rows) if row["action_type"] == CLICK]
        if s % 4 == 3:
            if clicks:
                truth.append(dict(rows[clicks[-1]]))
                rows[clicks[-1]]["reference"] = ""
                rows = rows[: clicks[-1] + 1] if r.random() < 0.7 else rows
            test += rows
        else:
            train += rows
    if seed % 2:
        r.shuffle(train)
        r.shuffle(test)
    return train, test, truth


def sessions_of(folder: Path) -> dict[str, list[dict]]:
    """Every session's events in order, by a loop over the files' rows, with ``file``, ``row``, ``place``, ``dwell``."""
    found: dict[str, list[dict]] = {}
    for file in ("train", "test"):
        with (folder / f"{file}.csv").open(newline="", encoding="utf-8") as handle:
            for number, row in enumerate(csv.DictReader(handle)):
                row |= {"timestamp": int(row["timestamp"]), "step": int(row["step"]), "file": file, "row": number}
                found.setdefault(row["session_id"], []).append(row)
    for events in found.values():
        events.sort(key=lambda e: (e["timestamp"], e["step"], e["file"] == "test", e["row"]))
        for place, e in enumerate(events):
            after = events[place + 1]["timestamp"] if place + 1 < len(events) else e["timestamp"]
            e |= {"place": place, "dwell": min(after - e["timestamp"], 1800)}
            e["target"] = e["file"] == "test" and e["action_type"] == CLICK and not e["reference"]
    return found


def quiet_read(folder: Path, **options: object) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return read(folder, device=torch.device("cpu"), **options)


@pytest.fixture(scope="session")
def official() -> SimpleNamespace:
    return SimpleNamespace(
        event=event, write=write, items=items, random_rows=random_rows, sessions_of=sessions_of, read=quiet_read
    )
