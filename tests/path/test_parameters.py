"""All parameters of a request survive a takeover: the same text, the same log probabilities."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.chaos.patches import pace
from tests.path.site import Site
from tests.redis_server import RedisServer, one_server

pytestmark = one_server("system")

ASKED: dict[str, Any] = {
    "model": "orca-demo",
    "prompt": "Count from 1 to 300",
    "n": 2,
    "max_tokens": 120,
    "temperature": 1.0,
    "top_p": 0.95,
    "seed": 11,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.3,
    "logit_bias": {"40": 1.5, "41": -100},
    "logprobs": 2,
    "stop": ["\u2603 never said"],
    "extra_body": {"repetition_penalty": 1.1, "ignore_eos": True, "top_k": 60, "min_p": 0.001, "timeout": 120},
}


@dataclass
class Answer:
    """What a stream delivered of each choice."""

    texts: list[str] = field(default_factory=lambda: ["", ""])
    tokens: list[list[str]] = field(default_factory=lambda: [[], []])
    logprobs: list[list[float]] = field(default_factory=lambda: [[], []])
    reasons: dict[int, str] = field(default_factory=dict)


@pytest.fixture
def site(redis_server: RedisServer, tmp_path: Path) -> Iterator[Site]:
    """Processes on an empty server."""
    site = Site(redis_server, tmp_path)
    yield site
    site.stop()


def ask(site: Site, at_chunk_40: Callable[[str], None]) -> Answer:
    answer = Answer()
    with openai.OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0) as client:
        for number, chunk in enumerate(client.completions.create(**ASKED, stream=True)):
            for choice in chunk.choices:
                answer.texts[choice.index] += choice.text
                if choice.logprobs is not None:
                    answer.tokens[choice.index] += choice.logprobs.tokens or []
                    answer.logprobs[choice.index] += [each or 0.0 for each in choice.logprobs.token_logprobs or ()]
                if choice.finish_reason:
                    answer.reasons[choice.index] = choice.finish_reason
            if number == 40:
                at_chunk_40(chunk.id)
    return answer


def test_all_parameters_over_a_killed_worker(site: Site) -> None:
    site.start(workers=2, patch=partial(pace, 0.02))
    killed: list[str] = []

    def kill(request_id: str) -> None:
        killed.append(request_id)
        site.writer(request_id).kill()

    undisturbed = ask(site, lambda _: None)
    disturbed = ask(site, kill)
    assert len(site.writers(killed[0])) == 2
    assert disturbed.texts == undisturbed.texts
    assert disturbed.tokens == undisturbed.tokens
    for found, expected in zip(disturbed.logprobs, undisturbed.logprobs, strict=True):
        assert found == pytest.approx(expected, abs=1e-3)
    assert undisturbed.reasons == disturbed.reasons == {0: "length", 1: "length"}
    assert [len(tokens) for tokens in undisturbed.tokens] == [120, 120]
