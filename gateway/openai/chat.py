"""/v1/chat/completions: the next message of a conversation."""

from collections.abc import Sequence

from orcastream.gateway.openai.body import Body
from orcastream.gateway.openai.endpoint import ChoicesEndpoint, Json, Logprobs
from orcastream.gateway.openai.logprobs import chat_logprobs
from orcastream.gateway.openai.messages import MAX_MESSAGES, message_schema, read_messages
from orcastream.gateway.openai.parts import Part
from orcastream.gateway.openai.prompt import Conversation, Prompt
from orcastream.gateway.openai.prompt_logprobs import PromptLogprobs
from orcastream.gateway.openai.said import said
from orcastream.gateway.openai.template_kwargs import EFFORT_SCHEMA, TEMPLATE_KWARGS_SCHEMA, take_template_kwargs
from orcastream.gateway.openai.tools import TOOL_NAMES, take_tools, tool_schemas
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.limits import MAX_LOGPROBS


class ChatCompletions(ChoicesEndpoint):
    """See ChoicesEndpoint."""

    path = "/v1/chat/completions"
    summary = "The next message of a chat."
    body_name = "ChatRequest"
    answer_name = "ChatCompletion"
    id_prefix = "chatcmpl-"
    operation = "chat"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    prompt_name = "messages"
    default_max_tokens = None
    splits = True
    own_names = frozenset(
        {
            "messages",
            "max_completion_tokens",
            "logprobs",
            "top_logprobs",
            "chat_template_kwargs",
            "reasoning_effort",
            *TOOL_NAMES,
        }
    )

    def take_prompts(self, body: Body) -> list[Prompt]:
        """Take one conversation."""
        messages = read_messages(body.take("messages"))
        kwargs = take_template_kwargs(body, "reasoning_effort", body.take("reasoning_effort"))
        return [Conversation(messages, kwargs, take_tools(body))]

    def take_parameters(self, body: Body) -> Json:
        """Take logprobs and top_logprobs; max_completion_tokens, the newer name of max_tokens."""
        return _max_tokens(body) | _logprobs(body)

    def prompt_schema(self) -> Json:
        """Return the schema of an array of messages."""
        return {"type": "array", "minItems": 1, "maxItems": MAX_MESSAGES, "items": message_schema()}

    def own_schemas(self, common: Json) -> Json:
        """Return the schemas of all parameters except the messages."""
        return {
            "chat_template_kwargs": TEMPLATE_KWARGS_SCHEMA,
            "reasoning_effort": EFFORT_SCHEMA,
            "max_completion_tokens": common["max_tokens"],
            **tool_schemas(),
            "logprobs": {"type": "boolean", "description": "Log probability of each token."},
            "top_logprobs": {
                "type": "integer",
                "minimum": 0,
                "maximum": MAX_LOGPROBS,
                "description": "Number of likeliest tokens to add for each token; requires logprobs.",
            },
        }

    def opening(self, choice: int, echo: str, prompt: PromptLogprobs) -> Json | None:
        """Return the opening chunk's choice, which names the role."""
        delta = {"role": "assistant", "content": ""}
        return {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}

    def delta(self, choice: int, parts: Sequence[Part], finish_reason: str | None, logprobs: Logprobs = ()) -> Json:
        """See ChoicesEndpoint."""
        delta = said(parts, in_chunk=True)
        if logprobs and not delta:
            delta = {"content": ""}
        told = self.write_logprobs(logprobs) if logprobs else None
        return {"index": choice, "delta": delta, "logprobs": told, "finish_reason": finish_reason}

    def whole_choice(
        self, choice: int, parts: Sequence[Part], finish_reason: str | None, logprobs: Json | None
    ) -> Json:
        """See ChoicesEndpoint."""
        own = said(parts)
        content = None if "tool_calls" in own else ""
        message = {"role": "assistant", "content": content, "refusal": None, **own}
        return {"index": choice, "finish_reason": finish_reason, "logprobs": logprobs, "message": message}

    def write_logprobs(self, tokens: Logprobs) -> Json:
        """See ChoicesEndpoint."""
        return chat_logprobs(tokens)


def _max_tokens(body: Body) -> Json:
    if "max_completion_tokens" not in body:
        return {}
    newer = body.take("max_completion_tokens")
    older = body.take("max_tokens", newer)
    if older != newer:
        raise InvalidRequest(
            "max_completion_tokens", newer, f"the same as max_tokens ({older}), or only one of the two"
        )
    body.names["max_tokens"] = "max_completion_tokens"
    return {"max_tokens": newer}


def _logprobs(body: Body) -> Json:
    wanted, top = body.take("logprobs", False), body.take("top_logprobs", 0)
    if not isinstance(wanted, bool):
        raise InvalidRequest("logprobs", wanted, "true or false")
    if not wanted:
        if top != 0 or isinstance(top, bool):
            raise InvalidRequest("top_logprobs", top, "0 without logprobs")
        return {}
    body.names["logprobs"] = "top_logprobs"
    return {"logprobs": top}
