"""lm-evaluation-harness's models `local-completions` and `local-chat-completions`: `lm_eval_client.py URL CASE` prints
the result.
"""

import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
from lm_eval.api.instance import Instance
from lm_eval.models.api_models import JsonChatStr
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

URL, CASE = sys.argv[1:]
ASKED = [("What is 3 + 4?", " 7"), ("What is 3 + 4?", " cat and dog"), ("Count from 1 to 9", " 1, 2, 3")]
QUESTIONS = ["What is 3 + 4?", "Spell orca"]
UNTIL = {"until": ["\n\n"], "max_gen_toks": 20, "do_sample": False}


def completions(**more):
    return LocalCompletionsAPI(
        base_url=f"{URL}/completions",
        model="orca-demo",
        tokenizer=str(Path(__file__).parents[3] / "demo" / "model"),
        tokenizer_backend="huggingface",
        max_length=512,
        batch_size=2,
        **more,
    )


def answers(model, contexts):
    requests = [Instance("generate_until", {}, (context, UNTIL), number) for number, context in enumerate(contexts)]
    return {"texts": model.generate_until(requests, disable_tqdm=True)}


def ids():
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(ASKED)]
    found = completions(tokenized_requests=True).loglikelihood(requests, disable_tqdm=True)
    return {"asked": ASKED, "found": [[logprob, bool(greedy)] for logprob, greedy in found]}


def text():
    return answers(completions(tokenized_requests=False), QUESTIONS)


def chat():
    model = LocalChatCompletion(base_url=f"{URL}/chat/completions", model="orca-demo")
    return answers(model, [JsonChatStr(json.dumps([{"role": "user", "content": each}])) for each in QUESTIONS])


print(json.dumps(globals()[CASE]()))
