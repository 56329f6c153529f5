"""Finds cuts in a long text such that its parts, tokenized separately, have the ids of the whole."""

import os
import re
from typing import Any, Final

from orcastream.text.section import section_of

_SHORTEST: Final = 16_384
"""Minimum characters per part for which waking a thread pays."""
_CUT: Final = re.compile("(?<=[A-Za-z])(?= [A-Za-z])")
"""After an ASCII letter, before one space and another ASCII letter."""

_CONTRACTIONS: Final = frozenset({"'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "(?i:'s|'t|'re|'ve|'m|'ll|'d)"})
_NO_LETTERS: Final = frozenset({
    r"\p{N}", r"\p{N}{1,3}", r" ?\p{N}+", r", (?=\p{N})", "[一-龥\u3040-ゟ゠-ヿ]+",
    r" ?[^\s\p{L}\p{N}]", r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", r" ?[\p{P}\p{S}]+[\r\n]*",
    r"\n", r"\s", r"\s+", r"\s+(?!\S)", r"\s*[\r\n]+",
})  # fmt: skip
_MARKED_WORD: Final = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
_CASED: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
_WORDS: Final = tuple(
    frozenset(words)
    for words in (
        (r" ?\p{L}+",),
        (r"[^\r\n\p{L}\p{N}]?\p{L}+",),
        (r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",),
        (r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",),
        _CASED,
        tuple(f"{each}(?i:'s|'t|'re|'ve|'m|'ll|'d)?" for each in _CASED),
    )
)
"""Sets of alternatives that together match at any ASCII letter."""
_KNOWN: Final = frozenset.union(_CONTRACTIONS, _NO_LETTERS, {_MARKED_WORD}, *_WORDS)
"""The alternatives that GPT-2, Llama 3, Qwen, GPT-4o, gpt-oss, Tekken, Command, DeepSeek and the demo model split
words with. None matches a letter and a space after it, looks back, or looks ahead across a cut.
"""
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The pattern built into `ByteLevel`."""


class TextCuts:
    """The cuts of one tokenizer; none if it is not known to split words at each of them.

    At a cut each supported tokenizer ends one word and begins another, whatever else the text contains: matches before
    it depend only on the text before it, nothing matches across it, and matching restarts after it. Models see words
    one by one, so ids do not depend on where a text was cut.
    """

    def __init__(self, backend: Any, most: int | None = None, shortest: int = _SHORTEST) -> None:
        """`backend` is a tokenizer of `tokenizers`.

        Makes at most `most` parts, by default one per core, none shorter than about `shortest` characters.
        """
        self._known = (
            _keeps_cuts(section_of(backend.normalizer))
            and _splits_words(section_of(backend.pre_tokenizer))
            and getattr(backend.model, "dropout", None) is None
            and not any(map(_crosses_cuts, backend.get_added_tokens_decoder().values()))
        )
        self._most = (os.cpu_count() or 1) if most is None else most
        self._shortest = shortest

    def parts(self, text: str) -> list[str]:
        """Return `text` in parts of about equal length; in one part if it is short or has no cut."""
        count = min(self._most, len(text) // self._shortest) if self._known else 1
        places = [0]
        for number in range(1, count):
            found = _CUT.search(text, len(text) * number // count, len(text) * (number + 1) // count)
            if found is not None:
                places.append(found.start())
        return [text[begin:end] for begin, end in zip(places, [*places[1:], len(text)], strict=True)]


def _keeps_cuts(normalizer: dict[str, Any] | None) -> bool:
    """Whether the normalizer keeps cuts: NFC never combines an ASCII letter or space with a character next to a cut."""
    return normalizer is None or normalizer["type"] == "NFC"


def _splits_words(pre_tokenizer: dict[str, Any] | None) -> bool:
    """Whether all steps are known not to match across a cut, and one of them matches any word."""
    if pre_tokenizer is None:
        return False
    steps = [_alternatives_of(step) for step in pre_tokenizer.get("pretokenizers", [pre_tokenizer])]
    return all(step <= _KNOWN for step in steps) and any(words <= step for step in steps for words in _WORDS)


def _alternatives_of(step: dict[str, Any]) -> frozenset[str]:
    """Return the alternatives that a step splits at; an unknown one if it does anything else."""
    if step["type"] == "ByteLevel":
        return _alternatives(_GPT2) if step["use_regex"] else frozenset()
    if step["type"] == "Digits":
        return frozenset({r"\p{N}"})
    if step["type"] == "Split" and step["behavior"] == "Isolated" and not step["invert"]:
        return _alternatives(step["pattern"].get("Regex", ""))
    return frozenset({step["type"]})


def _alternatives(regex: str) -> frozenset[str]:
    """Return the parts of a pattern between those `|` that are outside of groups and classes."""
    found, depth, in_class = [""], 0, False
    for token in re.findall(r"\\.|.", regex, re.DOTALL):
        if token == "|" and not depth and not in_class:
            found.append("")
            continue
        found[-1] += token
        if in_class or token == "[":
            in_class = token != "]"
        else:
            depth += (token == "(") - (token == ")")
    return frozenset(found)


def _crosses_cuts(added: Any) -> bool:
    """Whether an added token may contain a cut, or absorb the space after one."""
    return bool(_CUT.search(added.content) or (added.rstrip and re.search("[A-Za-z]$", added.content)))
