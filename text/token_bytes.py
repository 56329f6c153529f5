"""The bytes that each token adds to the text, for tokenizers whose decoder works token by token."""

import re
from dataclasses import dataclass
from typing import Any, Protocol, Self

from orcastream.text.section import section_of

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_SAMPLE_SIZE = 256


class BackendTokenizer(Protocol):
    """The part of `tokenizers.Tokenizer` that is used."""

    decoder: Any

    def id_to_token(self, id: int) -> str | None: ...
    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str: ...
    def get_vocab_size(self, with_added_tokens: bool = True) -> int: ...


def _byte_level_alphabet() -> dict[str, int]:
    """Return the byte of each printable stand-in in byte-level BPE vocabularies (GPT-2's `bytes_to_unicode`,
    inverted).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    for number, byte in enumerate(byte for byte in range(256) if byte not in printable):
        alphabet[chr(256 + number)] = byte
    return alphabet


_BYTE_LEVEL = _byte_level_alphabet()


@dataclass(frozen=True, slots=True)
class DecoderRules:
    """What a tokenizer's decoder does to each token, as far as that can be described token by token.

    `replacements` are applied in order; `strip` leading spaces are dropped from the whole text; `first_drops` is a
    character that is removed from the first token.
    """

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    strip: int = 0
    first_drops: str = ""

    @classmethod
    def read(cls, decoder: dict[str, Any] | None) -> Self | None:
        """Read the decoder section of a tokenizer.json; None if its kind is unknown."""
        if decoder is None:
            return None
        rules = cls()
        steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
        for number, step in enumerate(steps):
            after = rules._with(step, alone=len(steps) == 1, last=number == len(steps) - 1)
            if after is None:
                return None
            rules = after
        return rules

    def _with(self, step: dict[str, Any], *, alone: bool, last: bool) -> Self | None:
        kind = step["type"]
        if kind == "ByteLevel" and alone:
            return type(self)(byte_level=True)
        if kind == "Metaspace" and alone:
            mark = step["replacement"]
            return type(self)(
                replacements=((mark, " "),), first_drops=mark if step.get("prepend_scheme") != "never" else ""
            )
        if kind == "Replace" and "String" in step["pattern"] and not self.byte_fallback:
            pair = (step["pattern"]["String"], step["content"])
            return type(self)(replacements=(*self.replacements, pair))
        if kind == "ByteFallback":
            return type(self)(byte_fallback=True, replacements=self.replacements)
        if kind == "Fuse":
            return self
        if kind == "Strip" and last and step["content"] == " " and step["stop"] == 0:
            return type(self)(
                byte_fallback=self.byte_fallback, replacements=self.replacements, strip=int(step["start"])
            )
        return None

    def bytes_of(self, token: str, *, first: bool) -> bytes:
        """Return the bytes that `token` adds; `first` if nothing precedes it."""
        if self.byte_level:
            try:
                return bytes([_BYTE_LEVEL[char] for char in token])
            except KeyError:  # an added token, written literally
                return token.encode()
        if first and self.first_drops:
            token = token.replace(self.first_drops, "")
        for pattern, content in self.replacements:
            token = token.replace(pattern, content)
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return token.encode()


class TokenBytes:
    """Bytes by token id, cached after the first look-up. Ids unknown to the tokenizer add nothing."""

    def __init__(self, backend: BackendTokenizer, rules: DecoderRules) -> None:
        self._backend = backend
        self._known: dict[int, bytes] = {}
        self._texts: dict[int, str | None] = {}
        self.rules = rules

    @classmethod
    def of(cls, backend: BackendTokenizer) -> Self | None:
        """Return the table of a tokenizer; None if its decoder does not work token by token."""
        rules = DecoderRules.read(section_of(backend.decoder))
        if rules is None:
            return None
        table = cls(backend, rules)
        return table if table._agrees() else None

    def __getitem__(self, token_id: int) -> bytes:
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._bytes_of(token_id, first=False)
        return known

    def text(self, token_id: int) -> str | None:
        """Return the text of a token that is whole characters; None if it is not."""
        try:
            return self._texts[token_id]
        except KeyError:
            pass
        piece = self[token_id]
        text = self._texts[token_id] = piece.decode() if _is_text(piece) else None
        return text

    def first(self, token_id: int) -> bytes:
        """Return the bytes of a token at the start of the text."""
        return self._bytes_of(token_id, first=True) if self.rules.first_drops else self[token_id]

    def is_whole_first(self, token_id: int) -> bool:
        """Whether all bytes of a token appear if it begins the text."""
        piece = self[token_id]
        return self.first(token_id) == piece and not (self.rules.strip and piece.startswith(b" "))

    def knows(self, token_id: int) -> bool:
        """Whether the token exists."""
        return self._backend.id_to_token(token_id) is not None

    def _bytes_of(self, token_id: int, *, first: bool) -> bytes:
        token = self._backend.id_to_token(token_id)
        return b"" if token is None else self.rules.bytes_of(token, first=first)

    def _agrees(self) -> bool:
        """Whether the joined bytes equal the tokenizer's own decoding, over a sample of the vocabulary."""
        size = self._backend.get_vocab_size(with_added_tokens=True)
        sample = [i for i in range(0, size, max(1, size // _SAMPLE_SIZE)) if _is_text(self[i])]
        if not sample:
            return False
        joined = b"".join([self.first(sample[0]), *(self[token_id] for token_id in sample[1:])]).decode()
        spaces = min(self.rules.strip, len(joined) - len(joined.lstrip(" ")))
        return joined[spaces:] == self._backend.decode(sample, skip_special_tokens=False)


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True
