"""Loading, encoding, end tokens."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orcastream.text.model_config import ModelConfig, ModelFilesError
from orcastream.text.tokenizer import Tokenizer, TooManyTokens
from tests.text import tiny_tokenizers


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_tokenizers.byte_level().save_pretrained(folder)
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "vocab_size": 330, "max_position_embeddings": 128, "eos_token_id": 2})
    )
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    return folder


def test_round_trip_through_a_directory(model: Path) -> None:
    tokenizer = Tokenizer.load(str(model))
    assert tokenizer.decode(tokenizer.encode("über 👍")) == "über 👍"
    assert tokenizer.eos_token_ids == {0, 2}
    assert {0, 1, 2} <= tokenizer.special_ids
    assert tokenizer.vocab_size > 259


def test_model_config_states_limits_and_ends(model: Path) -> None:
    config = ModelConfig.load(str(model))
    assert (config.limits.vocab_size, config.limits.max_model_len) == (330, 128)
    assert config.eos_token_ids == {0, 2}
    assert ModelConfig.load(str(model), max_model_len=64).limits.max_model_len == 64
    with pytest.raises(ModelFilesError, match="max_model_len: got 129, allowed: at most 128, the model's own limit"):
        ModelConfig.load(str(model), max_model_len=129)


def test_model_config_reads_nested_and_older_names() -> None:
    nested = {"text_config": {"vocab_size": 10, "n_positions": 20, "eos_token_id": 3}}
    config = ModelConfig.read(nested, {})
    assert (config.limits.vocab_size, config.limits.max_model_len, config.eos_token_ids) == (10, 20, {3})


def test_fields_missing_in_the_file_have_the_architectures_defaults() -> None:
    """As in the worker, which has the architecture's defaults."""
    config = ModelConfig.read({"model_type": "llama", "vocab_size": 10}, {})
    assert config.limits.max_model_len == 2048
    with pytest.raises(ModelFilesError, match="max_model_len: got 2049, allowed: at most 2048"):
        ModelConfig.read({"model_type": "llama", "vocab_size": 10}, {}, max_model_len=2049)
    assert ModelConfig.read({"model_type": "gpt2", "n_positions": 77}, {}).limits.max_model_len == 77


def test_fields_that_the_architecture_refuses_are_named() -> None:
    with pytest.raises(ModelFilesError, match=r"config\.json: .*hidden_size") as caught:
        ModelConfig.read({"model_type": "llama", "hidden_size": "x"}, {})
    assert "\n" not in str(caught.value)


OWN = {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M", "AutoTokenizer": ["own.T", None]}


def test_code_that_comes_with_a_model_is_refused(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(prompt: str = "") -> str:
        raise AssertionError(prompt)

    monkeypatch.setattr("builtins.input", ask)
    config = {"model_type": "llama", "vocab_size": 10, "auto_map": OWN}
    assert ModelConfig.read(config, {}).limits.vocab_size == 10  # transformers knows this architecture
    with pytest.raises(ModelFilesError, match="code of its own"):
        ModelConfig.read(config | {"model_type": "own"}, {})
    tokenizer = {"tokenizer_class": "OwnTokenizer", "auto_map": OWN}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "own"}))
    with pytest.raises(ModelFilesError, match="code of its own") as caught:
        Tokenizer.load(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_configuration_of_wrong_types_is_one_line(model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "wrong"))
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": "many"}))
    with pytest.raises(ModelFilesError, match="vocab_size") as caught:
        Tokenizer.load(str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"), [({"n_positions": 2}, "vocab_size"), ({"vocab_size": 2}, "max_model_len")]
)
def test_model_config_names_missing_fields(config: dict[str, int], message: str) -> None:
    with pytest.raises(ModelFilesError, match=message):
        ModelConfig.read(config, {})


def test_missing_models_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match="nowhere"):
        ModelConfig.load(str(tmp_path / "nowhere"))
    with pytest.raises(ModelFilesError, match="tokenizer"):
        Tokenizer.load(str(tmp_path))
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(ModelFilesError, match="not JSON"):
        ModelConfig.load(str(tmp_path))


@pytest.mark.parametrize(("path", "why"), [("nowhere", "no such directory"), ("file", "not a directory")])
@pytest.mark.parametrize("load", [Tokenizer.load, ModelConfig.load])
def test_a_path_that_leads_to_no_directory_is_no_wrong_hub_id(
    tmp_path: Path, path: str, why: str, load: Callable[[str], object]
) -> None:
    (tmp_path / "file").touch()
    told = rf"^model: got '{tmp_path / path}', allowed: a directory or hub id.* \({why}\)$"
    with pytest.raises(ModelFilesError, match=told):
        load(str(tmp_path / path))


def test_works_silently_without_torch(model: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'torch' else find(name, *a)\n"
        "from orcastream.text.tokenizer import Tokenizer\n"
        f"print(len(Tokenizer.load({str(model)!r}).encode('hello')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0
    assert "PyTorch" not in done.stderr


@pytest.mark.parametrize("text", ["word " * 3, "word " * 3000])
def test_only_the_requested_number_of_ids_is_returned(model: Path, text: str) -> None:
    tokenizer = Tokenizer.load(str(model))
    ids = tokenizer.encode(text)
    assert tokenizer.encode(text, most=len(ids)) == ids
    with pytest.raises(TooManyTokens, match=f"^{len(ids)} tokens") as caught:
        tokenizer.encode(text, most=len(ids) - 1)
    assert caught.value.count == len(ids)


def test_a_text_has_at_least_its_length_over_the_longest_token(model: Path) -> None:
    tokenizer = Tokenizer.load(str(model))
    longest = max((tokenizer.decode([token_id]) for token_id in range(tokenizer.vocab_size)), key=len)
    assert len(longest) <= tokenizer.longest_token
    assert len(tokenizer.encode(longest * 50)) * tokenizer.longest_token >= len(longest * 50)
