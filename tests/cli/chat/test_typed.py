"""`orcastream chat` at a terminal: lines of any length, pasted text, history, Ctrl-C, commands."""

import json
import signal
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from orcastream.schemas.request import GenerationRequest
from tests.cli.chat.conftest import Tty, asked
from tests.gateway.conftest import Stage, eventually
from tests.gateway.scripted_worker import Answer, Gate
from tests.gateway.tiny_model import write_tiny_model
from tests.redis_server import RedisServer

Open = Callable[..., Awaitable[Tty]]
UP, ALT_ENTER, CTRL_C, CTRL_D, CTRL_J = "\x1b[A", "\x1b\r", "\x03", "\x04", "\n"
PASTE = "\x1b[200~{}\x1b[201~"


async def test_a_line_is_whole_however_long_it_is(
    redis_server: RedisServer, stage_of: Callable[[str], Stage], tmp_path: Path, open_tty: Open
) -> None:
    """A terminal's own lines end at 4,095 bytes."""
    folder = write_tiny_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 16_384}))
    stage = stage_of(redis_server.url)
    worker = await stage.worker("Aha.")
    gateway = await stage.gateway(model=str(folder))
    tty = await open_tty(gateway.url)
    line = "".join(f"{number:04} " for number in range(1200)).strip()
    await tty.type(PASTE.format(line))
    await tty.type("\r")
    await tty.shows("Aha[.]\r\n")
    assert line in asked(stage, worker.requests[0])


async def test_several_lines_are_one_question(stage: Stage, open_tty: Open) -> None:
    worker = await stage.worker("Aha.")
    tty = await open_tty((await stage.gateway()).url)
    for typed, question in (
        (PASTE.format("one\ntwo\nthree"), "one\ntwo\nthree"),
        (f"four{ALT_ENTER}five{CTRL_J}six", "four\nfive\nsix"),
    ):
        await tty.type(f"{typed}\r")
        await tty.shows("Aha[.]\r\n")
        await tty.prompts()
        assert question in asked(stage, worker.requests[-1])
    assert len(worker.requests) == 2


async def test_questions_are_remembered_over_restarts(stage: Stage, tmp_path: Path, open_tty: Open) -> None:
    worker = await stage.worker("Aha.")
    url = (await stage.gateway()).url
    first = await open_tty(url)
    await first.type("first question\r")
    await first.shows("Aha[.]\r\n")
    await first.prompts()
    await first.type(CTRL_D)
    assert await first.process.wait() == 0
    second = await open_tty(url)
    await second.type(f"{UP}\r")
    await second.shows("Aha[.]\r\n")
    assert "first question" in asked(stage, worker.requests[1])
    history = tmp_path / "orcastream" / "chat_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


@pytest.mark.parametrize("late", [False, True], ids=["from the first", "later"])
async def test_an_unwritable_history_does_not_end_the_chat(
    stage: Stage, tmp_path: Path, open_tty: Open, late: bool
) -> None:
    directory = tmp_path / "orcastream"
    if not late:
        directory.touch()
    worker = await stage.worker("Aha.")
    tty = await open_tty((await stage.gateway()).url)
    if late:
        (directory / "chat_history").unlink()
        (directory / "chat_history").mkdir()
    for typed in ("first question\r", f"{UP}\r"):
        await tty.type(typed)
        await tty.shows("Aha[.]\r\n")
        await tty.prompts()
        assert "first question" in asked(stage, worker.requests[-1])


async def test_ctrl_c_cancels_the_answer_and_not_the_program(stage: Stage, open_tty: Open) -> None:
    gates = iter([Gate(6), Gate()])
    worker = await stage.worker(lambda _: Answer([stage.tokenizer.encode("Lang und breit.")], gate=next(gates)))
    tty = await open_tty((await stage.gateway(disconnect_grace_s=60)).url)
    await tty.type("first\r")
    await tty.shows("Lang")
    await tty.type(CTRL_C)
    await tty.shows("cancelled")
    await tty.prompts()
    [request] = worker.requests
    await eventually(lambda: _ended(stage, request))
    await tty.type("second\r")
    await tty.shows("Lang und breit[.]\r\n")
    again = asked(stage, worker.requests[1])
    assert "Lang" in again, "the partial answer is remembered"
    assert "breit" not in again
    await tty.prompts()
    await tty.type(f"never sent{CTRL_C}")
    await tty.prompts()
    await tty.type(CTRL_D)
    assert await tty.process.wait() == 0
    assert len(worker.requests) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("answering", [False, True], ids=["at the prompt", "during an answer"])
async def test_a_stopped_chat_cancels_its_request_and_restores_the_terminal(
    stage: Stage, open_tty: Open, answering: bool, number: signal.Signals
) -> None:
    worker = await stage.worker(lambda _: Answer([stage.tokenizer.encode("Lang und breit.")], gate=Gate(6)))
    tty = await open_tty((await stage.gateway(disconnect_grace_s=60)).url)
    if answering:
        await tty.type("first\r")
        await tty.shows("Lang")
    else:
        await tty.type("never sent")
        await tty.shows("sent")
        assert not tty.echoes
    for _ in range(2):  # as `timeout` sends it
        tty.process.send_signal(number)
    assert await tty.process.wait() == 130
    assert tty.echoes
    assert tty.text.count("\x1b[?2004h") == tty.text.count("\x1b[?2004l") == 1
    assert "Traceback" not in tty.text
    assert len(worker.requests) == answering
    if answering:
        await eventually(lambda: _ended(stage, worker.requests[0]))


async def _ended(stage: Stage, request: GenerationRequest) -> bool:
    from orcastream.broker.link import Link

    link = await Link.open(stage.url)
    try:
        return not await link.call("XLEN", stage.keys.requests(request.priority_class))
    finally:
        await link.close()


async def test_commands_are_not_sent_to_the_model(stage: Stage, open_tty: Open) -> None:
    worker = await stage.worker("Aha.")
    tty = await open_tty((await stage.gateway()).url)

    async def say(line: str, *patterns: str) -> None:
        await tty.type(f"{line}\r")
        for pattern in patterns:
            await tty.shows(pattern)
        await tty.prompts()

    await say("/system Be brief.", "system message: Be brief[.]")
    await say("one", "Aha[.]\r\n")
    await say(
        "/stats", r"last answer: \d+ tokens for a prompt of \d+ \(0 cached\), first after \d+ ms", "1 questions, 1 r"
    )
    await say("/clear", "the conversation is forgotten")
    await say("/system -", "system message: none")
    await say("/etc/passwd?", "Aha[.]\r\n")
    await say("/nonsense", "/nonsense: no such command", "/stats +show figures of the last")
    first, second = (asked(stage, request) for request in worker.requests)
    assert "Be brief." in first
    assert "/etc/passwd?" in second
    assert "one" not in second
    assert "Be brief." not in second
