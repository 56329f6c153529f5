"""A lower bound of a text's number of tokens, without tokenizing it."""

from collections import Counter
from collections.abc import Collection
from typing import Any, Final

from orcastream.text.section import section_of

_SAMPLES: Final = 1000
_LETTERS: Final = 2
_KEEPING: Final = frozenset({"ByteLevel", "Digits", "Sequence", "Split"})
"""Pre-tokenizers that keep all characters of a text, unless one of them is configured to remove some."""
_SAME_FOR_ASCII: Final = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
_STAND_INS: Final = {" ": "Ġ", "\n": "Ċ", "\t": "ĉ", "\r": "č"}
"""ASCII characters that byte-level vocabularies write differently."""


class FewestTokens:
    """A lower bound: each token stands for a limited number of characters, and of occurrences of any one letter."""

    def __init__(self, vocabulary: Collection[str], backend: Any | None) -> None:
        """`backend` is the tokenizer of `tokenizers`, if there is one."""
        self._vocabulary = vocabulary
        self.longest = max(map(len, vocabulary))
        self._counts_letters = backend is not None and _keeps_ascii(backend)
        takes_spaces = backend is not None and any(
            token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values()
        )
        self._uncounted = " \n\t\r" if takes_spaces else ""
        self._most: dict[str, int] = {}

    def of(self, text: str) -> int:
        """Return at most the number of tokens of `text`, in much less time than tokenizing it takes."""
        fewest = -(-len(text) // self.longest)
        if not self._counts_letters or not text.isascii():
            return fewest
        sample = Counter(text[:: len(text) // _SAMPLES + 1])
        for letter, _ in sample.most_common(_LETTERS):
            most = 0 if letter in self._uncounted else self._most_of(letter)
            if most:
                fewest = max(fewest, -(-text.count(letter) // most))
        return fewest

    def _most_of(self, letter: str) -> int:
        """Return the most occurrences of a letter in one token; 0 if no token shows how the letter alone is written."""
        if letter not in self._most:
            written = _STAND_INS.get(letter, letter)
            known = written in self._vocabulary
            self._most[letter] = max(token.count(written) for token in self._vocabulary) if known else 0
        return self._most[letter]


def _keeps_ascii(backend: Any) -> bool:
    """Whether each character of an ASCII text is in one of its tokens: byte-level, and nothing is removed before."""
    normalizer, splitter = section_of(backend.normalizer), section_of(backend.pre_tokenizer)
    if normalizer is not None and normalizer["type"] not in _SAME_FOR_ASCII:
        return False
    steps = [] if splitter is None else splitter.get("pretokenizers", [splitter])
    kinds = [step["type"] for step in steps]
    removed = any(str(step.get("behavior", "")).lower() == "removed" for step in steps)
    return "ByteLevel" in kinds and set(kinds) <= _KEEPING and not removed
