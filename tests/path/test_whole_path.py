"""Client, gateway, Redis and workers as real processes: whatever is killed, the client gets the undisturbed text."""

import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from orcastream.demo.prompts import LONG_COUNT
from tests.path.site import Site
from tests.path.stream import Stream
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, one_server
from tests.worker.worker_process import PACED, WorkerProcess

pytestmark = one_server("system")

PROMPT, ANSWER = LONG_COUNT
BODY = {"model": "orca-demo", "prompt": PROMPT, "max_tokens": 2000, "temperature": 0, "timeout": 120}


@pytest.fixture
def site(redis_server: RedisServer, tmp_path: Path) -> Iterator[Site]:
    """Processes on an empty server."""
    site = Site(redis_server, tmp_path)
    yield site
    site.stop()


@pytest.fixture
def own_site(own_redis: Callable[..., RedisServer], tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Processes on their own server, which may be killed."""
    sites: list[Site] = []

    def start(**options: Any) -> Site:
        sites.append(Site(own_redis(**options), tmp_path))
        return sites[-1]

    yield start
    for site in sites:
        site.stop()


def assert_undisturbed(stream: Stream) -> None:
    assert stream.error is None
    assert stream.text.strip() == ANSWER
    assert (stream.finish_reason, stream.done) == ("stop", True)


def test_worker_killed_in_mid_stream(site: Site) -> None:
    site.start(workers=2, patch=PACED)
    kill = {30: lambda stream: site.workers[stream.workers[-1]].kill()}
    stream = Stream().post(site.url, BODY, kill)
    assert_undisturbed(stream)
    assert len(set(stream.workers)) == 2


def test_worker_frozen_beyond_its_lease_and_thawed(site: Site) -> None:
    site.start(workers=2, patch=PACED)
    frozen: list[WorkerProcess] = []

    def freeze(stream: Stream) -> None:
        frozen.append(site.workers[stream.workers[-1]])
        frozen[0].signal(signal.SIGSTOP)

    class Thawing(Stream):
        """Thaws the worker once the other worker writes."""

        thawed = False

        def _chunk(self, chunk: dict[str, Any]) -> None:
            super()._chunk(chunk)
            if frozen and not self.thawed and site.workers[self.workers[-1]] is not frozen[0]:
                self.thawed = True
                frozen[0].signal(signal.SIGCONT)

    stream = Thawing()
    stream.post(site.url, BODY, {30: freeze})
    assert_undisturbed(stream)
    assert stream.thawed
    give_up = time.monotonic() + PATIENCE_S
    while not re.search("write refused|lease lost", frozen[0].log):
        assert time.monotonic() < give_up, (
            f"the thawed worker continued as if it still had the request: {frozen[0].log}"
        )
        time.sleep(0.01)
    assert frozen[0].running


def test_gateway_killed_in_mid_stream_and_the_client_continues_elsewhere(site: Site) -> None:
    site.start(workers=1, gateways=2, patch=PACED)
    stream = Stream().post(site.url, BODY, {30: lambda _: site.gateways[0].kill()})
    assert not stream.done
    assert_undisturbed(stream.resume(site.gateways[1].url))


@pytest.mark.parametrize("aof", ["always", "everysec"])
def test_redis_killed_in_mid_stream_and_restarted(own_site: Callable[..., Site], aof: str) -> None:
    site = own_site(aof=aof)
    site.start(workers=1)
    stream = Stream().post(site.url, BODY, {30: lambda _: site.server.restart()})
    assert_undisturbed(stream)


def test_redis_restarts_empty_and_the_gateway_enqueues_again(own_site: Callable[..., Site]) -> None:
    site = own_site()
    site.start(workers=1)
    stream = Stream().post(site.url, BODY, {30: lambda _: site.server.restart()})
    assert_undisturbed(stream)


def test_official_client_with_a_worker_killed_in_mid_stream(site: Site) -> None:
    site.start(workers=2, patch=PACED)
    client = openai.OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0)
    text = ""
    messages: list[Any] = [{"role": "user", "content": PROMPT}]
    stream = client.chat.completions.create(model="orca-demo", messages=messages, stream=True, temperature=0)
    for number, chunk in enumerate(stream):
        text += chunk.choices[0].delta.content or ""
        if number == 30:
            site.writer(chunk.id).kill()
    assert text == ANSWER
    assert len(site.writers(chunk.id)) == 2
    client.close()


def test_ranked_choices_and_cached_tokens_through_the_official_client(site: Site) -> None:
    site.start(workers=1)
    client = openai.OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0)
    asked: dict[str, Any] = {"model": "orca-demo", "prompt": "Say the numbers from one to thirty in order. " * 4}
    plain = client.completions.create(**asked, max_tokens=8, temperature=0)
    options: dict[str, Any] = {"use_beam_search": True, "best_of": 4}
    beams = client.completions.create(**asked, n=2, max_tokens=8, extra_body=options)
    single = client.completions.create(**asked, max_tokens=8, extra_body={"use_beam_search": True})
    samples = client.completions.create(**asked, n=2, best_of=3, max_tokens=8, seed=5)
    assert len({choice.text for choice in beams.choices}) == len(samples.choices) == 2
    assert single.choices[0].text == plain.choices[0].text, "a beam of one hypothesis is greedy"
    salted = client.completions.create(**asked, max_tokens=8, extra_body={"cache_salt": "pepper"})
    cached_tokens = [
        answer.usage.prompt_tokens_details.cached_tokens
        for answer in (plain, beams, samples, salted)
        if answer.usage is not None and answer.usage.prompt_tokens_details is not None
    ]
    assert cached_tokens[0] == cached_tokens[3] == 0
    assert plain.usage is not None
    assert min(cached_tokens[1:3]) >= plain.usage.prompt_tokens - 16
    stream = client.completions.create(
        **asked, max_tokens=8, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    usage = [chunk.usage for chunk in stream][-1]
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == cached_tokens[1]
