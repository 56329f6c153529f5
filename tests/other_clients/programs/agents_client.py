"""openai-agents as in its documentation, with another address: `agents_client.py URL CASE` prints the result."""

import asyncio
import json
import sys
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

URL, CASE = sys.argv[1:]
CLIENT = AsyncOpenAI(base_url=URL, api_key="none", max_retries=0)
MODELS = {
    "chat": OpenAIChatCompletionsModel("orca-demo", CLIENT),
    "responses": OpenAIResponsesModel("orca-demo", CLIENT),
}
set_tracing_disabled(True)


@function_tool
def order(dish: Literal["soup", "pie"]) -> str:
    """Order a dish."""
    return f"{dish} comes"


def agent(kind, **more):
    settings = {"temperature": 0, "max_tokens": 60, **more.pop("settings", {})}
    return Agent(name="cook", model=MODELS[kind], model_settings=ModelSettings(**settings), **more)


async def asked(kind):
    done = await Runner.run(agent(kind), "What is 3 + 4?")
    return {"text": done.final_output, "tokens": done.context_wrapper.usage.output_tokens}


async def stream(kind):
    streamed, pieces = Runner.run_streamed(agent(kind), "Count from 1 to 9"), []
    async for event in streamed.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            pieces.append(event.data.delta)
    return {"text": "".join(pieces)}


async def tools(kind):
    """A call, and a second turn after its result."""
    settings = {"tool_choice": "required", "parallel_tool_calls": False}
    done = await Runner.run(agent(kind, tools=[order], settings=settings), "What is 3 + 4?", max_turns=2)
    return {"items": [item.type for item in done.new_items]}


case, kind = CASE.split("_")
print(json.dumps(asyncio.run({"chat": asked, "stream": stream, "tools": tools}[case](kind))))
