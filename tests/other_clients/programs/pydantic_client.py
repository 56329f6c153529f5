"""pydantic-ai as in its documentation, with another address: `pydantic_client.py URL CASE` prints the result."""

import asyncio
import json
import sys
from typing import Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

URL, CASE = sys.argv[1:]
PROVIDER = OpenAIProvider(base_url=URL, api_key="none")
CHAT = OpenAIChatModel("orca-demo", provider=PROVIDER)
GREEDY = {"temperature": 0}


class Dish(BaseModel):
    name: Literal["soup", "pie"]
    portions: int = Field(ge=1, le=9)


def chat():
    done = Agent(CHAT).run_sync("What is 3 + 4?", model_settings=GREEDY)
    return {"text": done.output, "tokens": done.usage.output_tokens}


def stream():
    async def read():
        async with Agent(CHAT).run_stream("Count from 1 to 9", model_settings=GREEDY) as answer:
            return "".join([text async for text in answer.stream_text(delta=True)])

    return {"text": asyncio.run(read())}


def json_schema():
    return Agent(CHAT, output_type=NativeOutput(Dish)).run_sync("A soup for two").output.model_dump()


def tools():
    return Agent(CHAT, output_type=ToolOutput(Dish)).run_sync("A soup for two").output.model_dump()


def responses():
    """Two turns."""
    agent = Agent(OpenAIResponsesModel("orca-demo", provider=PROVIDER))
    first = agent.run_sync("What is 3 + 4?", model_settings=GREEDY)
    second = agent.run_sync("What is 5 + 4?", model_settings=GREEDY, message_history=first.all_messages())
    return {"texts": [first.output, second.output]}


print(json.dumps(globals()[CASE]()))
