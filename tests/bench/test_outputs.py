"""An unwritable file is reported before anything is measured."""

import os
from argparse import Namespace
from pathlib import Path

import pytest

from orcastream.bench.figures.json_file import write_json
from orcastream.bench.flags import check_outputs
from orcastream.bench.gpu.report import Report
from orcastream.bench.main import main
from orcastream.cli.errors import UserError

NEVER = "/proc/figures.json"
"""In a directory that exists, where nobody may make a file."""


@pytest.mark.parametrize(
    "command",
    [
        ["serve", "--url", "http://127.0.0.1:1"],
        ["offline", "--model", "not loaded"],
        ["peers", "--model", "not loaded"],
        *(["overload"], ["path"], ["soak"], ["autoscale"], ["telemetry-cost"], ["gpu"]),
    ],
)
def test_an_unwritable_file_is_one_line_before_the_measurement(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--json", NEVER]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        f"orcastream bench {command[0]}: --json: got '{NEVER}', allowed: a file that can be written"
    )
    assert error.count("\n") == 1


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="too long"):
        check_outputs(Namespace(json=tmp_path / ("a" * 300)))


def test_a_picture_has_a_known_format_and_its_own_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--plot: got .*curve.doc', allowed: a name that ends with .svg, .png, .pdf"):
        check_outputs(Namespace(json=None, plot=tmp_path / "curve.doc"))
    with pytest.raises(UserError, match="twice, allowed: two files"):
        check_outputs(Namespace(json=tmp_path / "a.svg", plot=tmp_path / "a.svg"))


def test_an_existing_file_remains_until_the_figures_are_written(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("{}")
    for path in (old, new, Path("/dev/stdout")):
        check_outputs(Namespace(json=path))
    assert old.read_text() == "{}"
    assert not new.exists()


def test_a_link_to_a_file_that_does_not_exist_yet_stays_a_link(tmp_path: Path) -> None:
    link, target = tmp_path / "latest.json", tmp_path / "today.json"
    link.symlink_to(target)
    check_outputs(Namespace(json=link))
    assert link.is_symlink()
    assert not target.exists()
    link.unlink()
    link.symlink_to("/nowhere/today.json")
    with pytest.raises(UserError, match=r"--json: got .*latest.json', allowed: a file that can be written \(No such"):
        check_outputs(Namespace(json=link))


def test_a_disk_that_is_full_in_the_end_is_one_line() -> None:
    with pytest.raises(UserError, match=r"--json: '/dev/full' cannot be written: No space left on device"):
        write_json(Path("/dev/full"), {"figures": 1})


def test_figures_replace_a_file_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text("old")
    with path.open(encoding="utf-8") as old:
        write_json(path, {"figures": 1})
        assert old.read() == "old"
    assert path.read_text(encoding="utf-8") == '{\n "figures": 1\n}\n'
    assert [each.name for each in tmp_path.iterdir()] == ["figures.json"]


def test_figures_of_a_gpu_go_where_they_are_to_go_and_replace_nothing(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        Report({}, pipe).add("section", figure=1)
        assert pipe.is_fifo()
        assert b'"figure": 1' in os.read(reader, 1 << 16)
    finally:
        os.close(reader)
