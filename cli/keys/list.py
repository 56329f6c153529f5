"""`orcastream keys list`: list the stored keys' hashes and what they allow."""

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
    "expires": 10,
}


def main(arguments: Sequence[str]) -> int:
    """Print the list."""
    settings = load_settings(KeysSettings, arguments, "keys list", FLAGS)

    async def show(kept: Kept) -> None:
        lines = Lines(_COLUMNS, as_json=settings.as_json)
        for hashed, grant in sorted((await kept.read()).items()):
            lines.show({"sha256": hashed, **grant.model_dump()})

    return run_with_keys(settings, show)
