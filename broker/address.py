"""The address of Redis, parsed from a URL: one server, sentinels that know the master, or a cluster."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from redis.asyncio.connection import URL_QUERY_ARGUMENT_PARSERS, Connection, parse_url
from redis.exceptions import RedisError

_SERVER = (
    "redis://[USER:PASSWORD@]HOST[:PORT][/DB], rediss:// alike, or unix:///PATH[?db=DB], with redis-py's parameters "
    "and with special characters percent-encoded"
)
_SENTINEL = "redis+sentinel://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]/SERVICE[/DB], or rediss+sentinel:// alike"
_CLUSTER = "redis+cluster://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...], or rediss+cluster:// alike"
_PARAMETERS = frozenset({"username", "password", *URL_QUERY_ARGUMENT_PARSERS})
"""In addition to `ssl_...`; redis-py's other parameters cannot be expressed as text."""
POOL_PARAMETERS = ("max_connections", "timeout")
"""URL parameters that redis-py uses for a connection pool and not for a single connection."""
_SENTINEL_PARAMETERS = {"sentinel_username": "username", "sentinel_password": "password"}
SENTINEL_PORT = 26379
_SERVER_PORT = 6379


class Mode(StrEnum):
    """What kind of deployment a URL names."""

    SERVER = "server"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A parsed URL. `options` are redis-py's connection options, without host and port for sentinels or a cluster.

    `hosts` are the sentinels, or the cluster's seed nodes; `service` is the sentinels' name of the master,
    `sentinel_options` the options of a connection to a sentinel.
    """

    mode: Mode
    options: Mapping[str, Any]
    hosts: tuple[tuple[str, int], ...] = ()
    service: str = ""
    sentinel_options: Mapping[str, Any] | None = None

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse `url`; raise ValueError, with what is allowed, if it is invalid or has parts that redis-py ignores."""
        scheme, _, rest = url.partition("://")
        plain, _, kind = scheme.lower().partition("+")
        if not kind and plain in ("redis", "rediss", "unix"):
            return cls(Mode.SERVER, _checked(url, _SERVER))
        if plain not in ("redis", "rediss") or kind not in ("sentinel", "cluster"):
            raise ValueError(f"{_SERVER}; {_SENTINEL}; {_CLUSTER}")
        return cls._sentinels(plain, rest) if kind == "sentinel" else cls._cluster(plain, rest)

    @classmethod
    def _sentinels(cls, scheme: str, rest: str) -> Self:
        bare, _, query = rest.partition("?")
        authority, _, path = bare.partition("/")
        service, _, db = path.partition("/")
        parameters = parse_qs(query, keep_blank_values=True)
        own = {name: parameters.pop(key)[0] for key, name in _SENTINEL_PARAMETERS.items() if key in parameters}
        query = urlencode(parameters, doseq=True)
        if not service:
            raise ValueError(_SENTINEL)
        options, members = _members(f"{scheme}://", authority, f"/{db}?{query}", SENTINEL_PORT, _SENTINEL)
        not_theirs = ("username", "password", "db")
        theirs = {name: value for name, value in options.items() if name not in not_theirs} | own
        return cls(Mode.SENTINEL, options, members, unquote(service), theirs)

    @classmethod
    def _cluster(cls, scheme: str, rest: str) -> Self:
        bare, mark, query = rest.partition("?")
        authority, _, path = bare.partition("/")
        options, members = _members(f"{scheme}://", authority, f"/{path}{mark}{query}", _SERVER_PORT, _CLUSTER)
        if options.pop("db", 0) != 0:  # a cluster has one database
            raise ValueError(_CLUSTER)
        return cls(Mode.CLUSTER, options, members)


def is_encrypted(url: str) -> bool:
    """Whether connections to this URL use TLS."""
    return url.lower().startswith(("rediss://", "rediss+"))


def _members(
    scheme: str, authority: str, rest: str, port: int, allowed: str
) -> tuple[dict[str, Any], tuple[tuple[str, int], ...]]:
    """Return the options of a connection to any of several hosts, and the hosts; raise ValueError(allowed)."""
    user, at, hosts = authority.rpartition("@")
    if not all(hosts.split(",")):
        raise ValueError(allowed)
    found = [_checked(f"{scheme}{user}{at}{host}{rest}", allowed) for host in hosts.split(",")]
    members = tuple((str(one.get("host", "")), int(one.get("port", port))) for one in found)
    if not all(host for host, _ in members):
        raise ValueError(allowed)
    return {name: value for name, value in found[0].items() if name not in ("host", "port")}, members


def _checked(url: str, allowed: str) -> dict[str, Any]:
    """Return redis-py's options of a connection to one server; raise ValueError(allowed) if `url` is invalid."""
    try:
        parts = urlsplit(url)
        options: dict[str, Any] = dict(parse_url(url))
        for name in POOL_PARAMETERS:
            options.pop(name, None)
        connection_class = options.get("connection_class", Connection)
        connection_class(**{name: value for name, value in options.items() if name != "connection_class"})
        port = parts.port
    except (AttributeError, TypeError, ValueError, RedisError):
        raise ValueError(allowed) from None
    parameters = parse_qs(parts.query, keep_blank_values=True)
    known = all(name in _PARAMETERS or name.startswith("ssl_") for name in parameters)
    db = parts.path.strip("/")
    if parts.scheme == "unix":
        fits = not parts.hostname and bool(db)
    else:
        fits = port != 0 and options.get("db", 0) >= 0 and (not db or db.isdecimal())
    if not known or not fits:
        raise ValueError(allowed)
    return options
