"""lm-evaluation-harness's model `local-completions`: `lm_eval_client.py URL CASE` prints the result."""

import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

URL, CASE = sys.argv[1:]
ASKED = [("What is 3 + 4?", " 7"), ("What is 3 + 4?", " cat and dog"), ("Count from 1 to 9", " 1, 2, 3")]

lm = LocalCompletionsAPI(
    base_url=f"{URL}/completions",
    model="orca-demo",
    tokenizer=str(Path(__file__).parents[3] / "demo" / "model"),
    tokenizer_backend="huggingface",
    tokenized_requests=CASE == "ids",
    max_length=512,
    batch_size=2,
)
requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(ASKED)]
found = lm.loglikelihood(requests, disable_tqdm=True)
print(json.dumps({"asked": ASKED, "found": [[logprob, bool(greedy)] for logprob, greedy in found]}))
