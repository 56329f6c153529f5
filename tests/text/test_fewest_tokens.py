"""A text never has fewer tokens than the bound, which needs little tokenization."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers

from orcastream.text.fewest_tokens import FewestTokens
from orcastream.text.tokenizer import Tokenizer, TooManyTokens
from tests.text import tiny_tokenizers


def bound_of(hf: Any) -> FewestTokens:
    return FewestTokens(hf.get_vocab(), hf.backend_tokenizer)


BYTE_LEVEL = tiny_tokenizers.byte_level()
KINDS = [BYTE_LEVEL, tiny_tokenizers.byte_fallback(), tiny_tokenizers.metaspace(), tiny_tokenizers.opaque()]


@given(st.lists(st.text(max_size=20) | st.sampled_from([" ", "the ", "\n", "<|im_end|>", "aa", "  "]), max_size=30))
def test_the_bound_never_exceeds_the_texts_tokens(parts: list[str]) -> None:
    text = "".join(parts)
    for hf in KINDS[:2]:  # the others remove spaces
        assert bound_of(hf).of(text) <= len(hf.backend_tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("letter", ["a", " ", "\n", "x", "<"])
def test_a_repeated_letter_is_bounded_without_tokenization(letter: str) -> None:
    text = letter * 10_000
    count = len(BYTE_LEVEL.backend_tokenizer.encode(text, add_special_tokens=False))
    assert count // 4 < bound_of(BYTE_LEVEL).of(text) <= count
    tokenizer = Tokenizer(BYTE_LEVEL)
    tokenizer._encoding = lambda *_, **__: pytest.fail("it was tokenized")  # type: ignore[method-assign]
    with pytest.raises(TooManyTokens, match=f"at least {bound_of(BYTE_LEVEL).of(text)} tokens, at most 1000"):
        tokenizer.encode(text, most=1000)


@pytest.mark.parametrize("what", ["normalizer", "removed", "kind"])
def test_if_characters_may_be_removed_only_the_length_counts(what: str) -> None:
    hf = tiny_tokenizers.byte_level()
    backend = hf.backend_tokenizer
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if what == "normalizer":
        backend.normalizer = normalizers.Replace(Regex(" +"), " ")
    elif what == "removed":
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed"), level])
    else:
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), level])
    text = "a" + " " * 10_000
    assert bound_of(hf).of(text) == -(-len(text) // max(map(len, hf.get_vocab())))


def test_spaces_absorbed_by_a_control_token_do_not_count() -> None:
    hf = tiny_tokenizers.byte_level()
    hf.add_special_tokens({"additional_special_tokens": [AddedToken("<|user|>", rstrip=True, special=True)]})
    text = "<|user|>" + " " * 10_000
    assert len(hf.backend_tokenizer.encode(text, add_special_tokens=False)) == 1
    assert bound_of(hf).of(text) == -(-len(text) // max(map(len, hf.get_vocab())))
