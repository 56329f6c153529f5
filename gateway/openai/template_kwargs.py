"""Variables of the model's chat template that a body sets: by name, or by OpenAI's parameter for one of them."""

from typing import Any, Final

from orcastream.gateway.openai.body import Body
from orcastream.schemas.errors import InvalidRequest

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
EFFORT_SCHEMA: Final = {
    "enum": list(EFFORTS),
    "description": "The variable `reasoning_effort`, if the model's chat template reads it; otherwise refused.",
}
TEMPLATE_KWARGS_SCHEMA: Final = {
    "type": "object",
    "description": "Variables of the model's chat template, such as `enable_thinking`; others are refused.",
}


def take_template_kwargs(body: Body, field: str, effort: object) -> dict[str, Any]:
    """Take the variables that a body sets, including `effort`, whose parameter is `field`. Raises InvalidRequest."""
    kwargs = body.take("chat_template_kwargs", {})
    if not isinstance(kwargs, dict):
        raise InvalidRequest("chat_template_kwargs", kwargs, "an object of the template's variables")
    if effort is None:
        return kwargs
    if effort not in EFFORTS:
        raise InvalidRequest(field, effort, ", ".join(EFFORTS))
    if kwargs.get("reasoning_effort", effort) != effort:
        raise InvalidRequest(field, effort, "the value in chat_template_kwargs, or only one of the two")
    body.names["chat_template_kwargs.reasoning_effort"] = field
    return {**kwargs, "reasoning_effort": effort}
