"""What a load test sends, where to, and how often."""

from __future__ import annotations

import ipaddress
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import numpy as np
import pyarrow as pa

from fastrec.errors import DataError, MissingFileError

__all__ = ["Target", "encode_request", "made_up_body", "read_body", "read_rates", "read_target"]

ARROW = "application/vnd.apache.arrow.stream"


@dataclass(frozen=True)
class Target:
    """A server on this machine."""

    host: str
    port: int
    token: str | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


def read_target(url: str, token: str | None) -> Target:
    """The server that an address names.

    Raises:
        DataError: it is no address of HTTP on this machine: load is for one's own servers only.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname or "", parts.port or 80
    except ValueError as error:
        raise DataError(f"{url!r} is no address ({error})", remedy="Give one such as http://127.0.0.1:8000") from error
    if host == "localhost":
        host = "127.0.0.1"
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if parts.scheme != "http" or not loopback:
        said = f"{url!r} is not a server on this machine, and load is sent to no other"
        raise DataError(said, remedy="Run it beside the server, with http://127.0.0.1:PORT")
    return Target(host, port, token)


def read_rates(text: str | None) -> list[float] | None:
    """Requests a second of ``"50,100"``; None: to be found.

    Raises:
        DataError: they are no numbers above 0, or more than 100.
    """
    if text is None:
        return None
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or len(rates) > 100 or not all(math.isfinite(r) and 0 < r <= 1e5 for r in rates):
        raise DataError(f"{text!r} are no rates", remedy="Give requests a second, such as 50,100,200")
    return rates


def made_up_body(target: Target, rows: int, *, arrow: bool, seed: int = 0) -> tuple[bytes, str]:
    """Rows that the server's model takes, with values made up from its inputs' types; and their content type.

    Raises:
        DataError: the server does not say what it takes.
    """
    request = Request(f"{target.url}/openapi.json")
    if target.token is not None:
        request.add_header("Authorization", f"Bearer {target.token}")
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=10) as answer:
            said = json.load(answer)
        content = said["paths"]["/v1/score"]["post"]["requestBody"]["content"]["application/json"]
        known = content["schema"]["properties"]["columns"]["properties"]
        shown = content["example"]["columns"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{target.url} does not say what it takes ({error})", remedy="Give --body") from error
    rng = np.random.default_rng(seed)
    columns = {
        name: _values(values[0], known[name]["items"].get("type", []), rows, rng) for name, values in shown.items()
    }
    if arrow:
        table = pa.table(columns)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue().to_pybytes(), ARROW
    return json.dumps({"columns": columns}, separators=(",", ":")).encode(), "application/json"


def _values(shown: Any, kinds: list[str] | str, rows: int, rng: np.random.Generator) -> list[Any]:
    if isinstance(shown, bool):
        return [bool(v) for v in rng.integers(0, 2, rows)]
    if isinstance(shown, str):
        return [shown] * rows if "integer" in kinds else [f"{shown}{v}" for v in rng.integers(0, 1000, rows)]
    return rng.integers(0, 10**6, rows).tolist() if isinstance(shown, int) else rng.normal(size=rows).tolist()


def read_body(file: Path) -> tuple[bytes, str]:
    """A body to send, and its content type by the file's name.

    Raises:
        MissingFileError: it cannot be read.
    """
    try:
        return file.read_bytes(), "application/json" if file.suffix == ".json" else ARROW
    except OSError as error:
        raise MissingFileError(f"the body cannot be read ({error})", file=file) from error


def encode_request(target: Target, path: str, body: bytes, content_type: str) -> bytes:
    """A POST of HTTP/1.1, ready to be written to a socket.

    Raises:
        DataError: the path holds what no path may hold.
    """
    if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path:
        raise DataError(f"{path!r} is no path of an address", remedy="Give one such as /v1/score")
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {target.host}:{target.port}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
    ]
    if target.token is not None:
        lines.append(f"Authorization: Bearer {target.token}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
