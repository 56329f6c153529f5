"""`orcastream keys new`: create a key and print it once; only its hash and what it allows are stored."""

import time
from collections.abc import Sequence

from orcastream.cli.command import warn
from orcastream.cli.console.output import show_one
from orcastream.cli.console.run import FLAGS
from orcastream.cli.keys.kept import Kept, run_with_keys
from orcastream.cli.keys.settings import NewKeySettings
from orcastream.cli.parse import load_settings
from orcastream.gateway.admission.api_key import Grant, digest, new_key


def main(arguments: Sequence[str]) -> int:
    """Create the key, store its hash, print the key, and on standard error what it allows."""
    settings = load_settings(NewKeySettings, arguments, "keys new", FLAGS)
    expires = None if settings.expires_in_s is None else int(time.time()) + settings.expires_in_s
    grant = Grant(
        tenant=settings.tenant,
        name=settings.name,
        classes=settings.classes,
        max_tokens=settings.max_tokens,
        requests_per_minute=settings.requests_per_minute,
        max_concurrency=settings.max_concurrency,
        queue_share=settings.queue_share,
        expires=expires,
    )
    key = new_key()

    async def add(kept: Kept) -> None:
        await kept.add(digest(key), grant)
        allowed = grant.model_dump(mode="json", exclude_none=True)
        if settings.as_json:
            show_one({"key": key, "sha256": digest(key), **allowed}, as_json=True)
        else:
            print(key)
            warn("orcastream keys new", ", ".join(f"{name} {value}" for name, value in allowed.items()))

    return run_with_keys(settings, add)
