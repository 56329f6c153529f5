"""A small random model of the same architecture, whose thresholds lie within a few tokens."""

import copy
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedModel

from orcastream.engine.errors import UnsupportedModel

TINY_THRESHOLD = 8
"""What a window, a chunk size or an original length becomes; checks run over several times as many tokens."""

POSITIONS = 1024
"""Longest sequence of a small copy; more than a check computes."""

_VOCABULARY = 128
_HEAD_SIZE = 32
_INNER_SIZE = 64
_FEWEST_LAYERS = 4
_MOST_KINDS = 8
"""Of layers; a list of more has a number of its own for each."""
_MOST_PARAMETERS = 50_000_000


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number of tokens in a configuration at which the computation changes."""

    owner: Any
    name: str
    tokens: int

    def set(self, tokens: int) -> None:
        """Change it where it stands."""
        if isinstance(self.owner, dict):
            self.owner[self.name] = tokens
        else:
            setattr(self.owner, self.name, tokens)


def thresholds(model_config: Any, max_model_len: int) -> list[Threshold]:
    """Those that a request of `max_model_len` tokens can cross."""
    found = _thresholds(model_config.get_text_config())
    return [threshold for threshold in found if threshold.tokens < max_model_len]


def _thresholds(owner: Any) -> Iterator[Threshold]:
    for name, value in list((owner if isinstance(owner, dict) else vars(owner)).items()):
        if isinstance(value, dict):
            yield from _thresholds(value)
        elif _names_threshold(name) and isinstance(value, int) and not isinstance(value, bool) and value > 0:
            yield Threshold(owner, name, value)


def _names_threshold(name: object) -> bool:
    if not isinstance(name, str) or "layers" in name or "pattern" in name or "feed_forward" in name:
        return False
    return any(part in name for part in ("window", "chunk", "original_max_position", "floor_scale"))


def tiny_copy(model: PreTrainedModel, shrunk: Collection[str]) -> PreTrainedModel:
    """A random float32 model of the class and configuration of `model`, on its device; UnsupportedModel if none works.

    Thresholds named in `shrunk` come within a few tokens, the others stay out of reach. Heads, widths, layers, experts
    and vocabulary are reduced; what kinds of layers there are is kept. Where an architecture does not take the reduced
    sizes, only layers and vocabulary are.
    """
    problem: Exception | None = None
    for widths in (True, False):
        config = copy.deepcopy(model.config)
        for threshold in _thresholds(config.get_text_config()):
            threshold.set(TINY_THRESHOLD if threshold.name in shrunk else max(threshold.tokens, POSITIONS))
        try:
            _shrink(config.get_text_config(), widths)
            tiny = _random_model(type(model), config).to(model.device)
            two = torch.arange(2, device=tiny.device).unsqueeze(0)
            with torch.inference_mode():
                tiny(input_ids=two, position_ids=two, use_cache=False)
            return tiny
        except Exception as error:
            problem = error
    raise UnsupportedModel(f"no small copy can be made to check the model against: {problem!r}") from problem


def _shrink(config: Any, widths: bool) -> None:
    layers = config.num_hidden_layers
    fewer = min(layers, max(_FEWEST_LAYERS, _layers_of_all_kinds(config)))
    for name, value in list(vars(config).items()):
        if isinstance(value, list | tuple) and len(value) == layers:
            setattr(config, name, value[:fewer])
    config.num_hidden_layers = fewer
    for name in [name for name in vars(config) if name.startswith("vocab_size")]:
        setattr(config, name, min(getattr(config, name), _VOCABULARY))
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        _forget_token(config, name)
    if (getattr(config, "max_position_embeddings", None) or 0) > POSITIONS:
        config.max_position_embeddings = POSITIONS
    if widths:
        _shrink_heads(config)
        _shrink_inner_sizes(config)


def _forget_token(config: Any, name: str) -> None:
    """Its id may lie outside of the small vocabulary; some configurations insist on having one."""
    try:
        setattr(config, name, None)
    except StrictDataclassError:
        setattr(config, name, 0)


def _layers_of_all_kinds(config: Any) -> int:
    """The shortest prefix of the layers that has one of each kind, as told by each list of something per layer."""
    layers = config.num_hidden_layers
    told = [value for value in vars(config).values() if isinstance(value, list | tuple) and len(value) == layers]
    firsts = [{str(kind): at for at, kind in reversed(list(enumerate(value)))} for value in told]
    last = max((max(first.values()) for first in firsts if len(first) <= _MOST_KINDS), default=0)
    return max(last + 1, (getattr(config, "first_k_dense_replace", None) or 0) + 1)


def _shrink_heads(config: Any) -> None:
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    fewer_kv = min(kv_heads, 2)
    fewer = fewer_kv * min(heads // kv_heads, 4)
    config.num_attention_heads = fewer
    if getattr(config, "num_key_value_heads", None) is not None:
        config.num_key_value_heads = fewer_kv
    if getattr(config, "head_dim", None) is not None and not hasattr(config, "qk_rope_head_dim"):
        config.head_dim = _HEAD_SIZE
    if getattr(config, "rotary_dim", None):
        config.rotary_dim = min(config.rotary_dim, _HEAD_SIZE // 2)
    if getattr(config, "word_embed_proj_dim", None):
        config.word_embed_proj_dim = fewer * _HEAD_SIZE
    config.hidden_size = fewer * _HEAD_SIZE
    rope = getattr(config, "rope_parameters", None) or {}
    rotated = int(_HEAD_SIZE * (rope.get("partial_rotary_factor") or 1)) // 2
    for name in ("short_factor", "long_factor"):
        if rope.get(name):
            rope[name] = rope[name][:rotated]


def _shrink_inner_sizes(config: Any) -> None:
    for name, value in list(vars(config).items()):
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        if "intermediate" in name or name in ("ffn_dim", "n_inner", "ffn_hidden_size"):
            setattr(config, name, min(value, _INNER_SIZE))
        elif name in ("num_experts", "num_local_experts"):
            setattr(config, name, min(value, max(4, config.num_experts_per_tok)))


def _random_model(kind: type[PreTrainedModel], config: Any) -> PreTrainedModel:
    """Weights large enough that attention is far from uniform, and no bias or norm at its neutral value."""
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in kind(copy.deepcopy(config)).parameters())
    if size > _MOST_PARAMETERS:
        raise UnsupportedModel(f"the smallest copy has {size} parameters")
    config._attn_implementation = "eager"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind(config).float().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn_like(parameter)
                if parameter.dim() > 1:
                    parameter.copy_(noise * parameter.shape[-1] ** -0.5)
                else:
                    parameter.add_(noise * 0.1)
    return model
