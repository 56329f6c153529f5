"""transformers' continuous batching: the manager behind generate_batch(), with a separate length per request."""

import math
import time
from collections.abc import Iterable

from .protocol import Ask, Load, Piece
from .transformers_generate import load_model

_PATIENCE_S = 0.2


def load(load: Load) -> "TransformersContinuous":
    """Load the manager with its own settings except for those that all systems share."""
    return TransformersContinuous(load)


class TransformersContinuous:
    """A manager whose loop computes in a thread and delivers tokens with their times."""

    def __init__(self, load: Load) -> None:
        import transformers

        self.version: str = transformers.__version__
        model = load_model(load)
        settings = transformers.ContinuousBatchingConfig(max_requests_per_batch=load.max_batch_size)
        if load.device == "cpu":  # elsewhere it checks the free memory
            settings.num_blocks = math.ceil(load.kv_tokens / settings.page_size) + load.max_batch_size
            settings.max_batch_tokens = max(512, load.max_batch_size)
        if load.max_num_batched_tokens is not None:
            settings.max_batch_tokens = load.max_num_batched_tokens
        greedy = transformers.GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        self._manager = model.init_continuous_batching(greedy, settings)
        self._manager.warmup()
        self._manager.start()
        self._runs = 0
        self._running: dict[str, int] = {}
        self._given: dict[str, int] = {}

    @property
    def busy(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._running)

    def submit(self, index: int, ask: Ask) -> None:
        """Submit a greedy request."""
        self._runs += 1
        name = str(self._runs)
        self._running[name], self._given[name] = index, 0
        self._manager.add_request(ask.prompt, name, ask.max_tokens, streaming=True, eos_token_id=-1)

    def step(self) -> Iterable[Piece]:
        """Return new output of one request. Raises RuntimeError if the loop has died."""
        output = self._manager.get_result(timeout=_PATIENCE_S)
        if output is None:
            if not self._manager.is_running():
                raise RuntimeError(f"continuous batching ended: {self._manager.background_thread_status.fatal_error}")
            return []
        now_s = time.monotonic()
        if output.error:
            raise RuntimeError(output.error)
        name = output.request_id
        fresh = output.generated_tokens[self._given[name] :]
        self._given[name] += len(fresh)
        piece = Piece(self._running[name], fresh, now_s)
        if output.is_finished():
            del self._running[name], self._given[name]
        return [piece]
