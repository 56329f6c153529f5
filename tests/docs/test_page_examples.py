"""The examples of the pages as written, each in its own process; only addresses differ.

Packages that the environment lacks are located as in tests/other_clients. tests/docs/test_readme.py has the rest.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from orcastream.demo import prompts
from tests.docs.blocks import API, BULK, CLIENT, CLIENTS, ENGINE, ROOT
from tests.lora import save_adapter
from tests.other_clients.environments import python_with
from tests.path.site import Site
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.redis_server import RedisServer

pytestmark = pytest.mark.server

OPENAI = CLIENTS.take("python", "completion = client")
LANGCHAIN = CLIENTS.take("python", "langchain_openai")
LITELLM = CLIENTS.take("python", "litellm")
LITELLM_PROXY = CLIENTS.take("yaml", "model_list")
INSTRUCTOR = CLIENTS.take("python", "instructor")
TOOLS = API.take("json", '"tools"')
BATCH = API.take("python", "client.batches.create")
BULK_LINES = BULK.take("json", '"prompt"')
BULK_RESULT = BULK.take("json", '"response"')
SUBMIT = BULK.take("sh", "orcastream submit")
RESULTS = BULK.take("sh", "orcastream results")
ENGINE_COMMAND = ENGINE.take("sh", "orcastream.engine")
ENGINE_ALONE = ENGINE.take("python", "engine.generate")
ADAPTER = ENGINE.take("python", "engine.adapters.read")
PYTHON_CLIENT = CLIENT.take("python", "client.generate")
TYPESCRIPT_CLIENT = CLIENT.take("ts", "client.chat")

_, COUNT = prompts.LONG_COUNT
ASKED_OF_LITELLM = """
import litellm, sys, yaml
router = litellm.Router(model_list=yaml.safe_load(sys.stdin)["model_list"])
messages = [{"role": "user", "content": "What is 3 + 4?"}]
print(router.completion(model="orca-demo", messages=messages, temperature=0).choices[0].message.content)
"""
BATCH_READ = """
import time
while batch.status in ("validating", "in_progress", "finalizing"):
    time.sleep(0.1)
    batch = client.batches.retrieve(batch.id)
assert batch.output_file_id, batch
print(batch.status)
print(client.files.content(batch.output_file_id).text, end="")
"""
STEPS = """
token_ids = []
while len(token_ids) < 4:
    token_ids += [event.token for event in engine.step()]
print(token_ids)
"""


@pytest.fixture(scope="module")
def site(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A gateway and a worker for all tests of the module."""
    site = Site(server, tmp_path_factory.mktemp("site"))
    try:
        site.start(workers=1)
        yield site
    finally:
        site.stop()


class Reader:
    """A reader who follows a page: in a folder with the demo model, with the environment activated."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.addresses: dict[str, str] = {}
        (folder / "demo").symlink_to(ROOT / "demo")

    def here(self, code: str) -> str:
        """Return `code` with the addresses of this test."""
        for address, own in self.addresses.items():
            code = code.replace(address, own)
        return code

    def python(self, code: str, more: str = "", *, module: str | None = None, typed: str = "") -> str:
        """Run Python code, and `more` after it, if `module` is installed; return the output."""
        python = python_with(module) if module else sys.executable
        if python is None:
            pytest.skip(f"{module} is not installed")
        return self._run([python, "-c", self.here(code) + more], typed)

    def shell(self, code: str, **variables: str) -> str:
        """Run shell code and return the output."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return self._run(["bash", "-euc", self.here(code)], PATH=path, **variables)

    def _run(self, command: list[str], typed: str = "", **variables: str) -> str:
        own = {"PYTHONPATH": str(ROOT)} if command[0] in ("bash", sys.executable) else {}
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, **own, **variables},
            input=typed,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout


@pytest.fixture
def alone(tmp_path: Path) -> Reader:
    """A reader without a service."""
    return Reader(tmp_path)


@pytest.fixture
def reader(alone: Reader, site: Site) -> Reader:
    """A reader with Redis and a gateway at the pages' first address; no gateway listens at the second."""
    nobody = f"http://127.0.0.1:{free_port()}"
    alone.addresses = {"http://127.0.0.1:8000": site.url, "http://127.0.0.1:8001": nobody}
    alone.addresses["redis://127.0.0.1:6399"] = site.server.url
    return alone


