"""The client examples as written, with real gateways and connections cut everywhere."""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.client.cutting_proxy import CuttingProxy
from tests.docs.producers import EXAMPLES
from tests.gateway.conftest import MODEL, TEXT, Stage, model_folder, redis_binary, stage, tokenizer
from tests.gateway.scripted_worker import Answer, Gate
from tests.patience import PATIENCE_S

__all__ = ["model_folder", "redis_binary", "stage", "tokenizer"]

ROOT = Path(__file__).parents[2]
Command = Callable[..., list[str]]

LIBRARY = """
import { Client, RequestFailed } from "./build/client.js";

const client = new Client({ urls: [process.argv[2]], model: process.argv[3] });
const parameters = { id: "mine", n: 2, max_tokens: 200 };
const reply = client.complete("x", parameters);
const cancelled = await reply.cancel(); // before it is posted
const seen = ["", ""];
for await (const { choice, text } of reply) seen[choice] += text;
const refused = await client.chat([]).result().catch((error) => error);
const again = await client.complete("x", parameters).result();
console.log(JSON.stringify({
  cancelled, seen, answer: await reply.result(), again: again.id,
  refused: [refused instanceof RequestFailed, refused.status, refused.code],
}));
"""


@pytest.fixture(params=["typescript", "python"])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> Command:
    """Return the command line of an example that prints an answer, for the gateways at these URLs."""
    if request.param == "typescript":
        program = request.getfixturevalue("stream_program")
        options = ["--model", MODEL, "--patience", str(PATIENCE_S)]
        return lambda *urls: ["node", str(program), *options, "--url", ",".join(urls), "x"]
    source = (EXAMPLES / "client_sync.py").read_text(encoding="utf-8").replace('"orca-demo"', f'"{MODEL}"')
    (tmp_path / "client_sync.py").write_text(source, encoding="utf-8")
    return lambda *urls: [sys.executable, str(tmp_path / "client_sync.py"), *urls, "x"]


async def run(command: list[str]) -> tuple[int, str, str]:
    """Return exit status, standard output, standard error."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_each_part_once_over_many_connections(stage: Stage, command: Command) -> None:
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)]))
    served = await stage.gateway(disconnect_grace_s=60)
    async with CuttingProxy(int(served.url.rpartition(":")[2]), count(700, 53)) as proxy:
        status, out, err = await run(command("http://127.0.0.1:1", proxy.url))
    assert (status, out.rstrip("\n")) == (0, TEXT), err
    assert proxy.num_cut > 3


async def test_an_error_is_reported(stage: Stage, command: Command) -> None:
    await stage.worker()
    served = await stage.gateway(api_keys={"sk-a": "alpha"})
    status, _, err = await run(command(served.url))
    assert status == 1
    assert "invalid_api_key" in err


async def test_a_gateway_stops_and_the_program_continues_elsewhere(stage: Stage, command: Command) -> None:
    gate = Gate(4)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    gateways = [await stage.gateway(disconnect_grace_s=60) for _ in range(2)]
    running = asyncio.create_task(run(command(*(served.url for served in gateways))))
    begun = asyncio.create_task(gate.reached(4))
    await asyncio.wait((running, begun), return_when=asyncio.FIRST_COMPLETED)
    begun.cancel()
    gateways[0].gateway.begin_stop()
    await gate.open()
    status, out, err = await running
    assert (status, out.rstrip("\n")) == (0, TEXT), err


async def test_typescript_has_choices_usage_and_codes(stage: Stage, stream_program: Path) -> None:
    await stage.worker(Answer([stage.tokenizer.encode(text) for text in (TEXT, TEXT[:7])]))
    served = await stage.gateway()
    library = stream_program.parents[1] / "library.mjs"
    library.write_text(LIBRARY, encoding="utf-8")
    status, out, err = await run(["node", str(library), served.url, MODEL])
    assert status == 0, err
    told = json.loads(out)
    assert told["cancelled"] is False
    assert told["seen"] == [TEXT, TEXT[:7]]
    assert told["answer"]["choices"] == [{"text": text, "finishReason": "stop"} for text in (TEXT, TEXT[:7])]
    assert told["answer"]["usage"]["completion_tokens"] > 2
    assert told["again"] == told["answer"]["id"] == "cmpl-mine"
    assert told["refused"] == [True, 400, "invalid_request"]


async def test_many_at_once_directly_over_redis(stage: Stage, tmp_path: Path) -> None:
    await stage.worker(lambda request: Answer([list(request.payload.prompt) * 2]))
    program = (EXAMPLES / "client_async.py").read_text(encoding="utf-8").replace('"orca-demo"', f'"{MODEL}"')
    (tmp_path / "client_async.py").write_text(program, encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(tmp_path / "client_async.py"),
        *(stage.url, "[5, 6]", "[7]"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert [json.loads(line) for line in out.decode().splitlines()] == [[5, 6, 5, 6], [7, 7]]


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("client_sync.py", (), "the following arguments are required: URL, question"),
        ("client_sync.py", ("http://127.0.0.1:1",), "the following arguments are required: question"),
        ("client_sync.py", ("nonsense", "x"), "urls: got 'nonsense', allowed: "),
        ("client_async.py", (), "the following arguments are required: URL, PROMPT"),
        ("client_async.py", ("redis://127.0.0.1:1", "hello"), "argument PROMPT: invalid token_ids value: 'hello'"),
        ("client_async.py", ("redis://127.0.0.1:1", "[1.5]"), "prompt"),
        ("client_async.py", ("redis://127.0.0.1:1", "5"), "prompt"),
    ],
)
async def test_wrong_arguments_are_explained(name: str, arguments: tuple[str, ...], complaint: str) -> None:
    status, out, err = await run([sys.executable, str(EXAMPLES / name), *arguments])
    assert (status, out) in ((2, ""), (1, "")), err
    assert complaint in err.splitlines()[-1]
    assert "Traceback" not in err
