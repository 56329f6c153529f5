"""`orcastream chat`: a conversation in the terminal, streamed from a gateway."""

import asyncio
import signal
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from orcastream.cli.chat.conversation import Conversation
from orcastream.cli.chat.slash import COMMANDS, carry_out
from orcastream.cli.credentials import without_credentials
from orcastream.cli.errors import UserError
from orcastream.cli.interruption import cancel_on_stop
from orcastream.cli.parse import load_settings
from orcastream.cli.settings import ChatSettings
from orcastream.client import AsyncClient, ClientError, InvalidRequest, served_models


def main(arguments: Sequence[str]) -> int:
    """Ask, print and remember until the input ends. Return 1 if a piped question got no answer.

    SIGTERM and SIGHUP end it, too: the request is canceled, the terminal restored, and KeyboardInterrupt raised.
    """
    settings = load_settings(ChatSettings, arguments, "chat")
    try:
        return asyncio.run(_chat(settings))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _chat(settings: ChatSettings) -> int:
    conversing = asyncio.current_task()
    assert conversing is not None
    cancel_on_stop(conversing)
    url = without_credentials(settings.url)
    key = settings.api_key.get_secret_value() if settings.api_key else None
    try:
        model = settings.served_model_name or (await served_models(settings.url, api_key=key))[0]
        client = AsyncClient(settings.url, model, api_key=key, patience_s=settings.timeout_s)
    except InvalidRequest:
        allowed = "http://HOST[:PORT] or https://HOST[:PORT]"
        raise UserError(f"url (--url, ORCASTREAM_URL): got {url!r}, allowed: {allowed}") from None
    except (ClientError, IndexError) as error:
        raise UserError(f"no model at {url}: {error}") from None
    async with client:
        conversation = Conversation(
            client,
            system=settings.system,
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            tell=_tell,
        )
        return await (_typed(conversation, model) if sys.stdin.isatty() else _piped(conversation))


async def _typed(conversation: Conversation, model: str) -> int:
    from orcastream.cli.chat.prompt import Prompt, history_file

    try:
        history = history_file()
    except (OSError, RuntimeError) as error:
        history = None
        _tell(f"questions are not remembered beyond this conversation: {error}")
    prompt = Prompt(history, COMMANDS)
    _tell(f"talking with {model}; /help lists commands, Alt-Enter starts a new line, Ctrl-D ends")
    while True:
        try:
            line = await prompt.read()
        except KeyboardInterrupt:
            if not prompt.typed:
                _tell("Ctrl-D ends the conversation")
            continue
        except EOFError:
            return 0
        if not line.strip() or carry_out(line, conversation, _tell):
            continue
        if not await _answered(conversation, line.strip()):
            _tell("cancelled")


async def _answered(conversation: Conversation, question: str) -> bool:
    """Print the answer, or why there is none; return False if Ctrl-C ended it."""
    conversing = asyncio.current_task()
    asking = asyncio.create_task(conversation.ask(question, _show))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, asking.cancel)
    try:
        await asking
    except ClientError as error:
        _tell(str(error))
    except asyncio.CancelledError:
        if conversing is not None and conversing.cancelling():
            raise
        print()
        return False
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    print(flush=True)
    return True


async def _piped(conversation: Conversation) -> int:
    """Ask one question per line."""
    failed = False
    async for line in _lines():
        if not line:
            continue
        try:
            await conversation.ask(line, _show)
            print(flush=True)
        except ClientError as error:
            failed = True
            _tell(str(error))
    return 1 if failed else 0


async def _lines() -> AsyncIterator[str]:
    """Yield the stripped lines of standard input, read in a thread so that signals need not wait for a line."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str | None] = asyncio.Queue()

    def read() -> None:
        with suppress(RuntimeError):  # the loop has already ended
            for line in sys.stdin:
                loop.call_soon_threadsafe(lines.put_nowait, line.strip())
            loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    while (line := await lines.get()) is not None:
        yield line


def _show(piece: str) -> None:
    print(piece, end="", flush=True)


def _tell(text: str) -> None:
    """Print a message that is not the model's, as one line on standard error."""
    print(f"orcastream chat: {' '.join(text.split())}", file=sys.stderr, flush=True)
