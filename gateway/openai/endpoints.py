"""The generating endpoints, and how to find a request's endpoint."""

from typing import Final

from orcastream.gateway.openai.chat import ChatCompletions
from orcastream.gateway.openai.completions import Completions
from orcastream.gateway.openai.endpoint import ChoicesEndpoint, GenerationEndpoint
from orcastream.gateway.openai.responses.endpoint import Responses

COMPLETIONS: Final = Completions()
CHAT: Final = ChatCompletions()
RESPONSES: Final = Responses()
OF_CHOICES: Final[tuple[ChoicesEndpoint, ...]] = (COMPLETIONS, CHAT)
ENDPOINTS: Final[tuple[GenerationEndpoint, ...]] = (*OF_CHOICES, RESPONSES)


def endpoint_of(request_id: str) -> GenerationEndpoint:
    """Return the endpoint by the id's prefix; an id without one, from another producer, reads as a completion."""
    return next((endpoint for endpoint in ENDPOINTS if endpoint.owns(request_id)), COMPLETIONS)


def choices_endpoint_of(request_id: str) -> ChoicesEndpoint:
    """As `endpoint_of`, among endpoints whose answers are choices."""
    return next((endpoint for endpoint in OF_CHOICES if endpoint.owns(request_id)), COMPLETIONS)
