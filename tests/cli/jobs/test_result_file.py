"""The output of a bulk job holds each result once, however its writer ended."""

import json
import os
from pathlib import Path

import pytest

from orcastream.cli.console.run import NotDone
from orcastream.cli.errors import UserError
from orcastream.cli.jobs.result_file import ResultFile


def result(number: int, job: str = "job") -> bytes:
    return json.dumps({"id": f"{job}.{number}", "custom_id": str(number)}).encode()


def numbers(path: Path) -> list[int]:
    return [int(json.loads(line)["custom_id"]) for line in path.read_bytes().splitlines()]


def test_each_result_once_over_many_writers(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    for _ in range(2):
        with ResultFile(path, "job") as file:
            for number in (3, 1, 3):
                file.write(number, result(number))
    with ResultFile(path, "job") as file:
        assert file.numbers == {1, 3}
        file.write(2, result(2))
    assert numbers(path) == [3, 1, 2]


@pytest.mark.parametrize("cut", range(len(result(2)) + 1))
def test_a_file_truncated_after_every_byte(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(result(1) + b"\n" + result(2)[:cut])
    with ResultFile(path, "job") as file:
        assert file.numbers == {1}
        file.write(2, result(2))
    assert path.read_bytes() == result(1) + b"\n" + result(2) + b"\n"


@pytest.mark.parametrize(
    "line", [b"notes", b"{}", b"[]", b'{"id": 1}', result(1, "another"), b'{"id": "job.x"}', b"\xff"]
)
def test_a_file_with_anything_else_is_left_alone(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(
        UserError, match=r"output: got '.*out.jsonl', allowed: a new file, or one with results of the job"
    ):
        ResultFile(path, "job")
    assert path.read_bytes() == line + b"\n"


@pytest.mark.parametrize("before", [b"", result(1) + b"\n"])
@pytest.mark.parametrize(
    "rest", [b"notes", b'{"prompt": "What is 3 + 4?"}', result(1, "another"), result(1, "job2"), b" "]
)
def test_an_incomplete_last_line_is_removed_only_if_it_is_a_result(tmp_path: Path, before: bytes, rest: bytes) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(before + rest)
    with pytest.raises(UserError, match=f"results of the job job; line {1 + bool(before)} is none"):
        ResultFile(path, "job")
    assert path.read_bytes() == before + rest


def test_a_file_that_is_not_regular(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (Path("/dev/full"), Path("/dev/null"), tmp_path / "pipe"):
        with pytest.raises(UserError, match=r"a file that can be written \(it is not a regular file\)"):
            ResultFile(path, "job")


def test_a_full_disk_is_reported_in_one_sentence(tmp_path: Path) -> None:
    file = ResultFile(tmp_path / "out.jsonl", "job")
    with Path("/dev/full").open("wb", buffering=0) as full:
        os.dup2(full.fileno(), file._file.fileno())
    file.write(1, result(1))
    for act in (file.flush, file.close):
        with pytest.raises(NotDone, match=r"output: '.*out.jsonl' cannot be written: No space left on device; run"):
            act()


def test_whether_results_are_in_the_order_of_their_lines(tmp_path: Path) -> None:
    orders = [((), True), ((1, 2), True), ((2, 1, 3), False), ((2,), False), ((1, 3), False)]
    for name, (order, in_order) in enumerate(orders):
        path = tmp_path / str(name)
        path.write_bytes(b"".join(result(number) + b"\n" for number in order))
        with ResultFile(path, "job") as file:
            assert file.in_order == in_order


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with ResultFile(path, "job"), pytest.raises(UserError, match="another process is writing"):
        ResultFile(path, "job")
    ResultFile(path, "job").close()


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"output: got '.*', allowed: a file that can be written \(.*directory\)"):
        ResultFile(tmp_path, "job")
