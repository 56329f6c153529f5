"""The result of one line of a bulk job, in OpenAI's form for batches."""

import json
from collections.abc import Mapping
from typing import Any


def responded(line_id: str, custom_id: str, status: int, request_id: str, body: Mapping[str, Any]) -> bytes:
    """What a request was answered with."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return _line(line_id, custom_id, response, None)


def failed(line_id: str, custom_id: str, code: str, message: str) -> bytes:
    """Why a line has no answer."""
    return _line(line_id, custom_id, None, {"code": code, "message": message})


def _line(line_id: str, custom_id: str, response: object, error: object) -> bytes:
    whole = {"id": line_id, "custom_id": custom_id, "response": response, "error": error}
    return json.dumps(whole, ensure_ascii=False).encode()
