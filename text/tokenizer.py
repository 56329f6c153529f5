"""A model's own tokenizer and chat template."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from threading import Lock
from typing import Any, Self

from schemas.errors import InvalidRequest
from text.model_config import ModelConfig, ModelFilesError
from text.token_bytes import TokenBytes

_LONG = 4096
"""Characters from which on a text is handed over to the tokenizer's own threads, which need no interpreter lock."""


class NoChatTemplate(ValueError):
    """The model has no chat template: messages cannot be turned into a prompt."""


class TooManyTokens(ValueError):
    """A text has more tokens than are wanted of it; `count` says how many."""

    def __init__(self, count: int, most: int) -> None:
        super().__init__(f"{count} tokens, at most {most} are wanted")
        self.count = count


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

    @classmethod
    def load(cls, model: str) -> Self:
        """The tokenizer of a directory or hub id; ModelFilesError when there is none."""
        try:
            tokenizer = _read(model)
        except (OSError, ValueError, KeyError) as error:
            if "trust_remote_code" in str(error):
                raise ModelFilesError(
                    f"model: got {model!r}, allowed: one without code of its own (auto_map), which is never run"
                ) from None
            raise ModelFilesError(
                f"model: got {model!r}, allowed: a directory or hub id with a tokenizer ({error})"
            ) from None
        try:
            eos = ModelConfig.load(model).eos_token_ids
        except ModelFilesError:  # a bare tokenizer is enough here
            eos = frozenset()
        return cls(tokenizer, eos)

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return len(self._hf)

    @property
    def has_chat_template(self) -> bool:
        """Can messages be turned into a prompt?"""
        return bool(self._hf.chat_template)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that are no text: end of sequence, padding, marks of a chat."""
        added = self._hf.added_tokens_decoder
        marked = {token_id for token_id, token in added.items() if token.special}
        return frozenset(marked if self._backend is not None else marked | set(self._hf.all_special_ids))

    @cached_property
    def token_bytes(self) -> TokenBytes | None:
        """The bytes of each token; None where the decoder cannot be followed token by token."""
        return None if self._backend is None else TokenBytes.of(self._backend)

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token, and so the most that one token stands for."""
        return max(map(len, self._hf.get_vocab()))

    def encode(self, text: str, *, add_special_tokens: bool = True, most: int | None = None) -> list[int]:
        """The ids of `text`, with the special tokens that the model wants around it unless told otherwise.

        TooManyTokens where there are more than `most`, before any of the ids is handed over.
        """
        if self._backend is None:
            with self._lock:
                encoding: Any = self._hf.encode(text, add_special_tokens=add_special_tokens, verbose=False)
        elif len(text) < _LONG:
            encoding = self._backend.encode(text, add_special_tokens=add_special_tokens)
        else:  # does not work out where in the text each token stands
            (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        if most is not None and len(encoding) > most:
            raise TooManyTokens(len(encoding), most)
        return list(encoding) if self._backend is None else encoding.ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD."""
        if self._backend is not None:
            text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
            return text
        with self._lock:
            return str(
                self._hf.decode(list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
            )

    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        """The prompt ids of a conversation by the model's chat template; `variables` go to the template.

        NoChatTemplate when the model has none, InvalidRequest naming `messages` when the template refuses them.
        """
        return self.encode(
            self.chat_text(messages, add_generation_prompt=add_generation_prompt, **variables),
            add_special_tokens=False,
        )

    def chat_text(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The prompt of a conversation as text; errors as `chat`."""
        if not self.has_chat_template:
            raise NoChatTemplate("the model has no chat template: give it a plain prompt")
        from jinja2 import TemplateError

        try:
            return str(
                self._hf.apply_chat_template(
                    [dict(message) for message in messages],
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    **variables,
                )
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise InvalidRequest(
                "messages", list(messages), f"what the model's chat template takes ({error})"
            ) from None


def _read(model: str) -> Any:
    """transformers' tokenizer of a model, without its log lines: errors are reported by who asked."""
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
    """Silence what transformers says at import where torch is not installed: it is not needed here."""

    def silent(record: logging.LogRecord) -> bool:
        return "PyTorch" not in record.getMessage()

    logger = logging.getLogger("transformers")
    logger.addFilter(silent)
    try:
        yield
    finally:
        logger.removeFilter(silent)
