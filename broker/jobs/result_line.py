"""The result of one line of a bulk job, in the format of OpenAI's batches."""

import json


def responded(line_id: str, custom_id: str, status: int, request_id: str, body: bytes) -> bytes:
    """Return the result with the answer to a request; `body` is JSON on one line."""
    head = _encoded({"id": line_id, "custom_id": custom_id})
    response = _encoded({"status_code": status, "request_id": request_id})
    return b'%b, "response": %b, "body": %b}, "error": null}' % (head[:-1], response[:-1], body)


def failed(line_id: str, custom_id: str, code: str, message: str) -> bytes:
    """Return the result of a line without an answer, with the reason."""
    error = {"code": code, "message": message}
    return _encoded({"id": line_id, "custom_id": custom_id, "response": None, "error": error})


def _encoded(data: object) -> bytes:
    return json.dumps(data, ensure_ascii=False).encode(errors="backslashreplace")  # a lone surrogate as JSON escapes it
