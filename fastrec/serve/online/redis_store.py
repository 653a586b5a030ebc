"""``RedisStore``: events in a Redis server, which several processes share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastrec._core.optional import require

# The value's beginning is compared and exchanged in one step, whoever appends meanwhile.
_REPLACE = """
if redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2] .. redis.call('GETRANGE', KEYS[1], #ARGV[1], -1))
for i = 2, #KEYS do redis.call('SET', KEYS[i], ARGV[i + 1]) end
return 1
"""


class RedisStore:
    """Events in Redis under the same few methods; what outlives a crash is as the server is set (``appendfsync``).

    Args:
        url: the server: ``redis://127.0.0.1:6379/0``.
        name: what all keys begin with, so that several models share a server.
        **options: passed to ``redis.Redis.from_url`` (timeouts, TLS …).

    Raises:
        MissingPackageError: redis is not installed.
    """

    def __init__(self, url: str, *, name: str = "fastrec", **options: Any) -> None:
        redis = require("redis", "redis", "pip install 'fastrec-tabular[redis]'")
        self.client = redis.Redis.from_url(url, **options)
        self._prefix = name.encode() + b":"
        self._replace = self.client.register_script(_REPLACE)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See ``Store``."""
        return self.client.mget([self._prefix + k for k in keys]) if keys else []

    def write(self, appends: Mapping[bytes, bytes], sets: Mapping[bytes, bytes]) -> dict[bytes, int]:
        """See ``Store``."""
        with self.client.pipeline(transaction=True) as pipe:
            for key, value in sets.items():
                pipe.set(self._prefix + key, value)
            for key, value in appends.items():
                pipe.append(self._prefix + key, value)
            made = pipe.execute()
        return dict(zip(appends, made[len(sets) :], strict=True))

    def replace(self, key: bytes, old: bytes, new: bytes, sets: Mapping[bytes, bytes]) -> bool:
        """See ``Store``."""
        keys = [self._prefix + k for k in (key, *sets)]
        return bool(self._replace(keys=keys, args=[old, new, *sets.values()]))

    def first(self, key: bytes, value: bytes) -> bytes:
        """See ``Store``."""
        self.client.set(self._prefix + key, value, nx=True)
        return self.client.get(self._prefix + key)

    def count(self, name: bytes, n: int) -> int:
        """See ``Store``; kept at once."""
        key = self._prefix + b"count:" + name
        return int(self.client.incrby(key, n)) - n if n else int(self.client.get(key) or 0)

    def snapshot(self) -> None:
        """See ``Store``: the server does so itself."""

    def close(self) -> None:
        """See ``Store``."""
        self.client.close()
