"""Turns a client's prompt into token ids that fit the context."""

from collections.abc import Mapping, Sequence

from orcastream.gateway.errors import ApiError, unsupported
from orcastream.gateway.openai.cut_calls import is_cut, without_cut_calls
from orcastream.gateway.openai.prompt import Conversation, Prompt, Text, TokenIds
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.model_limits import ModelLimits
from orcastream.text.chat_template import ChatTemplate, NoChatTemplate, RenderedChat
from orcastream.text.tokenizer import Tokenizer, TooManyTokens


class PromptEncoder:
    """Rejects prompts that are too long as early as possible: by characters, before tokenizing."""

    def __init__(self, tokenizer: Tokenizer, limits: ModelLimits) -> None:
        self._tokenizer = tokenizer
        self._limits = limits

    def encode(self, prompt: Prompt, add_special_tokens: bool | None = None) -> Sequence[int]:
        """Return the prompt's ids. Raises ApiError, and InvalidRequest naming `prompt` if the context cannot hold
        it.

        `add_special_tokens`: whether to add the special tokens that the model expects around a text. None means as for
        generation requests: none in a conversation, whose template writes them.
        """
        if isinstance(prompt, Text):
            return self._tokenize(prompt.text, add_special_tokens=add_special_tokens is not False)
        if isinstance(prompt, TokenIds):
            self._limits.fit(len(prompt.ids), max_tokens=None, min_tokens=0)
            return prompt.ids
        return self._tokenize(self._conversation(prompt), add_special_tokens=bool(add_special_tokens))

    def _tokenize(self, prompt: str | RenderedChat, *, add_special_tokens: bool) -> list[int]:
        self._check_characters(len(prompt))
        most = self._limits.max_total_tokens - 1
        try:
            if isinstance(prompt, str):
                return self._tokenizer.encode(prompt, add_special_tokens=add_special_tokens, most=most)
            return self._tokenizer.encode_chat(prompt, add_special_tokens=add_special_tokens, most=most)
        except TooManyTokens as error:
            raise self._limits.too_long(error.told) from None

    def _conversation(self, chat: Conversation) -> RenderedChat:
        """Render a chat with the model's template, after checking the length of its messages."""
        template = self._tokenizer.chat_template
        tools = None if chat.tool_use is None else chat.tool_use.tools
        messages = without_cut_calls(chat.messages)
        said = [{name: each for name, each in message.items() if name != "role"} for message in messages]
        self._check_characters(_characters([*said, *(tools or ())]))
        if template.exists:
            _check_template(template, chat)
        if not messages:
            raise InvalidRequest(chat.name, "calls that were cut, and their results", "something besides")
        try:
            return template.render(messages, tools=tools, template_kwargs=chat.template_kwargs)
        except NoChatTemplate as error:
            raise ApiError(400, f"{chat.name}: {error}", param=chat.name, code="no_chat_template") from None

    def _check_characters(self, count: int) -> None:
        """Raise InvalidRequest for a text that no context can hold, before spending time on tokenizing it."""
        most_tokens, longest = self._limits.max_total_tokens - 1, self._tokenizer.longest_token
        if count > most_tokens * longest:
            allowed = f"at most {most_tokens * longest} characters ({most_tokens} tokens of at most {longest})"
            raise InvalidRequest("prompt", f"{count} characters", f"{allowed}: {self._limits.context}")


def _characters(value: object) -> int:
    """Count the characters of all strings in a JSON value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_characters, value.values()))
    return sum(map(_characters, value)) if isinstance(value, list) else 0


def _check_template(template: ChatTemplate, chat: Conversation) -> None:
    """Raise ApiError if the model's template would ignore the tools, or calls in the conversation."""
    if chat.tool_use is not None and not template.reads_tools:
        raise unsupported("tools", chat.tool_use.tools, "none: the chat template of this model does not support tools")
    if "tool_calls" in template.source:
        return
    for number, message in enumerate(chat.messages):
        if not all(map(is_cut, message.get("tool_calls", ()))):
            allowed = "none: the chat template of this model does not support calls"
            raise unsupported(chat.place_of_calls(number), message["tool_calls"], allowed)
