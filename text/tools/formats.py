"""The formats in which models write tool calls, by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from orcastream.text.tools.call import ToolParser
from orcastream.text.tools.grammar import Calls, hermes_rules, llama_rules
from orcastream.text.tools.hermes import HermesParser
from orcastream.text.tools.llama import LlamaParser


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One format: how to parse its calls, and how to make a model write them."""

    name: str
    parser: Callable[[], ToolParser]
    rules: Callable[[Calls], list[str]]
    """Lines of Lark for `calls`, and for `calls_or_text` if no call is required."""
    signs: tuple[str, ...]
    """Texts in every chat template that explains this format."""
    foreign: tuple[str, ...] = ()
    """Texts in templates of another format with the same signs."""

    def is_told_in(self, template: str) -> bool:
        """Whether a chat template explains this format."""
        return all(sign in template for sign in self.signs) and not any(sign in template for sign in self.foreign)


TOOL_FORMATS: Final[Mapping[str, ToolFormat]] = MappingProxyType(
    {
        each.name: each
        for each in (
            ToolFormat("hermes", HermesParser, hermes_rules, ("<tool_call>", "arguments"), ("<function=", "<arg_key>")),
            ToolFormat("llama", LlamaParser, llama_rules, ('"parameters"', "dictionary of argument name")),
        )
    }
)
