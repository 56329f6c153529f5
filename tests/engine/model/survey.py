"""A survey of every causal language model in transformers: served, refused (with the reason), or wrong.

    python -m tests.engine.model.survey [NAME ...]

Each is built tiny and random, checked as at load, and, if served, compared with transformers' own generate, greedily
and beyond 140 positions. Prints one line per model and the counts; the exit status is 1 if a model computes different
tokens.
"""

import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from orcastream.engine import EngineConfig, OrcaEngine, UnsupportedModel
from orcastream.engine.attention import TorchBackend
from orcastream.engine.model.quiet import quiet
from orcastream.engine.model.self_check import check_model
from orcastream.schemas.sampling import SamplingParams
from tests.engine.conftest import SIZES, build

POSITIONS = 256
PROMPTS = ((140,), (30, 3), (1, 125))
"""Lengths of the prompts of one crowd after the other."""
NUM_TOKENS = 24

_SMALL: dict[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "intermediate_size_mlp": 32,
    "ffn_dim": 48,
    "vocab_size_per_layer_input": 96,
}
_LATENT: dict[str, Any] = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
}
VARIANTS: tuple[dict[str, Any], ...] = (
    {**_SMALL, "head_dim": 8},
    {**_SMALL, **_LATENT},
    _SMALL,
    {**_SMALL, "hidden_size": 64, "head_dim": 16, "num_hidden_layers": 4},
    {"is_decoder": True, **_SMALL},
    {**_SMALL, "head_dim": 8, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    {"rotary_dim": 4, "attention_types": [[["global", "local"], 1]], "window_size": 16},
    {**_SMALL, "hidden_size": 64, "num_hidden_layers": 5, "rope_parameters": None, "layer_types": None},
    {},
)
_PARTS: dict[str, Any] = {
    "text_config": {**SIZES, **_SMALL, "max_position_embeddings": POSITIONS, "head_dim": 8, "num_hidden_layers": 4},
    "vision_config": {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    },
    "mm_tokens_per_image": 4,
    "audio_config": None,
}
"""Of an architecture whose tokens are one part of it; images and sounds are not sent."""
_MOST_PARAMETERS = 40_000_000
_MOST_S = 60


class _TooSlow(BaseException):
    """A model took longer than `_MOST_S`."""


def tiny_model(name: str) -> PreTrainedModel | None:
    """Return the first variant that the architecture accepts; None means it accepts none."""
    for variant in (*VARIANTS, _PARTS) if "text_config" in CONFIG_MAPPING[name].sub_configs else VARIANTS:
        changes = {"max_position_embeddings": POSITIONS, **variant}
        try:
            if _size(name, changes) <= _MOST_PARAMETERS:
                model = build(name, **changes)
                ids = torch.arange(3).unsqueeze(0)
                with torch.inference_mode():
                    model(input_ids=ids, position_ids=ids, use_cache=False)
                return model
        except Exception:
            continue
    return None


def _size(name: str, changes: dict[str, Any]) -> int:
    with quiet(), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[name](**{**SIZES, **changes}))
    return sum(parameter.numel() for parameter in model.parameters())


def verdict(name: str) -> tuple[str, str]:
    """Return one of `not built`, `refused`, `served`, `wrong`, `no reference`, and the details."""
    model = tiny_model(name)
    if model is None:
        return "not built", ""
    try:
        check_model(model, TorchBackend(), POSITIONS)
        config = EngineConfig("tiny", kv_cache_memory=1 << 26, max_num_batched_tokens=64, max_model_len=POSITIONS)
        engine = OrcaEngine(config, model)
    except (UnsupportedModel, ValueError) as error:
        return "refused", str(error)
    crowds = [[_prompt(length) for length in lengths] for lengths in PROMPTS]
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    found = [list(one.output_ids) for crowd in crowds for one in engine.generate(crowd, greedy)]
    try:
        expected = [_reference(model, prompt) for crowd in crowds for prompt in crowd]
    except Exception as error:
        return "no reference", repr(error)
    differing = [index for index, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]]
    return ("wrong", f"sequences {differing}") if differing else ("served", "")


def _prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    ids: list[int] = torch.randint(1, SIZES["vocab_size"], (length,), generator=generator).tolist()
    return ids


def _reference(model: PreTrainedModel, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    with quiet(), torch.inference_mode():
        model.set_attn_implementation("eager")
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=NUM_TOKENS,
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            eos_token_id=None,
        )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


def _verdicts(names: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    def interrupt(number: int, frame: Any) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGALRM, interrupt)
    for name in names:
        signal.alarm(_MOST_S)
        try:
            yield name, *verdict(name)
        except _TooSlow:
            yield name, "too slow", ""
        except Exception as error:
            yield name, "crashed", repr(error)
        finally:
            signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def main(names: Sequence[str]) -> int:
    """Survey `names`, or all."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    for name, result, details in _verdicts(names or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)):
        counts[result] += 1
        print(f"{name:24} {result:12} {details}", flush=True)
    print(", ".join(f"{count} {result}" for result, count in counts.most_common()))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
