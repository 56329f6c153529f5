"""Token ids → text, piece by piece; text that was output is never retracted."""

from codecs import BufferedIncrementalDecoder, getincrementaldecoder
from collections.abc import Iterable
from typing import TYPE_CHECKING

from orcastream.text.decode_window import DecodeWindow
from orcastream.text.token_bytes import TokenBytes

if TYPE_CHECKING:
    from orcastream.text.tokenizer import Tokenizer

_Utf8Decoder: type[BufferedIncrementalDecoder] = getincrementaldecoder("utf-8")  # type: ignore[assignment]  # typeshed tells its base alone


class Detokenizer:
    """The text of one choice as its tokens arrive.

    The output after k tokens is a function of those k ids alone, never of how they were grouped in pushes. A character
    whose bytes are spread over several tokens is held back until it is complete; bytes that can no longer become one
    turn into U+FFFD. Costs O(1) per token.
    """

    def __init__(self, tokenizer: "Tokenizer", skip_special_tokens: bool = True) -> None:
        self._skip = tokenizer.special_ids if skip_special_tokens else frozenset()
        table = tokenizer.token_bytes
        self._pieces: _Pieces | DecodeWindow
        if table is not None:
            self._pieces = _Pieces(table)
        else:
            self._pieces = DecodeWindow(lambda ids: tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))
        self.length = 0
        """Characters output so far."""

    def push(self, ids: Iterable[int]) -> str:
        """Take the next tokens; return the text that is now certain."""
        push, skip = self._pieces.push, self._skip
        text = "".join([push(token_id) for token_id in ids if token_id not in skip])
        self.length += len(text)
        return text

    def finish(self) -> str:
        """Return the rest of the text: replacement characters, if the last tokens ended inside a character."""
        text = self._pieces.finish()
        self.length += len(text)
        return text


class _Pieces:
    """Decodes tokens' bytes with an incremental UTF-8 decoder, then applies the decoder's rule for leading spaces."""

    def __init__(self, table: TokenBytes) -> None:
        self._table = table
        self._decoder = _Utf8Decoder(errors="replace")
        self._first = True
        self._leading = table.rules.strip

    def push(self, token_id: int) -> str:
        """Take a token; return the text that is now certain."""
        if self._first:
            self._first = not self._table.knows(token_id)
            return self._stripped(self._decoder.decode(self._table.first(token_id)))
        text = None if self._decoder.buffer else self._table.text(token_id)
        if text is None:
            text = self._decoder.decode(self._table[token_id])
        return self._stripped(text) if self._leading else text

    def finish(self) -> str:
        """Return the rest."""
        return self._stripped(self._decoder.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        while self._leading and text:
            if text[0] != " ":
                self._leading = 0
            else:
                text = text[1:]
                self._leading -= 1
        return text
