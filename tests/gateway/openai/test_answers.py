"""Completions and chats through the official client, whole and streamed."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.request import GenerationRequest
from orcastream.schemas.stopping import FinishReason
from tests.gateway.conftest import MODEL, TEXT, Stage, eventually
from tests.gateway.scripted_worker import Answer, Gate
from tests.gateway.sse_client import joined, read
from tests.patience import PATIENCE_S

MESSAGES: Any = [{"role": "user", "content": "hi"}]


async def test_a_whole_completion(stage: Stage) -> None:
    worker = await stage.worker()
    client = (await stage.gateway()).openai()
    answer = await client.completions.create(model=MODEL, prompt="hello", max_tokens=100, user="u-1")
    assert answer.choices[0].text == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "text_completion"
    assert answer.model == MODEL
    assert answer.id.startswith("cmpl-")
    assert answer.usage is not None
    request = worker.requests[0]
    assert request.id == answer.id
    assert answer.usage.prompt_tokens == len(request.payload.prompt)
    assert answer.usage.completion_tokens == len(stage.tokenizer.encode(TEXT))
    assert stage.tokenizer.decode(request.payload.prompt) == "hello"


@pytest.mark.parametrize("seed", [0, -1, -(2**63), 2**63 - 1])
async def test_a_seed_is_any_integer_of_64_bits(stage: Stage, seed: int) -> None:
    worker = await stage.worker()
    client = (await stage.gateway()).openai()
    asked: Any = {"model": MODEL, "messages": MESSAGES, "seed": seed, "n": 2}
    answer = await client.chat.completions.create(**asked)
    assert [choice.message.content for choice in answer.choices] == [TEXT] * 2
    assert worker.requests[0].payload.seed == seed


async def test_a_whole_chat(stage: Stage) -> None:
    worker = await stage.worker(Answer([stage.tokenizer.encode(TEXT)], finish_reason=FinishReason.LENGTH))
    client = (await stage.gateway()).openai()
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.id.startswith("chatcmpl-")
    prompt = stage.tokenizer.decode(worker.requests[0].payload.prompt, skip_special_tokens=False)
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


async def test_an_answer_can_be_sent_back_as_the_client_holds_it(stage: Stage) -> None:
    await stage.worker()
    client = (await stage.gateway()).openai()
    nothing: Any = {"seed": None, "stop": None, "tools": None, "logit_bias": None, "user": None, "max_tokens": None}
    first = await client.chat.completions.create(model=MODEL, messages=MESSAGES, **nothing)
    for message in (first.choices[0].message, first.choices[0].message.model_dump()):
        again: Any = [*MESSAGES, message, *MESSAGES]
        answer = await client.chat.completions.create(model=MODEL, messages=again)
        assert answer.choices[0].message.content == TEXT


async def test_a_streamed_chat(stage: Stage) -> None:
    await stage.worker()
    client = (await stage.gateway()).openai()
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(stage.tokenizer.encode(TEXT))
    assert len({chunk.id for chunk in chunks}) == 1
    assert len(chunks) > 10


async def test_a_streamed_completion_without_usage(stage: Stage) -> None:
    await stage.worker()
    client = (await stage.gateway()).openai()
    stream = await client.completions.create(model=MODEL, prompt="x", stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in chunks)


async def test_the_synchronous_client(stage: Stage) -> None:
    await stage.worker()
    url = (await stage.gateway()).url

    def ask() -> tuple[str | None, str]:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            whole = client.chat.completions.create(model=MODEL, messages=MESSAGES)
            with client.completions.create(model=MODEL, prompt="x", stream=True) as stream:
                return whole.choices[0].message.content, "".join(chunk.choices[0].text for chunk in stream)

    assert await asyncio.to_thread(ask) == (TEXT, TEXT)


async def test_lines_are_split_only_at_their_ends(stage: Stage) -> None:
    """Unicode has more line endings than event streams do, and httpx splits at all of them."""
    text = "a\u2028b\u2029c\x85d"
    await stage.worker(text)
    http = (await stage.gateway()).http()
    async with http.stream("POST", "/v1/completions", json={"model": MODEL, "prompt": "x", "stream": True}) as response:
        assert joined([event async for event in read(response)]) == text


async def test_several_choices(stage: Stage) -> None:
    texts = ["first 世界", "the second, which is longer"]
    answer = Answer([stage.tokenizer.encode(text) for text in texts])
    await stage.worker(answer)
    client = (await stage.gateway()).openai()
    whole = await client.chat.completions.create(model=MODEL, messages=MESSAGES, n=2)
    assert [choice.message.content for choice in whole.choices] == texts
    stream = await client.completions.create(model=MODEL, prompt="x", n=2, stream=True)
    collected = ["", ""]
    finished = []
    async for chunk in stream:
        for choice in chunk.choices:
            collected[choice.index] += choice.text
            finished += [choice.index] if choice.finish_reason else []
    assert collected == texts
    assert finished == [0, 1]


async def test_text_is_cut_at_the_stop_string(stage: Stage) -> None:
    ids = stage.tokenizer.encode("abc END")
    await stage.worker(Answer([ids], group=len(ids), text_length=4))
    client = (await stage.gateway()).openai()
    whole = await client.completions.create(model=MODEL, prompt="x", stop=["END"])
    assert whole.choices[0].text == "abc "
    stream = await client.completions.create(model=MODEL, prompt="x", stop=["END"], stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "abc "


async def test_an_incomplete_character_is_replaced_at_the_end(stage: Stage) -> None:
    ids = stage.tokenizer.encode("a👍", add_special_tokens=False)
    assert len(ids) > 2
    await stage.worker(Answer([ids[:-1]]))
    client = (await stage.gateway()).openai()
    stream = await client.completions.create(model=MODEL, prompt="x", stream=True)
    texts = [chunk.choices[0].text async for chunk in stream]
    assert "".join(texts) == "a\ufffd"
    whole = await client.completions.create(model=MODEL, prompt="x")
    assert whole.choices[0].text == "a\ufffd"


async def test_special_tokens_produce_no_text(stage: Stage) -> None:
    await stage.worker(Answer([[*stage.tokenizer.encode("done"), 2]]))
    client = (await stage.gateway()).openai()
    assert (await client.completions.create(model=MODEL, prompt="x")).choices[0].text == "done"


async def test_an_answer_without_text(stage: Stage) -> None:
    await stage.worker(Answer([[2]], group=1))
    client = (await stage.gateway()).openai()
    whole = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert whole.choices[0].message.content == ""
    stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    chunks = [chunk async for chunk in stream]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, "stop"]


async def test_cached_tokens_are_reported(stage: Stage) -> None:
    await stage.worker(Answer([[5]], cached_tokens=3))
    client = (await stage.gateway()).openai()
    usage = (await client.completions.create(model=MODEL, prompt="x")).usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 3


async def test_cached_tokens_are_reported_at_the_end_of_a_stream(stage: Stage) -> None:
    await stage.worker(Answer([[5, 6]], cached_tokens=3))
    client = (await stage.gateway()).openai()
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    usages = [chunk.usage async for chunk in stream if chunk.usage is not None]
    assert [usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens for usage in usages] == [3]


async def test_ranked_choices_arrive_whole(stage: Stage) -> None:
    worker = await stage.worker()
    client = (await stage.gateway()).openai()
    answer = await client.completions.create(model=MODEL, prompt="x", n=2, best_of=3)
    assert [choice.text for choice in answer.choices] == [TEXT, TEXT]
    beams: Any = {"use_beam_search": True, "length_penalty": 0.5}
    chat = await client.chat.completions.create(model=MODEL, messages=MESSAGES, n=2, extra_body=beams)
    assert [choice.message.content for choice in chat.choices] == [TEXT, TEXT]
    assert [request.payload.num_candidates for request in worker.requests] == [3, 2]
    assert [request.payload.use_beam_search for request in worker.requests] == [False, True]
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(model=MODEL, prompt="x", n=2, best_of=3, stream=True)
    assert caught.value.param == "best_of"


async def test_the_events_on_the_wire(stage: Stage) -> None:
    """Each line of a POST's stream is empty or JSON. Load tools read nothing else."""
    gate = Gate(1)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    http = (await stage.gateway(keep_alive_s=0.05)).http()
    body = {"model": MODEL, "prompt": "x", "stream": True}
    async with http.stream("POST", "/v1/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-request-id"].startswith("cmpl-")
        assert response.headers["cache-control"] == "no-cache"
        pieces = response.aiter_raw()
        seen = [await anext(pieces)]
        while seen[-1].strip(b"\n"):  # an empty line keeps the stream alive
            seen.append(await anext(pieces))
        await gate.open()
        seen += [piece async for piece in pieces]
    blocks = b"".join(seen).decode().split("\n\n")
    events = [block.strip("\n") for block in blocks if block.strip("\n")]
    assert all(len(event.splitlines()) == 1 and event.startswith("data: ") for event in events)
    first, second = [json.loads(event.removeprefix("data: ")) for event in events[:2]]
    assert first["event_id"].startswith("1-")
    assert first["served_by"]["worker"] == "scripted-1"
    assert "served_by" not in second
    assert events[-1] == "data: [DONE]"