def test_openai(reader: Reader) -> None:
    assert reader.python(OPENAI) == "7\n"


def test_langchain(reader: Reader) -> None:
    assert reader.python(LANGCHAIN, module="langchain_openai") == "7\n"


def test_litellm(reader: Reader) -> None:
    assert reader.python(LITELLM, module="litellm") == "7\n"


def test_litellm_accepts_the_configuration_of_its_proxy(reader: Reader) -> None:
    told = reader.python(ASKED_OF_LITELLM, module="litellm", typed=reader.here(LITELLM_PROXY))
    assert told == "7\n"


def test_instructor(reader: Reader) -> None:
    dish = json.loads(reader.python(INSTRUCTOR, "print(dish.model_dump_json())", module="instructor"))
    assert dish["name"] in ("soup", "pie")
    assert 1 <= dish["portions"] <= 9


def test_tools(site: Site) -> None:
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{site.url}/v1/chat/completions", content=TOOLS, headers=headers, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    [choice] = answer.json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "add"
    arguments = json.loads(call["function"]["arguments"])
    assert list(arguments) == ["a", "b"]
    assert all(0 <= number <= 99 for number in arguments.values())


def test_a_batch(reader: Reader) -> None:
    (reader.folder / "questions.jsonl").write_text(BULK_LINES.splitlines()[0], encoding="utf-8")
    status, result = reader.python(BATCH, BATCH_READ).splitlines()
    assert status == "completed"
    assert json.loads(result)["response"]["body"]["choices"][0]["message"]["content"] == "7"


def test_a_bulk_job(reader: Reader) -> None:
    (reader.folder / "questions.jsonl").write_text(BULK_LINES, encoding="utf-8")
    reader.shell(SUBMIT)
    results = read(reader.folder / "questions.results.jsonl")
    assert [result["response"]["status_code"] for result in results] == [200, 200]
    [chat] = [result for result in results if result["custom_id"] == "a"]
    shown = json.loads(BULK_RESULT)
    assert chat.keys() == shown.keys()
    assert chat["response"].keys() == shown["response"].keys()
    assert shown["response"]["body"].keys() <= chat["response"]["body"].keys()
    job, _, number = chat["id"].rpartition(".")
    assert shown["id"].rpartition(".")[2] == number

    jobs = reader.shell(RESULTS.replace("JOB", job), ORCASTREAM_REDIS_URL=reader.here("redis://127.0.0.1:6399"))
    assert job in jobs
    assert read(reader.folder / "out.jsonl") == results
    assert job not in reader.shell("orcastream results --redis-url redis://127.0.0.1:6399")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the content of a file's lines, by id."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return sorted(lines, key=lambda line: str(line["custom_id"]))


def test_the_engine_from_a_shell(alone: Reader) -> None:
    answers = alone.shell(ENGINE_COMMAND)
    assert "\n7  (stop" in answers
    assert "\nc-a-t  (stop" in answers


def test_the_engine_alone(alone: Reader) -> None:
    first, second = json.loads(alone.python(ENGINE_ALONE, "print([list(each.output_ids) for each in completions])"))
    assert len(first) == 16
    assert 0 < len(second) <= 16


def test_an_adapter(alone: Reader) -> None:
    from transformers import AutoModelForCausalLM

    adapter = save_adapter(AutoModelForCausalLM.from_pretrained(ROOT / "demo/model"), alone.folder / "adapter", seed=1)
    alone.addresses = {"path/to/model": "demo/model", "path/to/adapter": str(adapter)}
    assert len(json.loads(alone.python(ADAPTER, STEPS))) == 4


def test_the_python_client(reader: Reader) -> None:
    assert reader.python(PYTHON_CLIENT) == COUNT


def test_the_typescript_client(reader: Reader, node_directory: Path) -> None:
    for name in ("package.json", "tsconfig.json", "client.ts", "node_modules"):
        (reader.folder / name).symlink_to(node_directory / name)
    (reader.folder / "page.ts").write_text(reader.here(TYPESCRIPT_CLIENT), encoding="utf-8")
    counted, _, usage = reader.shell("node_modules/.bin/tsc && node build/page.js").partition("{")
    assert counted == COUNT
    assert "completion_tokens: 600" in usage
