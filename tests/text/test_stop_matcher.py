"""Stop strings against a brute-force reference."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcastream.text.stop_matcher import Match, StopMatcher

ALPHABET = st.text("ab👍", min_size=1, max_size=4)


def reference(text: str, stops: list[str]) -> tuple[str, Match | None, str]:
    """Return the released text, the match, and the held text, by trying all ends."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], Match(longest, end - len(longest), end), ""
    held = max((length for stop in stops for length in range(len(stop)) if text.endswith(stop[:length])), default=0)
    return text[: len(text) - held], None, text[len(text) - held :]


@given(st.lists(ALPHABET, min_size=1, max_size=4), st.lists(st.text("ab👍", max_size=5), max_size=8))
def test_equals_the_reference_in_any_grouping(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    safe, match, held = reference(text, stops)
    for grouping in (pieces, list(text), [text]):
        matcher = StopMatcher(stops)
        given_out = "".join(matcher.push(piece)[0] for piece in grouping)
        assert (given_out, matcher.match, matcher.held) == (safe, match, held)
        assert matcher.finish() == held


@given(st.lists(ALPHABET, min_size=1, max_size=4), st.text("ab👍", max_size=20))
def test_text_released_at_each_point_depends_only_on_the_text(stops: list[str], text: str) -> None:
    matcher = StopMatcher(stops)
    out = ""
    for number, char in enumerate(text, start=1):
        out += matcher.push(char)[0]
        assert out == reference(text[:number], stops)[0]


def test_no_part_of_a_stop_is_released() -> None:
    matcher = StopMatcher(["\n\nUser:", "END"])
    assert matcher.push("answer\n\nUs") == ("answer", None)
    assert matcher.held == "\n\nUs"
    assert matcher.push("ers\n") == ("\n\nUsers", None)
    assert matcher.push("\nUser: hi") == ("", Match("\n\nUser:", 13, 20))
    assert matcher.push("more") == ("", matcher.match)
    assert matcher.held == matcher.finish() == ""


def test_the_first_complete_stop_wins_then_the_longest() -> None:
    assert StopMatcher(["abcde", "cd"]).push("abcde") == ("ab", Match("cd", 2, 4))
    assert StopMatcher(["cd", "bcd"]).push("abcd") == ("a", Match("bcd", 1, 4))


def test_without_stops_everything_passes() -> None:
    matcher = StopMatcher([])
    assert matcher.push("anything") == ("anything", None)
    assert matcher.held == ""


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="stops"):
        StopMatcher(["a", ""])


def test_a_repeating_stop_does_not_lose_its_position() -> None:
    assert StopMatcher(["aab"]).push("aaab") == ("a", Match("aab", 1, 4))
