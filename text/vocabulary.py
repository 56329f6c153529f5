"""A model's tokens as grammars see them: the bytes that each adds to the text."""

from collections.abc import Callable, Collection, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt
from llguidance import LLTokenizer, TokenizerWrapper

from orcastream.text.tokenizer import Tokenizer


class NoVocabulary(ValueError):
    """The bytes of a model's tokens are unknown, or none of them ends a text: the model can follow no grammar."""


class Vocabulary:
    """The tokens of one model. Safe to use from several threads."""

    def __init__(
        self,
        tokens: Sequence[bytes],
        eos_token_ids: Collection[int],
        *,
        special: Collection[int],
        encode: Callable[[str], list[int]],
        cut_at_start: Collection[int] = (),
    ) -> None:
        """`tokens[i]` are the bytes that token i adds to the text, empty if none; `special` tokens add none,
        whatever their names. Those `cut_at_start` add fewer at the start of a text. Raises NoVocabulary if no token
        ends a text.

        Takes half a second for 150,000 tokens.
        """
        if not eos_token_ids:
            raise NoVocabulary("it has no end-of-sequence token")
        self.eos_token_ids = frozenset(eos_token_ids)
        self.mask_bytes = -(-len(tokens) // 32) * 4
        self.whole_at_start: npt.NDArray[np.uint8] | None = None
        """Bits of the tokens that may begin an answer, where there are others: a grammar would see bytes of those that
        no reader gets."""
        if cut_at_start:
            bits = np.ones(self.mask_bytes * 8, dtype=np.uint8)
            bits[list(cut_at_start)] = 0
            self.whole_at_start = np.packbits(bits, bitorder="little")
        asked = _Tokens(list(tokens), sorted(special), min(self.eos_token_ids), encode)
        self.table = asked.table = LLTokenizer(TokenizerWrapper(asked))

    @classmethod
    def of(cls, tokenizer: Tokenizer, size: int, eos_token_ids: Collection[int]) -> Self:
        """Make it for a model that knows `size` ids and ends outputs with `eos_token_ids`. Raises NoVocabulary.

        Bytes are those of the detokenizer, so that a grammar sees exactly what a reader gets.
        """
        token_bytes = tokenizer.token_bytes
        if token_bytes is None:
            raise NoVocabulary("its tokenizer's decoder cannot be followed token by token")
        return cls(
            [token_bytes[token_id] for token_id in range(size)],
            eos_token_ids,
            special=[token_id for token_id in tokenizer.special_ids if token_id < size],
            encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
            cut_at_start=[token_id for token_id in range(size) if not token_bytes.is_whole_first(token_id)],
        )


class _Tokens:
    """The tokenizer interface of llguidance, which prefers these tokens where only one text can follow."""

    bos_token_id = None
    table: LLTokenizer | None = None

    def __init__(
        self, tokens: list[bytes], special: list[int], eos_token_id: int, encode: Callable[[str], list[int]]
    ) -> None:
        self.tokens = tokens
        self.special_token_ids = special
        self.eos_token_id = eos_token_id
        self._encode = encode

    def __call__(self, text: bytes) -> list[int]:
        """Return tokens whose bytes are `text`: the tokenizer itself may add a space before it, or find special
        tokens in it.
        """
        ids = self._encode(text.decode())
        is_text = b"".join(self.tokens[token_id] for token_id in ids) == text
        if self.table is None or (is_text and not set(ids).intersection(self.special_token_ids)):
            return ids
        return self.table.greedy_tokenize(text.decode())
