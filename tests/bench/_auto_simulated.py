"""Tables of the kinds that competitions have, made up: what is true of them is known."""

from __future__ import annotations

import numpy as np
import pandas as pd


def wide(rows: int = 60_000, seed: int = 1) -> tuple[pd.DataFrame, np.ndarray]:
    """Draw a bank's customers: 370 anonymous columns, mostly zeros, 4 % unhappy ones (``TARGET``).

    Forty products, each held by few, have six columns each (held, pieces, amounts now and before, operations, a share);
    facts of the customer; codes; constants, copies and noise. The true probabilities, which are returned besides, have
    an AUC of .8626 on all rows (seed 1).
    """
    rng = np.random.default_rng(seed)
    age = np.clip(rng.gamma(6, 6, rows) + 18, 18, 105).astype(int)
    kind = rng.choice(6, rows, p=[0.35, 0.25, 0.2, 0.1, 0.07, 0.03])
    share = rng.beta(0.6, 6, (6, 40))
    held = rng.random((rows, 40)) < share[kind]
    columns, logit = {}, np.zeros(rows)
    for p in range(40):
        pieces = held[:, p] * (1 + rng.poisson(1.5, rows))
        now = held[:, p] * np.round(rng.lognormal(6 + rng.normal(), 1.2, rows), 2)
        before = held[:, p] * np.where(rng.random(rows) < 0.3, 0, np.round(now * rng.lognormal(0, 0.3, rows), 2))
        done = rng.poisson(0.6 * pieces)
        gone = np.where(before > 0, np.round(now / np.maximum(before, 1), 4), 0) * held[:, p]
        made = [held[:, p].astype(int), pieces * 3, now, before, done, np.where(gone > 50, 9999999999, gone)]
        columns |= {f"p{p}_{i}": c for i, c in enumerate(made)}
        if p < 14:
            logit += held[:, p] * rng.normal(0, 0.8)
            logit += rng.normal(0, 0.5) * (before > now * 1.05) + rng.normal(0, 0.25) * np.minimum(done, 4)
    balance = np.where(rng.random(rows) < 0.3, 117310.98, np.round(rng.lognormal(11, 0.8, rows), 2))
    codes = {f"code{i}": rng.integers(0, n, rows) for i, n in enumerate([6, 12, 40, 150, 3])}
    columns |= {"age": age, "kind": kind, "balance": balance} | codes
    columns["since"] = np.where(rng.random(rows) < 0.02, -999999, rng.integers(0, 240, rows))
    count = held.sum(1)
    logit += 1.6 / (1 + np.exp(-(age - 30) / 4)) - 0.9 * (age > 75) + 0.7 * (count == 0) - 0.25 * np.minimum(count, 6)
    logit += rng.normal(0, 0.4, 40)[codes["code2"]] + 0.6 * ((kind == 2) & (age < 40)) - 0.5 * (balance > 90_000)
    for i in range(20):
        columns[f"constant{i}"] = np.zeros(rows, dtype=int)
    for i in range(20):
        columns[f"rare{i}"] = (rng.random(rows) < 2e-4) * rng.integers(1, 9, rows)
    names = list(columns)
    for i, of in enumerate(rng.choice(names, 30)):
        columns[f"copy{i}"] = columns[of]
    for i in range(370 - len(columns)):
        columns[f"noise{i}"] = (rng.random(rows) < 0.1) * np.round(rng.lognormal(3, 1, rows), 2)
    low, high = -12.0, 4.0
    for _ in range(60):  # 4 % of positives
        middle = (low + high) / 2
        low, high = (middle, high) if (1 / (1 + np.exp(-(1.15 * logit + middle)))).mean() < 0.04 else (low, middle)
    chance = 1 / (1 + np.exp(-(1.15 * logit + low)))
    order, values = rng.permutation(len(columns)), list(columns.values())
    frame = pd.DataFrame({f"var{i}": values[j] for i, j in enumerate(order)})
    return frame.assign(TARGET=(rng.random(rows) < chance).astype(int)), chance


