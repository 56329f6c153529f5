"""`orcastream gateway`: one gateway process."""

from collections.abc import Sequence

from cli.errors import UserError
from cli.parse import load_settings
from cli.ports import claimable_port
from cli.served_model import with_model, with_redis
from gateway.settings import GatewaySettings


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal ends it."""
    settings = with_model(with_redis(load_settings(GatewaySettings, arguments, "gateway")))
    from telemetry.settings import UnusableTelemetry, settle_propagators
    from text.model_config import ModelFilesError

    try:
        settle_propagators()
        from gateway.main import run

        claimable_port(settings.host, settings.port, "port")
        run(settings)
    except (ModelFilesError, UnusableTelemetry) as error:
        raise UserError(str(error)) from None
    return 0
