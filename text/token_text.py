"""What one token says by itself."""

from typing import NamedTuple

from orcastream.text.tokenizer import Tokenizer


class TokenText(NamedTuple):
    """The bytes of one token and their text, in which bytes that are no whole character are U+FFFD."""

    text: str
    raw: bytes

    @property
    def is_text(self) -> bool:
        """Is it whole characters?"""
        return self.text.encode() == self.raw


def token_text(tokenizer: Tokenizer, token_id: int, *, first: bool = False) -> TokenText:
    """The text of a token, `first` where it opens a text; control tokens say their names."""
    table = tokenizer.token_bytes
    if table is None:
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        return TokenText(text, text.encode())
    raw = table.first(token_id) if first else table[token_id]
    return TokenText(raw.decode(errors="replace"), raw)
