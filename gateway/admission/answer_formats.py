"""How to parse the answers of one model: as its chat template indicates, or as the gateway's settings say."""

from collections.abc import Sequence
from typing import Final, Literal

from orcastream.gateway.errors import unsupported
from orcastream.gateway.openai.prompt import Conversation
from orcastream.text.answer_format import AnswerFormat, Thinking
from orcastream.text.reasoning import CLOSES, OPENS
from orcastream.text.tokenizer import Tokenizer
from orcastream.text.tools.formats import TOOL_FORMATS, ToolFormat

ToolParserName = Literal["auto", "none", "hermes", "llama"]
ReasoningParserName = Literal["auto", "none", "think"]
_END_TOKENS: Final = 16
"""Tokens at the end of a prompt, in which its template may have opened or closed the thinking."""


class AnswerFormats:
    """Determines the format of each conversation's answer."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        tool_parser: ToolParserName = "auto",
        reasoning_parser: ReasoningParserName = "auto",
    ) -> None:
        self._tokenizer = tokenizer
        template = tokenizer.chat_template.source
        self._calls: ToolFormat | None = TOOL_FORMATS.get(tool_parser)
        if tool_parser == "auto":
            self._calls = next((each for each in TOOL_FORMATS.values() if each.is_told_in(template)), None)
        shows_marks = tokenizer.special_ids.isdisjoint(tokenizer.encode(OPENS + CLOSES, add_special_tokens=False))
        self._thinks = reasoning_parser == "think" or (
            reasoning_parser == "auto" and CLOSES in template and shows_marks
        )

    def of(self, chat: Conversation, prompt_ids: Sequence[int]) -> AnswerFormat:
        """Return the format of the answer to `chat`, whose prompt has these ids.

        Raises ApiError if tools are unsupported.
        """
        if chat.tool_use is None:
            return AnswerFormat(self._thinking(prompt_ids))
        if self._calls is None:
            allowed = "none: the format of this model's tool calls is unknown (setting tool_parser)"
            raise unsupported("tools", chat.tool_use.tools, allowed)
        return AnswerFormat(self._thinking(prompt_ids), self._calls)

    def _thinking(self, prompt_ids: Sequence[int]) -> Thinking:
        if not self._thinks:
            return Thinking.NONE
        end = self._tokenizer.decode(prompt_ids[-_END_TOKENS:], skip_special_tokens=False).rstrip()
        if end.endswith(CLOSES):
            return Thinking.NONE
        return Thinking.OPEN if end.endswith(OPENS) else Thinking.MAY_COME
