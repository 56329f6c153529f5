"""Common load tools, unchanged: all their requests succeed, and their counts match."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orcastream.demo import MODEL_DIR
from tests.other_clients.environments import command, python_with
from tests.path.site import Site

pytestmark = pytest.mark.server

NUM_REQUESTS = 20
VLLM_BENCH_SERVE = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""What the command does; builds of vLLM for CPUs come without it."""


def vllm_bench(service: Site, folder: Path, *more: str) -> dict[str, Any]:
    """Return the results that `vllm bench serve` writes."""
    python = python_with("vllm")
    if python is None:
        pytest.skip("vllm is not installed")
    flags = ["--base-url", service.url, "--model", "orca-demo", "--tokenizer", str(MODEL_DIR)]
    flags += ["--dataset-name", "random", "--random-input-len", "20", "--random-output-len", "20"]
    flags += ["--num-prompts", str(NUM_REQUESTS), "--request-rate", "50", "--save-result", "--result-dir", str(folder)]
    done = subprocess.run(
        [python, "-c", VLLM_BENCH_SERVE, *flags, "--result-filename", "result.json", *more],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return result


@pytest.mark.parametrize(
    "more",
    [("--backend", "openai", "--ignore-eos"), ("--backend", "openai-chat", "--endpoint", "/v1/chat/completions")],
    ids=["completions", "chat"],
)
def test_vllm_bench_serve(service: Site, tmp_path: Path, more: tuple[str, ...]) -> None:
    result = vllm_bench(service, tmp_path, *more)
    assert result["completed"] == NUM_REQUESTS
    assert result["mean_tpot_ms"] > 0
    assert result["total_output_tokens"] == 20 * NUM_REQUESTS or "--ignore-eos" not in more


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_guidellm(service: Site, tmp_path: Path, path: str) -> None:
    guidellm = command("guidellm")
    if guidellm is None:
        pytest.skip("guidellm is not installed")
    flags = ["--backend", f"kind=openai_http,target={service.url},model=orca-demo,request_format={path}"]
    flags += ["--tokenizer", f"kind=huggingface_auto,model={MODEL_DIR}"]
    flags += ["--data", "kind=synthetic_text,prompt_tokens=20,output_tokens=20"]
    flags += ["--profile", "kind=concurrent,streams=4", "--constraint", f"kind=max_requests,count={NUM_REQUESTS}"]
    flags += ["--disable-progress", "--output", f"kind=json,path={tmp_path / 'result.json'}"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([guidellm, "run", *flags], capture_output=True, text=True, check=False, env=environment)
    if done.returncode and done.stderr.rstrip().endswith("\nTimeoutError"):
        pytest.skip("guidellm's own processes did not end within its limit of five seconds")
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    [benchmark] = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["benchmarks"]
    totals, tokens = [benchmark["metrics"][name] for name in ("request_totals", "output_token_count")]
    assert (totals["errored"], totals["incomplete"]) == (0, 0)
    assert totals["successful"] > 0
    assert tokens["successful"]["min"] == tokens["successful"]["max"] == 20
