"""Builds a small random model of the same architecture, whose thresholds are within a few tokens."""

import copy
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedModel

from orcastream.engine.errors import UnsupportedModel
from orcastream.engine.native.linear import PANEL

TINY_THRESHOLD = 8
"""The new value of a window, chunk size or original length; checks run over several times as many tokens."""

POSITIONS = 1024
"""Longest sequence of a small copy; longer than any check."""

_VOCABULARY = 128
_HEAD_SIZE = 16
_INNER_SIZE = 64
_FEWEST_LAYERS = 4
_MOST_KINDS = 8
"""Most kinds of layers; a list with more distinct values holds an individual number for each layer."""
_MOST_PARAMETERS = 50_000_000
_LAYERS_OF_OTHERS = ("num_hidden_layers", "num_layers", "encoder_layers", "depth", "num_blocks")
"""Names by which sub-models give the number of their layers."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number of tokens in a configuration at which the computation changes."""

    owner: Any
    name: str
    tokens: int

    def set(self, tokens: int) -> None:
        """Change the value in its owner."""
        if isinstance(self.owner, dict):
            self.owner[self.name] = tokens
        else:
            setattr(self.owner, self.name, tokens)


def thresholds(model_config: Any, max_model_len: int) -> list[Threshold]:
    """Return the thresholds that a request of `max_model_len` tokens can cross."""
    found = _thresholds(model_config.get_text_config())
    return [threshold for threshold in found if threshold.tokens < max_model_len]


def _thresholds(owner: Any) -> Iterator[Threshold]:
    if not isinstance(owner, dict):
        yield from _thresholds(_own_of_layers(owner))
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
    """Return a random float32 model of the class and configuration of `model`, on its device.

    Thresholds named in `shrunk` move within a few tokens, the others stay out of reach. Heads, widths, layers, experts
    and vocabulary are reduced; all kinds of layers are kept. Sub-models that no token passes through, such as image
    encoders, keep one layer. If an architecture does not accept the reduced sizes, only layers and vocabulary are
    reduced. Raises UnsupportedModel if no copy works.
    """
    problems: list[Exception] = []
    for widths, others in product((True, False), (True, False) if _others(model.config) else (False,)):
        config = copy.deepcopy(model.config)
        for threshold in _thresholds(config.get_text_config()):
            threshold.set(TINY_THRESHOLD if threshold.name in shrunk else max(threshold.tokens, POSITIONS))
        try:
            _shrink(config.get_text_config(), widths)
            for other in _others(config) if others else ():
                _shrink_other(other)
            tiny = _random_model(type(model), config).to(model.device)
            two = torch.arange(2, device=tiny.device).unsqueeze(0)
            with torch.inference_mode():
                tiny(input_ids=two, position_ids=two, use_cache=False)
            return tiny
        except Exception as error:
            problems.append(error)
    first, last = repr(problems[0]), repr(problems[-1])
    reason = first if last == first else f"{first}; with its own widths: {last}"
    raise UnsupportedModel(f"no small copy can be made to check the model against: {reason}") from problems[0]


def _own_of_layers(config: Any) -> dict[int, dict[str, Any]]:
    """Return the per-layer overrides by layer number, as stored in the configuration.

    As long as there are any, transformers hides the overridden values of the configuration as a whole.
    """
    own: dict[int, dict[str, Any]] = getattr(vars(config).get("_heterogeneity_spec"), "per_layer_overrides", {})
    return own


def _shrink(config: Any, widths: bool) -> None:
    own, kept = _own_of_layers(config), _kept_layers(config)
    if own:
        config.per_layer_config = None
    before = {name: getattr(config, name, None) for each in own.values() for name in each}
    if shared := _shared_layers(config):
        config.num_kv_shared_layers = sum(layer in shared for layer in kept)
    _keep_layers(config, "num_hidden_layers", kept)
    for name in [name for name in vars(config) if name.startswith("vocab_size")]:
        setattr(config, name, min(getattr(config, name), _VOCABULARY))
    for name in ("bos_token_id", "eos_token_id"):
        _forget_token(config, name)
    if not 0 <= (getattr(config, "pad_token_id", None) or 0) < _VOCABULARY:  # some models embed it in place of an image
        _forget_token(config, "pad_token_id")
    if (getattr(config, "max_position_embeddings", None) or 0) > POSITIONS:
        config.max_position_embeddings = POSITIONS
    if widths:
        _shrink_heads(config)
        _shrink_inner_sizes(config)
    if own:
        config.per_layer_config = {
            index: {
                name: _in_proportion(value, before[name], getattr(config, name, None))
                for name, value in own.get(layer, {}).items()
            }
            for index, layer in enumerate(kept)
        }


