"""The running beam searches of an engine."""

from orcastream.engine.beam_search import BeamSearch, Branch, Hypothesis
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.sequence import Sequence
from orcastream.engine.output import TokenEvent
from orcastream.engine.request import INTERNAL, Request
from orcastream.engine.schedule.scheduler import Scheduler
from orcastream.schemas.errors import InvalidRequest


class Beams:
    """Turns the candidates of all hypotheses of a search into its next hypotheses, or into its result.

    Each hypothesis is a separate request, which is scheduled, preempted and recomputed like any other; the first is the
    submitted request. Hypotheses with the same parent share its blocks, copy on write.
    """

    def __init__(self, scheduler: Scheduler, cache: KVCache, *, vocab_size: int) -> None:
        self._scheduler = scheduler
        self._cache = cache
        self._vocab_size = vocab_size
        self._searches: dict[str, BeamSearch] = {}

    def check(self, request: Request, max_tokens: int) -> None:
        """Raise InvalidRequest if batch, KV cache or vocabulary are too small for the hypotheses of `request`.

        Each may have up to `max_tokens` output tokens.
        """
        assert request.beam is not None
        width, most = request.beam.width, self._scheduler.max_batch_size
        if width > most:
            raise InvalidRequest("beam_width", width, f"at most {most}, the largest batch")
        stops = request.stop_ids
        others = self._vocab_size - len(stops)
        if width > others:
            raise InvalidRequest("beam_width", width, f"at most {others}, the tokens that do not end an output")
        if not self._scheduler.fits_empty(request, max_tokens):
            raise InvalidRequest("beam_width", width, "as many hypotheses of that length as fit into the KV cache")

    def advance(self, request: Request, candidates: list[tuple[int, float]]) -> list[TokenEvent]:
        """Take in the `candidates` of one hypothesis; return the events of the whole answer once its search is over."""
        request.consider(candidates)
        if not request.hypotheses:
            self._begin(request)
        hypotheses = request.hypotheses
        waiting = [each.candidates for each in hypotheses if each.candidates is not None]
        if len(waiting) < len(hypotheses):
            return []
        root = hypotheses[0]
        search = self._searches[root.id]
        branches = search.step([each.output_ids for each in hypotheses], waiting)
        if branches:
            self._branch(root, branches)
            return []
        return self._finish(root, search.best())

    def end(self, root: Request) -> None:
        """Remove all hypotheses except the first, whose request the caller ends."""
        for hypothesis in root.hypotheses[1:]:
            self._scheduler.finish(hypothesis)
            hypothesis.finish(None)
        del root.hypotheses[1:]
        self._searches.pop(root.id, None)

    def _begin(self, root: Request) -> None:
        assert root.beam is not None
        assert root.max_tokens is not None  # resolved at submit
        self._scheduler.begin_beams(root)
        self._searches[root.id] = BeamSearch(root.beam, root.stop_ids, root.max_tokens)

    def _branch(self, root: Request, branches: list[Branch]) -> None:
        """Turn the hypotheses into `branches`: a parent's first child takes over its blocks, the others share them."""
        hypotheses = root.hypotheses
        parents = [(each.kv, each.tokens) for each in hypotheses]
        used = {branch.parent for branch in branches}
        for number, (kv, _) in enumerate(parents):
            if number not in used and kv is not None:
                self._cache.close(kv)
        for hypothesis in hypotheses[len(branches) :]:
            hypothesis.kv = None
            self._scheduler.finish(hypothesis)
            hypothesis.finish(None)
        del hypotheses[len(branches) :]
        taken: set[int] = set()
        for number, branch in enumerate(branches):
            kv, tokens = parents[branch.parent]
            assert kv is not None
            own = kv if branch.parent not in taken else self._twin(kv, len(tokens))
            taken.add(branch.parent)
            if number == len(hypotheses):
                hypotheses.append(self._spawn(root, number))
            hypotheses[number].branch(own, [*tokens, branch.token])

    def _twin(self, kv: Sequence, num_tokens: int) -> Sequence:
        twin = self._cache.fork(kv, num_tokens)
        assert twin is not None  # a place, and so a table row, was reserved for every hypothesis
        return twin

    def _spawn(self, root: Request, number: int) -> Request:
        hypothesis = Request(
            f"{root.id}{INTERNAL}{number}",
            root.prompt_ids,
            root.sampling,
            max_tokens=root.max_tokens,
            priority_class=root.priority_class,
            tenant=root.tenant,
            cache_salt=root.cache_salt,
            ttft_slo_ms=root.ttft_slo_ms,
            tbt_slo_ms=root.tbt_slo_ms,
            deadline_s=root.deadline_s,
            waited_s=root.waited_s,
            beam=root.beam,
            adapter=root.adapter,
        )
        hypothesis.hypotheses = root.hypotheses
        hypothesis.stop_ids = root.stop_ids
        self._scheduler.spawn(hypothesis, root, number)
        return hypothesis

    def _finish(self, root: Request, best: list[Hypothesis]) -> list[TokenEvent]:
        assert root.beam is not None
        self.end(root)
        self._scheduler.finish(root)
        if len(best) < root.beam.num_return:
            root.finish(None)
            error = f"only {len(best)} of {root.beam.num_return} hypotheses could be found"
            return [TokenEvent(root.id, 0, None, error=error)]
        root.finish(best[0].reason)
        return [
            TokenEvent(
                root.id,
                position,
                token,
                hypothesis.reason if position == len(hypothesis.output_ids) - 1 else None,
                cached_tokens=root.cached_tokens,
                choice=choice,
            )
            for choice, hypothesis in enumerate(best)
            for position, token in enumerate(hypothesis.output_ids)
        ]
