"""Data that goes back while TCP survives, as when a proxy hides a failover."""

import redis

from tests.redis_server import RedisServer


class Snapshot:
    """Every key of the server at one moment, or those that match; `restore()` makes the server say it again."""

    def __init__(self, server: RedisServer, pattern: str = "*") -> None:
        self._server = server
        self._pattern = pattern
        with server.client() as client:
            self._dumps = {key: (client.dump(key), client.pttl(key)) for key in self._keys(client)}

    def restore(self) -> None:
        """Put the keys back as they were; those that came later are gone."""
        with self._server.client() as client:
            for key in self._keys(client):
                client.delete(key)
            for key, (dump, ttl_ms) in self._dumps.items():
                client.restore(key, max(ttl_ms, 0), dump, replace=True)

    def _keys(self, client: "redis.Redis") -> list[bytes]:
        return list(client.scan_iter(match=self._pattern))
