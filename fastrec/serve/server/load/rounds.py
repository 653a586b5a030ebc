"""One rate after the other, until those that were asked for are done, or the server has enough."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fastrec.errors import DataError
from fastrec.serve.server.load.client import Outcome, send_at_rate
from fastrec.serve.server.load.plan import encode_request, made_up_body, read_body, read_target

__all__ = ["Figures", "Round", "measure"]

_FIRST, _LAST = 8.0, 65_536.0  # requests a second, where rates are to be found
_KEPT_UP = 0.9  # of a rate, below which the server has enough
_REST = 0.2  # seconds between rates


@dataclass(frozen=True)
class Round:
    """What one rate came to: times in milliseconds, rates in requests a second."""

    rate: float
    answered: float
    requests: int
    failed: int
    p50: float
    p90: float
    p99: float
    slowest: float
    statuses: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Figures:
    """All rounds, and what was sent."""

    url: str
    path: str
    rows: int | None
    body_bytes: int
    content_type: str
    seconds: float
    connections: int
    rounds: list[Round]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def measure(
    url: str,
    *,
    path: str = "/v1/score",
    rows: int = 1,
    body: Path | None = None,
    arrow: bool = False,
    rates: list[float] | None = None,
    seconds: float = 5.0,
    connections: int = 256,
    token: str | None = None,
) -> Figures:
    """Send requests at one rate after the other.

    Args:
        url: a server on this machine.
        path: the address there.
        rows: rows of a request with made-up values.
        body: a file that is sent instead.
        arrow: whether made-up rows go as Arrow.
        rates: requests a second; None: doubled until the server answers fewer than come.
        seconds: how long each rate is kept up.
        connections: how many requests may be on their way.
        token: the server's token.

    Raises:
        DataError: the server is not on this machine, or nothing answers there.
    """
    target = read_target(url, token)
    content, kind = made_up_body(target, rows, arrow=arrow) if body is None else read_body(body)
    request = encode_request(target, path, content, kind)

    def one(rate: float) -> Round:
        sent = send_at_rate(target, request, rate=rate, seconds=seconds, connections=connections)
        return _round(rate, asyncio.run(_rested(sent)))

    rounds = list(_doubled(one)) if rates is None else [one(rate) for rate in rates]
    if not any(r.requests > r.failed for r in rounds):
        said = ", ".join(f"status {s}: {n}" if s else f"no answer: {n}" for s, n in rounds[0].statuses.items())
        raise DataError(f"no request to {target.url}{path} was answered with 200 ({said})", remedy="Look at its log")
    return Figures(target.url, path, None if body else rows, len(content), kind, seconds, connections, rounds)


async def _rested(sent: Any) -> Outcome:
    await asyncio.sleep(_REST)
    return await sent


def _doubled(one: Callable[[float], Round]) -> Iterator[Round]:
    rate = _FIRST
    while rate <= _LAST:
        made = one(rate)
        yield made
        if made.failed or made.answered < _KEPT_UP * rate:
            return
        rate *= 2


def _round(rate: float, outcome: Outcome) -> Round:
    requests, good = sum(outcome.statuses.values()), len(outcome.seconds)
    times = np.array(outcome.seconds or [np.nan]) * 1000
    p50, p90, p99 = (float(v) for v in np.percentile(times, [50, 90, 99]))
    return Round(
        rate, good / outcome.took, requests, requests - good, p50, p90, p99, float(times.max()), outcome.statuses
    )
