"""Thinking is separated from the answer, however the text is cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcastream.text.reasoning import ReasoningParser
from tests.text.spaces import Spaces

CASES = [
    ("<think>\nsum\n</think>\n\n42", False, "sum", "42"),
    ("<think>\n\n</think>\n\n42", False, "", "42"),
    ("\n<think>a</think>b", False, "a", "b"),
    (" \r\n\t<think>a</think>b", False, "a", "b"),
    ("\u00a0<think>a</think>b", False, "", "\u00a0<think>a</think>b"),
    ("42, no <think>", False, "", "42, no <think>"),
    ("<thin air", False, "", "<thin air"),
    ("  spaces", False, "", "  spaces"),
    ("  ", False, "", "  "),
    ("<think>never\n\nclosed\n", False, "never\n\nclosed", ""),
    ("<think>cut </thi", False, "cut </thi", ""),
    ("sum\n</think>\n\n{}\n", True, "sum", "{}\n"),
    ("<think>a</think>b</think>c", False, "a", "b</think>c"),
    ("", False, "", ""),
]


def parsed(pieces: list[str], inside: bool) -> tuple[str, str]:
    parser = ReasoningParser(inside=inside)
    thoughts = [*(parser.push(piece) for piece in pieces), parser.finish()]
    return "".join(each.reasoning for each in thoughts), "".join(each.content for each in thoughts)


@pytest.mark.parametrize(("text", "inside", "reasoning", "content"), CASES)
def test_thinking_and_answer_have_their_texts(text: str, inside: bool, reasoning: str, content: str) -> None:
    assert parsed([text], inside) == (reasoning, content)
    assert parsed(list(text), inside) == (reasoning, content)


PIECES = st.lists(st.sampled_from(["<think>", "</think>", "\n", " ", "a", "<", "/", "think>", "é"]), max_size=12)


@given(PIECES, st.booleans(), st.lists(st.integers(0, 40), max_size=6))
def test_cuts_change_nothing(pieces: list[str], inside: bool, cuts: list[int]) -> None:
    text = "".join(pieces)
    bounds = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    cut = [text[a:b] for a, b in pairwise(bounds)]
    assert parsed(cut, inside) == parsed([text], inside)


@pytest.mark.parametrize(
    ("tail", "reasoning", "content"),
    [("<think>a</think>b", "a", "b"), ("<thin air", "", f"{' ' * 1000}<thin air"), ("", "", " " * 1000)],
)
def test_whitespace_is_not_rescanned_for_each_piece(
    tail: str, reasoning: str, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Spaces, "seen", 0)
    assert parsed([*(Spaces(" ") for _ in range(1000)), *tail], False) == (reasoning, content)
    assert 1000 <= Spaces.seen <= 20_000
