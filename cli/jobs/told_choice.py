"""Log probabilities in the answer to one line of a bulk job, as the gateway writes them."""

from collections.abc import Iterator, Sequence
from typing import Any

from orcastream.client import Choice
from orcastream.client.result import TokenLogprob as Told
from orcastream.gateway.openai.logprobs import TokenLogprob, chat_logprobs, completion_logprobs
from orcastream.gateway.openai.opening import Opening
from orcastream.gateway.openai.prompt_logprobs import PromptLogprobs
from orcastream.gateway.replies.token_logprobs import told
from orcastream.text.choice_text import ChoiceText
from orcastream.text.tokenizer import Tokenizer


def choice_logprobs(tokenizer: Tokenizer, choice: Choice, *, is_chat: bool) -> dict[str, Any] | None:
    """Return `logprobs` of a choice; None if not requested."""
    tokens = list(_of_answer(tokenizer, choice))
    if not tokens:
        return None
    return chat_logprobs(tokens) if is_chat else completion_logprobs(tokens)


def prompt_fields(tokenizer: Tokenizer, prompt: Sequence[Told | None], count: int | None) -> dict[str, Any]:
    """Return every choice's field `prompt_logprobs` with the `count` likeliest tokens per position; None: no field."""
    written = PromptLogprobs(Opening(prompt_logprobs=count))
    if prompt:
        written.add([_token(tokenizer, one, position, (0, 0)) for position, one in enumerate(prompt)])
    return written.fields()


def _of_answer(tokenizer: Tokenizer, choice: Choice) -> Iterator[TokenLogprob]:
    """Yield the tokens' log probabilities; tokens after the point where a stop string cut the text are left out."""
    whole = ChoiceText(tokenizer)
    is_cut = len(whole.push(choice.tokens) + whole.finish()) > len(choice.text)
    text = ChoiceText(tokenizer)
    for position, (token, one) in enumerate(zip(choice.tokens, choice.logprobs, strict=False)):
        before = text.length
        text.push((token,))
        each = _token(tokenizer, one, position, (before, text.length))
        if not is_cut or each.text_offset < len(choice.text):
            yield each


def _token(tokenizer: Tokenizer, one: Told | None, position: int, brought: tuple[int, int]) -> TokenLogprob:
    """Return one token's log probabilities; None, the first token of a prompt, becomes token 0 without any."""
    if one is None:
        return told(tokenizer, 0, None, position=position, brought=brought)
    assert one.id is not None, "over Redis tokens have their ids"
    likeliest = [(each.id, each.logprob) for each in one.likeliest]
    items = (one.logprob, likeliest)
    return told(tokenizer, one.id, items, position=position, brought=brought, rank=one.rank)
