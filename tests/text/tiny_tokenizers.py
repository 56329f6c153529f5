"""Small tokenizers of every relevant kind, built in memory."""

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEXTS = [
    "the quick brown fox jumps over the lazy dog, then the dog sleeps.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "こんにちは世界。今日は良い天気ですね。 你好，世界",
    "emoji 👩‍👩‍👧‍👦 🇩🇪 👍🏽 and e\u0301 combining a\u0308",
    "  leading spaces\n\nand\ttabs  ",
]
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] not in ['system', 'user', 'assistant'] -%}"
    "{{- raise_exception('unknown role ' + message['role']) -}}"
    "{%- endif -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def byte_level(chat_template: str | None = CHAT_TEMPLATE, control: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Byte-level BPE, as GPT-2, Llama 3 and Qwen have; `control` are further control tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens([AddedToken("<think> ok", special=False)])
    tokenizer.add_special_tokens(list(control))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, chat_template=chat_template
    )


def byte_fallback(strip: bool = True) -> PreTrainedTokenizerFast:
    """Sentencepiece-like BPE with byte tokens, as Llama 2 and Mistral (strip) or Gemma (no strip) have."""
    words = ["▁", "▁the", "▁dog", "the", "é", "世界", "▁a", "a", "b", "▁▁", " x", *"helowrd"]
    vocab = {
        token: i for i, token in enumerate(["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *words])
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def metaspace() -> PreTrainedTokenizerFast:
    """Unigram with word marks, as T5 has."""
    pieces = ["<unk>", "</s>", "▁", "▁the", "▁dog", "s", "é", "世", "▁▁x", "x▁y"]
    tokenizer = Tokenizer(models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")


def opaque() -> PreTrainedTokenizerFast:
    """A tokenizer that cannot be decoded token by token: word pieces."""
    pieces = ["[UNK]", "[SEP]", "the", "dog", "##s", "##é", "世", ",", "cat", "##ing"]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="[SEP]", unk_token="[UNK]")


def spaced(chat_template: str) -> PreTrainedTokenizerFast:
    """Word marks only before the first word, and control tokens that absorb adjacent spaces, as in Phi 3."""
    words = ["<unk>", "▁", *"abcdefghijklmnopqrstuvwxyz<|>/_#\nXé", "▁a", "so", "it"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(words)},
            merges=[("▁", "a"), ("s", "o"), ("i", "t")],
            unk_token="<unk>",
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens([AddedToken(START, rstrip=True), AddedToken(END, lstrip=True), AddedToken(PAD)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, unk_token="<unk>", chat_template=chat_template
    )
