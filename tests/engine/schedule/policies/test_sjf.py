"""Shortest job first, against a plain statement of its rule."""

from typing import Any

from hypothesis import given

from tests.engine.schedule.policies.rig import MOVES, agree, play


@given(MOVES)
def test_prompt_and_max_tokens_decide(moves: list[Any]) -> None:
    play("sjf", moves, lambda rig: agree(rig, lambda each: len(each.prompt_ids) + each.max_tokens))
