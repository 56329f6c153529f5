"""One grammar for a whole answer: reasoning, then calls, or content that follows its own constraint."""

from dataclasses import replace
from typing import Final

from orcastream.schemas.constraint import Constraint
from orcastream.text.answer_format import AnswerFormat, Thinking
from orcastream.text.grammar import WHITE_SPACE, content_rules
from orcastream.text.lark import as_regex
from orcastream.text.reasoning import CLOSES, OPENS
from orcastream.text.tools.grammar import Calls

_THOUGHT: Final = [
    f"THINK: {as_regex(f'({WHITE_SPACE})?{OPENS}')}",
    "thought: to_the_close LINES?",
    f"to_the_close[lazy]: {as_regex(f'(?s:.*){CLOSES}')}",
    "LINES: /\\n{1,4}/",
]
"""The opening of the reasoning, and its rest, including the line breaks after it."""


def answer_grammar(answer_format: AnswerFormat, calls: Calls | None, content: Constraint | None) -> Constraint | None:
    """Return the constraint on an answer in that format; None if it is unconstrained.

    `calls` are those that the grammar must enforce, `content` is the constraint on the rest.
    """
    if answer_format.calls is None or calls is None:
        if content is None or not answer_format.thinking:
            return content
        answer, rules = "content", content_rules(content)
    elif content is None or calls.required:
        calls = replace(calls, behind_thinking=answer_format.thinking is Thinking.MAY_COME)
        answer, rules = "calls" if calls.required else "calls_or_text", answer_format.calls.rules(calls)
    else:
        rules = [*answer_format.calls.rules(replace(calls, beside_content=True)), *content_rules(content)]
        answer = "(calls | content)"
    if answer_format.thinking:
        thought = "thought" if answer_format.thinking is Thinking.OPEN else "(THINK thought)?"
        answer, rules = f"{thought} {answer}", [*rules, *_THOUGHT]
    return Constraint(grammar="\n".join([f"start: {answer}", *rules]))
