"""Incremental detokenization equals decoding at once, whatever the grouping."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcastream.text.detokenizer import Detokenizer
from orcastream.text.tokenizer import Tokenizer
from tests.text import tiny_tokenizers

TOKENIZERS = {
    "byte_level": Tokenizer(tiny_tokenizers.byte_level()),
    "byte_fallback": Tokenizer(tiny_tokenizers.byte_fallback()),
    "byte_fallback_unstripped": Tokenizer(tiny_tokenizers.byte_fallback(strip=False)),
    "metaspace": Tokenizer(tiny_tokenizers.metaspace()),
    "opaque": Tokenizer(tiny_tokenizers.opaque()),
}
KINDS = sorted(TOKENIZERS)


def pushed(tokenizer: Tokenizer, groups: list[list[int]], skip: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    return [*(detokenizer.push(group) for group in groups), detokenizer.finish()]


@pytest.mark.parametrize(("kind", "by_bytes"), [(kind, kind != "opaque") for kind in KINDS])
def test_the_token_table_is_used_for_known_decoders(kind: str, by_bytes: bool) -> None:
    assert (TOKENIZERS[kind].token_bytes is not None) == by_bytes


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_grouping_does_not_matter(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=60))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    groups = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    singles = pushed(tokenizer, [[token_id] for token_id in ids])
    assert "".join(pushed(tokenizer, groups)) == "".join(singles)
    at_cut = Detokenizer(tokenizer)
    assert [at_cut.push(group) for group in groups] == [
        "".join(singles[a:b]) for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skip", [True, False])
@given(data=st.data())
def test_random_ids_equal_decoding_at_once(kind: str, skip: bool, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=60))
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    if "\ufffd" in whole and kind != "byte_level":
        return  # byte fallback replaces a whole run of bytes at once, so the result is known only when the run ends
    assert "".join(pushed(tokenizer, [[token_id] for token_id in ids], skip)) == whole


@given(text=st.text(), size=st.integers(1, 5))
def test_any_text_survives(text: str, size: int) -> None:
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode(text)
    pieces = pushed(tokenizer, [ids[i : i + size] for i in range(0, len(ids), size)], skip=False)
    assert "".join(pieces) == text
    assert pieces[-1] == ""


@pytest.mark.parametrize("text", ["👩‍👩‍👧‍👦", "🇩🇪!", "e\u0301a\u0308", "日本語", "a👍🏽b", "\u200d", "\x00\x7f", "ﷺ"])
@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_never_half_a_character(text: str, kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    prefix = ""
    for piece in pushed(tokenizer, [[token_id] for token_id in tokenizer.encode(text, add_special_tokens=False)]):
        assert "\ufffd" not in piece
        prefix += piece
        assert text.startswith(prefix)
    assert prefix == text


def test_an_incomplete_character_is_replaced_at_the_end_only() -> None:
    tokenizer = TOKENIZERS["byte_fallback"]
    euro = [3 + byte for byte in "€".encode()]
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push([token_id]) for token_id in euro] == ["", "", "€"]
    assert detokenizer.push(euro[:2]) == ""
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.length == 2


def test_invalid_bytes_become_replacement_characters_at_once() -> None:
    tokenizer = TOKENIZERS["byte_fallback"]
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push([3 + 0xFF]) == "\ufffd"
    assert detokenizer.push([3 + 0xE2]) == ""
    assert detokenizer.push([3 + ord("a")]) == "\ufffda"


def test_one_leading_space_is_dropped_as_the_tokenizer_does() -> None:
    tokenizer = TOKENIZERS["byte_fallback"]
    ids = tokenizer._hf.convert_tokens_to_ids(["<s>", "▁▁", "▁the", "▁dog"])
    assert "".join(pushed(tokenizer, [[token_id] for token_id in ids])) == tokenizer.decode(ids) == "  the dog"


def test_special_tokens_are_no_text_unless_requested() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("<|im_start|>hi<|im_end|>")
    assert "".join(pushed(tokenizer, [ids])) == "hi"
    assert "".join(pushed(tokenizer, [ids], skip=False)) == "<|im_start|>hi<|im_end|>"


def test_an_endless_run_of_broken_bytes_costs_a_bounded_window() -> None:
    calls: list[int] = []

    def decode(ids: list[int]) -> str:
        calls.append(len(ids))
        return bytes(ids).decode(errors="replace")

    from orcastream.text.decode_window import DecodeWindow

    window = DecodeWindow(decode)
    for _ in range(200):
        window.push(0xE2)
    window.finish()
    assert max(calls) <= 16


def test_the_window_holds_back_half_a_character() -> None:
    from orcastream.text.decode_window import DecodeWindow

    window = DecodeWindow(lambda ids: bytes(ids).decode(errors="replace"))
    data = "aé世👍z".encode()
    pieces = [window.push(byte) for byte in data]
    assert "".join(pieces) == "aé世👍z"
    assert all("\ufffd" not in piece for piece in pieces)
