"""`orcastream keys revoke SHA256`: delete a key; gateways refuse it after their next reload."""

from collections.abc import Sequence

from orcastream.cli.console.output import show_one
from orcastream.cli.console.run import FLAGS, NotDone
from orcastream.cli.keys.kept import Kept, run_with_keys
from orcastream.cli.keys.settings import RevokeSettings
from orcastream.cli.parse import load_settings


def main(arguments: Sequence[str]) -> int:
    """Revoke the key; exit code 1 if no key, or more than one, begins with the given digits."""
    settings = load_settings(RevokeSettings, arguments, "keys revoke", FLAGS)

    async def revoke(kept: Kept) -> None:
        found = [hashed for hashed in await kept.read() if hashed.startswith(settings.sha256)]
        if len(found) != 1:
            raise NotDone(f"sha256: {len(found)} keys begin with {settings.sha256!r}, allowed: one")
        await kept.remove(found[0])
        show_one({"revoked": found[0]}, as_json=settings.as_json)

    return run_with_keys(settings, revoke)
