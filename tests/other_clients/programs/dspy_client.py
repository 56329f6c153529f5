"""dspy as in its documentation, with another address: `dspy_client.py URL CASE` prints the result."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise it fetches prices from GitHub
import dspy

URL, CASE = sys.argv[1:]
HERE = {"api_base": URL, "api_key": "none", "temperature": 0, "cache": False, "num_retries": 0}


def chat():
    model = dspy.LM("openai/orca-demo", max_tokens=60, **HERE)
    (text,) = model("What is 3 + 4?")
    return {"text": text, "tokens": model.history[-1]["usage"]["completion_tokens"]}


print(json.dumps(globals()[CASE]()))
