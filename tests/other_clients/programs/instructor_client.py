"""instructor as in its documentation, with another address: `instructor_client.py URL CASE` prints the result."""

import json
import sys
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field

URL, CASE = sys.argv[1:]
MODES = {"tools": instructor.Mode.TOOLS, "json_schema": instructor.Mode.JSON_SCHEMA}


class Dish(BaseModel):
    """A dish."""

    name: Literal["soup", "pie"]
    portions: int = Field(ge=1, le=9)


def main():
    own = OpenAI(base_url=URL, api_key="none", max_retries=0)
    client = instructor.from_openai(own, mode=MODES[CASE])
    dish = client.chat.completions.create(
        model="orca-demo",
        response_model=Dish,
        max_retries=0,
        temperature=0,
        messages=[{"role": "user", "content": "Order"}],
    )
    return {"name": dish.name, "portions": dish.portions}


print(json.dumps(main()))