def _in_proportion(value: Any, before: Any, after: Any) -> Any:
    """Scale a layer's own `value` as the common value changed from `before` to `after`."""
    if before == after or not all(type(each) is int and each > 0 for each in (value, before, after)):
        return value
    return max(1, value * after // before)


def _kept_layers(config: Any) -> list[int]:
    """Return the first few layers, including all kinds; likewise of the last ones that share keys and values."""
    kinds, shared = _kinds(config), _shared_layers(config)
    others = len(kinds) - len(shared)
    dense = (getattr(config, "first_k_dense_replace", None) or 0) + 1
    fewest = min(others, max(_FEWEST_LAYERS, _until_all(kinds[:others]), dense))
    return [*range(fewest), *shared[: _until_all(kinds[others:])]]


def _kinds(config: Any) -> list[str]:
    """Return the kind of each layer, from all per-layer settings."""
    own, layers = _own_of_layers(config), config.num_hidden_layers
    lists = [value for value in vars(config).values() if isinstance(value, list | tuple) and len(value) == layers]
    told = [each for each in lists if len(set(map(str, each))) <= _MOST_KINDS]
    return [str((own.get(layer), *(each[layer] for each in told))) for layer in range(layers)]


def _shared_layers(config: Any) -> range:
    """Return the last layers, which use keys and values of earlier layers instead of computing them."""
    layers = config.num_hidden_layers
    return range(layers - (getattr(config, "num_kv_shared_layers", None) or 0), layers)


def _until_all(kinds: Sequence[str]) -> int:
    """Return the length of the shortest prefix that has one of each kind."""
    return max((kinds.index(kind) for kind in set(kinds)), default=-1) + 1


def _keep_layers(config: Any, name: str, kept: Sequence[int]) -> None:
    """Reduce the layers, which `name` counts, and all per-layer settings to `kept`."""
    layers = getattr(config, name)
    for each, value in list(vars(config).items()):
        if isinstance(value, list | tuple) and len(value) == layers:
            setattr(config, each, type(value)(value[layer] for layer in kept))
    setattr(config, name, len(kept))


def _others(config: Any) -> list[Any]:
    """Return the configurations of sub-models with their own layers, except the text model."""
    found = [getattr(config, name, None) for name in config.sub_configs]
    return [each for each in found if each is not config.get_text_config() and _layers_of_other(each) is not None]


def _layers_of_other(config: Any) -> str | None:
    return next((name for name in _LAYERS_OF_OTHERS if isinstance(getattr(config, name, None), int)), None)


def _shrink_other(config: Any) -> None:
    """Shrink a sub-model but keep its width, which projections to the text model expect."""
    name = _layers_of_other(config)
    if name is not None:
        _keep_layers(config, name, [0])
    if (getattr(config, "position_embedding_size", None) or 0) > POSITIONS:
        config.position_embedding_size = POSITIONS
    _shrink_inner_sizes(config)


def _forget_token(config: Any, name: str) -> None:
    """Remove a token id, which may be outside the small vocabulary; 0 if the configuration requires one."""
    try:
        setattr(config, name, None)
    except StrictDataclassError:
        setattr(config, name, 0)


def _shrink_heads(config: Any) -> None:
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    fewer_kv = min(kv_heads, 2)
    fewer = fewer_kv * min(heads // kv_heads, 4)
    head_size = max(_HEAD_SIZE, PANEL // fewer_kv)  # large enough for merged projections
    config.num_attention_heads = fewer
    if getattr(config, "num_key_value_heads", None) is not None:
        config.num_key_value_heads = fewer_kv
    if getattr(config, "head_dim", None) is not None and not hasattr(config, "qk_rope_head_dim"):
        config.head_dim = head_size
    if getattr(config, "rotary_dim", None):
        config.rotary_dim = min(config.rotary_dim, head_size // 2)
    if getattr(config, "word_embed_proj_dim", None):
        config.word_embed_proj_dim = fewer * head_size
    config.hidden_size = fewer * head_size
    rope = getattr(config, "rope_parameters", None) or {}
    rotated = int(head_size * (rope.get("partial_rotary_factor") or 1)) // 2
    for name in ("short_factor", "long_factor"):
        if rope.get(name):
            rope[name] = rope[name][:rotated]


def _shrink_inner_sizes(config: Any) -> None:
    for name, value in list(vars(config).items()):
        if "intermediate" in name and isinstance(value, list):  # of each layer
            setattr(config, name, [min(each, _INNER_SIZE) for each in value])
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        if "intermediate" in name or name in ("ffn_dim", "n_inner", "ffn_hidden_size"):
            setattr(config, name, min(value, _INNER_SIZE))
        elif name in ("num_experts", "num_local_experts"):
            setattr(config, name, min(value, max(4, _experts_per_token(config))))


def _experts_per_token(config: Any) -> int:
    found: int | None = getattr(config, "num_experts_per_tok", None) or getattr(config, "top_k_experts", None)
    return found or 1


def _random_model(kind: type[PreTrainedModel], config: Any) -> PreTrainedModel:
    """Return a model with weights large enough that attention is far from uniform, and no bias or norm is neutral."""
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
