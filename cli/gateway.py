"""`orcastream gateway`: one gateway process, or several on one port."""

from collections.abc import Sequence

from orcastream.cli.errors import UserError
from orcastream.cli.parse import load_settings
from orcastream.cli.ports import claimable_port
from orcastream.cli.served_model import with_model, with_redis
from orcastream.gateway.settings import GatewaySettings
from orcastream.schemas.errors import InvalidRequest

_FLAGS = {"gateway-workers": "workers"}


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal ends it."""
    settings = with_model(with_redis(load_settings(GatewaySettings, arguments, "gateway", _FLAGS)))
    _check_keys(settings)
    if settings.gateway_workers > 1:
        from orcastream.cli.gateway_processes import serve_all

        return serve_all(settings)
    claimable_port(settings.host, settings.port, "port")
    return serve_one(settings)


def _check_keys(settings: GatewaySettings) -> None:
    """Raise UserError if the key file is missing or unusable; while serving, an unusable version is only skipped."""
    if settings.api_keys_file is None:
        return
    from orcastream.gateway.admission.key_source import KeyFile

    try:
        KeyFile(settings.api_keys_file).read()
    except (OSError, InvalidRequest) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"api_keys_file (--api-keys-file, ORCASTREAM_API_KEYS_FILE): got {str(settings.api_keys_file)!r}, "
            f"allowed: a file of keys that can be read ({why})"
        ) from None


def serve_one(settings: GatewaySettings, *, shares_port: bool = False) -> int:
    """Serve in this process; `shares_port` if other processes listen on the same port."""
    from orcastream.gateway.listening import CannotListen
    from orcastream.telemetry.settings import UnusableTelemetry, settle_propagators
    from orcastream.text.model_config import ModelFilesError

    try:
        settle_propagators()
        from orcastream.gateway.main import run

        run(settings, shares_port=shares_port)
    except (CannotListen, ModelFilesError, UnusableTelemetry) as error:
        raise UserError(str(error)) from None
    return 0
