"""One process of `orcastream gateway --workers N`; its settings are in the environment."""

import sys
from collections.abc import Sequence

from orcastream.cli.command import Command, run_command
from orcastream.cli.gateway import serve_one
from orcastream.cli.parse import load_settings
from orcastream.cli.torchless import leave_out_torch
from orcastream.gateway.settings import GatewaySettings


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal ends it."""
    return serve_one(load_settings(GatewaySettings, arguments, "gateway"), shares_port=True)


if __name__ == "__main__":
    leave_out_torch()
    sys.exit(
        run_command(
            "orcastream", {"gateway": Command("one of several", "orcastream.cli.gateway_process")}, "gateway", ()
        )
    )
