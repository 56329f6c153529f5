"""A worker's settings in the test process."""

from typing import Any

from orcastream.worker.settings import WorkerSettings


def own_settings(**settings: Any) -> WorkerSettings:
    """Return these settings, without those of a `.env` file."""
    return WorkerSettings(**{"_env_file": None, **settings})
