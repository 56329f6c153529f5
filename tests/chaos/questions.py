"""What the load asks: plain prompts, and one question for each other kind of request."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tests.chaos.adapter import NAME as ADAPTER

MAX_TOKENS = 480
DEMO = Path(__file__).parents[2] / "demo"
_NUM_PROMPTS = 12
_LONG_TOKENS = 1500
_NUMBERS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 999}, "minItems": 20, "maxItems": 40}
_YES_NO = {"choice": ["yes, it is", "no, not at all"]}
_DRAWN = {"temperature": 0.9, "top_p": 0.9}


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and parameters, under the names of the protocol. `fixed`: asked exactly so, so that everything about its
    answer is known beforehand; otherwise the load chooses the other parameters.
    """

    payload: dict[str, Any]
    fixed: bool = False


def questions(tokenizer: Tokenizer) -> list[Question]:
    """Return all questions, the plain ones first."""
    texts = [item["question"] for item in json.loads((DEMO / "questions.json").read_text())]
    chosen = texts[:: len(texts) // _NUM_PROMPTS][:_NUM_PROMPTS]
    prompts = [tokenizer.encode(text).ids for text in chosen]
    long_prompt = (tokenizer.encode(" ".join(texts)).ids * 2)[:_LONG_TOKENS]
    plain = [Question({"prompt": prompt}) for prompt in prompts]
    others = [
        _other(long_prompt, max_tokens=120, temperature=0.0, logprobs=1),
        _other(long_prompt, max_tokens=60, prompt_logprobs=3, seed=1, **_DRAWN),
        _other(long_prompt[:400], max_tokens=1, temperature=0.0, prompt_logprobs=1),
        _other(prompts[1], max_tokens=200, n=3, seed=2, **_DRAWN),
        _other(prompts[2], max_tokens=120, best_of=3, seed=3, **_DRAWN),
        _other(prompts[3], max_tokens=80, n=2, best_of=3, use_beam_search=True),
        _other(prompts[4], max_tokens=300, n=2, seed=4, temperature=1.2, stop=["the", "e s", "3"]),
        _other(prompts[5], max_tokens=300, ignore_eos=False, constraint={"json_schema": json.dumps(_NUMBERS)}, seed=5),
        _other(prompts[6], max_tokens=200, ignore_eos=False, constraint={"regex": "([a-z]{3} ){40}"}, seed=6, **_DRAWN),
        _other(prompts[7], max_tokens=50, ignore_eos=False, seed=7, constraint=_YES_NO),
        _other(prompts[8], max_tokens=240, adapter=ADAPTER, seed=8, **_DRAWN),
        _other(
            prompts[9],
            max_tokens=300,
            min_tokens=40,
            presence_penalty=0.5,
            frequency_penalty=0.25,
            repetition_penalty=1.1,
            logit_bias=[[50, 1.5]],
            logprobs=5,
            seed=9,
            **_DRAWN,
        ),
    ]
    return plain + others


def _other(prompt: list[int], **parameters: Any) -> Question:
    return Question({"prompt": prompt, "ignore_eos": True, **parameters}, fixed=True)
