"""A model's own chat template: turns messages into the parts of a prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import Any

from orcastream.schemas.errors import InvalidRequest
from orcastream.text.control_tokens import ControlTokens, Escapes, Segment


class NoChatTemplate(ValueError):
    """The model has no chat template: messages cannot be turned into a prompt."""


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A conversation as rendered by its template."""

    segments: tuple[Segment, ...]

    def __len__(self) -> int:
        """Return the number of characters."""
        return sum(len(segment.text) for segment in self.segments)

    @property
    def text(self) -> str:
        """The whole text; a control token spelled in a message looks like a real one."""
        return "".join(segment.text for segment in self.segments)


class ChatTemplate:
    """The template of one transformers tokenizer, which may have none."""

    def __init__(self, tokenizer: Any, control: ControlTokens) -> None:
        self._hf = tokenizer
        self._control = control

    @property
    def exists(self) -> bool:
        """Whether messages can be turned into a prompt."""
        return bool(self._hf.chat_template)

    @cached_property
    def variables(self) -> frozenset[str]:
        """Names allowed in `chat_template_kwargs`: variables that the template reads and is not always given."""
        given = {"messages", *signature(self._hf.apply_chat_template).parameters, *self._hf.special_tokens_map}
        return frozenset().union(*map(_read_by, self._sources)) - given

    @cached_property
    def source(self) -> str:
        """Its Jinja source; several templates are concatenated."""
        return "\n".join(self._sources)

    @cached_property
    def reads_tools(self) -> bool:
        """Whether tools can be shown to the model."""
        return any("tools" in _read_by(source) for source in self._sources)

    @property
    def _sources(self) -> tuple[str, ...]:
        templates = self._hf.chat_template
        if not templates:
            return ()
        return tuple(templates.values()) if isinstance(templates, Mapping) else (templates,)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> RenderedChat:
        """Render the prompt of a conversation.

        Raises NoChatTemplate if the model has none, and InvalidRequest naming `messages` if the template rejects them,
        or one of `template_kwargs` that the template does not read.
        """
        if not self.exists:
            raise NoChatTemplate("the model has no chat template: give it a plain prompt")
        self._check(template_kwargs or {})
        escapes = Escapes(self._control)
        try:
            rendered = self._hf.apply_chat_template(
                escapes.escape(messages),
                tools=None if tools is None else escapes.escape(tools),
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **escapes.escape(template_kwargs or {}),
            )
        except Exception as error:  # a template is a program, which may fail in any way
            raise InvalidRequest(
                "messages", list(messages), f"what the model's chat template takes ({error})"
            ) from None
        return RenderedChat(tuple(escapes.split(str(rendered))))

    def _check(self, template_kwargs: Mapping[str, Any]) -> None:
        for name, value in template_kwargs.items():
            if name not in self.variables:
                known = ", ".join(sorted(self.variables)) or "none"
                allowed = f"no such variable: the model's chat template reads {known}"
                raise InvalidRequest(f"chat_template_kwargs.{name}", value, allowed)


def _read_by(source: str) -> frozenset[str]:
    """Return the variables that a template reads and does not set."""
    from jinja2 import meta
    from transformers.utils.chat_template_utils import _compile_jinja_template

    environment = _compile_jinja_template(source).environment
    return frozenset(meta.find_undeclared_variables(environment.parse(source))) - frozenset(environment.globals)
