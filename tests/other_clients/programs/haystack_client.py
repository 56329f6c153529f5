"""haystack as in its documentation, with another address: `haystack_client.py URL CASE` prints the result."""

import json
import sys

from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret

URL, CASE = sys.argv[1:]
DISHES = {"type": "object", "properties": {"name": {"enum": ["soup", "pie"]}}, "required": ["name"]}
ORDER = Tool("order", "Order a dish.", DISHES, lambda name: f"{name} comes")


def ask(*messages, streaming_callback=None, tools=None, **more):
    generator = OpenAIChatGenerator(
        api_key=Secret.from_token("none"),
        model="orca-demo",
        api_base_url=URL,
        max_retries=0,
        streaming_callback=streaming_callback,
        tools=tools,
        generation_kwargs={"temperature": 0, **more},
    )
    return generator.run(list(messages))["replies"][0]


def chat():
    answer = ask(ChatMessage.from_user("What is 3 + 4?"))
    return {"text": answer.text, "tokens": answer.meta["usage"]["completion_tokens"]}


def stream():
    pieces = []
    ask(ChatMessage.from_user("Count from 1 to 9"), streaming_callback=lambda chunk: pieces.append(chunk.content))
    return {"text": "".join(pieces)}


def tools():
    """A call, its result, and the answer after it."""
    question = ChatMessage.from_user("What is 3 + 4?")
    calling = ask(question, tools=[ORDER], tool_choice="required", parallel_tool_calls=False)
    (call,) = calling.tool_calls
    result = ChatMessage.from_tool("It comes.", origin=call)
    behind = ask(question, calling, result, tools=[ORDER], max_tokens=8)
    told = {"name": call.tool_name, "args": call.arguments}
    return {"call": told, "reason": calling.meta["finish_reason"], "behind": behind.role.value}


print(json.dumps(globals()[CASE]()))
