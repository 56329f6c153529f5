"""litellm as in its documentation, with another address: `litellm_client.py URL CASE` prints the result."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise it fetches prices from GitHub
import litellm

URL, CASE = sys.argv[1:]
HERE = {"api_base": URL, "api_key": "none", "num_retries": 0, "temperature": 0}


def asking(text):
    return {"messages": [{"role": "user", "content": text}], **HERE}


def chat():
    answer = litellm.completion(model="openai/orca-demo", **asking("What is 3 + 4?"))
    return {"text": answer.choices[0].message.content, "tokens": answer.usage.completion_tokens}


def vllm_chat():
    answer = litellm.completion(model="hosted_vllm/orca-demo", **asking("What is 3 + 4?"))
    return {"text": answer.choices[0].message.content, "tokens": answer.usage.completion_tokens}


def marked():
    """What to cache is marked."""
    asked = asking("What is 3 + 4?")
    asked["messages"][0]["cache_control"] = {"type": "ephemeral"}
    answer = litellm.completion(model="openai/orca-demo", **asked)
    return {"text": answer.choices[0].message.content, "tokens": answer.usage.completion_tokens}


def stream():
    pieces = litellm.completion(model="openai/orca-demo", stream=True, **asking("Count from 1 to 9"))
    return {"text": "".join(piece.choices[0].delta.content or "" for piece in pieces)}


def completion():
    model = "text-completion-openai/orca-demo"
    answer = litellm.text_completion(model=model, prompt="What is 3 + 4?", max_tokens=20, **HERE)
    return {"text": answer.choices[0].text}


def too_long():
    try:
        litellm.completion(model="openai/orca-demo", max_tokens=100_000, **asking("What is 3 + 4?"))
    except litellm.BadRequestError as error:
        return {"error": type(error).__name__}


def tools():
    """A call, its result, and the answer after it."""
    names = {"type": "object", "properties": {"name": {"enum": ["soup", "pie"]}}, "required": ["name"]}
    order = {"type": "function", "function": {"name": "order", "parameters": names}}
    asked = {**asking("What is 3 + 4?"), "model": "openai/orca-demo", "tools": [order]}
    calling = litellm.completion(tool_choice="required", parallel_tool_calls=False, **asked).choices[0]
    (call,) = calling.message.tool_calls
    asked["messages"] += [calling.message, {"role": "tool", "tool_call_id": call.id, "content": "It comes"}]
    behind = litellm.completion(max_tokens=8, **asked)
    told = {"name": call.function.name, "args": json.loads(call.function.arguments)}
    return {"call": told, "reason": calling.finish_reason, "behind": behind.choices[0].message.role}


print(json.dumps(globals()[CASE]()))
