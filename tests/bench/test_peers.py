"""Systems in processes of their own, measured in turn: the real engine beside the real transformers."""

import json
import os
import select
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import demo
from bench.main import main
from bench.peers.contest import fresh_rounds
from bench.peers.entrant import Entrant, Place
from bench.peers.environment import Environment, Pins
from bench.peers.runner_process import RunnerError, RunnerProcess
from bench.peers.runners.protocol import Ask, Load
from bench.peers.systems import ENVIRONMENTS, SYSTEMS
from cli.errors import UserError

MODEL = str(demo.MODEL_DIR)
ROOT = Path(__file__).parents[2]
ASKS = [
    Ask(list(range(5, 12)), max_tokens=6),
    Ask(list(range(400, 430)), max_tokens=3, arrival_s=0.05),
    Ask([9], max_tokens=1),
]
LOAD = Load(MODEL, "float32", "cpu", threads=1, max_batch_size=2, kv_tokens=512, max_model_len=256)


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the environment of transformers is real, and made of the packages of this one."""
    folder = tmp_path_factory.mktemp("environments")
    environment = Environment(folder / "transformers", ENVIRONMENTS["transformers"])
    venv.create(environment.path, with_pip=False)
    (packages,) = environment.path.glob("lib/python*/site-packages")
    (packages / "these.pth").write_text("\n".join(part for part in sys.path if part.endswith("-packages")))
    environment.mark()
    return folder


@pytest.fixture(scope="module")
def place(environments: Path) -> Place:
    return Place(environments, "cpu", threads=1, timeout_s=170.0)


@pytest.fixture
def echo() -> Iterator[RunnerProcess]:
    """A child that answers each line with itself, and dies of `{"die": ...}` with those words."""
    code = """
import json, sys
for line in sys.stdin:
    if "die" in json.loads(line):
        print("first", file=sys.stderr)
        sys.exit(json.loads(line)["die"])
    print(line, end="", flush=True)
"""
    with RunnerProcess([sys.executable, "-c", code], os.environ) as process:
        yield process


def run(entrant: Entrant, *asks: Ask) -> dict[str, Any]:
    """The whole answer to a run."""
    return entrant.ask(do="run", asks=[asdict(ask) for ask in asks])


def test_all_systems_answer_alike_request_by_request(place: Place) -> None:
    answers = {}
    for name in ("orcastream", "transformers-generate", "transformers-static", "transformers-cb"):
        with Entrant(SYSTEMS[name], LOAD, place) as entrant:
            answers[name] = run(entrant, *ASKS)["answers"]
    own = answers["orcastream"]
    assert [len(answer["tokens"]) for answer in own] == [6, 3, 1]
    for name, others in answers.items():
        assert [other["tokens"] for other in others] == [answer["tokens"] for answer in own], name
        for ask, answer in zip(ASKS, others, strict=True):
            assert len(answer["times_s"]) == ask.max_tokens
            assert ask.arrival_s < answer["times_s"][0]
            assert answer["times_s"] == sorted(answer["times_s"])


def test_systems_take_turns_and_who_is_absent_is_named(
    environments: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "figures.json"
    command = ["peers", "--model", MODEL, "--environments", str(environments), "--dtype", "bfloat16,int8"]
    command += ["--systems", "orcastream,openvino,transformers-generate", "--length-scale", "0.05", "--requests", "4"]
    assert main([*command, "--repeats", "2", "--threads", "1", "--json", str(path)]) == 0
    saved = json.loads(path.read_text(encoding="utf-8"))
    rows = {(row["system"], row["workload"], row["dtype"]): row for row in saved["results"]}
    assert {key for key in rows if key[2] == "bfloat16"} == {
        (system, workload, "bfloat16")
        for system in ("orcastream", "transformers-generate")
        for workload in ("equal_size", "short_long_mix")
    }
    for row in rows.values():
        assert len(row["output_tokens_per_s"]) == 2
        assert row["version"]
        assert 0 < row["ttft_ms"]["p50"] <= row["ttft_ms"]["p99"]
        assert row["tbt_ms"]["p50"] > 0
        assert row["ratio"] > 0
    absent = {(one["system"], one["dtype"]): one["why"] for one in saved["absent"]}
    assert absent["openvino", "bfloat16"] == absent["openvino", "int8"] == "not installed"
    assert absent["transformers-generate", "int8"] == "has no int8"
    assert saved["machine"]["cores"] >= 1
    assert "absent: openvino bfloat16: not installed" in capsys.readouterr().out


def test_a_system_that_cannot_load_says_why(place: Place, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 8}')
    with pytest.raises(RunnerError, match=r"model|Unrecognized"):
        Entrant(SYSTEMS["transformers-generate"], replace(LOAD, model=str(tmp_path)), place)


def test_a_paused_process_stands_still_until_it_is_resumed(echo: RunnerProcess) -> None:
    assert echo.ask(60.0, number=1) == {"number": 1}
    echo.pause()
    os.waitid(os.P_PID, echo.pid, os.WSTOPPED)
    with pytest.raises(RunnerError, match=r"no answer within 0.1 s"):
        echo.ask(0.1, number=2)
    echo.resume()
    assert echo.ask(60.0, number=3) == {"number": 2}, "the answer that was late"


def test_a_process_that_dies_is_told_by_its_last_words(echo: RunnerProcess) -> None:
    with pytest.raises(RunnerError, match=r"ended with 1, and said last: out of everything"):
        echo.ask(60.0, die="out of everything")
    with pytest.raises(RunnerError, match=r"ended with 1"):
        echo.ask(60.0, number=1)


def test_what_a_library_prints_does_not_disturb_the_answers() -> None:
    code = """
