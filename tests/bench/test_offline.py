"""Measuring the engine alone: alternating variants of one model, exact lengths, arrivals, follow-ups."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from orcastream import demo
from orcastream.bench.figures.outcome import Objectives
from orcastream.bench.main import main
from orcastream.bench.offline.bench import OfflineBench
from orcastream.bench.offline.drive import Drive
from orcastream.bench.offline.model_card import model_card
from orcastream.bench.offline.schema import endless_matcher
from orcastream.bench.offline.variants import variants
from orcastream.bench.workloads import SampleRequest
from orcastream.cli.errors import UserError
from orcastream.engine import EngineConfig, OrcaEngine
from orcastream.engine.model.passes import passes_unavailable
from orcastream.engine.model.passes.merge_projections import MergedLinear
from orcastream.engine.model.passes.pack_linears import PackedLinearLayer
from orcastream.schemas.errors import InvalidRequest
from tests.engine.conftest import build

MODEL = str(demo.MODEL_DIR)
BASE: dict[str, Any] = {"model": MODEL, "self_check": False, "kv_cache_memory": 4 * 2**20}


@pytest.fixture(scope="module")
def engine() -> OrcaEngine:
    """The demo model on a small cache."""
    return OrcaEngine.load(EngineConfig(**BASE, max_batch_size=4))


def drive(engine: OrcaEngine, *requests: SampleRequest) -> Drive:
    driven = Drive(engine, requests, Objectives())
    driven.run()
    return driven


def test_every_output_has_its_length_and_every_token_its_time(engine: OrcaEngine) -> None:
    driven = drive(engine, *(SampleRequest(tuple(range(5, 5 + size)), max_tokens=size) for size in (3, 9, 1)))
    assert [outcome.tokens for outcome in driven.outcomes] == [3, 9, 1]
    for outcome in driven.outcomes:
        assert outcome.complete
        assert len(outcome.pieces_s) == outcome.tokens
        assert driven.begun_s == outcome.arrived_s < outcome.pieces_s[0] <= outcome.pieces_s[-1] == outcome.ended_s
    assert driven.until_s == max(outcome.ended_s or 0.0 for outcome in driven.outcomes)
    figures = driven.log.figures()
    assert figures["prompt_tokens_computed"] + figures["prompt_tokens_cached"] == 3 + 9 + 1
    assert figures["iterations"] == 9 == figures["scheduler_ms"]["count"]
    assert 0 < figures["kv_use"] < 1
    assert 0 <= figures["kv_waste"] < 1


def test_a_request_waits_for_its_arrival_and_its_predecessor(engine: OrcaEngine) -> None:
    driven = drive(
        engine,
        SampleRequest((5, 6), max_tokens=2, arrival_s=0.05),
        SampleRequest((7,), max_tokens=2, arrival_s=0.02, follows=0, continues=True),
        SampleRequest((8, 9), max_tokens=1, follows=1),
    )
    first, second, third = driven.outcomes
    assert first.arrived_s == pytest.approx(driven.begun_s + 0.05)
    assert second.arrived_s == pytest.approx((first.ended_s or 0) + 0.02)
    assert third.arrived_s == second.ended_s
    assert second.request.prompt == (5, 6, *first.output_ids, 7)
    assert third.request.prompt == (8, 9)
    assert second.prompt_tokens == 5


def test_a_request_that_can_never_run_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--workload", "equal_size", "--requests", "1", "--length-scale", "40", "--no-self-check")
    assert main(["offline", "--model", MODEL, *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith("orcastream bench offline: prompt: got ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--sweep", "1,2", "--rate", "1"), "--sweep: got a rate as well, allowed: without --rate"),
        (("--workload", "long_prefill", "--sweep", "1,2"), "--rate: got 1 for long_prefill"),
        (("--burstiness", "0.5"), "--burstiness: got 0.5 for equal_size, allowed: with --rate"),
    ],
)
def test_arrival_flags_without_effect_are_refused(
    flags: Sequence[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["offline", "--model", "no model is looked at", *flags]) == 2
    assert complaint in capsys.readouterr().err


def test_variants_alternate_and_share_one_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures.json"
    command = ["offline", "--model", MODEL, "--workload", "short_long_mix", "--requests", "4", "--length-scale", "0.05"]
    command += ["--compare", "block_size=8,max_num_batched_tokens=16", "--repeats", "2", "--max-batch-size", "2"]
    command += ["--kv-cache-memory", "4MiB", "--no-self-check", "--json", str(path)]
    assert main(command) == 0
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert saved["command"] == "orcastream bench " + " ".join(command)
    first, second = saved["variants"].values()
    assert saved["settings"] == first["settings"]
    assert first["settings"]["max_batch_size"] == second["settings"]["max_batch_size"] == 2
    assert (first["settings"]["block_size"], second["settings"]["block_size"]) == (16, 8)
    assert first["settings"]["kv_cache_memory"] == 4 * 2**20
    for variant in (first, second):
        assert len(variant["runs"]) == 2
        assert variant["output_tokens"] == 2 * (2 + 6)
        assert variant["complete"] == 4
    assert second["iterations"] > first["iterations"], "a smaller budget takes more iterations"
    assert set(second["ratio_to_first"]["ttft_ms"]) >= {"mean", "p50", "p95", "p99"}
    assert set(saved["by_group"]) == {"short", "long"}
    assert saved["model"]["parameters"] > 10**6
    assert saved["model"]["operators"]["dtype"] == "float32"
    assert "block_size=8,max_num_batched_tokens=16: median of 2 runs, 4 requests, 4 complete" in capsys.readouterr().out


NATIVE = pytest.mark.skipif(
    passes_unavailable(torch.device("cpu")) is not None,
    reason="no compiled operators: python -m orcastream.engine.native.build",
)


@NATIVE
def test_each_variant_runs_on_a_model_loaded_with_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[tuple[str, str], set[torch.dtype]] = {}
    models = set()
    once = OfflineBench._once

    def noting(bench: OfflineBench, run: Any, *arguments: Any) -> dict[str, Any]:
        layers = [module for module in run.model.modules() if isinstance(module, MergedLinear | PackedLinearLayer)]
        found[run.config.model_passes, run.config.weight_dtype] = {layer.packed.dtype for layer in layers}
        models.add(run.model)
        return once(bench, run, *arguments)

    monkeypatch.setattr(OfflineBench, "_once", noting)
    command = ["offline", "--model", MODEL, "--requests", "1", "--length-scale", "0.02", "--repeats", "1"]
    command += ["--warmup", "0", "--kv-cache-memory", "4MiB", "--no-self-check", "--device", "cpu"]
    command += ["--compare", "weight_dtype=int8", "--compare", "model_passes=off", "--compare", "block_size=8"]
    assert main(command) == 0
    assert torch.int8 not in found["auto", "auto"] != set()
    assert torch.int8 in found["auto", "int8"]
    assert found["off", "auto"] == set()
    assert len(models) == 3


def test_a_sweep_gives_a_curve(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    command = ["offline", "--model", MODEL, "--workload", "orca_trace", "--requests", "3", "--length-scale", "0.02"]
    command += ["--sweep", "50,100", "--repeats", "1", "--warmup", "0", "--no-self-check", "--latency-limit-ms", "1e6"]
    assert main([*command, "--kv-cache-memory", "4MiB", "--json", str(path)]) == 0
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert [point["load"] for point in saved["curves"]["base"]] == [50, 100]
    assert saved["sustained"]["load"] == {"base": 100}


def test_the_model_card_describes_all_layers() -> None:
    config = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "head_dim": 16, "vocab_size": 96}
    model = build("gemma4_text", **config, global_head_dim=32, vocab_size_per_layer_input=96, num_hidden_layers=6)
    card = model_card("tiny", model)
    assert card["hidden_size"] == 32
    assert "head_dim" not in card


@pytest.mark.parametrize(
    ("comparisons", "complaint"),
    [
        (["block_size"], "--compare: got 'block_size', allowed: SETTING=VALUE"),
        (["colour=red"], "engine setting: got 'colour', allowed: model"),
        (["block_size=many"], "block_size: got 'many', allowed: "),
        (["dtype=float16"], "--compare: got 'dtype', allowed: settings other than model, dtype, device"),
        (["max_batch_size=0"], "max_batch_size: got 0, allowed: "),
        (["block_size=8", "block_size=8"], "allowed: each variant once"),
    ],
)
def test_an_impossible_comparison_is_named(comparisons: Sequence[str], complaint: str) -> None:
    with pytest.raises(UserError) as refused:
        variants(BASE, [], comparisons)
    assert complaint in str(refused.value)


def test_values_are_parsed_by_field_type() -> None:
    base, other = variants(BASE, [], ["self_check=true,kv_cache_memory=1GiB,max_model_len=none"])
    assert (base.name, base.config.self_check) == ("base", False)
    assert (other.config.self_check, other.config.kv_cache_memory, other.config.max_model_len) == (True, 2**30, None)


def test_a_schema_needs_a_token_that_ends_the_answer() -> None:
    with pytest.raises(InvalidRequest, match="--with-schema: got True, allowed: nothing: this model has no end-of-seq"):
        endless_matcher(300, frozenset())
