"""Systems in separate processes, measured in turn: the real engine next to the real transformers."""

import json
import os
import select
import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from orcastream import demo
from orcastream.bench.main import main
from orcastream.bench.peers.contest import fresh_rounds
from orcastream.bench.peers.entrant import Entrant, Place, answering
from orcastream.bench.peers.environment import Environment, Pins
from orcastream.bench.peers.runner_process import RunnerError, RunnerProcess
from orcastream.bench.peers.runners.protocol import Ask, Load
from orcastream.bench.peers.runners.w8a8 import write_w8a8
from orcastream.bench.peers.systems import ENVIRONMENTS, SYSTEMS
from orcastream.cli.errors import UserError
from orcastream.engine.model.passes import passes_unavailable
from orcastream.engine.native.library import instruction_set, why_unavailable

MODEL = str(demo.MODEL_DIR)
ROOT = Path(__file__).parents[2]
LISTS = ("--workload", "--dtype", "--systems", "--set-up")
TRANSFORMERS = ("transformers_generate", "transformers_static", "transformers_cb")
ASKS = [
    Ask(list(range(5, 12)), max_tokens=6),
    Ask(list(range(400, 430)), max_tokens=3, arrival_s=0.05),
    Ask([9], max_tokens=1),
]
LOAD = Load(
    MODEL,
    "float32",
    "cpu",
    threads=1,
    max_batch_size=2,
    kv_tokens=512,
    max_model_len=256,
    max_num_batched_tokens=16,
)


def virtual_environment(path: Path, packages: Iterable[str] = ()) -> None:
    """Create an environment that finds only the packages of these folders."""
    venv.create(path, with_pip=False)
    (own,) = path.glob("lib/python*/site-packages")
    (own / "these.pth").write_text("\n".join(packages))


def own_packages() -> list[str]:
    """Return the folders of the packages installed here."""
    return [part for part in sys.path if part.endswith("-packages")]


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where the environment of transformers has its package, and that of llama.cpp has none."""
    folder = tmp_path_factory.mktemp("environments")
    for name, packages in (("transformers", own_packages()), ("llama.cpp", [])):
        virtual_environment(folder / name, packages)
        Environment(folder / name, ENVIRONMENTS[name]).mark()
    return folder


@pytest.fixture(scope="module")
def place(environments: Path) -> Place:
    return Place(environments, "cpu", threads=1, timeout_s=170.0)


@pytest.fixture
def echo() -> Iterator[RunnerProcess]:
    """A child that echoes each line, and dies at `{"die": ...}` with that message."""
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


def test_all_systems_give_the_same_answers_request_by_request() -> None:
    code = """
import json, os, sys
from dataclasses import asdict
from importlib import import_module
from orcastream.bench.peers.runners.drive import drive
from orcastream.bench.peers.runners.protocol import Ask, Load

asked = json.load(sys.stdin)
asks = [Ask(**ask) for ask in asked["asks"]]
for name, dtype in asked["systems"]:
    system = import_module(f"orcastream.bench.peers.runners.{name}").load(Load(**{**asked["load"], "dtype": dtype}))
    print(json.dumps([asdict(answer) for answer in drive(system, asks)[1]]), flush=True)
