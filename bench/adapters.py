"""Measure the cost of LoRA adapters: `python -m orcastream.bench.adapters --model DIR`.

One batch of equal requests, computed by the plain model, by an engine with adapters enabled but none requested, and
with the requests spread over the model and several random adapters of all linear layers of its decoder. The variants
alternate, repeat by repeat; figures are medians, ratios are to the first variant.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from orcastream.engine import Adapter, EngineConfig, OrcaEngine, Request
from orcastream.schemas.sampling import SamplingParams

_VARIANTS = ("without", "asked for none", "spread")


def write_adapter(folder: Path, model: str, rank: int, seed: int) -> None:
    """Write a random LoRA adapter of all linear layers except the head, in PEFT's format."""
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for name, layer in network.named_modules():
        if isinstance(layer, nn.Linear) and layer is not network.get_output_embeddings():
            for factor, shape in (("A", (rank, layer.in_features)), ("B", (layer.out_features, rank))):
                weight = torch.randn(shape, generator=generator) * shape[1] ** -0.5
                weights[f"base_model.model.{name}.lora_{factor}.weight"] = weight.to(torch.bfloat16)
    targets = sorted({name.split(".")[-3] for name in weights})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "target_modules": targets}
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(weights, folder / "adapter_model.safetensors")


class AdapterBench:
    """One loaded model, used by an engine without adapters and by one with them."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        config = EngineConfig(options.model, max_batch_size=options.requests, prefix_cache=False)
        without = OrcaEngine.load(config)
        able = OrcaEngine(
            EngineConfig(
                options.model,
                max_batch_size=options.requests,
                prefix_cache=False,
                max_adapters=options.adapters,
                max_adapter_rank=options.rank,
            ),
            without.model,
        )
        assert able.adapters is not None
        self._adapters: list[Adapter | None] = [None]
        self.read_s: list[float] = []
        for number in range(options.adapters):
            write_adapter(folder / str(number), options.model, options.rank, number)
            begun_s = time.perf_counter()
            self._adapters.append(able.adapters.read(str(number), folder / str(number)))
            self.read_s.append(time.perf_counter() - begun_s)
        self._engines = {"without": without, "asked for none": able, "spread": able}

    def run(self) -> dict[str, dict[str, list[float]]]:
        """Return each variant's output tokens per second and milliseconds of a decode iteration, by repeat."""
        figures: dict[str, dict[str, list[float]]] = {name: {"tokens_per_s": [], "decode_ms": []} for name in _VARIANTS}
        for name in _VARIANTS:
            self._once(name, 4)
        for _ in range(self._options.repeats):
            for name in _VARIANTS:
                begun_s = time.perf_counter()
                decode_ms = self._once(name, self._options.output)
                tokens = self._options.requests * self._options.output
                figures[name]["tokens_per_s"].append(tokens / (time.perf_counter() - begun_s))
                figures[name]["decode_ms"].append(decode_ms)
        return figures

    def _once(self, variant: str, num_tokens: int) -> float:
        """Compute the batch; return the median time of its decode iterations in ms."""
        engine, options = self._engines[variant], self._options
        generator = torch.Generator().manual_seed(0)
        for number in range(options.requests):
            prompt = torch.randint(3, engine.limits.vocab_size, (options.prompt,), generator=generator).tolist()
            adapter = self._adapters[number % len(self._adapters)] if variant == "spread" else None
            sampling = SamplingParams(temperature=0, ignore_eos=True, max_tokens=num_tokens)
            engine.submit(Request(str(number), tuple(prompt), sampling, adapter=adapter))
        times = []
        while engine.has_work:
            engine.step()
            record = engine.last_iteration
            if record is not None and not record.prefill_tokens:
                times.append(record.total_s * 1000)
        return statistics.median(times)


def main(arguments: Sequence[str]) -> int:
    """Measure and print; with --json, also write all figures."""
    parser = argparse.ArgumentParser(
        prog="orcastream.bench.adapters", description=__doc__.split("\n")[0] if __doc__ else ""
    )
    parser.add_argument("--model", required=True, help="directory or hub id; see `orcastream bench make-model`")
    for name, default in (("adapters", 3), ("rank", 16), ("requests", 16), ("prompt", 128), ("output", 128)):
        parser.add_argument(f"--{name}", type=int, default=default, help="(%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--threads", type=int, help="torch's threads (torch's default)")
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args(list(arguments))
    if options.threads:
        torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        bench = AdapterBench(options, Path(folder))
        figures = bench.run()
    print(f"{options.adapters} adapters of rank {options.rank}, each read in {statistics.median(bench.read_s):.2f} s")
    base = statistics.median(figures["without"]["tokens_per_s"])
    for name, found in figures.items():
        rate, decode_ms = statistics.median(found["tokens_per_s"]), statistics.median(found["decode_ms"])
        print(f"{name:16} {rate:8.1f} tokens/s  {rate / base:6.1%}  iteration of decodes {decode_ms:7.2f} ms")
    if options.json:
        options.json.write_text(json.dumps({"figures": figures, "read_s": bench.read_s}, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
