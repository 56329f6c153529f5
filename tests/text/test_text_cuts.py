"""Parts of a text, tokenized one by one, have the ids of the whole text."""

from itertools import chain
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from orcastream.text import tokenizer as own
from orcastream.text.chat_template import RenderedChat
from orcastream.text.control_tokens import Segment
from orcastream.text.text_cuts import TextCuts
from tests.text import tiny_tokenizers

QWEN2 = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
QWEN35 = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = TEKKEN.replace("+|[^", "+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^", 1).replace(
    r"]*|\p{N}|", r"]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|"
)
DEEPSEEK = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
)
DEMO = (r"\p{N}{1,3}|, (?=\p{N})|\n| ?\p{L}+| ?[^\s\p{L}\p{N}]|\s",)
GPT2: tuple[str, ...] = ()
FAMILIES = {
    "gpt2": GPT2,
    "qwen2": (QWEN2,),
    "llama3": (LLAMA3,),
    "qwen3.5": (QWEN35,),
    "tekken": (TEKKEN,),
    "gpt4o": (GPT4O,),
    "deepseek": DEEPSEEK,
    "demo": DEMO,
}
PIECES = st.sampled_from([
    "a b", "Zz y", "I'll do", "don't s", " 's", "WE've GOT", "é ", "e\u0301 x", "x \u0301y", " ", "  ", "\n", "\r\n ",
    "\t", "7", "1234 a", "a 5", ", 6 ", ",", ". B", "...\n\n", "(a [b {c|d}", "/ ", "世界", "かな a", "a カナ", "Ωμ α",
    "\u00a0a", "a\u2003b", "👩\u200d👩\u200d👧 k", "<", "mark", ">", "<tok> n", "x<tok>", "q",
])  # fmt: skip
TEXT = st.lists(PIECES, min_size=1, max_size=40).map("".join)


def splitting(patterns: tuple[str, ...]) -> pre_tokenizers.PreTokenizer:
    """Split like GPT-2 without a pattern, otherwise like all later models."""
    steps = [pre_tokenizers.Split(Regex(each), "isolated") for each in patterns]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not steps)])


def trained(pre_tokenizer: pre_tokenizers.PreTokenizer, **kind: Any) -> Tokenizer:
    """A byte-level BPE whose tokens join as much as the pre-tokenizer allows."""
    tokenizer = Tokenizer(models.BPE(**kind))
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    texts = ["a b c I'll do don't WE've GOT Zz y, 6 1234 a 世界 かな a (a [b {c|d} Ωμ α"] * 3
    tokenizer.train_from_iterator([*texts, *tiny_tokenizers.TEXTS], trainer)
    tokenizer.add_tokens([AddedToken("<tok>", special=False, lstrip=True, rstrip=True)])
    return tokenizer


DIGITS = pre_tokenizers.Digits(individual_digits=True)
TOKENIZERS = {name: trained(splitting(patterns)) for name, patterns in FAMILIES.items()} | {
    "command": trained(pre_tokenizers.Sequence([DIGITS, splitting(GPT2)])),
}


def ids_of(tokenizer: Tokenizer, *texts: str) -> list[int]:
    encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return list(chain.from_iterable(encoding.ids for encoding in encodings))


@pytest.mark.parametrize("name", TOKENIZERS)
@given(TEXT, st.booleans())
@example("the quick brown fox jumps over the lazy dog", True)
def test_parts_have_the_ids_of_the_whole(name: str, text: str, composed: bool) -> None:
    tokenizer = TOKENIZERS[name]
    tokenizer.normalizer = normalizers.NFC() if composed else None
    parts = TextCuts(tokenizer, most=9, shortest=1).parts(text)
    assert "".join(parts) == text
    assert ids_of(tokenizer, *parts) == ids_of(tokenizer, text)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_known_families_are_cut(name: str) -> None:
    parts = TextCuts(TOKENIZERS[name], most=3, shortest=8).parts("one two six ten two one ten")
    assert parts == ["one two six", " ten two", " one ten"]


def test_short_texts_and_texts_without_words_stay_whole() -> None:
    cuts = TextCuts(TOKENIZERS["qwen2"], most=4, shortest=100)
    assert cuts.parts("a b " * 49) == ["a b " * 49]
    assert cuts.parts("世界 " * 1000) == ["世界 " * 1000]
    assert cuts.parts("") == [""]
    assert list(map(len, cuts.parts("a b " * 100))) == [101, 100, 100, 99]


def with_tokens(*tokens: AddedToken) -> Tokenizer:
    tokenizer = trained(splitting((QWEN2,)))
    tokenizer.add_tokens(list(tokens))
    return tokenizer


def with_normalizer(normalizer: normalizers.Normalizer) -> Tokenizer:
    tokenizer = trained(splitting((QWEN2,)))
    tokenizer.normalizer = normalizer
    return tokenizer


@pytest.mark.parametrize(
    "tokenizer",
    [
        pytest.param(with_tokens(AddedToken("in fact")), id="a token that contains a cut"),
        pytest.param(with_tokens(AddedToken("STOP", rstrip=True)), id="a token that absorbs the space after it"),
        pytest.param(with_normalizer(normalizers.Replace(" ", "▁")), id="a normalizer that changes spaces"),
        pytest.param(with_normalizer(normalizers.Prepend("▁")), id="a normalizer that adds something"),
        pytest.param(trained(splitting((QWEN2,)), dropout=0.5), id="dropout"),
        pytest.param(trained(splitting((QWEN2.replace(r"\p{L}+", r"\p{L}+ ?"),))), id="words take a space"),
        pytest.param(trained(splitting((r"\p{N}",))), id="words are not split"),
        pytest.param(trained(pre_tokenizers.Split(Regex(QWEN2), "removed", invert=True)), id="the rest is removed"),
        pytest.param(trained(pre_tokenizers.Split(Regex(QWEN2), "merged_with_next")), id="words are merged"),
        pytest.param(trained(pre_tokenizers.ByteLevel(use_regex=False)), id="one step that splits nothing"),
        pytest.param(trained(pre_tokenizers.Metaspace()), id="word marks"),
        pytest.param(Tokenizer(models.BPE()), id="no pre-tokenizer"),
    ],
)  # fmt: skip
def test_unknown_tokenizers_are_not_cut(tokenizer: Tokenizer) -> None:
    text = "in fact STOP it " * 20
    assert TextCuts(tokenizer, most=4, shortest=1).parts(text) == [text]


def test_long_prompts_have_the_librarys_ids() -> None:
    backend = trained(splitting((LLAMA3,)))
    backend.add_special_tokens(["<s>", "</s>", "<mark>"])
    around = [("<s>", backend.token_to_id("<s>")), ("</s>", backend.token_to_id("</s>"))]
    backend.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=around)
    tokenizer = own.Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>"))
    text = "The dog's <mark> sleeps, 12345 times — über 世界.\n\n  And then? " * 2000
    assert len(TextCuts(backend, most=2).parts(text)) == 2
    assert tokenizer.encode(text) == backend.encode(text).ids
    assert tokenizer.encode(text, add_special_tokens=False) == backend.encode(text, add_special_tokens=False).ids
    literal = Tokenizer.from_str(backend.to_str())
    literal.encode_special_tokens = True
    chat = RenderedChat((Segment(text, literal=True), Segment(text, literal=False)))
    spelled = literal.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode_chat(chat) == spelled + tokenizer.encode(text, add_special_tokens=False)
