"""The load client and the site of the autoscaling run against real processes."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from orcastream.bench.main import main
from orcastream.bench.serve.gateway import served_model
from orcastream.bench.serve.questions import DEMO_MODEL
from orcastream.bench.site import Headcount, Site
from orcastream.demo.prompts import SHOWCASE
from tests.ports import free_port
from tests.service_process import ROOT


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """Redis and a gateway, no worker."""
    log = tmp_path / "site.log"

    def report(name: str, line: str) -> None:
        with log.open("a") as file:
            file.write(f"{name} | {line}\n")

    site = Site(
        tmp_path / "data", DEMO_MODEL, report, worker={}, gateway={"require_worker": "false"}, drain_grace_s=20.0
    )
    await site.start()
    yield site
    await site.stop()


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A file of three questions."""
    path = tmp_path / "prompts.jsonl"
    asked = ({"prompt": question, "answer": answer} for question, answer in SHOWCASE[::4])
    path.write_text("\n".join(map(json.dumps, asked)), encoding="utf-8")
    return path


async def load(site: Site, *flags: str) -> tuple[int, dict[str, Any]]:
    """Run the client as users do; return its exit status and figures."""
    command = (
        sys.executable,
        "-m",
        "orcastream.cli.main",
        "bench",
        "serve",
        "--url",
        site.url,
        "--json",
        "/dev/stdout",
        *flags,
    )
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
    printed, _ = await process.communicate()
    return process.returncode or 0, json.loads(printed[printed.index(b"\n{") :])


@pytest.mark.server
async def test_a_load_on_real_processes_is_answered_exactly(site: Site, prompts: Path) -> None:
    assert await served_model(site.url) == DEMO_MODEL
    assert await site.headcount() == Headcount(0, 0, 0)
    await site.scale_to(1)
    asked = ("--questions", "demo", "--warmup", "0")
    status, figures = await load(site, *asked, "--rate", "6", "--duration", "1.5", "--require-exact")
    assert status == 0, "the first requests waited for the worker"
    assert await site.headcount() == Headcount(1, 0, 0)
    assert figures["requests"] == figures["complete"] == figures["exact"] > 2
    assert figures["ttft_ms"]["count"] == figures["requests"]
    status, figures = await load(site, "--concurrency", "3", "--duration", "0.5", "--prompts", str(prompts))
    assert (status, figures["errors"]) == (0, {})
    assert figures["requests"] == figures["exact"] >= 3
    assert figures["output_tokens_per_s"] > 0
    await _workload_of_exact_lengths(site)
    assert await site.queue_length() == 0
    await site.scale_to(0)
    assert (await site.headcount()).draining == 1


async def _workload_of_exact_lengths(site: Site) -> None:
    flags = ("--workload", "multi_turn", "--requests", "8", "--length-scale", "0.1", "--mix", "realtime=1,low=1")
    status, figures = await load(site, *flags, "--sweep", "concurrency=1,4", "--repeats", "2", "--ttft-slo-ms", "60000")
    assert status == 0
    assert list(figures["variants"]) == ["concurrency=1", "concurrency=4"]
    for variant in figures["variants"].values():
        assert [run["complete"] for run in variant["runs"]] == [8, 8]
        assert variant["runs"][0]["output_tokens"] == variant["runs"][1]["output_tokens"] >= 8 * 3
        assert set(variant["by_class"]) == {"realtime", "low"}
    assert figures["prompt_tokens_computed"] + figures["prompt_tokens_cached"] == figures["input_tokens"]
    assert figures["goodput"]["share"] == 1
    assert figures["kv_waste"] is None, "HTTP does not report it"
    assert [point["load"] for point in figures["curves"]["gateway"]] == [1, 4]


def test_an_unreachable_gateway_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert main(["serve", "--url", url, "--patience", "0"]) == 2
    assert f"orcastream bench serve: gateway: {url} is not ready: " in capsys.readouterr().err
