"""The text and bytes of a single token."""

import pytest

from orcastream.text.token_text import token_text
from orcastream.text.tokenizer import Tokenizer
from tests.text import tiny_tokenizers

TEXT = "Zwölf 世界 👍 dog"


@pytest.mark.parametrize("make", [tiny_tokenizers.byte_level, tiny_tokenizers.byte_fallback], ids=["level", "fallback"])
def test_the_tokens_bytes_concatenate_to_the_text(make: object) -> None:
    tokenizer = Tokenizer(make())  # type: ignore[operator]
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    told = [token_text(tokenizer, token, first=number == 0) for number, token in enumerate(ids)]
    raw = b"".join(each.raw for each in told)
    assert raw.decode() == tokenizer.decode(ids) or raw.decode().strip() == tokenizer.decode(ids).strip()
    assert not all(each.is_text for each in told), "some tokens are parts of characters"
    for each in told:
        assert each.text == each.raw.decode(errors="replace")
        assert each.is_text is (each.raw.decode(errors="replace").encode() == each.raw)


def test_control_tokens_show_their_names() -> None:
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    assert token_text(tokenizer, 2).text == tiny_tokenizers.END


def test_an_unknown_tokenizer_uses_its_decoded_text() -> None:
    tokenizer = Tokenizer(tiny_tokenizers.opaque())
    assert tokenizer.token_bytes is None
    assert token_text(tokenizer, 3).text == tokenizer.decode([3])
