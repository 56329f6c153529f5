"""The priority classes and tenants of a load."""

import argparse
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from orcastream.bench.flags import above_zero
from orcastream.bench.workloads import SampleRequest
from orcastream.cli.errors import UserError
from orcastream.schemas.keys import CLASSES


@dataclass(frozen=True)
class Mix:
    """Shares of classes and tenants; empty shares leave those of the workload."""

    classes: Mapping[str, float]
    tenants: Mapping[str, float]

    def __post_init__(self) -> None:
        for name in self.classes:
            if name not in CLASSES:
                raise UserError(f"--mix: got class {name!r}, allowed: {', '.join(CLASSES)}")

    def apply(self, requests: Iterable[SampleRequest], seed: int) -> Iterator[SampleRequest]:
        """Yield each request with a class and a tenant drawn by share."""
        rng = random.Random(f"mix {seed}")
        for request in requests:
            priority_class = _drawn(self.classes, rng) or request.priority_class
            tenant = _drawn(self.tenants, rng) or request.tenant
            yield replace(request, priority_class=priority_class, tenant=tenant)


def _drawn(shares: Mapping[str, float], rng: random.Random) -> str | None:
    return rng.choices(list(shares), list(shares.values()))[0] if shares else None


def read_shares(flag: str, text: str | None) -> dict[str, float]:
    """Parse shares such as `realtime=0.2,normal=0.8`. Raises UserError."""
    shares: dict[str, float] = {}
    for part in (text or "").split(",") if text else ():
        name, equals, share = part.partition("=")
        if name.strip() in shares:
            raise UserError(f"{flag}: got {name.strip()!r} twice, allowed: each name once")
        try:
            shares[name.strip()] = above_zero(share)
        except argparse.ArgumentTypeError:
            equals = ""
        if not equals or not name.strip():
            raise UserError(f"{flag}: got {text!r}, allowed: NAME=SHARE separated by commas, shares above 0")
    return shares


def read_keys(texts: Iterable[str]) -> dict[str, str]:
    """Parse keys such as `light=KEY`. Raises UserError, which does not show the key."""
    keys: dict[str, str] = {}
    for text in texts:
        name, equals, key = text.partition("=")
        if not (equals and name and key):
            raise UserError("--tenant-key: got something else, allowed: NAME=KEY")
        if name in keys:
            raise UserError(f"--tenant-key: got {name!r} twice, allowed: each name once")
        keys[name] = key
    return keys
