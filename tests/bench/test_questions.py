"""The questions: known answers, different lengths, reproducible with the same seed."""

from pathlib import Path

import pytest

from orcastream.bench.serve.questions import MIXES, from_file
from orcastream.bench.workloads import SampleRequest
from orcastream.demo.prompts import LONG_COUNT, SHOWCASE


@pytest.mark.parametrize("mix", MIXES)
def test_every_question_of_the_demo_has_its_answer(mix: str) -> None:
    workload, again = MIXES[mix](3), MIXES[mix](3)
    drawn = [workload.draw() for _ in range(200)]
    assert all(question.answer for question in drawn)
    assert drawn == [again.draw() for _ in range(200)]


def test_the_demo_mixes_short_and_long() -> None:
    workload = MIXES["demo"]()
    drawn = {workload.draw() for _ in range(500)}
    lengths = sorted(len(str(question.answer)) for question in drawn)
    assert SampleRequest(*LONG_COUNT) in drawn
    assert {SampleRequest(question, answer) for question, answer in SHOWCASE} <= drawn
    assert lengths[0] < 10 < 100 < lengths[-1]


def test_questions_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n\n{"prompt": "c", "max_tokens": 5}\n', encoding="utf-8")
    workload = from_file(path)
    assert {workload.draw() for _ in range(50)} == {SampleRequest("a", "b"), SampleRequest("c", None, 5)}


@pytest.mark.parametrize("line", ['{"answer": "b"}', "[]", "{", '{"prompt": 1}', '{"prompt": "a", "n": 2}'])
def test_an_invalid_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "a"}}\n{line}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"prompts\.jsonl:2: .*allowed: an object"):
        from_file(path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match="got no questions, allowed: at least one"):
        from_file(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    with pytest.raises(ValueError, match=r"prompts\.jsonl: allowed: .* \(No such file or directory\)"):
        from_file(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"prompts\.jsonl: allowed: .* \(not UTF-8\)"):
        from_file(path)
