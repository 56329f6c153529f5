"""docs/iteration.md shows what the engine does, and its picture shows both schedulers."""

from pathlib import Path

import pytest

from orcastream.bench.walk.__main__ import main
from orcastream.bench.walk.lanes import places
from orcastream.bench.walk.page import TIMES, chosen
from orcastream.bench.walk.walk import MAX_BATCH_SIZE, MAX_TOKENS, SCENE, Iteration, Walk

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def walks() -> dict[str, Walk]:
    return {policy: Walk(policy) for policy in ("fcfs", "static")}


def test_page_and_picture_match_this_engine(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0
    written, kept = [(folder / "iteration.md").read_text(encoding="utf-8") for folder in (tmp_path, DOCS)]
    assert written.partition(TIMES)[0] == kept.partition(TIMES)[0]
    drawn, kept = [(folder / "batching.svg").read_text(encoding="utf-8") for folder in (tmp_path, DOCS)]
    assert drawn == kept


def test_both_schedulers_give_the_same_answers(walks: dict[str, Walk]) -> None:
    assert walks["fcfs"].answers == walks["static"].answers
    assert len(walks["fcfs"].iterations) < len(walks["static"].iterations)
    assert walks["fcfs"].answers["A"].startswith("3, 4, 5, 6, 7, 8, 9")


def test_spans_make_up_the_stream_and_stay_within_the_bounds(walks: dict[str, Walk]) -> None:
    for iteration in walks["fcfs"].iterations:
        rows = [row for span in iteration.spans for row in range(span.first, span.first + span.length)]
        assert rows == list(range(len(iteration.ids)))
        assert len(rows) <= MAX_TOKENS
        assert len(iteration.spans) <= MAX_BATCH_SIZE
        assert len(set(iteration.slots)) == len(iteration.slots)


def test_the_walk_has_a_decode_and_a_later_chunk(walks: dict[str, Walk]) -> None:
    shown = chosen(walks["fcfs"].iterations)
    assert any(span.decodes for span in shown.spans)
    assert any(not span.decodes and span.context > span.length for span in shown.spans)


def test_only_request_level_batching_leaves_slots_empty_while_requests_wait(walks: dict[str, Walk]) -> None:
    def wasted(iterations: list[Iteration]) -> int:
        return sum(len(each.spans) < MAX_BATCH_SIZE for each in iterations if each.waiting)

    assert wasted(walks["fcfs"].iterations) == 0
    assert wasted(walks["static"].iterations) > 0


def test_a_request_keeps_its_slot(walks: dict[str, Walk]) -> None:
    found = places(walks["fcfs"].iterations)
    for asked in SCENE:
        assert len({lanes[asked.name] for lanes in found if asked.name in lanes}) == 1
    assert all(len(set(lanes.values())) == len(lanes) and max(lanes.values()) < MAX_BATCH_SIZE for lanes in found)
