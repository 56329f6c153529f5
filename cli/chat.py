"""`orcastream chat`: a conversation in the terminal, streamed from a gateway."""

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import httpx

from cli.credentials import without_credentials
from cli.errors import UserError
from cli.parse import load_settings
from cli.settings import ChatSettings
from client.sse import SseParser

_DONE = "[DONE]"


def main(arguments: Sequence[str]) -> int:
    """Ask, print, remember; until the input ends. Ctrl-C ends an answer, or at the prompt the conversation."""
    settings = load_settings(ChatSettings, arguments, "chat")
    headers = {"Authorization": f"Bearer {settings.api_key.get_secret_value()}"} if settings.api_key else {}
    url = without_credentials(settings.url)
    try:
        client = httpx.Client(base_url=settings.url.rstrip("/"), headers=headers, timeout=settings.timeout_s)
    except httpx.InvalidURL:
        raise UserError(
            f"url (--url, ORCASTREAM_URL): got {url!r}, allowed: http://HOST[:PORT] or https://HOST[:PORT]"
        ) from None
    with client:
        try:
            return _converse(Conversation(client, settings))
        except httpx.TransportError as error:
            raise UserError(f"no answer from the gateway at {url}: {error or type(error).__name__}") from None


class Conversation:
    """The messages so far, and how to go on."""

    def __init__(self, client: httpx.Client, settings: ChatSettings) -> None:
        self._client = client
        self._settings = settings
        self.model = settings.served_model_name or self._first_model()
        self._messages: list[dict[str, str]] = []
        if settings.system:
            self._messages.append({"role": "system", "content": settings.system})

    def ask(self, question: str) -> Iterator[str]:
        """Pieces of the answer as they come. What was asked and answered so far is remembered, also when cut short."""
        self._messages.append({"role": "user", "content": question})
        answer: list[str] = []
        try:
            for piece in self._stream():
                answer.append(piece)
                yield piece
        finally:
            if answer:
                self._messages.append({"role": "assistant", "content": "".join(answer)})
            else:
                self._messages.pop()

    def _stream(self) -> Iterator[str]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": self._messages,
            "stream": True,
            "temperature": self._settings.temperature,
        }
        if self._settings.max_tokens is not None:
            body["max_tokens"] = self._settings.max_tokens
        parser = SseParser()
        with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                response.read()
                raise UserError(_explain(response))
            for line in response.iter_lines():
                event = parser.feed(line)
                if isinstance(event, str) and event != _DONE:
                    yield from _pieces(json.loads(event))

    def _first_model(self) -> str:
        response = self._client.get("/v1/models")
        if response.status_code != httpx.codes.OK:
            raise UserError(_explain(response))
        try:
            return str(response.json()["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            url = without_credentials(self._settings.url)
            raise UserError(f"url (--url, ORCASTREAM_URL): got {url!r}, allowed: a gateway's; this is none") from None


def _pieces(event: dict[str, Any]) -> Iterator[str]:
    if "error" in event:
        raise UserError(str(event["error"].get("message", event["error"])))
    for choice in event.get("choices", ()):
        if content := choice["delta"].get("content"):
            yield content


def _explain(response: httpx.Response) -> str:
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = response.text.strip() or response.reason_phrase
    return f"the gateway answers {response.status_code}: {message}"


def _converse(conversation: Conversation) -> int:
    interactive = sys.stdin.isatty()
    if interactive:
        print(f"Talking with {conversation.model}. Ctrl-D ends the conversation.")
    failed = False
    while (question := _next_question(interactive)) is not None:
        if not question:
            continue
        try:
            for piece in conversation.ask(question):
                print(piece, end="", flush=True)
            print()
        except UserError as error:
            failed = True
            print(f"orcastream chat: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            print(" …" if interactive else "")
            if not interactive:
                raise
    return 1 if failed else 0


def _next_question(interactive: bool) -> str | None:
    """The next line without blanks around it; None at the end of input."""
    try:
        return input("> " if interactive else "").strip()
    except EOFError:
        if interactive:
            print()
        return None
    except KeyboardInterrupt:
        print()
        return None