os._exit(0)
"""
    systems = [(name, "float32") for name in ("orcastream", *TRANSFORMERS)]
    if passes_unavailable(torch.device("cpu")) is None:
        systems.append(("orcastream", "int8"))
    asked = {"systems": systems, "load": asdict(LOAD), "asks": [asdict(ask) for ask in ASKS]}
    process = subprocess.run(
        [sys.executable, "-c", code], env=_with_root(), input=json.dumps(asked), stdout=subprocess.PIPE, text=True
    )
    answers = [json.loads(line) for line in process.stdout.splitlines()]
    assert len(answers) == len(systems)
    for (name, dtype), others in zip(systems, answers, strict=True):
        for ask, answer, own in zip(ASKS, others, answers[0], strict=True):
            assert len(answer["tokens"]) == len(answer["times_s"]) == ask.max_tokens, (name, dtype)
            assert answer["tokens"] == own["tokens"] or dtype != "float32", name
            assert ask.arrival_s < answer["times_s"][0]
            assert answer["times_s"] == sorted(answer["times_s"])


def test_requests_between_first_and_last_token_are_counted() -> None:
    times = [[1.0, 2.0, 4.0], [2.0, 3.0], [4.0, 5.0], [3.5]]
    assert answering(times, seconds=10.0) == {"mean": 0.5, "max": 2}


def test_systems_alternate_and_absent_ones_are_named(
    environments: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "figures.json"
    command = ["peers", "--model", MODEL, "--environments", str(environments), "--dtype", "bfloat16"]
    command += ["--systems", "orcastream,openvino,transformers-cb", "--length-scale", "0.05", "--requests", "4"]
    command += ["--rate", "40", "--repeats", "2", "--threads", "1", "--json", str(path)]
    assert main(command) == 0
    saved = json.loads(path.read_text(encoding="utf-8"))
    rows = {(row["system"], row["workload"], row["dtype"]): row for row in saved["results"]}
    assert set(rows) == {
        (system, workload, "bfloat16")
        for system in ("orcastream", "transformers-cb")
        for workload in ("equal_size", "short_long_mix")
    }
    for row in rows.values():
        assert len(row["output_tokens_per_s"]) == 2
        assert row["version"]
        assert 0 < row["ttft_ms"]["p50"] <= row["ttft_ms"]["p99"]
        assert row["tbt_ms"]["p50"] > 0
        assert 0 < row["answering"]["mean"] <= row["answering"]["max"] <= 4
        assert row["ratio"] > 0
    served_by = "no compiled operators" if why_unavailable() else instruction_set()
    assert rows["orcastream", "equal_size", "bfloat16"]["version"].endswith(f", {served_by}")
    assert saved["absent"] == [{"system": "openvino", "dtype": "bfloat16", "why": "not installed"}]
    assert saved["workload"]["max_batch_size"] == 4, "a place for each request that arrives"
    assert saved["machine"]["cores"] >= 1
    assert "absent: openvino bfloat16: not installed" in capsys.readouterr().out


def test_a_system_that_cannot_load_reports_why(place: Place) -> None:
    with pytest.raises(RunnerError, match=r"ModuleNotFoundError: No module named 'gguf'"):
        Entrant(SYSTEMS["llama.cpp"], LOAD, place)


def test_unavailable_systems_are_known_beforehand(place: Place) -> None:
    int8 = replace(LOAD, dtype="int8")
    assert place.lack(SYSTEMS["transformers-cb"], LOAD) is None
    assert place.lack(SYSTEMS["transformers-cb"], int8) == "has no int8"
    assert place.lack(SYSTEMS["openvino"], int8) == "not installed"
    assert replace(place, device="cuda").lack(SYSTEMS["openvino"], int8) == "does not run on cuda"
    whole = SYSTEMS["transformers-static"]
    assert place.lack(whole, LOAD) == "computes prompts whole, without a limit of tokens"
    assert place.lack(whole, replace(LOAD, max_num_batched_tokens=None)) is None


def test_a_paused_process_does_nothing_until_resumed(echo: RunnerProcess) -> None:
    assert echo.ask(60.0, number=1) == {"number": 1}
    echo.pause()
    os.waitid(os.P_PID, echo.pid, os.WSTOPPED)
    with pytest.raises(RunnerError, match=r"no answer within 0.1 s"):
        echo.ask(0.1, number=2)
    echo.resume()
    assert echo.ask(60.0, number=3) == {"number": 2}, "the late answer"


def test_a_dead_process_is_reported_with_its_last_output(echo: RunnerProcess) -> None:
    with pytest.raises(RunnerError, match=r"ended with 1, and last printed: out of everything"):
        echo.ask(60.0, die="out of everything")
    with pytest.raises(RunnerError, match=r"ended with 1"):
        echo.ask(60.0, number=1)


def test_library_output_does_not_disturb_the_answers() -> None:
    code = """
