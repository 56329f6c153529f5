"""Log probabilities of a prompt in the form of completions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from orcastream.gateway.openai.choice_logprobs import ChoiceLogprobs
from orcastream.gateway.openai.growing_list import GrowingList
from orcastream.gateway.openai.logprobs import LikelyToken, TokenLogprob, completion_logprobs
from orcastream.gateway.openai.opening import Opening


class PromptLogprobs:
    """What every choice of a reply contains about the prompt: encoded once, as it arrives, because it may be long."""

    def __init__(self, opening: Opening) -> None:
        """`opening`: which forms are returned, with how many likeliest tokens in each."""
        self._echoed, self._by_id = opening.logprobs, opening.prompt_logprobs
        self._lists = ChoiceLogprobs(completion_logprobs)
        self._maps = GrowingList()

    @property
    def is_told(self) -> bool:
        """Whether the choices contain any of it."""
        return self._echoed is not None or self._by_id is not None

    @property
    def size_bytes(self) -> int:
        """Size of it in each choice so far, as JSON."""
        return self._lists.size_bytes + self._maps.size_bytes

    def add(self, tokens: Sequence[TokenLogprob]) -> None:
        """Add one token or more."""
        if (count := self._echoed) is not None:
            cut = [replace(one, likeliest=one.likeliest[:count]) for one in tokens]
            self._lists.add(cut)
        if (count := self._by_id) is not None:
            self._maps.add([_by_id(one, count) for one in tokens])

    def fields(self, answer: ChoiceLogprobs | None = None) -> dict[str, Any]:
        """Return the fields of a choice whose own `logprobs` after the prompt's are `answer`; empty if nothing is
        returned.

        `prompt_logprobs` is in vLLM's form, in which each token's own entry comes first.
        """
        told: dict[str, Any] = {}
        if self._echoed is not None:
            told["logprobs"] = self._lists.json(answer)
        if self._by_id is not None:
            told["prompt_logprobs"] = self._maps.so_far()
        return told


def _by_id(one: TokenLogprob, count: int) -> dict[str, Any] | None:
    if one.chosen.logprob is None:
        return None
    ranks = _ranks(one.likeliest)
    if one.rank is not None:
        ranks[one.chosen.id] = one.rank
    likeliest = [likely for likely in one.likeliest[:count] if likely.id != one.chosen.id]
    return {
        str(each.id): {"logprob": each.logprob, "rank": ranks.get(each.id), "decoded_token": each.token.text}
        for each in (one.chosen, *likeliest)
    }


def _ranks(likeliest: Sequence[LikelyToken]) -> dict[int, int]:
    """Return each token's rank, one more than the number of likelier ones: equally likely tokens share a rank."""
    first: dict[float | None, int] = {}
    for place, likely in enumerate(likeliest, start=1):
        first.setdefault(likely.logprob, place)
    return {likely.id: first[likely.logprob] for likely in likeliest}
