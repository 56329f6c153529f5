"""Which model is served under which name, over which Redis: settings completed, or refused, before anything starts."""

from typing import TypeVar

from broker.settings import BrokerSettings
from cli.errors import UserError
from schemas.errors import InvalidRequest

S = TypeVar("S", bound=BrokerSettings)

DEMO_MODEL_NAME = "orca-demo"


def demo_model() -> str:
    """The directory of the model that ships with Orcastream."""
    from demo import MODEL_DIR

    return str(MODEL_DIR)


def with_model(settings: S) -> S:
    """The settings with a model and the name that it is served under; UserError where that name is not allowed."""
    model = settings.model or demo_model()
    own_name = DEMO_MODEL_NAME if model == demo_model() else None
    complete = settings.model_copy(update={"model": model})
    name = settings.served_model_name or own_name or complete.served_name
    complete = complete.model_copy(update={"served_model_name": name})
    try:
        complete.keys()
    except InvalidRequest as error:
        raise UserError(f"served_model_name (--served-model-name): got {name!r}, allowed: {error.allowed}") from None
    return complete


def with_redis(settings: S) -> S:
    """The same settings; UserError where they name no Redis server."""
    if not settings.redis_url:
        raise UserError(
            "redis_url (--redis-url, ORCASTREAM_REDIS_URL): got nothing, allowed: a URL such as "
            "redis://127.0.0.1:6379/0; `orcastream up` brings a server of its own"
        )
    return settings