async def test_a_reread_reply_has_id_lines_for_browsers(stage: Stage) -> None:
    await stage.worker()
    http = (await stage.gateway()).http()
    answer = await http.post("/v1/chat/completions", json={"model": MODEL, "messages": MESSAGES})
    async with http.stream("GET", f"/v1/requests/{answer.headers['x-request-id']}/events") as response:
        events = [event async for event in read(response)]
    with_text = [event for event in events if event.texts.get(0)]
    assert joined(events) == TEXT
    assert [event.id_line for event in with_text] == [event.last_id for event in with_text]
    assert all(event.id_line for event in with_text)


async def test_token_counts_in_every_chunk(stage: Stage) -> None:
    worker = await stage.worker()
    client = (await stage.gateway()).openai()
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    stream = await client.completions.create(model=MODEL, prompt="hello", stream=True, stream_options=options)
    usages = [chunk.usage async for chunk in stream]
    counts = [usage.completion_tokens for usage in usages if usage is not None]
    assert len(counts) == len(usages)
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, len(stage.tokenizer.encode(TEXT)))
    assert {usage.prompt_tokens for usage in usages if usage} == {len(worker.requests[0].payload.prompt)}


async def test_several_prompts_in_one_request(stage: Stage) -> None:
    texts = {"a": "first 世界", "b": "the second, which is longer", "c": "third"}
    asked = {tuple(stage.tokenizer.encode(prompt)): text for prompt, text in texts.items()}

    def answer(request: GenerationRequest) -> Answer:
        text = asked[request.payload.prompt]
        return Answer([stage.tokenizer.encode(f"{text} {number}") for number in range(request.payload.n)])

    worker = await stage.worker(answer)
    client = (await stage.gateway()).openai()
    wanted = [f"{text} {number}" for text in texts.values() for number in range(2)]
    whole = await client.completions.create(model=MODEL, prompt=[*texts], n=2)
    assert [choice.text for choice in whole.choices] == wanted
    assert [choice.index for choice in whole.choices] == [*range(6)]
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == sum(map(len, asked))
    assert whole.usage.completion_tokens == sum(len(stage.tokenizer.encode(text)) for text in wanted)
    stream = await client.completions.create(
        model=MODEL, prompt=[*texts], n=2, stream=True, stream_options={"include_usage": True}
    )
    collected, finished, usage = [""] * 6, set(), None
    async for chunk in stream:
        for choice in chunk.choices:
            collected[choice.index] += choice.text
            finished |= {choice.index} if choice.finish_reason else set()
        usage = chunk.usage
    assert (collected, finished) == (wanted, {*range(6)})
    assert usage == whole.usage
    assert len(worker.requests) == 6


