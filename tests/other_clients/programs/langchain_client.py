"""langchain-openai as in its documentation, with another address: `langchain_client.py URL CASE` prints the result."""

import json
import sys
from typing import Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

URL, CASE = sys.argv[1:]
QUESTION = "What is 3 + 4?"


def chat(**more):
    return ChatOpenAI(model="orca-demo", base_url=URL, api_key="none", temperature=0, max_retries=0, **more)


def invoke():
    answer = chat().invoke([("system", "You are a helpful assistant."), ("human", QUESTION)])
    return {"text": answer.content, "tokens": answer.usage_metadata["output_tokens"]}


def marked(**more):
    """What to cache is marked."""
    part = {"type": "text", "text": QUESTION, "prompt_cache_breakpoint": {"mode": "explicit"}}
    answer = chat(**more).invoke([HumanMessage([part])])
    return {"text": answer.text, "tokens": answer.usage_metadata["output_tokens"]}


def marked_response():
    return marked(use_responses_api=True)


def stream():
    pieces = list(chat(stream_usage=True).stream("Count from 1 to 9"))
    used = [piece.usage_metadata for piece in pieces if piece.usage_metadata]
    return {"text": "".join(piece.content for piece in pieces), "tokens": used[-1]["output_tokens"]}


def batch():
    return {"texts": [answer.content for answer in chat().batch([QUESTION, "Spell orca"])]}


def completion():
    model = OpenAI(model="orca-demo", base_url=URL, api_key="none", temperature=0, max_retries=0, max_tokens=20)
    return {"text": model.invoke(QUESTION)}


class Dish(BaseModel):
    """A dish."""

    name: Literal["soup", "pie"]
    portions: int = Field(ge=1, le=9)


@tool
def order(name: Literal["soup", "pie"]) -> str:
    """Order a dish."""
    return f"{name} comes"


def tools():
    """A call, its result, and the answer after it."""
    bound = chat().bind_tools([order], tool_choice="required", parallel_tool_calls=False)
    asked = [HumanMessage(QUESTION)]
    calling = bound.invoke(asked)
    (call,) = calling.tool_calls
    result = ToolMessage(order.invoke(call["args"]), tool_call_id=call["id"])
    behind = chat(max_tokens=8).bind_tools([order]).invoke([*asked, calling, result])
    return {"call": call, "result": result.content, "behind": behind.type}


def streamed_tools():
    bound = chat().bind_tools([order], tool_choice="order", parallel_tool_calls=False)
    whole = None
    for piece in bound.stream(QUESTION):
        whole = piece if whole is None else whole + piece
    return {"calls": whole.tool_calls}


def function_calling():
    return chat().with_structured_output(Dish, method="function_calling").invoke(QUESTION).model_dump()


def json_schema():
    return chat().with_structured_output(Dish, method="json_schema").invoke(QUESTION).model_dump()


print(json.dumps(globals()[CASE]()))
