"""Text of an item: plain, or in parts."""

from typing import Final

from orcastream.gateway.openai.cache_marks import without_cache_marks
from orcastream.gateway.openai.known_names import check_names
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.utf8_text import check_text

MESSAGE_PARTS: Final = ("input_text", "output_text")
RESULT_PARTS: Final = ("input_text",)
REASONING_PARTS: Final = ("reasoning_text",)


def read_texts(field: str, content: object, kinds: tuple[str, ...]) -> list[str]:
    """Return the texts of one or more parts of `kinds`.

    Raises InvalidRequest naming the part that is wrong or not supported.
    """
    if isinstance(content, str):
        return [check_text(field, content)]
    if not isinstance(content, list) or not content:
        raise InvalidRequest(field, content, "text, or an array of text parts")
    return [_part(f"{field}.{number}", part, kinds) for number, part in enumerate(content)]


def _part(field: str, part: object, kinds: tuple[str, ...]) -> str:
    kind = part.get("type") if isinstance(part, dict) else part
    if not isinstance(part, dict) or kind not in kinds:
        raise InvalidRequest(f"{field}.type", kind, f"{', '.join(kinds)}: other parts are not implemented")
    own = ("type", "text", "annotations", "logprobs") if kind == "output_text" else ("type", "text")
    check_names(field, without_cache_marks(field, part), own)
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{field}.text", text, "text")
    return check_text(f"{field}.text", text)