@pytest.mark.parametrize("cleanup_s", [0.0, PATIENCE_S])
async def test_a_repeated_request_for_other_numbers_of_choices_has_those_of_the_first(
    stage: Stage, cleanup_s: float
) -> None:
    """Whether or not the first is still in the queue; and one of its prompts had a request of its own before."""

    def answer(request: GenerationRequest) -> Answer:
        texts = [f"{request.id} {number}" for number in range(request.payload.n)]
        return Answer([stage.tokenizer.encode(text) for text in texts], cleanup_s=cleanup_s)

    await stage.worker(answer)
    served = await stage.gateway()
    client = served.openai()
    wanted = [f"cmpl-mine{prompt} {number}" for prompt, n in (("", 2), (".p1", 3), (".p2", 2)) for number in range(n)]
    texts = {"a": (2, "mine"), "b": (3, "mine.p1")}
    for prompt, (n, key) in texts.items():
        await client.completions.create(model=MODEL, prompt=prompt, n=n, extra_body={"request_id": key})
    for n in (2, 1, 4):  # the first of them is the first for the prompt c
        again: dict[str, Any] = {
            "model": MODEL,
            "prompt": ["a", "b", "c"],
            "n": n,
            "extra_body": {"request_id": "mine"},
        }
        whole = await client.completions.create(**again)
        assert [(choice.index, choice.text) for choice in whole.choices] == [*enumerate(wanted)]
        collected: dict[int, str] = {}
        async for chunk in await client.completions.create(**again, stream=True):
            for choice in chunk.choices:
                collected[choice.index] = collected.get(choice.index, "") + choice.text
        assert [*sorted(collected.items())] == [*enumerate(wanted)]


