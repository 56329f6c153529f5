"""A body's parameters while they are taken out, and the parameter names that errors use."""

from typing import Any

from orcastream.gateway.openai.opening import NO_OPENING
from orcastream.schemas.errors import InvalidRequest


class Body(dict[str, Any]):
    """The JSON object of a body. Each value read is removed, so what remains is unknown.

    Errors about the payload use the client's names: `names` maps the payload's names to those of the body.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.names: dict[str, str] = {}
        self.echo = False
        """Whether each choice begins with the prompt."""
        self.opening = NO_OPENING
        """Other content about the prompt."""
        self.constraints: dict[str, tuple[str, Any]] = {}
        """Constraints on the answer from parameters of the endpoint: parameter path → kind and value."""

    def take(self, name: str, default: Any = None) -> Any:
        """Return the value of a parameter, and remove it."""
        return self.pop(name, default)


def told_as(error: InvalidRequest, names: dict[str, str]) -> InvalidRequest:
    """Return the error with the name that the client used."""
    name = names.get(error.field, error.field)
    return error if name == error.field else error.renamed(name)
