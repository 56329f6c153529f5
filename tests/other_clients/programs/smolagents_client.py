"""smolagents as in its documentation, with another address: `smolagents_client.py URL CASE` prints the result."""

import json
import sys
from typing import ClassVar

from smolagents import OpenAIModel, Tool

URL, CASE = sys.argv[1:]
MODEL = OpenAIModel(model_id="orca-demo", api_base=URL, api_key="none", temperature=0)


class Order(Tool):
    name = "order"
    description = "Orders a dish."
    inputs: ClassVar = {"dish": {"type": "string", "enum": ["soup", "pie"], "description": "The dish."}}
    output_type = "string"

    def forward(self, dish: str) -> str:
        return f"{dish} comes"


def asking(text):
    return [{"role": "user", "content": [{"type": "text", "text": text}]}]


def chat():
    answer = MODEL.generate(asking("What is 3 + 4?"))
    return {"text": answer.content, "tokens": answer.token_usage.output_tokens}


def stream():
    pieces = MODEL.generate_stream(asking("Count from 1 to 9"))
    return {"text": "".join(piece.content or "" for piece in pieces)}


def tools():
    answer = MODEL.generate(asking("Order"), tools_to_call_from=[Order()], max_tokens=60, parallel_tool_calls=False)
    return {"name": answer.tool_calls[0].function.name}


print(json.dumps(globals()[CASE]()))
