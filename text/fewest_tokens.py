"""How many tokens a text has at least, told without tokenizing it."""

from collections import Counter
from collections.abc import Collection
from typing import Any, Final

from orcastream.text.section import section_of

_SAMPLES: Final = 1000
_LETTERS: Final = 2
_KEEPING: Final = frozenset({"ByteLevel", "Digits", "Sequence", "Split"})
"""Pre-tokenizers after which all characters of a text are still there, unless one of them is told to remove some."""
_SAME_FOR_ASCII: Final = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
_STAND_INS: Final = {" ": "Ġ", "\n": "Ċ", "\t": "ĉ", "\r": "č"}
"""How byte-level vocabularies write the ASCII characters that are not written as they are."""


class FewestTokens:
    """A bound from below: each token stands for so many characters at most, and for so many of one letter."""

    def __init__(self, vocabulary: Collection[str], backend: Any | None) -> None:
        """`backend` is the tokenizer of `tokenizers`, where there is one."""
        self._vocabulary = vocabulary
        self.longest = max(map(len, vocabulary))
        self._counts_letters = backend is not None and _keeps_ascii(backend)
        takes_spaces = backend is not None and any(
            token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values()
        )
        self._uncounted = " \n\t\r" if takes_spaces else ""
        self._most: dict[str, int] = {}

    def of(self, text: str) -> int:
        """No more than the tokens that `text` has, in time that is short beside that of tokenizing it."""
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
        """The most of a letter in one token; 0 where no token says how it is written alone."""
        if letter not in self._most:
            written = _STAND_INS.get(letter, letter)
            known = written in self._vocabulary
            self._most[letter] = max(token.count(written) for token in self._vocabulary) if known else 0
        return self._most[letter]


def _keeps_ascii(backend: Any) -> bool:
    """Whether each character of an ASCII text is in one of its tokens: byte-level, and nothing is taken away before."""
    normalizer, splitter = section_of(backend.normalizer), section_of(backend.pre_tokenizer)
    if normalizer is not None and normalizer["type"] not in _SAME_FOR_ASCII:
        return False
    steps = [] if splitter is None else splitter.get("pretokenizers", [splitter])
    kinds = [step["type"] for step in steps]
    removed = any(str(step.get("behavior", "")).lower() == "removed" for step in steps)
    return "ByteLevel" in kinds and set(kinds) <= _KEEPING and not removed
