"""The text of one token alone."""

from typing import NamedTuple

from orcastream.text.tokenizer import Tokenizer


class TokenText(NamedTuple):
    """The bytes of one token and their text, in which incomplete characters are U+FFFD."""

    text: str
    raw: bytes

    @property
    def is_text(self) -> bool:
        """Whether it is whole characters."""
        return self.text.encode() == self.raw


def token_text(tokenizer: Tokenizer, token_id: int, *, first: bool = False) -> TokenText:
    """Return the text of a token, `first` if it begins a text; control tokens give their names."""
    table = tokenizer.token_bytes
    if table is None:
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        return TokenText(text, text.encode())
    raw = table.first(token_id) if first else table[token_id]
    return TokenText(raw.decode(errors="replace"), raw)
