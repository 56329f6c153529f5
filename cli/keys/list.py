"""`orcastream keys list`: list the stored keys' hashes and what they allow."""

import time
from collections.abc import Sequence

from orcastream.cli.console.output import Lines
from orcastream.cli.console.run import FLAGS
from orcastream.cli.keys.kept import Kept, run_with_keys
from orcastream.cli.keys.settings import KeysSettings
from orcastream.cli.parse import load_settings

_COLUMNS = {
    "sha256": 64,
    "tenant": 12,
    "name": 12,
    "classes": 12,
    "max_tokens": 10,
    "requests_per_minute": 19,
    "max_concurrency": 15,
    "queue_share": 11,
    "expires_in_s": 10,
}


def main(arguments: Sequence[str]) -> int:
    """Print the list."""
    settings = load_settings(KeysSettings, arguments, "keys list", FLAGS)

    async def show(kept: Kept) -> None:
        lines = Lines(_COLUMNS, as_json=settings.as_json)
        for hashed, grant in sorted((await kept.read()).items()):
            left_s = None if grant.expires is None else round(grant.expires - time.time(), 3)
            lines.show({"sha256": hashed, **grant.model_dump(), "expires_in_s": left_s})

    return run_with_keys(settings, show)
