"""What the engine computes for one request in one attempt, and which of it becomes the choices."""

from collections.abc import Mapping, Sequence
from itertools import count

from orcastream.engine import Adapter, Beam, Request
from orcastream.schemas.request import Payload
from orcastream.schemas.sampling import SamplingParams
from orcastream.schemas.seed import choice_seed
from orcastream.text.matcher import Matcher
from orcastream.worker.choice import Choice

_attempts = count(1)
"""Numbers every submission to the engine, so that late events of an abandoned one can be recognized."""

_UNWANTED = SamplingParams(temperature=0.0)
"""For the one token that the engine makes after a prompt whose log probabilities alone are wanted; it is discarded."""


class Candidates:
    """Token sequences under their own engine ids: samples, one engine request each, or the hypotheses of one beam
    search, which is a single engine request.

    They are the choices themselves, or, if choices are ranked, hidden from the reply log until the last of them has
    ended. A hidden sequence is never published unless it is chosen, so a takeover starts again from the beginning.
    """

    def __init__(
        self, request_id: str, payload: Payload, sequences: Sequence[Choice], matcher: Matcher | None = None
    ) -> None:
        """`sequences`: all samples, or the hypotheses to return; `matcher`: the constraint of each, at its start."""
        self._payload = payload
        self._matcher = matcher
        self._sequences = list(sequences)
        number = next(_attempts)
        self._attempt = f"{request_id}@{number}"
        self.by_engine_id: Mapping[str, Sequence[Choice]] = (
            {self._attempt: self._sequences}
            if payload.use_beam_search
            else {f"{request_id}#{one.index}@{number}": [one] for one in self._sequences}
        )

    @staticmethod
    def count(payload: Payload) -> int:
        """Return how many sequences the engine returns."""
        return payload.n if payload.use_beam_search else payload.num_candidates

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in a prefix cache, by the first sequence, since the others may share its work."""
        return next((one.cached_tokens for one in self._sequences if one.cached_tokens is not None), 0)

    def engine_requests(
        self,
        *,
        max_tokens: int,
        seed: int,
        priority_class: str,
        deadline_s: float,
        waited_s: float,
        ttft_slo_ms: float | None,
        adapter: Adapter | None,
        prompt_told: int | None = None,
    ) -> list[Request]:
        """Return what the engine must run: every sequence that has not ended, continued from its tokens.

        `deadline_s` is in seconds of `time.monotonic()`; `waited_s` is the time since the arrival in the queue, and
        `ttft_slo_ms` the rest of the target. The first request returns the prompt's log probabilities after its first
        `prompt_told` tokens, even if there is nothing else to compute; None: no log probabilities.
        """
        payload = self._payload
        left = [(name, ones[0]) for name, ones in self.by_engine_id.items() if ones[0].ending is None]
        tells = prompt_told is not None and prompt_told < len(payload.prompt)
        if tells and not left:
            left = [(name, ones[0]) for name, ones in self.by_engine_id.items()][:1]
        return [
            Request(
                id=engine_id,
                prompt_ids=payload.prompt,
                sampling=self._sampling if max_tokens else _UNWANTED,
                max_tokens=max(1, max_tokens),
                output_ids=tuple(sequence.tokens),
                seed=choice_seed(seed, sequence.index),
                priority_class=priority_class,
                tenant=payload.tenant,
                cache_salt=payload.cache_salt,
                ttft_slo_ms=ttft_slo_ms,
                tbt_slo_ms=payload.tbt_slo_ms,
                deadline_s=deadline_s,
                waited_s=waited_s,
                group=self._attempt if len(left) > 1 else None,
                beam=self._beam,
                adapter=adapter,
                matcher=None if self._matcher is None or not max_tokens else self._matcher.another(),
                prompt_logprobs=payload.prompt_logprobs if tells and not number else None,
                prompt_told=prompt_told or 0,
            )
            for number, (engine_id, sequence) in enumerate(left)
        ]

    def best(self) -> list[Choice] | None:
        """Return the choices, best first and numbered in that order; None until every sequence has ended."""
        if not all(one.ending for one in self._sequences):
            return None
        ranked = self._sequences
        if not self._payload.use_beam_search:  # its hypotheses are already in order
            ranked = sorted(ranked, key=lambda one: -one.mean_logprob())
        chosen = ranked[: self._payload.n]
        for index, choice in enumerate(chosen):
            choice.index = index
        return chosen

    @property
    def _sampling(self) -> SamplingParams:
        """As requested; ranked samples need their log probabilities, whether they are published or not."""
        sampling = self._payload.sampling
        if not self._payload.is_ranked or self._payload.use_beam_search or sampling.logprobs is not None:
            return sampling
        return sampling.model_copy(update={"logprobs": 0})

    @property
    def _beam(self) -> Beam | None:
        payload = self._payload
        if not payload.use_beam_search:
            return None
        return Beam(payload.num_candidates, payload.n, payload.length_penalty, payload.early_stopping)
