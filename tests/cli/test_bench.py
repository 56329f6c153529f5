"""`orcastream bench` on the command line."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orcastream.bench.main import COMMANDS
from orcastream.bench.workloads import WORKLOADS
from orcastream.cli.main import main
from tests.cli.processes import ROOT, Terminal
from tests.redis_waiting import wait_until


def test_help_lists_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["bench"], ["bench", "--help"]):
        assert main(arguments) == 0
        shown = capsys.readouterr().out
        assert all(f"  {name} " in shown for name in COMMANDS)


def test_an_unknown_benchmark_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "speed"]) == 2
    error = capsys.readouterr().err
    assert error == f"orcastream bench: command: got 'speed', allowed: {', '.join(COMMANDS)}\n"


def test_the_workloads_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "workloads"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in WORKLOADS)


def test_help_and_the_load_client_load_no_torch() -> None:
    program = (
        "import contextlib, sys; from orcastream.cli.main import main\n"
        "main(['bench', '--help']); main(['bench', 'workloads'])\n"
        "with contextlib.suppress(SystemExit): main(['bench', 'serve', '--help'])\n"
        "main(['bench', 'serve', '--url', 'http://127.0.0.1:1', '--patience', '0'])\n"
        "heavy = ('torch', 'orcastream.engine', 'orcastream.worker', 'matplotlib')\n"
        "print(json.dumps([name for name in heavy if name in sys.modules]))"
    )
    program = "import json; " + program
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert json.loads(shown.stdout.splitlines()[-1]) == []
    assert "gateway: http://127.0.0.1:1 is not ready" in shown.stderr


def test_a_plot_without_matplotlib_is_refused_before_measuring(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["bench", "serve", "--plot", str(tmp_path / "plot.svg")]) == 2
    assert capsys.readouterr().err == (
        "orcastream bench serve: --plot: the package matplotlib is not installed: pip install 'orcastream[bench]'\n"
    )


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--json", "/nowhere/a.json"], "--json: got '/nowhere/a.json', allowed: a file that can be written (No such"),
        (["--rate", "0"], "argument --rate: got 0, allowed: more than 0 and finite"),
        (["--concurrency", "0"], "argument --concurrency: got 0, allowed: a whole number of at least 1"),
        (["--workload", "nothing"], "argument --workload: invalid choice: 'nothing'"),
        (["--mix", "urgent=1"], "--mix: got class 'urgent', allowed: "),
        (["--mix", "high"], "--mix: got 'high', allowed: NAME=SHARE"),
        (["--tenant-key", "secret"], "--tenant-key: got something else, allowed: NAME=KEY"),
        (["--sweep", "load=1"], "--sweep: got 'load=1', allowed: rate=R,R... or concurrency=C,C..."),
        (["--sweep", "rate=1,x"], "--sweep: got '1,x', allowed: numbers above 0"),
        (["--sweep", "rate=1", "--rate", "2"], "--sweep: got a load as well"),
    ],
)
def test_a_wrong_flag_is_one_line(flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"orcastream bench serve: {complaint}")
    assert error.count("\n") == 1


def test_a_run_that_is_ended_leaves_no_files(tmp_path: Path) -> None:
    bench = Terminal(
        *("-m", "orcastream.cli.main", "bench", "redis-enqueue", "--count", "1000000"), env={"TMPDIR": str(tmp_path)}
    )
    wait_until(lambda: bool(list(tmp_path.glob("orcastream-bench-*/redis/appendonly*"))))
    bench.signal(signal.SIGTERM)
    assert bench.wait() == 130
    assert list(tmp_path.iterdir()) == []
    bench.close()
