"""Libraries, unchanged except for the address. docs/clients.md has their versions."""

import pytest

from tests.other_clients.conftest import Ask

pytestmark = pytest.mark.server

CHAT = [("langchain_client", "langchain_openai", "invoke"), ("litellm_client", "litellm", "chat")]
CHAT += [("litellm_client", "litellm", "vllm_chat"), ("pydantic_client", "pydantic_ai", "chat")]
CHAT += [("llama_index_client", "llama_index.llms.openai_like", "chat"), ("dspy_client", "dspy", "chat")]
CHAT += [("smolagents_client", "smolagents", "chat"), ("haystack_client", "haystack", "chat")]
CHAT += [("agents_client", "agents", "chat_chat"), ("agents_client", "agents", "chat_responses")]
CHAT += [("langchain_client", "langchain_openai", "marked"), ("litellm_client", "litellm", "marked")]
CHAT += [("langchain_client", "langchain_openai", "marked_response")]
STREAMS = [("langchain_client", "langchain_openai", "stream"), ("litellm_client", "litellm", "stream")]
STREAMS += [("pydantic_client", "pydantic_ai", "stream")]
STREAMS += [("llama_index_client", "llama_index.llms.openai_like", "stream")]
STREAMS += [("smolagents_client", "smolagents", "stream"), ("haystack_client", "haystack", "stream")]
STREAMS += [("agents_client", "agents", "stream_chat"), ("agents_client", "agents", "stream_responses")]
COMPLETIONS = [("langchain_client", "langchain_openai", "completion"), ("litellm_client", "litellm", "completion")]


@pytest.mark.parametrize("case", CHAT)
def test_a_chat_is_answered_and_counted(ask: Ask, case: tuple[str, str, str]) -> None:
    told = ask(*case)
    assert told["text"] == "7"
    assert told["tokens"] == 2


@pytest.mark.parametrize("case", STREAMS)
def test_a_stream_is_read_whole(ask: Ask, case: tuple[str, str, str]) -> None:
    assert ask(*case)["text"] == "1, 2, 3, 4, 5, 6, 7, 8, 9"


@pytest.mark.parametrize("case", COMPLETIONS)
def test_a_completion_is_answered(ask: Ask, case: tuple[str, str, str]) -> None:
    assert ask(*case)["text"].strip() == "7"


def test_langchain_asks_several_at_once(ask: Ask) -> None:
    assert ask("langchain_client", "langchain_openai", "batch")["texts"] == ["7", "o-r-c-a"]


def test_litellm_knows_a_prompt_beyond_the_context(ask: Ask) -> None:
    assert ask("litellm_client", "litellm", "too_long")["error"] == "ContextWindowExceededError"


def test_langchain_calls_tools(ask: Ask) -> None:
    told = ask("langchain_client", "langchain_openai", "tools")
    assert told["call"]["name"] == "order"
    assert told["result"] == f"{told['call']['args']['name']} comes"
    assert told["behind"] == "ai"
    (call,) = ask("langchain_client", "langchain_openai", "streamed_tools")["calls"]
    assert call["args"]["name"] in ("soup", "pie")


@pytest.mark.parametrize("client", [("litellm_client", "litellm"), ("haystack_client", "haystack")])
def test_a_tool_is_called_and_its_result_sent_back(ask: Ask, client: tuple[str, str]) -> None:
    told = ask(*client, "tools")
    assert told["call"]["name"] == "order"
    assert told["call"]["args"]["name"] in ("soup", "pie")
    assert (told["reason"], told["behind"]) == ("tool_calls", "assistant")


@pytest.mark.parametrize("case", ["tools_chat", "tools_responses"])
def test_openai_agents_calls_tools(ask: Ask, case: str) -> None:
    items = ask("agents_client", "agents", case)["items"]
    assert items == ["tool_call_item", "tool_call_output_item", "message_output_item"]


def test_smolagents_calls_tools(ask: Ask) -> None:
    assert ask("smolagents_client", "smolagents", "tools")["name"] == "order"


def test_pydantic_ai_continues_a_conversation_of_responses(ask: Ask) -> None:
    assert ask("pydantic_client", "pydantic_ai", "responses")["texts"] == ["7", "9"]


STRUCTURED = [("langchain_client", "langchain_openai", case) for case in ("function_calling", "json_schema")]
STRUCTURED += [("instructor_client", "instructor", case) for case in ("tools", "json_schema")]
STRUCTURED += [("pydantic_client", "pydantic_ai", case) for case in ("tools", "json_schema")]


@pytest.mark.parametrize("case", STRUCTURED)
def test_structured_output_has_its_class(ask: Ask, case: tuple[str, str, str]) -> None:
    dish = ask(*case)
    assert dish["name"] in ("soup", "pie")
    assert 1 <= dish["portions"] <= 9