import os, sys, types
from orcastream.bench.peers.runners.protocol import serve

def prepare(model, dtype, into):
    print("from Python", flush=True)
    os.system("echo from a child")

noisy = sys.modules["orcastream.bench.peers.runners.noisy"] = types.ModuleType("noisy")
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
from orcastream.bench.peers.runner_process import RunnerError, RunnerProcess
child = RunnerProcess([sys.executable, "-m", "orcastream.bench.peers.runners", "nothing"], os.environ)
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
            assert select.select([child], [], [], 60.0)[0], "the child is still running"
        finally:
            os.close(child)


def test_rounds_differ_only_in_their_ids() -> None:
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


def test_an_environment_reports_missing_packages(tmp_path: Path) -> None:
    environment = Environment(tmp_path, Pins(("a==1",)))
    assert environment.lack() == "not installed"
    environment.mark()
    assert environment.lack() is None
    assert Environment(tmp_path, Pins(("a==2",))).lack() == "installed with other versions"


def test_a_failed_setup_is_one_line_and_leaves_nothing_installed(tmp_path: Path) -> None:
    virtual_environment(tmp_path / "new", own_packages())
    environment = Environment(tmp_path / "new", Pins(("./no-such-package",)))
    with pytest.raises(UserError, match=r"--set-up: new: pip install ./no-such-package failed with 1"):
        environment.set_up()
    assert environment.lack() == "not installed"


def test_quantized_weights_are_close_to_the_originals(tmp_path: Path) -> None:
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
        (["--model", "nowhere"], "--model: got 'nowhere', allowed: a directory with a model's config.json"),
        *((["--model", MODEL, flag, ","], f"{flag}: got ',', allowed: ") for flag in LISTS),
        (["--model", MODEL, "--systems", "crystal"], "--systems: got 'crystal', allowed: orcastream, openvino"),
        (["--model", MODEL, "--dtype", "int3"], "--dtype: got 'int3', allowed: bfloat16, int8, float32"),
        (["--model", MODEL, "--workload", "multi_turn"], "--workload: got 'multi_turn', allowed: one whose requests"),
        (
            ["--model", MODEL, "--max-num-batched-tokens", "15"],
            "--max-num-batched-tokens: got 15, allowed: at least 16",
        ),
        (
            ["--model", MODEL, "--max-num-batched-tokens", "19", "--requests", "20", "--rate", "1"],
            "--max-num-batched-tokens: got 19, allowed: at least 20",
        ),
        (
            ["--model", MODEL, "--workload", "long_prefill", "--requests", "8", "--rate", "1"],
            "--rate: got 1 for long_prefill, allowed: none",
        ),
        (["--device", "cuda", "--set-up", "openvino"], "--set-up: got 'openvino', allowed: a system that runs on cuda"),
    ],
)
def test_an_impossible_measurement_is_one_line(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["peers", *arguments, "--environments", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"orcastream bench peers: {complaint}")
    assert error.count("\n") == 1


@pytest.mark.parametrize("config", ["[]", "{}", '{"num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 1}'])
def test_a_configuration_of_no_model_is_one_line(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    assert main(["peers", "--model", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"orcastream bench peers: --model: got '{tmp_path}', allowed: ")
    assert error.count("\n") == 1


def test_a_run_in_which_nobody_could_take_part_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--systems", "openvino", "--environments", str(tmp_path), "--dtype", "bfloat16"]
    assert main(["peers", "--model", MODEL, *flags]) == 1
    assert "absent: openvino bfloat16: " in capsys.readouterr().out


def _with_root() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
