"""The time to admit a long prompt: in the gateway up to the entry, in the worker up to the engine."""

import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from orcastream import demo
from orcastream.engine import Request
from orcastream.engine.validation import check_request
from orcastream.gateway.admission.request_admission import RequestAdmission, Timeouts
from orcastream.gateway.admission.request_ids import RequestIds
from orcastream.gateway.openai.endpoints import COMPLETIONS
from orcastream.gateway.openai.request import parse_body
from orcastream.schemas.model_limits import ModelLimits
from orcastream.schemas.request import GenerationRequest
from orcastream.text.tokenizer import Tokenizer

_MODEL = "bench-model"
_WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "then", "sleeps", "here")


@dataclass(frozen=True)
class Admitting:
    """Median milliseconds for a prompt of `tokens` given as `form`; `tokenizing_ms` is part of `gateway_ms`."""

    form: str
    tokens: int
    body_bytes: int
    gateway_ms: float
    tokenizing_ms: float
    worker_ms: float


def admitting(tokens: int, repeats: int) -> list[Admitting]:
    """Measure a prompt as token ids and one as English words."""
    tokenizer = Tokenizer.load(str(demo.MODEL_DIR))
    rng = random.Random(0)
    ids = [rng.randrange(tokenizer.vocab_size) for _ in range(tokens)]
    words = " ".join(rng.choices(_WORDS, k=tokens))
    text = words[: len(words) * tokens // len(tokenizer.encode(words))]
    return [_measure(tokenizer, form, prompt, tokens, repeats) for form, prompt in (("token ids", ids), ("text", text))]


def _measure(tokenizer: Tokenizer, form: str, prompt: str | list[int], tokens: int, repeats: int) -> Admitting:
    limits = ModelLimits(tokenizer.vocab_size, 2 * tokens)
    admission = RequestAdmission(tokenizer, Timeouts(600, 3600), RequestIds(_MODEL))
    body = json.dumps({"model": _MODEL, "prompt": prompt, "max_tokens": 16, "stream": True}).encode()
    now_ms = int(time.time() * 1000)

    def gateway() -> dict[bytes, bytes]:
        asked = parse_body(COMPLETIONS, body, limits.max_total_tokens)
        (request,) = admission.admit(asked, limits, tenant="default", headers={}, now_ms=now_ms)
        fields = request.fields().items()
        return {name.encode(): value if isinstance(value, bytes) else value.encode() for name, value in fields}

    entry = gateway()

    def worker() -> None:
        request = GenerationRequest.from_fields(entry, stream_class="normal", now_ms=now_ms)
        limits.check(request.payload)
        check_request(Request(request.id, request.payload.prompt, request.payload.sampling), limits, (), ())

    tokenizing_ms = _median_ms(lambda: tokenizer.encode(prompt), repeats) if isinstance(prompt, str) else 0.0
    found = GenerationRequest.from_fields(entry, stream_class="normal", now_ms=now_ms)
    return Admitting(
        form, len(found.payload.prompt), len(body),
        _median_ms(gateway, repeats), tokenizing_ms, _median_ms(worker, repeats),
    )  # fmt: skip


def _median_ms(work: Callable[[], object], repeats: int) -> float:
    times_s = []
    for _ in range(repeats):
        begun_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - begun_s)
    return statistics.median(times_s) * 1000
