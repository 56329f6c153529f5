"""llama-index as in its documentation, with another address: `llama_index_client.py URL CASE` prints the result."""

import json
import sys

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

URL, CASE = sys.argv[1:]
HERE = {"model": "orca-demo", "api_base": URL, "api_key": "none", "context_window": 4096, "temperature": 0}


def chat():
    answer = OpenAILike(is_chat_model=True, **HERE).chat([ChatMessage(role="user", content="What is 3 + 4?")])
    return {"text": answer.message.content, "tokens": answer.raw.usage.completion_tokens}


def stream():
    asked = [ChatMessage(role="user", content="Count from 1 to 9")]
    return {"text": "".join(piece.delta or "" for piece in OpenAILike(is_chat_model=True, **HERE).stream_chat(asked))}


print(json.dumps(globals()[CASE]()))
