"""`orcastream gateway`: one gateway process."""

from collections.abc import Sequence

from cli.parse import load_settings
from cli.served_model import with_model, with_redis
from gateway.settings import GatewaySettings


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal ends it."""
    settings = with_model(with_redis(load_settings(GatewaySettings, arguments, "gateway")))
    from gateway.main import run

    run(settings)
    return 0
