"""Descriptions of a user and a candidate: scores of collaborative filters, counts, and places in the list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fastrec.retrieval import EASE, CollaborativeFilter, ImplicitALS, ItemKNN, RP3Beta, SpectralFilter, UserKNN

LIKED = 4  # stars
NEAREST = 2


class Pairs(Protocol):
    """Users and items by number."""

    users: np.ndarray
    items: np.ndarray
    ratings: np.ndarray


@dataclass(frozen=True)
class Lists:
    """Concatenated lists of candidates.

    Args:
        users: int64 ``[lists]``.
        items: int64 ``[n]``: the candidates of the first list, then those of the second, …
        sizes: int64 ``[lists]``: how many candidates a list has, 1 or more.
    """

    users: np.ndarray
    items: np.ndarray
    sizes: np.ndarray

    @property
    def of(self) -> np.ndarray:
        """Return the list of each candidate: int64 ``[n]``."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def rows(self, chosen: np.ndarray) -> np.ndarray:
        """Mark the candidates of chosen lists (bool ``[lists]``): bool ``[n]``."""
        return np.repeat(chosen, self.sizes)

    def take(self, chosen: np.ndarray) -> Lists:
        """Select lists (bool ``[lists]``)."""
        return Lists(self.users[chosen], self.items[self.rows(chosen)], self.sizes[chosen])


def filters() -> dict[str, tuple[str, CollaborativeFilter]]:
    """Return the collaborative filters by name, each with the interactions that it learns from."""
    return {
        "knn": ("all", ItemKNN(shrink=5)),
        "knn_users": ("all", ItemKNN(shrink=2, user_power=0.25)),
        "knn_given": ("all", ItemKNN(shrink=5, asymmetry=0.2)),
        "ease": ("all", EASE(reg=300)),
        "ease_sharp": ("all", EASE(reg=50)),
        "user_knn": ("all", UserKNN(shrink=2, item_power=0.5)),
        "walk": ("all", RP3Beta(alpha=0.6, beta=0.2)),
        "walk_rare": ("all", RP3Beta(alpha=1.0, beta=0.8)),
        "spectral": ("all", SpectralFilter(factors=128, alpha=1.0)),
        "spectral_low": ("all", SpectralFilter(factors=48, alpha=3.0)),
        "als": ("all", ImplicitALS(factors=64, reg=0.3, alpha=30, power=1.0, iterations=5)),
        "als_sharp": ("all", ImplicitALS(factors=48, reg=0.1, alpha=10, power=1.0, iterations=5, seed=1)),
        # factors begin at random: two more of other widths, so that no one beginning decides
        "als_wide": ("all", ImplicitALS(factors=96, reg=0.3, alpha=30, power=1.0, iterations=5, seed=2)),
        "als_narrow": ("all", ImplicitALS(factors=32, reg=0.3, alpha=30, power=1.0, iterations=5, seed=3)),
        "knn_rated": ("rated", ItemKNN(shrink=5)),
        "knn_liked": ("liked", ItemKNN(shrink=5)),
        "knn_disliked": ("disliked", ItemKNN(shrink=5)),
        "knn_core": ("core", ItemKNN(shrink=5)),
        "ease_core": ("core", EASE(reg=200)),
        "user_knn_core": ("core", UserKNN(shrink=2, item_power=0.5)),
    }


PLACED = ["knn", "knn_users", "knn_given", "ease", "ease_sharp", "user_knn", "walk", "spectral"]
PLACED += ["als", "als_sharp", "als_wide", "als_narrow"]
PLACED += ["knn_rated", "knn_core", "ease_core", "near1_all", "near1_core", "item_count_all", "item_count_core"]
TOGETHER = ("z", "gap")  # of these the mean over all filters in PLACED: trees add up badly
COUNTED = ("all", "rated", "core")


