"""Simulated files in the form of the WSDM Cup 2022's markets: users and items of a few tastes.

**World.** There are ``TASTES`` tastes. A user has one main taste and a second one; an item has one taste, and a
popularity that falls with its rank as ``rank ** -POWER``. A user takes an item of the main taste with probability
``MAIN``, of the second with ``SECOND``, of any taste else, each time by popularity among that taste's items, and never
twice. The number of items a user takes is 3 and a geometric number more.

**Files.** Users with ``CORE`` items or more are in ``train_5core.tsv``, with ratings of 1.0. One of such a user's items
is held out: it stands among 99 others, by popularity, that the user did not take, in ``valid_run.tsv``, and in
``valid_qrel.tsv``, or for every fifth user in ``test_qrel.tsv``. ``train.tsv`` has the other interactions with stars,
those of users with few items too, but lacks some users of the core file, as the real one does.

Run ``fastrec simulate competitions/xmarket2022 --sessions 2000 --out DIR``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastrec._core.atomic import atomic_folder
from fastrec.errors import DataError

TASTES, POWER, MAIN, SECOND, CORE, OTHERS = 12, 0.7, 0.6, 0.2, 4, 99
ITEMS_PER_USER = 0.4
FILES = ("train.tsv", "train_5core.tsv", "valid_run.tsv", "valid_qrel.tsv", "test_qrel.tsv")


@dataclass(frozen=True)
class Simulated:
    """A summary of the simulation."""

    out: Path
    users: int
    items: int
    interactions: int
    lists: int
    test_lists: int


def simulate(
    users: int, out: str | Path, *, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> Simulated:
    """Write the files; earlier ones at ``out`` are replaced in one step.

    Args:
        users: how many users, at least 50.
        out: the folder to make.
        seed: of all random numbers.
        progress: called with the users done and their number.

    Raises:
        DataError: too few users, or ``out`` holds something that no simulation wrote.
        WriteError: the file system refused.
    """
    out = Path(out)
    if users < 50:
        raise DataError(f"{users} users are too few", remedy="Ask for 50 or more")
    other = sorted(p.name for p in out.iterdir() if p.name not in FILES) if out.is_dir() else []
    if other:
        raise DataError(f"holds {other[0]!r}, which no simulation wrote", file=out, remedy="Name an empty folder")
    rng = np.random.default_rng(seed)
    n_items = max(3 * OTHERS, int(users * ITEMS_PER_USER))
    taste = rng.integers(TASTES, size=n_items)
    chance = (rng.permutation(n_items) + 1.0) ** -POWER
    taken = []
    for user in range(users):
        taken.append(_take(rng, taste, chance))
        if progress is not None:
            progress(user + 1, users)
    lines = _lines(rng, taken, chance)
    with atomic_folder(out) as folder:
        for name, content in zip(FILES, lines):
            (folder / name).write_text("".join(f"{line}\n" for line in content), encoding="utf-8")
    sizes = [len(content) for content in lines]
    return Simulated(out, users, n_items, sum(map(len, taken)), sizes[2], sizes[4] - 1)


def _take(rng: np.random.Generator, taste: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """Draw the items of one user, in order."""
    main, second = rng.choice(TASTES, size=2, replace=False)
    by_taste = np.where(taste == main, MAIN / (taste == main).sum(), 0.0)
    by_taste += np.where(taste == second, SECOND / max((taste == second).sum(), 1), 0.0)
    by_taste += (1 - MAIN - SECOND) / len(taste)
    weights = by_taste * chance
    return rng.choice(len(taste), size=min(3 + rng.geometric(0.25), 40), replace=False, p=weights / weights.sum())


def _lines(rng: np.random.Generator, taken: list[np.ndarray], chance: np.ndarray) -> list[list[str]]:
    """Return the lines of each file."""
    rated, core, run, known, held = ([] for _ in FILES)
    for user, items in enumerate(taken):
        name = f"s1U{1_000_000 + user}"
        rest = items
        if len(items) > CORE:
            answer, rest = items[-1], items[:-1]
            core += [f"{name}\t{_id(i)}\t1.0" for i in rest]
            weights = np.where(np.isin(np.arange(len(chance)), items), 0.0, chance)
            others = rng.choice(len(chance), size=OTHERS, replace=False, p=weights / weights.sum())
            listed = rng.permutation(np.append(others, answer))
            run.append(f"{name}\t{','.join(map(_id, listed))}")
            (held if user % 5 == 4 else known).append(f"{name}\t{_id(answer)}\t1")
        if len(items) <= CORE or rng.random() > 0.08:
            stars = rng.choice([1, 2, 3, 4, 5], size=len(rest), p=[0.06, 0.04, 0.06, 0.14, 0.7])
            rated += [f"{name}\t{_id(i)}\t{s}.0" for i, s in zip(rest, stars)]
    header = ["userId\titemId\trating"]
    return [header + list(rng.permutation(rated)), header + core, run, header + known, header + held]


def _id(item: int) -> str:
    return f"P{1_000_000 + item}"
