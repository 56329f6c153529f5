"""The endpoints that generate, and which of them a request was made at."""

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
    """By the prefix of the id; what another producer posted, under an id without one, reads as a completion."""
    return next((endpoint for endpoint in ENDPOINTS if endpoint.owns(request_id)), COMPLETIONS)


def choices_endpoint_of(request_id: str) -> ChoicesEndpoint:
    """As `endpoint_of`, among those whose answers are choices."""
    return next((endpoint for endpoint in OF_CHOICES if endpoint.owns(request_id)), COMPLETIONS)
