"""Slash commands at the prompt: they are about the conversation and are not sent to the model."""

import re
from collections.abc import Callable
from typing import Final

from orcastream.cli.chat.conversation import AnswerStats, Conversation

_COMMAND: Final = re.compile(r"/([a-z]+)(?:\s+(.*))?", re.DOTALL)
COMMANDS: Final = {
    "/stats": "show figures of the last answer and the length of the conversation",
    "/clear": "forget the conversation",
    "/system": "TEXT sets the system message, - removes it; without an argument, show it",
    "/help": "this list",
}


def carry_out(line: str, conversation: Conversation, tell: Callable[[str], None]) -> bool:
    """Carry out a command; return False if the line is not a command but a question."""
    match = _COMMAND.fullmatch(line)
    if match is None:
        return False
    name, text = f"/{match[1]}", (match[2] or "").strip()
    if name == "/stats":
        _tell_stats(conversation, tell)
    elif name == "/clear":
        conversation.clear()
        tell("the conversation is forgotten")
    elif name == "/system":
        if text:
            conversation.system = None if text == "-" else text
        tell(f"system message: {conversation.system or 'none'}")
    else:
        if name != "/help":
            tell(f"{name}: no such command; to ask a question that begins with a slash, put a space in front")
        for command, summary in COMMANDS.items():
            tell(f"{command:<8} {summary}")
    return True


def _tell_stats(conversation: Conversation, tell: Callable[[str], None]) -> None:
    known = [stats for stats in conversation.answers if stats.usage is not None]
    if known:
        tell(f"last answer: {_shown(known[-1])}")
    tokens = sum(stats.usage.completion_tokens for stats in known if stats.usage)
    asked = len(conversation.answers)
    tell(f"conversation: {asked} questions, {conversation.num_turns} remembered, {tokens} tokens answered")


def _shown(stats: AnswerStats) -> str:
    assert stats.usage is not None
    usage = stats.usage
    parts = [f"{usage.completion_tokens} tokens for a prompt of {usage.prompt_tokens} ({usage.cached_tokens} cached)"]
    if stats.first_s is not None and stats.last_s is not None:
        parts.append(f"first after {(stats.first_s - stats.asked_s) * 1000:.0f} ms")
        if stats.last_s > stats.first_s:
            parts.append(f"{(usage.completion_tokens - 1) / (stats.last_s - stats.first_s):.1f} tokens/s")
    return ", ".join(parts)
