"""A request as the gateway's API takes it."""

from typing import Any

from client.request import Asked


def body_of(asked: Asked, model: str) -> dict[str, Any]:
    """The JSON body, streamed and with token counts."""
    prompt = asked.prompt if isinstance(asked.prompt, str) else list(asked.prompt)
    body: dict[str, Any] = {
        **asked.parameters,
        "model": model,
        "messages" if asked.is_chat else "prompt": prompt,
        "priority": asked.priority,
        "timeout": asked.timeout_s,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if asked.durable:
        body["durable"] = True
    return body