import os, sys, types
from bench.peers.runners.protocol import serve

def prepare(model, dtype, into):
    print("from Python", flush=True)
    os.system("echo from a child")

noisy = sys.modules["bench.peers.runners.noisy"] = types.ModuleType("noisy")
noisy.prepare = prepare
serve("noisy")
"""
    with RunnerProcess([sys.executable, "-c", code], _with_root()) as process:
        assert process.ask(60.0, do="prepare", model="", dtype="", into="") == {}
        with pytest.raises(RunnerError, match=r"AttributeError: .*load"):
            process.ask(60.0, do="load", **asdict(LOAD))


@pytest.mark.parametrize("stopped", [True, False])
def test_a_child_does_not_outlive_its_parent(stopped: bool) -> None:
    code = f"""
import os, sys
from bench.peers.runner_process import RunnerError, RunnerProcess
child = RunnerProcess([sys.executable, "-m", "bench.peers.runners", "nothing"], os.environ)
try:
    child.ask(60.0, do="load")
except RunnerError:
    pass
if {stopped}:
    child.pause()
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
print(child.pid, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], env=_with_root(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            assert select.select([child], [], [], 60.0)[0], "the child is still there"
        finally:
            os.close(child)


def test_rounds_differ_in_their_ids_alone() -> None:
    asks = [Ask([1, 2, 3, 4], 5), Ask([1, 2, 9], 7, arrival_s=0.5)]
    rounds = list(fresh_rounds(asks, 3, seed=0, vocab_size=1000))
    assert len(rounds) == 3
    assert len({tuple(first.prompt) for first, _ in rounds}) == 3
    for first, second in rounds:
        assert (len(first.prompt), first.max_tokens, first.arrival_s) == (4, 5, 0.0)
        assert (len(second.prompt), second.max_tokens, second.arrival_s) == (3, 7, 0.5)
        assert first.prompt[:2] == second.prompt[:2]
        assert first.prompt[2] != second.prompt[2]
    assert rounds == list(fresh_rounds(asks, 3, seed=0, vocab_size=1000))


def test_an_environment_tells_what_it_lacks(tmp_path: Path) -> None:
    environment = Environment(tmp_path, Pins(("a==1",)))
    assert environment.lack() == "not installed"
    environment.mark()
    assert environment.lack() is None
    assert Environment(tmp_path, Pins(("a==2",))).lack() == "installed with other versions"


def test_a_set_up_that_fails_is_one_line_and_leaves_nothing_installed(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "new", Pins(("./no-such-package",)))
    with pytest.raises(UserError, match=r"--set-up: new: pip install ./no-such-package failed with 1"):
        environment.set_up()
    assert environment.lack() == "not installed"


def test_quantized_weights_are_near_the_ones_they_come_from(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    from bench.peers.runners.w8a8 import write_w8a8

    write_w8a8(demo.MODEL_DIR, tmp_path / "int8")
    original = load_file(demo.MODEL_DIR / "model.safetensors")
    written = load_file(tmp_path / "int8" / "model.safetensors")
    linear = {name for name, weight in original.items() if weight.ndim == 2 and "embed" not in name}
    assert set(written) == set(original) | {f"{name}_scale" for name in linear}
    for name in linear:
        scale = written[f"{name}_scale"].float()
        assert written[name].dtype == torch.int8
        assert ((written[name] * scale - original[name].float()).abs() <= scale * 1.05).all()
    config = json.loads((tmp_path / "int8" / "config.json").read_text(encoding="utf-8"))
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--model, --set-up: got neither"),
        (["--model", "nowhere"], "--model: got 'nowhere', allowed: a directory with a config.json"),
        (["--model", MODEL, "--systems", "crystal"], "--systems: got 'crystal', allowed: orcastream, openvino"),
        (["--model", MODEL, "--dtype", "int3"], "--dtype: got 'int3', allowed: bfloat16, int8, float32"),
        (["--model", MODEL, "--workload", "multi_turn"], "--workload: got 'multi_turn', allowed: one whose requests"),
        (["--device", "cuda", "--set-up", "openvino"], "--set-up: got 'openvino', allowed: a system that runs on cuda"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["peers", *arguments, "--environments", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"orcastream bench peers: {complaint}")
    assert error.count("\n") == 1


def _with_root() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
