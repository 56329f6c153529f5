"""One grammar for a whole answer: thinking, then calls, or content that follows a constraint of its own."""

from dataclasses import replace
from typing import Final

from orcastream.schemas.constraint import Constraint
from orcastream.text.answer_format import AnswerFormat, Thinking
from orcastream.text.grammar import content_rules
from orcastream.text.lark import as_regex
from orcastream.text.reasoning import CLOSES, OPENS
from orcastream.text.tools.grammar import Calls

_THOUGHT: Final = [
    "thought: to_the_close LINES?",
    f"to_the_close[lazy]: {as_regex(f'(?s:.*){CLOSES}')}",
    "LINES: /\\n{1,4}/",
]
"""Thinking that has begun, with the line breaks behind it."""


def answer_grammar(answer_format: AnswerFormat, calls: Calls | None, content: Constraint | None) -> Constraint | None:
    """What an answer in that format follows; None where it may say anything.

    `calls` are those that a grammar has to bring about, `content` what the rest follows.
    """
    if answer_format.calls is None or calls is None:
        if content is None or not answer_format.thinking:
            return content
        answer, rules = "content", content_rules(content)
    elif content is None or calls.required:
        answer, rules = "calls" if calls.required else "calls_or_text", answer_format.calls.rules(calls)
    else:
        rules = [*answer_format.calls.rules(replace(calls, beside_content=True)), *content_rules(content)]
        answer = "(calls | content)"
    if answer_format.thinking:
        opened = "thought" if answer_format.thinking is Thinking.OPEN else f'("{OPENS}" thought)?'
        answer, rules = f"{opened} {answer}", [*rules, *_THOUGHT]
    return Constraint(grammar="\n".join([f"start: {answer}", *rules]))
