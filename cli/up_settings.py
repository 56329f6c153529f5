"""Settings of `orcastream up`: those of gateway and worker, plus a few more."""

import os
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from orcastream.cli.errors import UserError
from orcastream.gateway.settings import GatewaySettings
from orcastream.worker.settings import WorkerSettings


def default_data_dir() -> Path:
    """Return $XDG_DATA_HOME/orcastream (default base: ~/.local/share). Raises UserError without a home directory."""
    home = os.environ.get("XDG_DATA_HOME", "")
    try:
        base = Path(home) if os.path.isabs(home) else Path.home() / ".local" / "share"
    except RuntimeError:  # no HOME, and a user id without an account
        raise UserError(
            "data_dir (--data-dir, ORCASTREAM_DATA_DIR): got nothing, "
            "allowed: a directory, because this user has no home directory"
        ) from None
    return base / "orcastream"


class UpOptions(BaseSettings):
    """Settings of `orcastream up` in addition to those of its gateway and workers."""

    model_config = SettingsConfigDict(
        env_prefix="ORCASTREAM_", env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )

    workers: int = Field(
        2, ge=1, le=256, description="Worker processes, each with the whole model; with two, one can fail. [processes]"
    )
    redis_port: int = Field(0, ge=0, le=65535, description="Port of the embedded Redis server; 0: any free port.")
    data_dir: Path = Field(
        default_factory=default_data_dir, description="Where the embedded Redis server stores queue and replies."
    )


class UpSettings(UpOptions, GatewaySettings, WorkerSettings):
    """Run Redis, a gateway and workers on this machine; all settings of gateway and worker apply, too."""
