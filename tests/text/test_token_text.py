"""One token's own text and bytes."""

import pytest

from orcastream.text.token_text import token_text
from orcastream.text.tokenizer import Tokenizer
from tests.text import tiny_tokenizers

TEXT = "Zwölf 世界 👍 dog"


@pytest.mark.parametrize("make", [tiny_tokenizers.byte_level, tiny_tokenizers.byte_fallback], ids=["level", "fallback"])
def test_the_bytes_of_all_tokens_are_those_of_the_text(make: object) -> None:
    tokenizer = Tokenizer(make())  # type: ignore[operator]
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    told = [token_text(tokenizer, token, first=number == 0) for number, token in enumerate(ids)]
    raw = b"".join(each.raw for each in told)
    assert raw.decode() == tokenizer.decode(ids) or raw.decode().strip() == tokenizer.decode(ids).strip()
    assert not all(each.is_text for each in told), "some tokens are parts of characters"
    for each in told:
        assert each.text == each.raw.decode(errors="replace")
        assert each.is_text is (each.raw.decode(errors="replace").encode() == each.raw)


def test_control_tokens_say_their_names() -> None:
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    assert token_text(tokenizer, 2).text == tiny_tokenizers.END


def test_a_tokenizer_that_cannot_be_followed_says_what_it_decodes() -> None:
    tokenizer = Tokenizer(tiny_tokenizers.opaque())
    assert tokenizer.token_bytes is None
    assert token_text(tokenizer, 3).text == tokenizer.decode([3])
