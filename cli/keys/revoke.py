"""`orcastream keys revoke SHA256`: gateways refuse the key after their next look."""

from collections.abc import Sequence

from orcastream.cli.console.output import show_one
from orcastream.cli.console.run import FLAGS, NotDone
from orcastream.cli.keys.kept import Kept, run_with_keys
from orcastream.cli.keys.settings import RevokeSettings
from orcastream.cli.parse import load_settings


def main(arguments: Sequence[str]) -> int:
    """Take it back; exit code 1 where there is none, or more than one, that begins so."""
    settings = load_settings(RevokeSettings, arguments, "keys revoke", FLAGS)

    async def revoke(kept: Kept) -> None:
        found = [hashed for hashed in await kept.read() if hashed.startswith(settings.sha256)]
        if len(found) != 1:
            raise NotDone(f"sha256: {len(found)} keys begin with {settings.sha256!r}, allowed: one")
        await kept.remove(found[0])
        show_one({"revoked": found[0]}, as_json=settings.as_json)

    return run_with_keys(settings, revoke)
