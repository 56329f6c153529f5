"""Examples of request bodies, for the OpenAPI document; the tests send each of them."""

import json
from typing import Any, Final

_MODEL: Final = "orca-demo"
_QUESTION: Final = [{"role": "user", "content": "What is 3 + 4?"}]
_ADD: Final = {
    "name": "add",
    "description": "The sum of numbers.",
    "parameters": {
        "type": "object",
        "properties": {"numbers": {"type": "array", "items": {"type": "integer"}, "maxItems": 4}},
        "required": ["numbers"],
    },
}

COMPLETIONS: Final[dict[str, Any]] = {
    "text": {"summary": "Continue a text.", "value": {"model": _MODEL, "prompt": "What is 3 + 4?", "max_tokens": 16}},
    "several": {
        "summary": "Two prompts, one of them token ids, with the likeliest tokens of each answer.",
        "value": {"model": _MODEL, "prompt": [[5, 6, 7], [8]], "max_tokens": 4, "logprobs": 2},
    },
    "extended": {
        "summary": "A stream with parameters of other servers, and a target for its first token.",
        "value": {
            "model": _MODEL,
            "prompt": "Count from 1 to 5",
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "top_k": 20,
            "min_p": 0.05,
            "repetition_penalty": 1.05,
            "priority": "high",
            "ttft_slo_ms": 500,
            "on_disconnect": "continue",
        },
    },
}
CHAT: Final[dict[str, Any]] = {
    "question": {"summary": "One question.", "value": {"model": _MODEL, "messages": _QUESTION}},
    "choices": {
        "summary": "Two answers with the log probabilities of their tokens, and a token that is forbidden.",
        "value": {
            "model": _MODEL,
            "messages": _QUESTION,
            "n": 2,
            "seed": 7,
            "max_completion_tokens": 20,
            "logprobs": True,
            "top_logprobs": 3,
            "logit_bias": {"5": -100},
        },
    },
    "tools": {
        "summary": "An answer that calls one of the tools, after an earlier call and its result.",
        "value": {
            "model": _MODEL,
            "messages": [
                *_QUESTION,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "add", "arguments": '{"numbers": [3, 4]}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "call_1", "content": "7"},
                {"role": "user", "content": "And 5 more?"},
            ],
            "tools": [{"type": "function", "function": _ADD}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        },
    },
}
RESPONSES: Final[dict[str, Any]] = {
    "text": {"summary": "Answer a text.", "value": {"model": _MODEL, "input": "What is 3 + 4?"}},
    "background": {
        "summary": "Continues without a client; retrieve it by its id.",
        "value": {
            "model": _MODEL,
            "instructions": "You are helpful.",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "Count from 1 to 5"}]}],
            "background": True,
            "max_output_tokens": 32,
            "metadata": {"batch": "7"},
            "priority": "low",
        },
    },
    "structured": {
        "summary": "The events of an answer that satisfies a schema.",
        "value": {
            "model": _MODEL,
            "input": "What is 3 + 4?",
            "stream": True,
            "max_output_tokens": 16,
            "text": {
                "format": {
                    "type": "json_schema",
                    "name": "sum",
                    "schema": {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]},
                }
            },
        },
    },
    "tools": {
        "summary": "An output that calls one of the tools, after an earlier call and its result.",
        "value": {
            "model": _MODEL,
            "input": [
                *_QUESTION,
                {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"numbers": [3, 4]}'},
                {"type": "function_call_output", "call_id": "call_1", "output": "7"},
                {"role": "user", "content": "And 5 more?"},
            ],
            "tools": [{"type": "function", **_ADD}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        },
    },
}
TOKENIZE: Final[dict[str, Any]] = {
    "text": {"summary": "A text.", "value": {"model": _MODEL, "prompt": "What is 3 + 4?"}},
    "chat": {"summary": "A chat, as its template renders it.", "value": {"model": _MODEL, "messages": _QUESTION}},
}
DETOKENIZE: Final[dict[str, Any]] = {
    "ids": {"summary": "Token ids.", "value": {"model": _MODEL, "tokens": [5, 6, 7]}},
}
UPLOAD: Final[dict[str, Any]] = {
    "input": {
        "summary": "Two requests.",
        "value": {
            "purpose": "batch",
            "file": "".join(
                json.dumps(
                    {
                        "custom_id": custom_id,
                        "method": "POST",
                        "url": "/v1/chat/completions",
                        "body": {"model": _MODEL, "messages": _QUESTION},
                    }
                )
                + "\n"
                for custom_id in ("first", "second")
            ),
        },
    },
}
BATCH: Final[dict[str, Any]] = {
    "chats": {
        "summary": "The chats in an uploaded file.",
        "value": {
            "input_file_id": "file-4f0e",
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
            "metadata": {"run": "nightly"},
        },
    },
}

EXAMPLES: Final = {
    "CompletionRequest": COMPLETIONS,
    "ChatRequest": CHAT,
    "ResponseRequest": RESPONSES,
    "TokenizeRequest": TOKENIZE,
    "DetokenizeRequest": DETOKENIZE,
    "UploadRequest": UPLOAD,
    "BatchRequest": BATCH,
}
"""Examples by the names of the bodies."""
