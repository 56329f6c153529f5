"""A generating endpoint of OpenAI's API: what its bodies contain, and how its answers are written."""

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
"""Log probabilities of a text's tokens, if they were requested."""


class GenerationEndpoint(ABC):
    """One endpoint. The prefix of a response's id, which is also the request's id in the broker, identifies it.

    So a gateway that has never seen a request knows from its id alone how to write its chunks.
    """

    path: ClassVar[str]
    summary: ClassVar[str]
    body_name: ClassVar[str]
    """Name of its body in the OpenAPI document."""
    answer_name: ClassVar[str]
    """Name of its answer there."""
    id_prefix: ClassVar[str]
    operation: ClassVar[str]
    """Name of the operation in traces."""
    prompt_name: ClassVar[str]
    """The parameter that holds the prompt."""
    default_max_tokens: ClassVar[int | None]
    """Maximum number of output tokens if a body sets none; None means the context's remaining room."""
    splits: ClassVar[bool]
    """Whether its answers separate reasoning and tool calls from content."""
    own_names: ClassVar[frozenset[str]]
    """Parameters that only this endpoint has."""
    lacks: ClassVar[frozenset[str]] = frozenset()
    """Parameters of the payload and constraints that other endpoints have, but not this one."""
    neutral: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """More parameters that are not implemented here, with those of their values that have no effect."""
    options: ClassVar[type[Options]]
    """The model of its gateway options."""

    def new_id(self) -> str:
        """Return a new id of 128 random bits."""
        return f"{self.id_prefix}{uuid4().hex}"

    def own_id(self, key: str) -> str:
        """Return the id for a client's own key: the same key of the same client identifies the same request."""
        return key if self.owns(key) else f"{self.id_prefix}{key}"

    def owns(self, request_id: str) -> bool:
        """Whether the id belongs to this endpoint."""
        return request_id.startswith(self.id_prefix)

    @abstractmethod
    def take_prompts(self, body: Body) -> list[Prompt]:
        """Take one or more prompts out of a body. Raises InvalidRequest naming the defect."""

    @abstractmethod
    def take_parameters(self, body: Body) -> Json:
        """Take the parameters that only this endpoint has out of a body, under the payload's names."""

    @abstractmethod
    def prompt_schema(self) -> Json:
        """Return the JSON schema of the prompt."""

    @abstractmethod
    def own_schemas(self, common: Json) -> Json:
        """Return the JSON schemas of the parameters that only this endpoint has, except the prompt, by name."""


class ChoicesEndpoint(GenerationEndpoint):
    """An endpoint whose answers are choices, whole or in chunks."""

    options = ChoicesOptions
    whole_object: ClassVar[str]
    """`object` of an answer that is not streamed."""
    chunk_object: ClassVar[str]
    """`object` of a streamed chunk."""

    @abstractmethod
    def opening(self, choice: int, echo: str, prompt: PromptLogprobs) -> Json | None:
        """Return the choice of the chunk before its first text; None if there is none.

        `echo`: the text that it begins with; `prompt`: the log probabilities of the prompt's tokens.
        """

    @abstractmethod
    def delta(self, choice: int, parts: Sequence[Part], finish_reason: str | None, logprobs: Logprobs = ()) -> Json:
        """Return the choice of a chunk that adds `parts`, with the finish reason if it ended."""

    @abstractmethod
    def whole_choice(
        self, choice: int, parts: Sequence[Part], finish_reason: str | None, logprobs: Json | None
    ) -> Json:
        """Return the choice of an answer that is not streamed; `logprobs`: the field as `write_logprobs` returns it."""

    @abstractmethod
    def write_logprobs(self, tokens: Logprobs) -> Json:
        """Return the field `logprobs` of a choice with these tokens; its lists have one item per token."""
