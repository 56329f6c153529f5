"""llama.cpp through its C functions: a batch of many sequences per step, as in its server."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .protocol import Ask, Load, Piece

_BATCH_TOKENS = 2048
"""Default batch of llama.cpp and its server, which compute it in parts of 512."""
_FILE = "model.gguf"


def prepare(model: Path, dtype: str, into: Path) -> None:
    """Write the GGUF file."""
    from .gguf_file import write_gguf

    into.mkdir(parents=True)
    write_gguf(model, dtype, into / _FILE)


def load(load: Load) -> "LlamaCpp":
    """Load the weights and create a context for the maximum number of sequences."""
    return LlamaCpp(load)


@dataclass
class _Sequence:
    """One slot of the context and its request; `fed` tokens of the prompt are in the batch or computed."""

    index: int
    ask: Ask
    fed: int = 0
    given: int = 0
    last: int = 0
    row: int | None = None


class LlamaCpp:
    """One context. Each step takes the next token of each decoding request, and then as much of the prompts as fits."""

    def __init__(self, load: Load) -> None:
        import llama_cpp

        self._lib = llama_cpp
        self.version: str = llama_cpp.__version__
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(
            str(Path(load.model) / _FILE).encode(), llama_cpp.llama_model_default_params()
        )
        self._context = llama_cpp.llama_init_from_model(model, self._settings(load))
        if not self._context:
            raise RuntimeError("llama.cpp: no context for this model")
        self._vocab_size: int = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch_tokens = load.max_num_batched_tokens or _BATCH_TOKENS
        self._batch = llama_cpp.llama_batch_init(self._batch_tokens, 0, 1)
        self._places: list[_Sequence | None] = [None] * load.max_batch_size
        self._waiting: deque[tuple[int, Ask]] = deque()

    def _settings(self, load: Load) -> Any:
        settings = self._lib.llama_context_default_params()
        settings.n_ctx = load.max_model_len * load.max_batch_size
        settings.n_batch = load.max_num_batched_tokens or _BATCH_TOKENS
        settings.n_seq_max = load.max_batch_size
        settings.n_threads = settings.n_threads_batch = load.threads
        if load.dtype == "float32":
            settings.type_k = settings.type_v = 0
        return settings

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self._waiting) or any(self._places)

    def submit(self, index: int, ask: Ask) -> None:
        """Queue a request until a slot is free."""
        self._waiting.append((index, ask))

    def step(self) -> Iterable[Piece]:
        """Compute one batch. Raises RuntimeError if that fails."""
        for place, sequence in enumerate(self._places):
            if sequence is None and self._waiting:
                self._places[place] = _Sequence(*self._waiting.popleft())
        self._fill()
        if self._lib.llama_decode(self._context, self._batch):
            raise RuntimeError("llama_decode failed")
        return [self._sample(place, one) for place, one in enumerate(self._places) if one and one.row is not None]

    def _fill(self) -> None:
        self._batch.n_tokens = 0
        running = [(place, one) for place, one in enumerate(self._places) if one]
        for place, one in running:
            one.row = None
            if one.given:
                one.row = self._add(place, one.last, one.fed + one.given - 1, wanted=True)
        for place, one in running:
            room = min(len(one.ask.prompt) - one.fed, self._batch_tokens - self._batch.n_tokens)
            for _ in range(room):
                one.fed += 1
                is_last = one.fed == len(one.ask.prompt)
                row = self._add(place, one.ask.prompt[one.fed - 1], one.fed - 1, wanted=is_last)
                one.row = row if is_last else None

    def _add(self, place: int, token: int, position: int, *, wanted: bool) -> int:
        """Add a token; return its row in the batch."""
        batch, row = self._batch, int(self._batch.n_tokens)
        batch.token[row], batch.pos[row] = token, position
        batch.n_seq_id[row], batch.seq_id[row][0] = 1, place
        batch.logits[row] = wanted
        batch.n_tokens = row + 1
        return row

    def _sample(self, place: int, one: _Sequence) -> Piece:
        import numpy

        logits = self._lib.llama_get_logits_ith(self._context, one.row)
        one.last = int(numpy.ctypeslib.as_array(logits, shape=(self._vocab_size,)).argmax())
        one.given += 1
        if one.given == one.ask.max_tokens:
            memory = self._lib.llama_get_memory(self._context)
            self._lib.llama_memory_seq_rm(memory, place, -1, -1)
            self._places[place] = None
        return Piece(one.index, [one.last])
