"""An endpoint of OpenAI's that generates: what its bodies say, and how its answers are written."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from uuid import uuid4

from orcastream.gateway.openai.body import Body
from orcastream.gateway.openai.logprobs import TokenLogprob
from orcastream.gateway.openai.options import ChoicesOptions, Options
from orcastream.gateway.openai.parts import Part
from orcastream.gateway.openai.prompt import Prompt
from orcastream.gateway.openai.prompt_logprobs import PromptLogprobs

Json = dict[str, Any]
Logprobs = Sequence[TokenLogprob]
"""Of the tokens of a text, where they were asked for."""


class GenerationEndpoint(ABC):
    """One endpoint. The prefix of a response's id, which is the request's id in the broker, too, names it.

    So a gateway that has never seen a request knows from its id alone how to write its chunks.
    """

    path: ClassVar[str]
    summary: ClassVar[str]
    body_name: ClassVar[str]
    """What the OpenAPI document calls its body."""
    id_prefix: ClassVar[str]
    operation: ClassVar[str]
    """What traces call it."""
    prompt_name: ClassVar[str]
    """The parameter that holds the prompt."""
    default_max_tokens: ClassVar[int | None]
    """Most output tokens where a body does not say; None: what the context leaves."""
    splits: ClassVar[bool]
    """Whether its answers tell thinking and tool calls from content."""
    own_names: ClassVar[frozenset[str]]
    """Parameters that this endpoint alone has."""
    lacks: ClassVar[frozenset[str]] = frozenset()
    """Parameters of the payload and constraints that the other endpoints have."""
    neutral: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """More parameters that are not implemented here, and which of their values ask for nothing."""
    options: ClassVar[type[Options]]
    """What its bodies ask the gateway for."""

    def new_id(self) -> str:
        """A fresh id of 128 random bits."""
        return f"{self.id_prefix}{uuid4().hex}"

    def own_id(self, key: str) -> str:
        """The id that a client's own key stands for: the same key of the same client names the same request."""
        return key if self.owns(key) else f"{self.id_prefix}{key}"

    def owns(self, request_id: str) -> bool:
        """Whether the id is one of this endpoint's."""
        return request_id.startswith(self.id_prefix)

    @abstractmethod
    def take_prompts(self, body: Body) -> list[Prompt]:
        """Take the prompts out of a body, one or more; InvalidRequest naming what is wrong."""

    @abstractmethod
    def take_parameters(self, body: Body) -> Json:
        """Take the parameters that this endpoint alone has out of a body, under the names of the payload."""

    @abstractmethod
    def prompt_schema(self) -> Json:
        """The JSON schema of the prompt."""

    @abstractmethod
    def own_schemas(self, common: Json) -> Json:
        """The JSON schemas of the parameters that this endpoint alone has, the prompt apart, by their names."""


class ChoicesEndpoint(GenerationEndpoint):
    """One whose answers are choices, whole or in chunks."""

    options = ChoicesOptions
    whole_object: ClassVar[str]
    """`object` of an answer that is not streamed."""
    chunk_object: ClassVar[str]
    """`object` of a streamed chunk."""

    @abstractmethod
    def opening(self, choice: int, echo: str, prompt: PromptLogprobs) -> Json | None:
        """The choice of the chunk before its first text; None where there is none.

        `echo`: the text that it begins with; `prompt`: what is told of the prompt's tokens.
        """

    @abstractmethod
    def delta(self, choice: int, parts: Sequence[Part], finish_reason: str | None, logprobs: Logprobs = ()) -> Json:
        """The choice of a chunk that adds `parts`, and says why the choice ended if it did."""

    @abstractmethod
    def whole_choice(
        self, choice: int, parts: Sequence[Part], finish_reason: str | None, logprobs: Json | None
    ) -> Json:
        """The choice of an answer that is not streamed; `logprobs`: the field as `write_logprobs` has it."""

    @abstractmethod
    def write_logprobs(self, tokens: Logprobs) -> Json:
        """The field `logprobs` of a choice of these tokens; its lists have one item per token."""
