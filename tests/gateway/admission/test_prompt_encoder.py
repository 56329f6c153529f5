"""Encoding prompts to ids, and the errors for prompts that exceed the context."""

import pytest

from orcastream.gateway.admission.prompt_encoder import PromptEncoder
from orcastream.gateway.openai.prompt import Text
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.model_limits import ModelLimits
from orcastream.text.tokenizer import Tokenizer

LIMITS = ModelLimits(vocab_size=400, max_model_len=2000)


@pytest.mark.parametrize("text", ["ab " * 1000, "a" * 20_000], ids=["tokenized", "refused before"])
def test_a_refusal_states_the_prompts_tokens_or_their_minimum(tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        PromptEncoder(tokenizer, LIMITS).encode(Text(text))
    count = len(tokenizer.encode(text))
    told, _, allowed = str(caught.value).partition(", allowed: ")
    assert allowed == "at most 1999 tokens: this model's maximum context length is 2000 tokens"
    if len(text) < 4096:
        assert told == f"prompt: got '{count} tokens'"
    else:
        words = told.removeprefix("prompt: got 'at least ").removesuffix(" tokens'")
        assert LIMITS.max_model_len <= int(words) <= count
