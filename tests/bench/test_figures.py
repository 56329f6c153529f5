"""Figures of several runs: medians, extremes, ratios, curves, and the result file."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from orcastream.bench.figures.curve import Point, sustained
from orcastream.bench.figures.machine import command_line, machine, versions
from orcastream.bench.figures.measures import measure
from orcastream.bench.figures.medians import extremes, medians, ratios
from orcastream.bench.figures.outcome import Objectives, Outcome
from orcastream.bench.figures.result import Result, Variant
from orcastream.bench.figures.tables import show
from orcastream.bench.workloads import SampleRequest


def answered(*pieces: float, arrived: float = 0.0, **asked: Any) -> Outcome:
    outcome = Outcome(SampleRequest((1, 2), **asked), arrived, list(pieces), tokens=len(pieces), prompt_tokens=2)
    outcome.ended_s = pieces[-1]
    return outcome


def test_medians_and_extremes_are_computed_at_any_depth() -> None:
    runs: list[dict[str, Any]] = [
        {"a": 1, "ttft_ms": {"p50": 5.0}, "n": None, "w": "x"},
        {"a": 4, "ttft_ms": {"p50": 7.0}},
        {"a": 2},
    ]
    assert medians(runs) == {"a": 2, "ttft_ms": {"p50": 6.0}, "n": None, "w": "x"}
    assert extremes(runs) == {"a": [1, 4], "ttft_ms": {"p50": [5.0, 7.0]}}


def test_ratios_omit_values_that_cannot_be_compared() -> None:
    first = {"output_tokens_per_s": 50.0, "ttft_ms": {"mean": 100.0, "count": 4}, "preemptions": 0, "kv_waste": None}
    other = {"output_tokens_per_s": 75.0, "ttft_ms": {"mean": 40.0, "count": 4}, "preemptions": 3, "kv_waste": 0.1}
    assert ratios(first, other) == {"output_tokens_per_s": 1.5, "ttft_ms": {"mean": 0.4}}


def test_latency_per_token_is_that_of_orca_and_tpot_leaves_the_first_token_out() -> None:
    outcome = answered(2.0, 2.5, 3.0, arrived=1.0)
    assert outcome.normalized_latency_s == pytest.approx(2.0 / 3)
    assert outcome.tpot_s == pytest.approx(0.5)
    assert answered(2.0).tpot_s is None


@pytest.mark.parametrize(
    ("objectives", "good"),
    [(Objectives(ttft_s=1.0), 2), (Objectives(tbt_s=0.4), 1), (Objectives(0.6, 0.6), 1), (Objectives(0.6, 0.4), 0)],
)
def test_goodput_counts_requests_within_all_objectives(objectives: Objectives, good: int) -> None:
    outcomes = [answered(0.5, 1.0), answered(1.0, 1.3), answered(4.0, 9.0)]
    outcomes[2].error = "cut off"
    assert measure(outcomes, 0.0, 2.0, objectives)["goodput"] == {"requests_per_s": good / 2, "share": good / 3}


def test_rates_count_what_arrived_in_time() -> None:
    """Prompts count at their first tokens, so that input and output tokens refer to the same time."""
    outcomes = [answered(1.0, 1.5), answered(1.5, 2.5), answered(2.5)]
    figures = measure(outcomes, 0.0, 2.0, Objectives())
    assert (figures["input_tokens"], figures["output_tokens"]) == (6, 5)
    rates = [figures[name] for name in ("requests_per_s", "input_tokens_per_s", "output_tokens_per_s")]
    assert rates == [0.5, 2.0, 1.5]
    assert figures["total_tokens_per_s"] == 3.5


def test_goodput_counts_only_requests_served_during_the_load() -> None:
    figures = measure([answered(0.5, 1.0), answered(1.5, 2.5)], 0.0, 2.0, Objectives(ttft_s=2.0))
    assert figures["goodput"] == {"requests_per_s": figures["requests_per_s"], "share": 1.0}
    assert figures["requests_per_s"] == 0.5


def test_classes_tenants_and_groups_have_separate_figures() -> None:
    outcomes = [answered(1.0, priority_class="realtime", tenant="light"), answered(3.0, tenant="light")]
    figures = measure(outcomes, 0.0, 4.0, Objectives())
    assert figures["by_class"]["realtime"]["ttft_ms"]["p50"] == 1000
    assert figures["by_class"]["normal"]["ttft_ms"]["p50"] == 3000
    assert figures["by_tenant"] == figures["by_group"] == {}, "a single one equals the whole"
    assert figures["goodput"] is None


def curve(*latencies: float) -> list[Point]:
    return [Point(load, load, 10 * load, latency, 1.0, 2.0) for load, latency in enumerate(latencies, start=1)]


@pytest.mark.parametrize(
    ("limit", "load"), [(5.0, None), (10.0, 1.0), (15.0, 1.5), (20.0, 2.0), (60.0, 2.5), (100.0, 3.0), (500.0, 3.0)]
)
def test_the_sustained_load_is_where_the_latency_crosses_the_limit(limit: float, load: float | None) -> None:
    assert sustained(curve(10.0, 20.0, 100.0), limit) == load


def run(rate: float) -> dict[str, Any]:
    outcomes = [answered(1 / rate, 2 / rate, group="short"), answered(3 / rate, group="long")]
    return measure(outcomes, 0.0, 3 / rate, Objectives()) | {"prompt_tokens_computed": 4, "kv_waste": 0.03}


def result(*, swept: bool = False) -> Result:
    loads = (1.0, 2.0) if swept else (None,)
    found = [
        Variant(f"{name} {load}", {"policy": name}, name, load, [run(rate), run(2 * rate), run(rate)])
        for load in loads
        for name, rate in (("static", 1.0), ("fcfs", 1.5))
    ]
    return Result("orcastream bench offline", {"name": "m", "parameters": 7}, {"name": "w", "seed": 1}, found)


def test_a_result_has_the_first_variant_on_top_and_ratios_of_the_others(tmp_path: Path) -> None:
    result().save(tmp_path / "figures.json")
    saved = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    for name in ("ttft_ms", "tbt_ms", "e2e_ms"):
        assert {"mean", "p50", "p95", "p99"} <= set(saved[name])
    assert saved["output_tokens_per_s"] == pytest.approx(1.0)
    assert saved["spread"]["output_tokens_per_s"] == pytest.approx([1.0, 2.0])
    assert len(saved["runs"]) == 3
    assert {"machine", "versions", "model", "command", "workload", "prompt_tokens_computed", "kv_waste"} <= set(saved)
    first, second = saved["variants"].values()
    assert "ratio_to_first" not in first
    assert second["ratio_to_first"]["output_tokens_per_s"] == pytest.approx(1.5)
    assert second["ratio_to_first"]["ttft_ms"]["mean"] == pytest.approx(1 / 1.5)


def test_a_table_states_machine_versions_and_command(capsys: pytest.CaptureFixture[str]) -> None:
    swept = result(swept=True)
    swept.latency_limit_ms = 600.0
    show(swept, Console(width=110))
    shown = capsys.readouterr().out
    for part in ("machine: ", "versions: python", "parameters 7", "command: orcastream bench", "1.500 x", "short"):
        assert part in shown
    assert "static: median E2E per token within 600 ms" in shown
    assert swept.to_json()["sustained"]["latency_limit_ms"] == 600.0


@pytest.mark.parametrize("swept", [False, True])
def test_a_picture_is_drawn(tmp_path: Path, swept: bool) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'orcastream[bench]'")
    from orcastream.bench.figures.plot import draw

    draw(result(swept=swept), tmp_path / "picture.svg")
    root = ElementTree.parse(tmp_path / "picture.svg").getroot()
    texts = {"".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")}
    assert ({"static", "fcfs"} if swept else {"static None", "fcfs None"}) <= texts
    draw(result(swept=swept), tmp_path / "picture.png")


def test_machine_and_versions_describe_this_process() -> None:
    assert {"python", "orcastream"} <= set(versions())
    assert machine()["cores"] >= 1
    assert machine()["memory_bytes"] > 2**20


def test_a_command_line_shows_no_key() -> None:
    arguments = ["--api-key", "k1", "--tenant-key=a=k2", "--tenant-key", "b=k3", "--prompts", "my file"]
    shown = command_line("serve", arguments)
    assert shown == "orcastream bench serve --api-key ... --tenant-key=... --tenant-key ... --prompts 'my file'"
