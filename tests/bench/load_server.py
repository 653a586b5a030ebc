"""Requests at fixed rates to a server on this machine, whether or not answers come (an open loop).

``python tests/bench/load_server.py http://127.0.0.1:8000`` prints how long the answers took; ``--help`` lists options.
The time of a request counts from the moment at which it is due, so that a server that stalls cannot hide it. To compare
batching with none, run it against a server with ``--batch-rows 1`` and against one without.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import json
import math
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import numpy as np
import pyarrow as pa

ARROW = "application/vnd.apache.arrow.stream"
FIELDS = ("rate", "answered", "p50", "p90", "p99", "slowest", "failed")


def measure(
    url: str,
    *,
    rows: int = 1,
    arrow: bool = False,
    rates: list[float] | None = None,
    seconds: float = 5.0,
    connections: int = 256,
    token: str | None = None,
) -> list[dict[str, Any]]:
    """Send requests at one rate after the other; return each rate's figures, times in milliseconds.

    Without ``rates`` (requests a second) the rate is doubled until the server answers fewer than 90 % of them.
    """
    parts = urlsplit(url)
    host, port = ("127.0.0.1" if parts.hostname == "localhost" else parts.hostname), parts.port or 80
    if parts.scheme != "http" or host is None or not ipaddress.ip_address(host).is_loopback:
        raise SystemExit(f"{url!r} is not a server on this machine, and load is sent to no other")
    content, kind = made_up_body(url, token, rows, arrow=arrow)
    head = f"POST /v1/score HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: {kind}\r\n"
    head += "" if token is None else f"Authorization: Bearer {token}\r\n"
    request = f"{head}Content-Length: {len(content)}\r\n\r\n".encode("latin-1") + content

    found = []
    for rate in [8.0 * 2**i for i in range(14)] if rates is None else rates:
        load = asyncio.run(send_at_rate(host, port, request, rate=rate, seconds=seconds, connections=connections))
        times, requests, good = np.array(load.seconds or [np.nan]), sum(load.statuses.values()), len(load.seconds)
        about = dict(zip(("p50", "p90", "p99", "slowest"), np.percentile(1000 * times, [50, 90, 99, 100]).tolist()))
        about |= {"rate": rate, "answered": good / load.took, "requests": requests, "failed": requests - good}
        found.append(about | {"statuses": dict(load.statuses)})
        if rates is None and (about["failed"] or about["answered"] < 0.9 * rate):
            break
    return found


def made_up_body(url: str, token: str | None, rows: int, *, arrow: bool) -> tuple[bytes, str]:
    """Rows with values made up from the inputs' types that the server's OpenAPI names; and their content type."""
    request = Request(f"{url}/openapi.json", headers={} if token is None else {"Authorization": f"Bearer {token}"})
    with build_opener(ProxyHandler({})).open(request, timeout=10) as answer:
        content = json.load(answer)["paths"]["/v1/score"]["post"]["requestBody"]["content"]["application/json"]
    known, rng = content["schema"]["properties"]["columns"]["properties"], np.random.default_rng(0)
    columns = {}
    for name, (shown, *_) in content["example"]["columns"].items():
        if isinstance(shown, bool):
            columns[name] = [bool(v) for v in rng.integers(0, 2, rows)]
        elif isinstance(shown, str) and "integer" in known[name]["items"].get("type", []):  # a time
            columns[name] = [shown] * rows
        elif isinstance(shown, str):
            columns[name] = [f"{shown}{v}" for v in rng.integers(0, 1000, rows)]
        else:
            many = rng.integers(0, 10**6, rows) if isinstance(shown, int) else rng.normal(size=rows)
            columns[name] = many.tolist()
    if arrow:
        return as_arrow(columns), ARROW
    return json.dumps({"columns": columns}, separators=(",", ":")).encode(), "application/json"


def as_arrow(columns: dict[str, list]) -> bytes:
    sink, table = pa.BufferOutputStream(), pa.table(columns)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@dataclass
class Load:
    """The seconds of good answers, how many answers have each status (0: none came), and the seconds of it all."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    took: float = 1e-9


async def send_at_rate(host: str, port: int, request: bytes, *, rate: float, seconds: float, connections: int) -> Load:
    """Send ``rate`` requests a second; one for which no connection is free waits for one, and its waiting counts."""
    await asyncio.sleep(0.2)  # the server comes to rest between rates
    load, loop, room = Load(), asyncio.get_running_loop(), asyncio.Semaphore(connections)
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    begin = loop.time() + 0.05

    async def send(due: float) -> None:
        status = 0
        try:
            async with room:
                while idle and idle[-1][0].at_eof():  # the server has closed it
                    idle.pop()[1].close()
                reader, writer = idle.pop() if idle else await asyncio.open_connection(host, port)
                try:
                    writer.write(request)
                    head = (await reader.readuntil(b"\r\n\r\n")).lower()
                    length = re.search(rb"content-length: *(\d+)", head)
                    await reader.readexactly(int(length[1]) if length else 0)
                    status = int(head[9:12])
                finally:
                    if status and b"connection: close" not in head:
                        idle.append((reader, writer))
                    else:
                        writer.close()
        except (OSError, EOFError):
            pass
        finally:
            load.statuses[status] += 1
            load.took = max(load.took, loop.time() - begin)
            if status == 200:
                load.seconds.append(loop.time() - due)

    sent = set()
    for number in range(max(1, round(rate * seconds))):
        due = begin + number / rate
        wait = due - loop.time()
        if wait > 0.0005:  # what is due within a tick goes now
            await asyncio.sleep(wait)
        sent.add(loop.create_task(send(due)))
        if number % 64 == 63:
            await asyncio.sleep(0)  # answers are read even where the rate cannot be kept up
    _, late = await asyncio.wait(sent, timeout=35)  # the server's own limit is 30 s by default
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    for _, writer in idle:
        writer.close()
    return load


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("url", help="a server on this machine: http://127.0.0.1:8000")
    p.add_argument("--rows", type=int, default=1, help="rows of a request; their values are made up")
    p.add_argument("--arrow", action="store_true", help="send made-up rows as Arrow, not as JSON")
    p.add_argument("--rates", type=lambda text: [*map(float, text.split(","))], help="requests a second: 50,100,200")
    p.add_argument("--seconds", type=float, default=5, help="how long each rate lasts")
    p.add_argument("--connections", type=int, default=256, help="requests that may be on their way")
    p.add_argument("--out", type=Path, help="file for the figures, JSON")
    a = p.parse_args()
    options = {n: getattr(a, n) for n in ("rows", "arrow", "rates", "seconds", "connections")}
    rounds = measure(a.url, token=os.environ.get("FASTREC_TOKEN"), **options)
    print(*(f"{n:>10}" for n in FIELDS))
    for one in rounds:
        print(*(f"{one[n]:10.2f}" for n in FIELDS), "" if not one["failed"] else one["statuses"])
    if a.out is not None:
        null = [{n: None if isinstance(v, float) and math.isnan(v) else v for n, v in r.items()} for r in rounds]
        a.out.write_text(json.dumps(null, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
