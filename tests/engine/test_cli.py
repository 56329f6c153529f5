"""`python -m orcastream.engine`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from orcastream.engine.cli import main


def test_help_needs_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--help"])
    printed = capsys.readouterr().out
    for option in ("--model", "--prompt", "--prompt-ids", "--temperature", "--top-k", "--top-p", "--seed"):
        assert option in printed


def test_prompt_ids_in_one_batch(saved_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", str(saved_llama), "--device", "cpu", "--prompt-ids", "1,2,3", "--prompt-ids", "9,8"]
    assert main([*arguments, "--max-tokens", "4", "--ignore-eos"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [bool(re.fullmatch(rf"\[prompt-{i}\] \d+ \d+ \d+ \d+  \(length, 4 tokens\)", lines[i])) for i in (0, 1)] == [
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no prompt"),
        (["--prompt", "hello"], "no tokenizer"),
        (["--prompt-ids", "1,x"], "--prompt-ids"),
        (["--prompt-ids", "1,400"], "token ids from 0 to 95"),
        (["--prompt-ids", "1", "--top-p", "7"], "top_p"),
        (["--prompt-ids", "1", "--max-batch-size", "0"], "max_batch_size"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], message: str, saved_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", str(saved_llama), "--device", "cpu", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1


@pytest.mark.parametrize("prompt", [("--prompt-ids", "1"), ("--prompt", "hello")])
@pytest.mark.parametrize("name", ["nothing", "empty", "file"])
def test_a_missing_model(
    name: str, prompt: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    model = str(tmp_path / name)
    assert main(["--model", model, *prompt]) == 2
    told = f"error: model: got {model!r}, allowed: a directory with a config.json, or a hub id\n"
    assert capsys.readouterr().err == told


def test_a_closed_output_pipe_ends_the_program(saved_llama: Path) -> None:
    command = (sys.executable, "-m", "orcastream.engine", "--model", str(saved_llama), "--device", "cpu")
    prompts = ("--prompt-ids", "1,2", "--prompt-ids", "3", "--max-tokens", "40", "--ignore-eos")
    with subprocess.Popen([*command, *prompts], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1) == "["
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0
