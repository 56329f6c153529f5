"""A small adapter benchmark: its adapters have PEFT's format, and every variant is measured."""

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from orcastream.bench.adapters import main, write_adapter
from orcastream.bench.random_model import make_model, model_config
from orcastream.bench.shapes import Shape
from orcastream.engine.model.quiet import quiet
from tests.lora import merged

SHAPE = Shape(64, 2, 4, 2, 32, 96, 300, max_position_embeddings=128)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    make_model(model_config(SHAPE), folder)
    return folder


def test_peft_reads_the_written_adapters(model: Path, tmp_path: Path) -> None:
    write_adapter(tmp_path / "one", str(model), 4, seed=3)
    with quiet():
        network = AutoModelForCausalLM.from_pretrained(model)
    changed = merged(network, tmp_path / "one").state_dict()
    for name, weight in network.state_dict().items():
        is_linear = name.endswith("_proj.weight")
        assert bool((changed[name] != weight).any()) == is_linear, name


def test_every_variant_is_measured(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--adapters 2 --rank 4 --requests 4 --prompt 9 --output 5 --repeats 2 --json"
    assert main(["--model", str(model), *flags.split(), str(tmp_path / "figures.json")]) == 0
    shown = capsys.readouterr().out
    assert "2 adapters of rank 4, each read in" in shown
    figures = json.loads((tmp_path / "figures.json").read_text())["figures"]
    assert list(figures) == ["without", "asked for none", "spread"]
    for name, found in figures.items():
        assert name in shown
        assert len(found["tokens_per_s"]) == len(found["decode_ms"]) == 2