async def test_if_one_of_several_prompts_fails_the_others_end(stage: Stage) -> None:
    late = [Gate(0), Gate(0)]
    bad = tuple(stage.tokenizer.encode("bad"))
    rounds = iter(late)

    def answer(request: GenerationRequest) -> Answer:
        if request.payload.prompt == bad:
            return Answer([[5]], error=ErrorCode.ENGINE_ERROR, gate=next(rounds))
        return Answer([[5, 6, 7]], gate=Gate(0))  # a gate of its own: a cancel opens it

    worker = await stage.worker(answer)
    served = await stage.gateway()

    sent = []

    async def all_have_come() -> bool:
        return len({request.id for request in worker.requests}) == 2 * len(sent)

    for stream, gate in zip((False, True), late, strict=True):
        sent.append(stream)
        body = {"model": MODEL, "prompt": ["good", "bad"], "stream": stream}
        asked = asyncio.create_task(served.http().post("/v1/completions", json=body))
        await eventually(all_have_come)
        await gate.open()
        answered = await asked
        told = json.loads(answered.text.rpartition("data: ")[2]) if stream else answered.json()
        assert told["error"]["code"] == "engine_error"
    good = {
        request.id for request in worker.requests if request.payload.prompt != bad
    }  # an entry may be delivered again
    cancelled = [stage.keys.cancel(request_id) for request_id in good]
    link = await served.gateway.redis.get()

    async def are_cancelled() -> bool:
        return bool(await link.call("EXISTS", *cancelled) == 2)

    await eventually(are_cancelled)


async def test_the_same_id_gets_the_same_answer_computed_once(stage: Stage) -> None:
    worker = await stage.worker()
    served = await stage.gateway()
    client, other = served.openai(), (await stage.gateway()).openai()
    header = {"Idempotency-Key": "mine"}
    first = await client.completions.create(model=MODEL, prompt="x", extra_headers=header)
    again = await client.completions.create(model=MODEL, prompt="x", extra_headers=header)
    elsewhere = await other.completions.create(model=MODEL, prompt="x", extra_body={"request_id": "mine"})
    assert first == again == elsewhere
    assert first.id == "cmpl-mine"
    assert len(worker.requests) == 1


async def test_several_idempotency_keys_are_refused_unless_equal(stage: Stage) -> None:
    worker = await stage.worker()
    asked = {"model": MODEL, "prompt": "x"}
    async with (await stage.gateway()).http() as http:
        keys = [("Idempotency-Key", "one"), ("Idempotency-Key", "other")]
        refused = await http.post("/v1/completions", json=asked, headers=keys)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "Idempotency-Key")
        assert not worker.requests
        alike = await http.post("/v1/completions", json=asked, headers=[keys[0], keys[0]])
        assert alike.json()["id"] == "cmpl-one"


