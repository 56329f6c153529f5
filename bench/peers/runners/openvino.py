"""OpenVINO GenAI: its ContinuousBatchingPipeline, with a model that optimum-intel exports once."""

import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .protocol import Ask, Load, Piece

_WEIGHTS = {"bfloat16": "fp16", "float32": "fp32", "int8": "int8"}
"""Weights are stored in fp16 and computed in bfloat16, which is the plugin's default where possible."""
_GROUP_SIZE = 1024
"""Group size of dynamic quantization: the fastest as measured; the default is 32."""


def prepare(model: Path, dtype: str, into: Path) -> None:
    """Export the model. Raises RuntimeError with the tool's own message if that fails."""
    tool = Path(sys.executable).with_name("optimum-cli")
    command = [tool, "export", "openvino", "--model", model, "--task", "text-generation-with-past"]
    command += ["--weight-format", _WEIGHTS[dtype], "--disable-convert-tokenizer", into]
    done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"optimum-cli: {done.stderr.strip()[-500:]}")


def load(load: Load) -> "OpenVino":
    """Load the pipeline with the scheduler's default settings."""
    return OpenVino(load)


class OpenVino:
    """One pipeline; output is read from one handle per request."""

    def __init__(self, load: Load) -> None:
        import openvino_genai

        self.version = version("openvino-genai")
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_seqs = load.max_batch_size
        if load.max_num_batched_tokens is not None:
            scheduler.max_num_batched_tokens = load.max_num_batched_tokens
        scheduler.cache_size = 0  # it grows as needed
        settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": load.threads}
        if load.dtype == "int8":
            settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = _GROUP_SIZE
        if load.dtype == "float32":
            settings["INFERENCE_PRECISION_HINT"] = settings["KV_CACHE_PRECISION"] = "f32"
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(load.model, scheduler, load.device.upper(), settings)
        self._config = openvino_genai.GenerationConfig
        self._runs = 0
        self._handles: dict[int, Any] = {}

    @property
    def busy(self) -> bool:
        """Whether any handle has not ended."""
        return bool(self._handles)

    def submit(self, index: int, ask: Ask) -> None:
        """Submit a greedy request."""
        import numpy
        from openvino import Tensor

        config = self._config()
        config.max_new_tokens = ask.max_tokens
        config.ignore_eos, config.do_sample = True, False
        prompt = Tensor(numpy.array([ask.prompt], dtype=numpy.int64))
        self._runs += 1
        self._handles[index] = self._pipeline.add_request(self._runs, prompt, config)

    def step(self) -> Iterable[Piece]:
        """Run one iteration of the pipeline."""
        self._pipeline.step()
        pieces = []
        for index, handle in list(self._handles.items()):
            ended = str(handle.get_status()) != "GenerationStatus.RUNNING"
            while handle.can_read():
                (output,) = handle.read().values()
                pieces.append(Piece(index, [int(token) for token in output.generated_ids]))
            if ended:
                del self._handles[index]
        return pieces
