"""One request and its state in the engine."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from orcastream.engine.beam import Beam
from orcastream.engine.errors import IllegalTransition
from orcastream.engine.kv.digest import ContentChain
from orcastream.engine.kv.sequence import Sequence, SwappedSequence
from orcastream.engine.sampling.filters import DrawParams
from orcastream.engine.sampling.logit_changes import LogitChanges
from orcastream.engine.timeline import Timeline
from orcastream.schemas.keys import DEFAULT_TENANT
from orcastream.schemas.sampling import SamplingParams
from orcastream.schemas.seed import derived_seed
from orcastream.schemas.stopping import FinishReason

if TYPE_CHECKING:  # code that needs only the policies does not wait for torch
    from orcastream.engine.model.adapters.adapter import Adapter
    from orcastream.engine.sampling.masks import Matcher


class RequestState(StrEnum):
    """Orca's life cycle of a request (OSDI'22, section 4.1)."""

    WAITING = "waiting"
    """In the pool, holding no KV blocks: new, or preempted."""
    INITIATION = "initiation"
    """Its known tokens are being computed, in one or several chunks."""
    INCREMENT = "increment"
    """All tokens but the last are cached; each iteration adds one."""
    FINISHED = "finished"
    """Ended, canceled or failed; holds no KV blocks."""


INTERNAL = "\0"
"""Not allowed in ids of submitted requests: the engine uses it in the ids of requests that it derives from one."""


@dataclass(eq=False, slots=True)
class Request:
    """What to generate, and how far generation has come.

    Initial `output_ids` are tokens that were generated elsewhere: generation continues after them, and positions,
    `min_tokens` and `max_tokens` count them. `max_tokens` None: sampling.max_tokens, or the rest of the context.
    `seed` None: sampling.seed, or a seed derived from the id.

    An `id` is any text without INTERNAL that no other unfinished request has.

    Policies read `priority_class` (one of schemas.keys.CLASSES), `tenant`, the targets `ttft_slo_ms` and `tbt_slo_ms`
    (milliseconds; None: no target), `deadline_s` (seconds of `time.monotonic()`) and `waited_s` (seconds that the
    request had waited before it was submitted). Cached prefixes are shared only among requests with the same tenant,
    `cache_salt` and `adapter`; the adapter changes what the model computes for the request (None: nothing). Requests of
    one `group` that are submitted with the same known tokens (the choices of one prompt) compute them once, if tenant,
    salt and adapter are the same, too. With `beam` the request is a beam search. A `matcher`, which must be new,
    constrains the outputs. `prompt_logprobs` asks for the log probability of each prompt token, and of that many
    likeliest tokens at its position; those of the first `prompt_told` tokens were reported elsewhere before.

    The state changes only through the methods below; a change that cannot follow the current state raises
    IllegalTransition. The progress of a prefill follows from the state and `num_computed`, never from token counts
    alone: after a preemption the outputs are recomputed like a prompt.
    """

    id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    output_ids: list[int] | tuple[int, ...] = ()
    seed: int | None = None
    priority_class: str = "normal"
    tenant: str = DEFAULT_TENANT
    cache_salt: str = ""
    ttft_slo_ms: float | None = None
    tbt_slo_ms: float | None = None
    deadline_s: float | None = None
    waited_s: float = 0.0
    group: str | None = None
    beam: Beam | None = None
    adapter: "Adapter | None" = None
    matcher: "Matcher | None" = field(default=None, repr=False)
    prompt_logprobs: int | None = None
    prompt_told: int = 0

    state: RequestState = field(default=RequestState.WAITING, init=False)
    arrival: int = field(default=-1, init=False)
    """Rank of arrival; a preempted request keeps it."""
    tokens: list[int] = field(init=False, repr=False)
    """Prompt and outputs."""
    num_computed: int = field(default=0, init=False)
    """Number of leading tokens whose keys and values are in the cache, or will be once the launched iterations have
    run."""
    num_pending: int = field(default=0, init=False)
    """Tokens after `tokens` that launched iterations will produce."""
    cached_tokens: int = field(default=0, init=False)
    """Prompt tokens that the prefix cache saved at the first admission."""
    chain: ContentChain = field(init=False, repr=False)
    """Names of the contents of its blocks."""
    kv: Sequence | None = field(default=None, init=False, repr=False)
    """Its blocks in the cache while it runs."""
    swapped: SwappedSequence | None = field(default=None, init=False, repr=False)
    """Its blocks in host memory while it waits to resume."""
    interrupted: RequestState = field(default=RequestState.WAITING, init=False, repr=False)
    """The state in which it was last preempted."""
    plannable: bool = field(default=True, init=False, repr=False)
    """Whether more can be computed before the pending tokens are known."""
    hypotheses: list["Request"] = field(default_factory=list, init=False, repr=False)
    """The running hypotheses of a beam search that has begun; all share this list, and the request is the first."""
    candidates: list[tuple[int, float]] | None = field(default=None, init=False, repr=False)
    """The likeliest next tokens of a hypothesis, while it waits for the others."""
    changes: LogitChanges | None = field(default=None, init=False, repr=False)
    """The changes that its penalties and biases make to its logits."""
    only_draws: bool = field(default=False, init=False, repr=False)
    """Whether its next token depends on the model's logits and its position alone, and it asks for nothing else."""
    draws: DrawParams = field(default=DrawParams.under(None, 0), init=False, repr=False)
    """How its tokens are drawn; resolved on submission."""
    takes_best: bool = field(default=False, init=False, repr=False)
    """Whether it only draws, and always takes the likeliest token."""
    num_matched: int = field(default=0, init=False, repr=False)
    """Output tokens that its matcher has seen."""
    stop_ids: frozenset[int] = field(default=frozenset(), init=False, repr=False)
    """Tokens that end it; resolved on submission."""
    followers: list["Request"] = field(default_factory=list, init=False, repr=False)
    """Requests of its group whose known tokens it computes for them."""
    finish_reason: FinishReason | None = field(default=None, init=False)
    timeline: Timeline = field(default_factory=Timeline, init=False, repr=False)

    def __post_init__(self) -> None:
        self.prompt_ids = tuple(self.prompt_ids)
        self.output_ids = list(self.output_ids)
        self.tokens = [*self.prompt_ids, *self.output_ids]
        adapter = b"" if self.adapter is None else self.adapter.digest
        self.chain = ContentChain(self.tenant, self.cache_salt, adapter)
        if self.max_tokens is None:
            self.max_tokens = self.sampling.max_tokens
        params = self.sampling
        self.changes = LogitChanges.of(params, self.prompt_ids)
        self.only_draws = (
            self.changes is None
            and self.matcher is None
            and params.logprobs is None
            and not params.min_tokens
            and self.beam is None
        )
        self.takes_best = self.only_draws and params.temperature == 0
        if self.seed is None:
            self.seed = derived_seed(self.id) if self.sampling.seed is None else self.sampling.seed

    @property
    def num_outputs(self) -> int:
        """Number of output tokens so far, which is the position of the next one."""
        return len(self.tokens) - len(self.prompt_ids)

    @property
    def num_uncomputed(self) -> int:
        """Known and pending tokens that are not in the cache; 0 only while a hypothesis waits for the others."""
        return len(self.tokens) + self.num_pending - self.num_computed

    @property
    def tells_prompt(self) -> bool:
        """Whether log probabilities of its prompt are still to be reported."""
        return self.prompt_logprobs is not None and self.prompt_told < len(self.prompt_ids)

    @property
    def num_matchable(self) -> int:
        """Number of leading known tokens that may be found in the cache; the last of them is computed in any case.

        If log probabilities of the prompt are still to be reported, tokens after `prompt_told` must be computed.
        """
        return max(1, self.prompt_told) if self.tells_prompt else len(self.tokens)

    @property
    def places(self) -> int:
        """Places in the batch that it takes, for itself and for the requests that it will split into."""
        if self.beam is not None and not self.hypotheses:
            return self.beam.width
        return 1 + len(self.followers)

    @property
    def most_tokens(self) -> int:
        """Most prompt and output tokens that the request can reach; ValueError until `max_tokens` is resolved."""
        if self.max_tokens is None:
            raise ValueError(f"max_tokens of request {self.id!r} is not resolved yet")
        return len(self.prompt_ids) + self.max_tokens

    def arrive(self, arrival: int) -> None:
        """Enter a pool: stamp the arrival."""
        if self.state is not RequestState.WAITING or self.arrival >= 0:
            raise IllegalTransition(f"request {self.id!r} was submitted before")
        self.arrival = arrival
        self.timeline.submitted_s = time.monotonic()

    def arrive_with(self, root: "Request", number: int) -> None:
        """Enter the pool as hypothesis `number` of the beam search `root`, which has computed the prompt."""
        self.arrive(root.arrival + number)
        self.timeline.submitted_s = root.timeline.submitted_s
        self.cached_tokens = len(self.prompt_ids)

    def initiate(self, kv: Sequence, num_cached: int) -> None:
        """WAITING → INITIATION: admitted to the batch with `kv`, which holds the first `num_cached` tokens already."""
        self._move(RequestState.INITIATION, RequestState.WAITING)
        self.kv, self.num_computed = kv, num_cached
        if self.timeline.scheduled_s is None:
            self.timeline.scheduled_s = time.monotonic()
            self.cached_tokens = min(num_cached, len(self.prompt_ids))

    def resume(self, kv: Sequence) -> None:
        """WAITING → INITIATION or INCREMENT: back from host memory, in its state before the preemption."""
        if self.swapped is None:
            raise IllegalTransition(f"request {self.id!r} was not swapped out")
        self._move(self.interrupted, RequestState.WAITING)
        self.kv, self.swapped = kv, None

    def start_over(self) -> None:
        """WAITING: what was swapped out is lost, and will be recomputed."""
        self.swapped, self.num_computed = None, 0

    def launch(self, num_tokens: int) -> bool:
        """INITIATION or INCREMENT: compute `num_tokens` more tokens. Return whether one is sampled after them."""
        # Avoids properties, as does `append`: both run for every request of every iteration.
        left = len(self.tokens) + self.num_pending - self.num_computed - num_tokens
        if left < 0 or self.state not in (RequestState.INITIATION, RequestState.INCREMENT):
            raise IllegalTransition(
                f"request {self.id!r} ({self.state}) cannot compute {num_tokens} of {self.num_uncomputed} tokens"
            )
        self.num_computed += num_tokens
        if left:
            return False
        self.num_pending = pending = self.num_pending + 1
        self.state = RequestState.INCREMENT
        is_last = self.max_tokens is not None and len(self.tokens) - len(self.prompt_ids) + pending >= self.max_tokens
        self.plannable = not is_last and self.beam is None
        return True

    @staticmethod
    def launch_decodes(requests: Iterable["Request"]) -> None:
        """Call `launch(1)` for each of `requests`, decoding requests that lack one token, unless it has finished."""
        # Inlined, as it runs for every request of every iteration.
        for request in requests:
            known = len(request.tokens) + request.num_pending
            if request.num_computed + 1 != known or request.state is not RequestState.INCREMENT:
                if request.state is not RequestState.FINISHED:
                    request.launch(1)
                continue
            request.num_computed = known
            request.num_pending += 1
            most = request.max_tokens
            request.plannable = (most is None or known + 1 < len(request.prompt_ids) + most) and request.beam is None

    def chunk_computed(self, num_tokens: int) -> None:
        """Stamp a computed chunk of a prefill."""
        self.timeline.chunks.append((time.monotonic(), num_tokens))

    def append(self, token: int) -> None:
        """Add `token`, which was pending and is known now."""
        if not self.num_pending:
            raise IllegalTransition(f"request {self.id!r} has {self.num_uncomputed} tokens to compute before the next")
        self.num_pending -= 1
        self.tokens.append(token)
        self.output_ids.append(token)  # type: ignore[union-attr]  # a list since __post_init__
        if self.timeline.first_token_s is None:
            self.timeline.first_token_s = time.monotonic()

    @staticmethod
    def append_each(requests: Iterable["Request"], tokens: Iterable[int]) -> None:
        """Call `append` for each of `requests` with its token."""
        for request, token in zip(requests, tokens, strict=True):
            if not request.num_pending or request.timeline.first_token_s is None:
                request.append(token)
                continue
            request.num_pending -= 1
            request.tokens.append(token)
            request.output_ids.append(token)  # type: ignore[union-attr]  # as in `append`

    def consider(self, candidates: list[tuple[int, float]]) -> None:
        """Replace the pending token with `candidates` for it; the hypothesis then waits for the others."""
        self.num_pending -= 1
        self.candidates = candidates

    def branch(self, kv: Sequence, tokens: list[int]) -> None:
        """Become the hypothesis with `tokens`; `kv` holds all but the last of them."""
        self.state = RequestState.INCREMENT
        self.kv, self.chain, self.num_computed = kv, kv.chain, len(tokens) - 1
        self.tokens, self.output_ids = tokens, tokens[len(self.prompt_ids) :]
        self.candidates, self.plannable = None, True

    def follow(self, leader: "Request", kv: Sequence) -> None:
        """WAITING → INCREMENT: `leader` has computed the known tokens; `kv` shares its blocks, one token is pending."""
        self._move(RequestState.INCREMENT, RequestState.WAITING)
        self.kv, self.num_computed, self.num_pending = kv, len(self.tokens), 1
        self.chain = kv.chain
        self.cached_tokens = len(self.prompt_ids)
        self.timeline.scheduled_s = leader.timeline.scheduled_s

    def preempt(self, swapped: SwappedSequence | None = None) -> None:
        """INITIATION or INCREMENT → WAITING. Its blocks are in host memory, or will be recomputed."""
        if self.num_pending:
            raise IllegalTransition(f"request {self.id!r} cannot be preempted: a token is pending")
        self.kv, self.swapped, self.interrupted = None, swapped, self.state
        self._move(RequestState.WAITING, RequestState.INITIATION, RequestState.INCREMENT)
        if self.candidates is not None:  # recomputing the last token yields them again
            self.candidates, self.plannable = None, True
            self.num_computed -= 1
        if swapped is None:
            self.num_computed = 0
        self.timeline.preempted_s.append(time.monotonic())

    def finish(self, reason: FinishReason | None) -> None:
        """Any other state → FINISHED; no reason means canceled or failed. Its blocks must be free."""
        self._move(RequestState.FINISHED, RequestState.WAITING, RequestState.INITIATION, RequestState.INCREMENT)
        self.finish_reason, self.num_pending = reason, 0
        self.timeline.finished_s = time.monotonic()

    def _move(self, to: RequestState, *allowed: RequestState) -> None:
        if self.state not in allowed:
            raise IllegalTransition(f"request {self.id!r} cannot go from {self.state} to {to}")
        if to in (RequestState.WAITING, RequestState.FINISHED) and self.kv is not None:
            raise IllegalTransition(f"request {self.id!r} goes to {to} with blocks in the cache")
        self.state = to
