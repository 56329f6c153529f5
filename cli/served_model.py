"""The served model, its name and its Redis: settings are completed or refused before anything starts."""

import os
from pathlib import Path
from typing import TypeVar

from orcastream.broker.settings import BrokerSettings
from orcastream.cli.errors import UserError
from orcastream.schemas.errors import InvalidRequest

S = TypeVar("S", bound=BrokerSettings)

DEMO_MODEL_NAME = "orca-demo"


def demo_model() -> str:
    """Return the directory of the model that ships with Orcastream."""
    from orcastream.demo import MODEL_DIR

    return str(MODEL_DIR)


def with_model(settings: S) -> S:
    """Return the settings with model and served name filled in. Raises UserError if either is not allowed."""
    model = _checked(settings.model) if settings.model else demo_model()
    own_name = DEMO_MODEL_NAME if model == demo_model() else None
    complete = settings.model_copy(update={"model": model})
    name = settings.served_model_name or own_name or complete.served_name
    complete = complete.model_copy(update={"served_model_name": name})
    try:
        complete.keys()
    except InvalidRequest as error:
        raise UserError(f"served_model_name (--served-model-name): got {name!r}, allowed: {error.allowed}") from None
    return complete


def _checked(model: str) -> str:
    """Return the model. Raises UserError if it can only be a directory, and that directory holds no model."""
    try:
        path = Path(model).expanduser()
    except RuntimeError:  # `~` without HOME, and a user id without an account; or `~NAME` of no account
        path = Path(model)
    is_local = path.is_dir() or model.startswith(("/", "./", "../", "~"))
    if not is_local:
        return model
    if not (path / "config.json").is_file():
        raise UserError(
            f"model (--model, ORCASTREAM_MODEL): got {model!r}, allowed: a directory with a config.json, or a hub id"
        )
    return os.path.abspath(path)  # `.` has no name to be served under


def with_redis(settings: S) -> S:
    """Return the same settings. Raises UserError if they name no Redis server."""
    if not settings.redis_url:
        raise UserError(
            "redis_url (--redis-url, ORCASTREAM_REDIS_URL): got nothing, allowed: a URL such as "
            "redis://127.0.0.1:6379/0; `orcastream up` starts its own server"
        )
    return settings
