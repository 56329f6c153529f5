"""Data that is rewound while TCP connections survive, as when a proxy hides a failover."""

import redis

from tests.redis_server import RedisServer


class Snapshot:
    """A snapshot of all keys of the server, or of those that match; `restore()` puts the server back to it."""

    def __init__(self, server: RedisServer, pattern: str = "*") -> None:
        self._server = server
        self._pattern = pattern
        with server.client() as client:
            self._dumps = {key: (client.dump(key), client.pttl(key)) for key in self._keys(client)}

    def restore(self) -> None:
        """Restore the keys; keys created later are deleted."""
        with self._server.client() as client:
            for key in self._keys(client):
                client.delete(key)
            for key, (dump, ttl_ms) in self._dumps.items():
                client.restore(key, max(ttl_ms, 0), dump, replace=True)

    def _keys(self, client: "redis.Redis") -> list[bytes]:
        return list(client.scan_iter(match=self._pattern))