def columns() -> list[str]:
    """Name the columns of ``describe``."""
    near = [f"near{k + 1}_{part}" for part in ("all", "core") for k in range(NEAREST)]
    counts = [f"{side}_count_{part}" for part in COUNTED for side in ("item", "user")]
    placed = [f"{name}_{how}" for name in PLACED for how in ("place", "gap", "z")]
    together = [f"together_{how}" for how in TOGETHER]
    return [*filters(), *near, *counts, "item_rating", "user_rating", *placed, *together]


def describe(rated: Pairs, core: Pairs, lists: Lists) -> dict[str, np.ndarray]:
    """Describe every candidate by the given interactions alone.

    How often an item is a candidate is not counted: the run file is no sample of what users take.

    Args:
        rated: ``train.tsv``, or a part of it.
        core: ``train_5core.tsv``, or a part of it.
        lists: the candidates.

    Returns:
        Name → float64 ``[n]``, as ``columns`` names them.
    """
    parts = _parts(rated, core)
    users, items = lists.users[lists.of], lists.items
    made: dict[str, np.ndarray] = {}
    for name, (part, model) in filters().items():
        pairs = parts[part]
        made[name] = model.fit(*pairs).score(users, items).numpy() if len(pairs[0]) else np.zeros(len(items))
    for part in ("all", "core"):
        near = ItemKNN(shrink=3, user_power=0.25).fit(*parts[part]).nearest(users, items, NEAREST).numpy()
        made |= {f"near{k + 1}_{part}": near[:, k] for k in range(NEAREST)}
    for part in COUNTED:
        for side, all_ids, asked in (("item", parts[part][1], items), ("user", parts[part][0], users)):
            counts = np.bincount(all_ids, minlength=asked.max() + 1)
            made[f"{side}_count_{part}"] = counts[asked].astype(float)
    made["item_rating"] = _mean(rated.items, rated.ratings, items)
    made["user_rating"] = _mean(rated.users, rated.ratings, users)
    for name in PLACED:
        made |= _in_list(name, made[name], lists)
    judges = [name for name in PLACED if name in filters()]
    for how in TOGETHER:
        made[f"together_{how}"] = np.mean([made[f"{name}_{how}"] for name in judges], axis=0)
    return {name: made[name] for name in columns()}


def _parts(rated: Pairs, core: Pairs) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return distinct pairs of users and items, by part."""
    liked = rated.ratings >= LIKED
    both = np.concatenate([rated.users, core.users]), np.concatenate([rated.items, core.items])
    given = {
        "all": both,
        "rated": (rated.users, rated.items),
        "core": (core.users, core.items),
        "liked": (rated.users[liked], rated.items[liked]),
        "disliked": (rated.users[~liked], rated.items[~liked]),
    }
    return {name: tuple(np.unique(np.stack(pairs), axis=1)) for name, pairs in given.items()}


def _mean(ids: np.ndarray, values: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Return the mean value of each id asked for; NaN where it has none."""
    size = max(ids.max(initial=0), asked.max(initial=0)) + 1
    counts, sums = np.bincount(ids, minlength=size), np.bincount(ids, values, minlength=size)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)[asked]


def _in_list(name: str, values: np.ndarray, lists: Lists) -> dict[str, np.ndarray]:
    """Return places in the list (from 0, the highest first), and distances from the list's best and mean."""
    of, starts = lists.of, np.cumsum(lists.sizes) - lists.sizes
    order = np.lexsort([-values, of])
    place = np.empty(len(values))
    place[order] = np.arange(len(values)) - starts[of]
    # equal values share the first of their places
    first = np.r_[True, (np.diff(values[order]) != 0) | (np.diff(of) != 0)]
    place[order] = place[order][np.maximum.accumulate(np.where(first, np.arange(len(values)), 0))]
    mean = np.add.reduceat(values, starts) / lists.sizes
    best = np.maximum.reduceat(values, starts)
    spread = np.sqrt(np.add.reduceat((values - mean[of]) ** 2, starts) / lists.sizes) + 1e-12
    return {
        f"{name}_place": place,
        f"{name}_gap": (values - best[of]) / spread[of],
        f"{name}_z": (values - mean[of]) / spread[of],
    }
