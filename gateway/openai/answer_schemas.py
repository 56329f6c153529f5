"""The objects that the gateway answers with, and their JSON schemas for the OpenAPI document."""

from typing import Any, Final, Literal, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict  # typing's own will do for pydantic from Python 3.12 on

from orcastream.gateway.openai.endpoint import Json

FinishReason = Literal["stop", "length", "tool_calls"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class CachedTokens(TypedDict):
    """How many of the prompt's tokens were not computed anew."""

    cached_tokens: int


class ReasoningTokens(TypedDict):
    """How many of the output's tokens are thinking."""

    reasoning_tokens: int


class Usage(TypedDict):
    """Token counts of an answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class CalledFunction(TypedDict):
    """The name and arguments of a call."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A call in a chat's message."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class LikelyToken(TypedDict):
    """A token with its log probability."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(LikelyToken):
    """A token of an answer, with the likeliest ones in its place."""

    top_logprobs: list[LikelyToken]


class ChatLogprobs(TypedDict):
    """The log probabilities of a chat's choice."""

    content: list[TokenLogprob]
    refusal: None


class ChatMessage(TypedDict):
    """An assistant's message."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(TypedDict):
    """One choice of a chat."""

    index: int
    finish_reason: FinishReason
    logprobs: ChatLogprobs | None
    message: ChatMessage


class ChatCompletion(TypedDict):
    """The answer to a chat."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class CompletionLogprobs(TypedDict):
    """The log probabilities of a completion's choice: lists of one item per token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptToken(TypedDict):
    """A likely token in the place of a prompt's token."""

    logprob: float
    rank: int | None
    decoded_token: str


class CompletionChoice(TypedDict):
    """One choice of a completion."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    prompt_logprobs: NotRequired[list[dict[str, PromptToken] | None]]


class Completion(TypedDict):
    """The answer to one or more prompts."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class OutputText(TypedDict):
    """The text of a message in a response."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class ReasoningText(TypedDict):
    """The model's thinking in a response."""

    type: Literal["reasoning_text"]
    text: str


class OutputMessage(TypedDict):
    """A message in a response's output."""

    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class OutputReasoning(TypedDict):
    """Thinking in a response's output."""

    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningText]


class OutputCall(TypedDict):
    """A function call in a response's output."""

    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class ResponseError(TypedDict):
    """Why a response failed."""

    code: Literal["server_error", "invalid_prompt"]
    message: str
    type: str
    param: str | None


class IncompleteDetails(TypedDict):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class InputTokensDetails(TypedDict):
    """How many of the input's tokens came from the cache."""

    cached_tokens: int
    cache_write_tokens: int


class ResponseUsage(TypedDict):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ResponseObject(TypedDict):
    """A response, with what it repeats of its request."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    model: str
    output: list[OutputMessage | OutputReasoning | OutputCall]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    usage: ResponseUsage | None
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["disabled"]
    user: str | None


class Page(TypedDict):
    """A part of a list."""

    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputItemPage(Page):
    """A page of a response's input."""

    data: list[dict[str, Any]]


class DeletedResponse(TypedDict):
    """The answer to the deletion of a response."""

    id: str
    object: Literal["response"]
    deleted: bool


class ModelObject(TypedDict):
    """A model or an adapter; `parent`: an adapter's model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int


class ModelList(TypedDict):
    """All served models and adapters."""

    object: Literal["list"]
    data: list[ModelObject]


class FileObject(TypedDict):
    """A file that a batch reads or has written."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]
    status_details: None


class FilePage(Page):
    """A page of files."""

    data: list[FileObject]


class DeletedFile(TypedDict):
    """The answer to the deletion of a file."""

    id: str
    object: Literal["file"]
    deleted: bool


class LineError(TypedDict):
    """An error in the input of a batch."""

    code: str
    line: int | None
    message: str
    param: str | None


class LineErrors(TypedDict):
    """The errors in the input of a batch."""

    object: Literal["list"]
    data: list[LineError]


class RequestCounts(TypedDict):
    """How many requests a batch has, and how many have an answer or failed."""

    total: int
    completed: int
    failed: int


class BatchObject(TypedDict):
    """A batch."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: None
    errors: LineErrors | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: None
    metadata: dict[str, str] | None


class BatchPage(Page):
    """A page of batches."""

    data: list[BatchObject]


class CancelledRequest(TypedDict):
    """The answer to the cancellation of a request; `cancelled` is false if it had ended before."""

    id: str
    object: Literal["request"]
    cancelled: bool


class Tokens(TypedDict):
    """The token ids of a prompt, and their texts if requested."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: NotRequired[list[str]]


class DetokenizedText(TypedDict):
    """The text of token ids."""

    prompt: str


class Live(TypedDict):
    """The process answers."""

    status: Literal["live"]


class Ready(TypedDict):
    """Requests can be answered: by how many workers of the first model, and of each model if there are several."""

    status: Literal["ready"]
    model: str
    workers: int
    models: NotRequired[dict[str, int]]
    warning: NotRequired[str]


_ANSWERS: Final = (
    *(ChatCompletion, Completion, ResponseObject, DeletedResponse, InputItemPage, ModelObject, ModelList),
    *(FileObject, FilePage, DeletedFile, BatchObject, BatchPage, CancelledRequest),
    *(Tokens, DetokenizedText, Live, Ready),
)


def answer_schemas() -> Json:
    """Return the schemas of all answers, and of the objects in them, by name."""
    mode: Final = "serialization"
    adapters: list[tuple[str, Literal["serialization"], TypeAdapter[Any]]] = [
        (each.__name__, mode, TypeAdapter(each)) for each in _ANSWERS
    ]
    _, schemas = TypeAdapter.json_schemas(adapters, ref_template="#/components/schemas/{model}")
    named: Json = schemas["$defs"]
    return named
