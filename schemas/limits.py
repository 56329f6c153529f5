"""Every limit of the wire contract, in one place."""

import re
from typing import Final

PROTOCOL_VERSION: Final = 1

MAX_QUEUE_LANES: Final = 64

MAX_ID_LENGTH: Final = 128
ID_PATTERN: Final = re.compile(rf"[A-Za-z0-9_.\-]{{1,{MAX_ID_LENGTH}}}")
ID_RULE: Final = f"1 to {MAX_ID_LENGTH} characters of A-Z a-z 0-9 _ . -"

MAX_NAME_LENGTH: Final = 128
NAME_PATTERN: Final = re.compile(rf"[A-Za-z0-9_.\-/]{{1,{MAX_NAME_LENGTH}}}")
NAME_RULE: Final = f"1 to {MAX_NAME_LENGTH} characters of A-Z a-z 0-9 _ . - /"

MAX_PAYLOAD_BYTES: Final = 4 * 1024 * 1024
MAX_PAYLOAD_PARTS: Final = 1000
"""Maps and arrays in a payload, and names and texts. A valid payload has few; four million empty ones would fit into
its bytes."""
PAYLOAD_BYTES_PER_TOKEN: Final = 16
PAYLOAD_BYTES_BESIDE: Final = 64 * 1024
"""The most bytes of a payload, per token of the context and beside: what any prompt and all parameters need in their
longest form, but for the texts of a constraint, which may have more characters than fit."""
MAX_DEAD_LETTERS: Final = 10_000
MAX_DEAD_LETTER_BYTES: Final = 256 * 1024 * 1024
"""How many requests that were set aside, and bytes of them, a lane keeps; the oldest are dropped first."""
MAX_PROMPT_TOKENS: Final = 1_000_000
MAX_TOKEN_ID: Final = 2**32 - 1
MAX_OUTPUT_TOKENS: Final = 1_000_000
UNSTATED_OUTPUT_TOKENS: Final = 512
"""Tokens that a request without max_tokens counts for, per candidate."""
MAX_CHOICES: Final = 16
MAX_STOP_STRINGS: Final = 16
MAX_STOP_LENGTH: Final = 256
MAX_STOP_TOKEN_IDS: Final = 64
MAX_CONSTRAINT_LENGTH: Final = 32_768
"""Characters of a schema, an expression or a grammar."""
MAX_CONSTRAINT_CHOICES: Final = 512
MAX_CONSTRAINT_CHOICE_LENGTH: Final = 1024
MAX_ANSWER_FORMAT_LENGTH: Final = 64
ANSWER_FORMAT_PATTERN: Final = re.compile(r"[a-z0-9_]+(?:\+[a-z0-9_]+)*")
MAX_LOGPROBS: Final = 20
MAX_PROMPT_LOGPROBS: Final = 131_072
"""Log probabilities of a prompt's tokens in one reply: one per token plus those of the likeliest alternatives."""
MAX_PROMPT_LOGPROBS_IN_EVENT: Final = 4096
"""The most of them in one event: about 60 KiB in msgpack."""
MAX_LOGIT_BIASES: Final = 300
MAX_LOGIT_BIAS: Final = 100
"""A bias this large decides alone, whatever the model's logits are."""
MAX_REPETITION_PENALTY: Final = 10
MIN_SEED: Final = -(2**63)
MAX_SEED: Final = 2**63 - 1
MAX_CACHE_SALT_LENGTH: Final = 128
MAX_SLO_MS: Final = 3_600_000
"""A target of more than an hour for the first token, or between two tokens, is not a target."""
MAX_LENGTH_PENALTY: Final = 10
"""Lengths to this power stay finite."""
MAX_TRACE_HEADER_LENGTH: Final = 512

MAX_DEADLINE_AHEAD_MS: Final = 7 * 24 * 3600 * 1000
"""A deadline further away than this is refused: reply logs and `seen` keys live at least that long."""