async def test_two_posts_of_one_id_at_once(stage: Stage) -> None:
    gate = Gate(0)
    worker = await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    client = (await stage.gateway()).openai()
    asks = [
        asyncio.create_task(client.completions.create(model=MODEL, prompt="x", extra_body={"request_id": "twin"}))
        for _ in range(2)
    ]
    await gate.open()
    answers = await asyncio.gather(*asks)
    assert [answer.choices[0].text for answer in answers] == [TEXT, TEXT]
    assert len(worker.requests) == 1


async def test_trace_context_and_class_reach_the_queue(stage: Stage) -> None:
    worker = await stage.worker()
    client = (await stage.gateway()).openai()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await client.completions.create(
        model=MODEL,
        prompt="x",
        extra_headers={"traceparent": parent, "tracestate": "a=1"},
        extra_body={"priority": "high"},
    )
    assert (worker.requests[0].traceparent, worker.requests[0].tracestate) == (parent, "a=1")
    assert worker.requests[0].priority_class == "high"


async def test_models_and_health(stage: Stage) -> None:
    served = await stage.gateway()
    client, http = served.openai(), served.http()
    assert (await http.get("/health/live")).status_code == 200
    not_ready = await http.get("/health/ready")
    assert not_ready.status_code == 503
    assert not_ready.json()["error"]["code"] == "no_worker"
    await stage.worker()
    ready = await http.get("/health/ready")
    assert ready.json() == {"status": "ready", "model": MODEL, "workers": 1}
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).owned_by == "orcastream"
    assert (await http.get("/v1/models")).json()["data"][0]["root"] == MODEL, "load tools look for it"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other/model")


async def test_many_streams_at_once(stage: Stage) -> None:
    await stage.worker()
    client = (await stage.gateway()).openai()

    async def ask(number: int) -> str:
        stream = await client.completions.create(model=MODEL, prompt=f"question {number}", stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    assert await asyncio.gather(*(ask(number) for number in range(30))) == [TEXT] * 30


async def test_a_prompt_is_echoed(stage: Stage) -> None:
    await stage.worker()
    client = (await stage.gateway()).openai()
    prompts: list[Any] = ["hello ", stage.tokenizer.encode("you ")]
    whole = await client.completions.create(model=MODEL, prompt=prompts, n=2, echo=True)
    wanted = [f"hello {TEXT}"] * 2 + [f"you {TEXT}"] * 2
    assert [choice.text for choice in whole.choices] == wanted
    stream = await client.completions.create(model=MODEL, prompt=prompts, n=2, echo=True, stream=True)
    collected = [""] * 4
    async for chunk in stream:
        for choice in chunk.choices:
            collected[choice.index] += choice.text
    assert collected == wanted


async def test_health_under_the_name_that_other_servers_use(stage: Stage) -> None:
    http = (await stage.gateway()).http()
    assert (await http.get("/health")).status_code == 503
    await stage.worker()
    assert (await http.get("/health")).status_code == 200


async def test_http_errors_have_openais_shape(stage: Stage) -> None:
    http: httpx.AsyncClient = (await stage.gateway()).http()
    missing = await http.get("/nowhere")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert missing.json()["error"]["message"].startswith("GET '/nowhere': Not Found, allowed: ")
    wrong = await http.get("/v1/completions")
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (405, "invalid_request_error")
    assert (wrong.json()["error"]["code"], wrong.headers["allow"]) == ("method_not_allowed", "POST")
    message = "GET '/v1/completions': Method Not Allowed, allowed: POST at this path"
    assert wrong.json()["error"]["message"] == message
    several = await http.put("/v1/files")
    assert (several.status_code, several.headers["allow"]) == (405, "GET, HEAD, POST")
    assert several.json()["error"]["message"].endswith("allowed: GET, HEAD, POST at this path")