def counts(rows: int = 61_878, seed: int = 2) -> pd.DataFrame:
    """Draw how often each of 93 things was seen with a product, of nine classes that overlap (``target``).

    A class has five kinds of products, a kind its own mixture of thirty topics, some of which all classes share. The
    best possible log loss is not known: a row's topics and the noise of each count would have to be integrated out.
    """
    rng = np.random.default_rng(seed)
    weight = np.array([0.031, 0.26, 0.13, 0.044, 0.044, 0.229, 0.046, 0.137, 0.079])
    target = rng.choice(9, rows, p=weight / weight.sum())
    topics = rng.dirichlet(np.full(93, 0.06), 30)
    likes = rng.dirichlet(np.full(30, 0.12), (9, 5))
    likes[2] = 0.75 * likes[1] + 0.25 * likes[2]  # two and three, as in the wild, are hard to tell apart
    likes[3] = 0.6 * likes[1] + 0.4 * likes[3]
    kind = rng.integers(0, 5, rows)
    mixture = rng.gamma(np.maximum(likes[target, kind] * 6, 1e-3))
    mixture /= np.maximum(mixture.sum(1, keepdims=True), 1e-9)
    total = rng.gamma(1.6, 26, rows)
    rate = (mixture @ topics) * total[:, None] + 0.02
    seen = rng.poisson(rate * rng.gamma(1.5, 1 / 1.5, (rows, 93)))
    frame = pd.DataFrame(seen, columns=[f"feat_{i + 1}" for i in range(93)])
    return frame.assign(target=np.char.add("Class_", (target + 1).astype(str)))


def flights(rows: int = 100_000, seed: int = 3) -> tuple[pd.DataFrame, np.ndarray]:
    """Draw whether a flight leaves ``late``: dates as ``c-7``, the minute of leaving, carriers, airports, the distance.

    Flights come again every day at their minute: route, carrier and minute together are a flight with its own habit.
    The true probabilities, which are returned besides, have an AUC of .7957 on all rows (seed 3).
    """
    rng = np.random.default_rng(seed)
    airports, carriers, planned = 280, 22, 9_000
    busy = rng.dirichlet(np.full(airports, 0.35))
    own_carrier = rng.choice(carriers, planned, p=rng.dirichlet(np.full(carriers, 1.5)))
    origin, dest = (rng.choice(airports, planned, p=busy) for _ in range(2))
    minute = np.clip(rng.normal(13, 4.2, planned), 5, 23.9)
    minute = (np.round(minute * 60 / 5) * 5).astype(int)
    place = rng.random((airports, 2)) * [2500, 1200]
    habit = rng.normal(0, 0.75, planned)
    often = rng.dirichlet(np.full(planned, 0.7))
    plan = rng.choice(planned, rows, p=often)
    month, day = rng.integers(1, 13, rows), rng.integers(1, 31, rows)
    week = (month * 2 + day) % 7 + 1
    late_by = np.where(rng.random(rows) < 0.35, rng.integers(0, 60, rows), 0)
    leaves = (minute[plan] + late_by) % 1440
    storm = rng.normal(0, 0.7, (13, 32))[month, day]
    hour = leaves / 60
    logit = -2.1 + habit[plan] + storm + 0.11 * (hour - 8) + 0.02 * late_by * (minute[plan] > 900)
    logit += rng.normal(0, 0.35, (airports, 24))[origin[plan], hour.astype(int)]
    logit += rng.normal(0, 0.3, (carriers, airports))[own_carrier[plan], origin[plan]]
    logit += rng.normal(0, 0.25, 8)[week] + rng.normal(0, 0.3, airports)[dest[plan]]
    chance = 1 / (1 + np.exp(-logit))
    code = np.array([f"{chr(65 + i // 26 % 26)}{chr(65 + i % 26)}{chr(65 + i * 7 % 26)}" for i in range(airports)])
    frame = pd.DataFrame(
        {
            "Month": [f"c-{m}" for m in month],
            "DayofMonth": [f"c-{d}" for d in day],
            "DayOfWeek": [f"c-{w}" for w in week],
            "DepTime": leaves // 60 * 100 + leaves % 60,
            "UniqueCarrier": code[own_carrier[plan] * 3],
            "Origin": code[origin[plan]],
            "Dest": code[dest[plan]],
            "Distance": np.linalg.norm(place[origin[plan]] - place[dest[plan]], axis=1).astype(int),
        }
    )
    return frame.assign(late=np.where(rng.random(rows) < chance, "Y", "N")), chance
