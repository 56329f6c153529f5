"""Text from somebody else, which JSON's escapes can make what UTF-8 cannot say."""

from orcastream.schemas.errors import InvalidRequest


def check_text(field: str, text: str) -> str:
    """The text itself; InvalidRequest where it holds half a surrogate pair, which is no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(field, text, "UTF-8 text without lone surrogates") from None
    return text
