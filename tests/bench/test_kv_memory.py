"""The KV cache's size is computed without weights."""

import json
from pathlib import Path

import pytest

from orcastream import demo
from orcastream.bench.cache_need import bytes_per_sequence, bytes_per_token, make_runner
from orcastream.bench.kv_memory import main
from orcastream.cli.errors import UserError


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_kv_memory_follows_from_the_configuration(dtype: str, size: int) -> None:
    config = json.loads((Path(demo.MODEL_DIR) / "config.json").read_text(encoding="utf-8"))
    values = config["num_hidden_layers"] * config["num_key_value_heads"] * 2 * config["head_dim"]
    assert bytes_per_token(make_runner(str(demo.MODEL_DIR), dtype)) == size * values


def test_a_window_bounds_what_a_sequence_holds() -> None:
    runner = make_runner("type:mistral", "bfloat16")  # 32 layers, window 4,096
    block = 16 * 32 * 2 * 8 * 128 * 2
    assert bytes_per_sequence(runner, 1024) == 64 * block
    assert bytes_per_sequence(runner, 32768, windows=False) == 2048 * block
    assert bytes_per_sequence(runner, 32768) == (4096 + 512) // 16 * block + block


def test_a_model_whose_cache_cannot_be_known_is_named_with_the_reason(tmp_path: Path) -> None:
    config = json.loads((Path(demo.MODEL_DIR) / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_attention_heads": 0}), encoding="utf-8")
    for model, why in {
        "type:nothing": "^type:nothing: no entry 'nothing'$",
        "type:clip": "^type:clip: Unrecognized configuration class",
        "": "^model: got an empty name, allowed: a directory or a hub id$",
        str(tmp_path): f"^{tmp_path}: .*zero",
        str(tmp_path / "missing"): f"^model: got '{tmp_path}/missing', allowed: a directory with a config.json, or a",
    }.items():
        with pytest.raises(UserError, match=why):
            main([model])
