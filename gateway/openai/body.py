"""A body's parameters while they are being taken out, and the names under which errors are told."""

from typing import Any

from orcastream.gateway.openai.opening import NO_OPENING
from orcastream.schemas.errors import InvalidRequest


class Body(dict[str, Any]):
    """The JSON object of a body. Whatever has been read is taken out, so that what is left is unknown.

    Errors about the payload are told in the client's words: `names` maps the payload's names to those of the body.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.names: dict[str, str] = {}
        self.echo = False
        """Whether each choice begins with the prompt."""
        self.opening = NO_OPENING
        """What else it tells of the prompt."""
        self.constraints: dict[str, tuple[str, Any]] = {}
        """What an answer has to follow by parameters of the endpoint: by its place, its kind and value."""

    def take(self, name: str, default: Any = None) -> Any:
        """The value of a parameter, which is read by that."""
        return self.pop(name, default)


def told_as(error: InvalidRequest, names: dict[str, str]) -> InvalidRequest:
    """The error under the name that the client used."""
    name = names.get(error.field, error.field)
    return error if name == error.field else error.renamed(name)
