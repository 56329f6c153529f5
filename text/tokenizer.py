"""A model's own tokenizer and chat template."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from threading import Lock
from typing import Any, Self

from orcastream.text.chat_template import ChatTemplate, RenderedChat
from orcastream.text.control_tokens import ControlTokens
from orcastream.text.encode_parts import encode_parts
from orcastream.text.fewest_tokens import FewestTokens
from orcastream.text.literal_tokenizer import LiteralTokenizer
from orcastream.text.model_config import ModelConfig, ModelFilesError, why_missing
from orcastream.text.text_cuts import TextCuts
from orcastream.text.token_bytes import TokenBytes

_LONG = 4096
"""Texts of at least this many characters go to the tokenizer's own threads, which need no interpreter lock."""


class TooManyTokens(ValueError):
    """A text has more tokens than allowed.

    `count` is their number, or with `is_least` a lower bound, known before tokenizing.
    """

    def __init__(self, count: int, most: int, *, is_least: bool = False) -> None:
        self.count = count
        self.is_least = is_least
        super().__init__(f"{self.told}, at most {most} are allowed")

    @property
    def told(self) -> str:
        """The number of tokens in words."""
        return f"at least {self.count} tokens" if self.is_least else f"{self.count} tokens"


class Tokenizer:
    """Text ↔ token ids of one model. Safe to use from several threads.

    Built on transformers' tokenizers, which need no torch.
    """

    def __init__(self, tokenizer: Any, eos_token_ids: frozenset[int] = frozenset()) -> None:
        self._hf = tokenizer
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        self._lock = Lock()
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()
        own = tokenizer.eos_token_id
        self.eos_token_ids = eos_token_ids | (frozenset() if own is None else frozenset({own}))
        """Ids that end a text: the tokenizer's own and those of the model's generation config."""
        special = (token for token in tokenizer.added_tokens_decoder.values() if token.special)
        self.chat_template = ChatTemplate(tokenizer, ControlTokens(special))

    @classmethod
    def load(cls, model: str) -> Self:
        """Load the tokenizer of a directory or hub id. Raises ModelFilesError if there is none."""
        try:
            tokenizer = _read(model)
        except Exception as error:  # this also reads the configuration, which each architecture checks in its own way
            if "trust_remote_code" in str(error):
                raise ModelFilesError(
                    f"model: got {model!r}, allowed: one without code of its own (auto_map), which is never run"
                ) from None
            why = why_missing(model, error)
            raise ModelFilesError(
                f"model: got {model!r}, allowed: a directory or hub id with a tokenizer ({why})"
            ) from None
        try:
            eos = ModelConfig.load(model).eos_token_ids
        except ModelFilesError:  # a bare tokenizer is enough here
            eos = frozenset()
        return cls(tokenizer, eos)

    @property
    def vocab_size(self) -> int:
        """Number of ids, including added tokens."""
        return len(self._hf)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that are not text: end of sequence, padding, marks of a chat."""
        added = self._hf.added_tokens_decoder
        marked = {token_id for token_id, token in added.items() if token.special}
        return frozenset(marked if self._backend is not None else marked | set(self._hf.all_special_ids))

    @cached_property
    def token_bytes(self) -> TokenBytes | None:
        """The bytes of each token; None if the decoder does not work token by token."""
        return None if self._backend is None else TokenBytes.of(self._backend)

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token, and so the maximum that one token stands for."""
        return self._fewest_tokens.longest

    @cached_property
    def _fewest_tokens(self) -> FewestTokens:
        return FewestTokens(self._hf.get_vocab(), self._backend)

    def encode(self, text: str, *, add_special_tokens: bool = True, most: int | None = None) -> list[int]:
        """Return the ids of `text`, by default with the special tokens that the model expects around it.

        Raises TooManyTokens if there are more than `most`: before converting any ids, and where possible before
        tokenizing `text`.
        """
        self._check(text, most)
        return _ids([self._encoding(text, add_special_tokens=add_special_tokens)], most)

    def encode_chat(
        self, chat: RenderedChat, *, add_special_tokens: bool = False, most: int | None = None
    ) -> list[int]:
        """Return the ids of a conversation: control tokens come only from its template. Raises TooManyTokens as
        `encode`.

        `add_special_tokens` adds those that the model expects around any text.
        """
        for segment in chat.segments:
            self._check(segment.text, most)
        encodings = [self._encoding(segment.text, literal=segment.literal) for segment in chat.segments]
        before, after = self._around if add_special_tokens else ([], [])
        return _ids([before, *encodings, after], most)

    def chat(self, messages: Sequence[Mapping[str, Any]], **how: Any) -> list[int]:
        """Return the prompt ids of a conversation; `how` and errors as for `ChatTemplate.render`."""
        return self.encode_chat(self.chat_template.render(messages, **how))

    @cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """The special tokens that `encode` adds before and after a text."""
        whole, inside = self.encode("a"), self.encode("a", add_special_tokens=False)
        num_before = next(at for at in range(len(whole)) if whole[at : at + len(inside)] == inside)
        return whole[:num_before], whole[num_before + len(inside) :]

    def _check(self, text: str, most: int | None) -> None:
        if most is not None and len(text) >= _LONG and (fewest := self._fewest_tokens.of(text)) > most:
            raise TooManyTokens(fewest, most, is_least=True)

    def _encoding(self, text: str, *, add_special_tokens: bool = False, literal: bool = False) -> Any:
        """Return an object that has a length, and ids."""
        if self._backend is None:
            with self._lock:
                return self._hf.encode(
                    text, add_special_tokens=add_special_tokens, split_special_tokens=literal, verbose=False
                )
        if literal:
            return self._literal.encode(text)
        if len(text) < _LONG:
            return self._backend.encode(text, add_special_tokens=add_special_tokens)
        parts = self._cuts.parts(text)
        whole = len(parts) == 1
        encodings = encode_parts(self._backend, parts, add_special_tokens=add_special_tokens and whole)
        if whole:
            return encodings[0]
        before, after = self._around if add_special_tokens else ([], [])
        return _ids([before, *encodings, after], most=None)

    @cached_property
    def _cuts(self) -> TextCuts:
        return TextCuts(self._backend)

    @cached_property
    def _literal(self) -> LiteralTokenizer:
        return LiteralTokenizer(self._backend)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        if self._backend is not None:
            text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
            return text
        with self._lock:
            return str(
                self._hf.decode(list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
            )


def _ids(encodings: Sequence[Any], most: int | None) -> list[int]:
    """Return the concatenated ids of several encodings."""
    count = sum(map(len, encodings))
    if most is not None and count > most:
        raise TooManyTokens(count, most)
    parts: list[list[int]] = [one if isinstance(one, list) else one.ids for one in encodings]
    return parts[0] if len(parts) == 1 else [token_id for part in parts for token_id in part]


def _read(model: str) -> Any:
    """Load a model's transformers tokenizer without its log lines: the caller reports errors."""
    with _without_advice():
        from transformers import AutoTokenizer
        from transformers.utils import logging as transformers_logging
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        return AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    finally:
        transformers_logging.set_verbosity(verbosity)


@contextmanager
def _without_advice() -> Iterator[None]:
    """Silence the warning of transformers at import that torch is not installed: it is not needed here."""

    def silent(record: logging.LogRecord) -> bool:
        return "PyTorch" not in record.getMessage()

    logger = logging.getLogger("transformers")
    logger.addFilter(silent)
    try:
        yield
    finally:
        logger.removeFilter(silent)
