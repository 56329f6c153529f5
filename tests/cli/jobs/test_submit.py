"""`orcastream submit` and `orcastream results` with a real worker: every line has one result, whatever is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orcastream.broker.jobs.job import Job
from orcastream.broker.jobs.order import JobOrder
from orcastream.cli.jobs.input_file import InputFile
from orcastream.cli.main import main
from orcastream.schemas.keys import Keys
from tests.cli.jobs.bulk import ROOT, BulkJob
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, one_server
from tests.worker.worker_process import MODEL, WorkerProcess

pytestmark = one_server("system")

SUMS = {"What is 7 + 5?": "12", "What is 3 + 4?": "7", "What is 9 + 9?": "18"}


@pytest.fixture(scope="module")
def server(redis_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server with one worker, for all tests that kill nothing."""
    folder = tmp_path_factory.mktemp("submit")
    server = RedisServer(redis_binary, folder)
    server.start()
    worker = WorkerProcess(server.url, folder / "worker.log")
    try:
        worker.wait_serving()
        yield server
    finally:
        worker.kill()
        server.kill()


class Shell:
    """The commands on one server, in the test's own directory."""

    def __init__(self, server: RedisServer, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self._flags = ["--redis-url", server.url, "--served-model-name", MODEL]
        self._capsys = capsys

    def run(self, *command: str, code: int = 0) -> tuple[str, str]:
        """Return what the command prints to standard output and standard error."""
        assert main([*command, *self._flags]) == code
        printed = self._capsys.readouterr()
        return printed.out, printed.err

    def write(self, name: str, *lines: object) -> Path:
        """Write a file of these lines."""
        path = self.directory / name
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return path


@pytest.fixture
def shell(server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    with server.client() as client:
        client.delete(*client.keys("*job*") or ["none"])
    return Shell(server, tmp_path, capsys)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def chat(question: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}], "temperature": 0}


def test_results_are_openais(shell: Shell) -> None:
    lines = [{"custom_id": question, "url": "/v1/chat/completions", "body": chat(question)} for question in SUMS]
    path = shell.write("in.jsonl", *lines, {"prompt": "What is 7 + 5?", "temperature": 0})
    out, err = shell.run("submit", str(path), "--ordered", "--json")
    told = json.loads(out)
    output = shell.directory / "in.results.jsonl"
    assert (told["lines"], told["completed"], told["failed"], told["output"]) == (4, 4, 0, str(output))
    assert err == ""
    *chats, plain = read(output)
    assert [one["custom_id"] for one in chats] == list(SUMS)
    for one, answer in zip(chats, SUMS.values(), strict=True):
        body = one["response"]["body"]
        assert (one["error"], one["response"]["status_code"], body["object"]) == (None, 200, "chat.completion")
        assert body["choices"][0]["message"] == {"role": "assistant", "content": answer}
        assert body["choices"][0]["finish_reason"] == "stop"
        assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"] > 0
    assert plain["custom_id"] == "request-4"
    assert plain["response"]["body"]["object"] == "text_completion"
    assert plain["response"]["body"]["choices"][0]["text"].strip() == "12"


def test_repeating_the_command_requests_nothing_again(shell: Shell, server: RedisServer) -> None:
    path = shell.write("in.jsonl", *map(chat, SUMS))
    output = shell.directory / "out.jsonl"
    shell.run("submit", str(path), "--output", str(output))
    first = output.read_bytes()
    with server.client() as client:
        client.delete(*client.keys("*:reply:*"))
    shell.run("submit", str(path), "--output", str(output))
    assert output.read_bytes() == first
    output.unlink()
    shell.run("submit", str(path), "--output", str(output))
    assert output.read_bytes() == first


@pytest.mark.parametrize("lost", ["lines", "results"])
def test_the_command_answers_again_what_a_job_lost(
    shell: Shell, server: RedisServer, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Other runs of the same command then end, too: each line has its result once."""
    path, output = shell.write("in.jsonl", *map(chat, SUMS)), shell.directory / "out.jsonl"
    hand_over = InputFile.hand_over

    async def hand_over_for_nothing(self: InputFile, job: Job, order: JobOrder, total: int) -> None:
        await hand_over(self, job, order, total)
        with server.client() as client:
            if lost == "lines":
                client.xtrim(Keys(MODEL).job_lines(job.id), maxlen=1, approximate=False)
            else:
                await job.record(1, b"a result", failed=False)
                client.delete(Keys(MODEL).job_results(job.id))

    with monkeypatch.context() as patched:
        patched.setattr(InputFile, "hand_over", hand_over_for_nothing)
        _, err = shell.run("submit", str(path), "--output", str(output), code=1)
    assert "is missing or incomplete in Redis; results already in the output are kept" in err
    assert "the same command answers the other lines" in err
    assert 0 < len(read(output)) < len(SUMS)
    shell.run("submit", str(path), "--output", str(output))
    answers = sorted(one["response"]["body"]["choices"][0]["message"]["content"] for one in read(output))
    assert answers == sorted(SUMS.values())


def test_results_of_another_process(shell: Shell) -> None:
    path = shell.write("in.jsonl", *map(chat, SUMS))
    shell.run("submit", str(path), "--job", "sums", "--output", str(shell.directory / "first.jsonl"))
    listed = json.loads(shell.run("results", "--json")[0])
    assert (listed["job"], listed["state"], listed["lines"], listed["completed"]) == ("sums", "ended", 3, 3)
    assert shell.run("results")[0].splitlines()[1].split()[0] == "sums"
    printed = [json.loads(line) for line in shell.run("results", "sums", "--ordered")[0].splitlines()]
    assert [one["id"] for one in printed] == ["sums.1", "sums.2", "sums.3"]
    output = shell.directory / "second.jsonl"
    shown, complaint = shell.run("results", "sums", "--cancel", "--output", str(output), "--delete", code=1)
    assert (shown, output.exists()) == ("", False)
    assert "job: got 'sums', which has ended, allowed with --cancel: one that has not" in complaint
    assert json.loads(shell.run("results", "--json")[0])["state"] == "ended"
    shell.run("results", "sums", "--output", str(output), "--ordered", "--delete")
    assert read(output) == printed
    assert "'sums' is missing" in shell.run("results", "sums", code=1)[1]
    assert shell.run("results")[0] == ""


@pytest.mark.parametrize("output", [(), ("--output", "second.jsonl")])
def test_results_that_redis_has_lost_are_told_and_the_job_is_kept(
    shell: Shell, server: RedisServer, monkeypatch: pytest.MonkeyPatch, output: tuple[str, ...]
) -> None:
    monkeypatch.chdir(shell.directory)
    shell.run("submit", str(shell.write("in.jsonl", *map(chat, SUMS))), "--job", "sums")
    with server.client() as client:
        assert client.xtrim(Keys(MODEL).job_results("sums"), maxlen=1, approximate=False) == 2
    _, err = shell.run("results", "sums", *output, "--delete", code=1)
    assert "'sums' is missing or incomplete in Redis" in err
    assert "sums" in shell.run("results")[0]


def test_the_list_continues_after_unreadable_jobs(shell: Shell, server: RedisServer) -> None:
    keys = Keys(MODEL)
    order = JobOrder("digest", created_ms=1, deadline_ms=2, kept_until_ms=3).as_text()
    records = {"another": {"order": "{}"}, "damaged": {"order": order, "completed": "many"}, "right": {"order": order}}
    with server.client() as client:
        for at, (job_id, record) in enumerate(records.items()):
            client.hset(keys.job(job_id), mapping=record)
            client.zadd(keys.jobs, {job_id: at})
    assert json.loads(shell.run("results", "--json")[0])["job"] == "right"


def test_a_line_that_cannot_be_answered_fails_alone(shell: Shell) -> None:
    path = shell.write("in.jsonl", chat("What is 7 + 5?"), {"custom_id": "long", "prompt": [5] * 20_000})
    out, err = shell.run("submit", str(path), "--ordered", code=1)
    assert "failed     1" in out
    assert err == "orcastream submit: 1 of 2 lines have failed; see their `error`\n"
    right, long = read(shell.directory / "in.results.jsonl")
    assert right["error"] is None
    assert (long["custom_id"], long["response"], long["error"]["code"]) == ("long", None, "invalid_request")
    assert long["error"]["message"].startswith("prompt: got ")


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ((), "in.jsonl: got no request, allowed: one JSON object per line"),
        ((chat("x"), {"prompt": "x", "top_k": -1}), "in.jsonl, line 2: top_k: got -1, allowed: "),
        (({"custom_id": "a", "prompt": "x"},) * 2, "in.jsonl, line 2: custom_id 'a' is already used in line 1"),
    ],
)
def test_a_file_with_an_error_queues_nothing(shell: Shell, lines: tuple[object, ...], complaint: str) -> None:
    path = shell.write("in.jsonl", *lines)
    _, err = shell.run("submit", str(path), code=2)
    assert complaint in err
    assert err.count("\n") == 1
    assert shell.run("results")[0] == ""


def test_the_file_is_checked_before_redis(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    path = shell.write("in.jsonl", {"prompt": 1})
    assert main(["submit", str(path), "--redis-url", "redis://127.0.0.1:1/0"]) == 2
    assert f"{path}, line 1: prompt: got 1" in capsys.readouterr().err


def test_nothing_is_queued_for_a_job_that_cannot_run(shell: Shell) -> None:
    path = shell.write("in.jsonl", chat("What is 7 + 5?"))
    model = shell.directory / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    assert shell.run("submit", str(path), "--model", str(model), code=2)[1].count("\n") == 1
    assert "output: got" in shell.run("submit", str(path), "--output", "/no/such/out.jsonl", code=2)[1]
    assert shell.run("results")[0] == ""


def test_a_file_that_changes_while_being_read(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job has the id of the original lines: no part of it remains, and the original lines get their own answers."""
    path = shell.write("in.jsonl", chat("What is 7 + 5?"), chat("What is 3 + 4?"))
    survey = InputFile.survey

    def changed_behind_it(file: InputFile) -> tuple[int, str]:
        found = survey(file)
        shell.write("in.jsonl", chat("What is 9 + 9?"), chat("What is 9 + 9?"))
        return found

    monkeypatch.setattr(InputFile, "survey", changed_behind_it)
    _, err = shell.run("submit", str(path), code=2)
    assert err == f"orcastream submit: {path}: was changed while it was read, allowed: a file that does not change\n"
    assert shell.run("results")[0] == ""
    monkeypatch.undo()
    shell.write("in.jsonl", chat("What is 7 + 5?"), chat("What is 3 + 4?"))
    shell.run("submit", str(path), "--ordered")
    answers = read(shell.directory / "in.results.jsonl")
    assert [one["response"]["body"]["choices"][0]["message"]["content"] for one in answers] == ["12", "7"]


def test_a_file_whose_name_is_no_text(shell: Shell) -> None:
    path = shell.write(os.fsdecode(b"caf\xe9.jsonl"), chat("What is 7 + 5?"))
    out, _ = shell.run("submit", str(path), "--json")
    output = Path(json.loads(out)["output"])
    assert os.fsencode(output.name) == b"caf\xe9.results.jsonl"
    assert [one["response"]["status_code"] for one in read(output)] == [200]
    assert json.loads(shell.run("results", "--json")[0])["file"] == "caf\N{REPLACEMENT CHARACTER}.jsonl"


def test_an_output_in_another_order_is_not_in_order(shell: Shell) -> None:
    path = shell.write("in.jsonl", *map(chat, SUMS))
    output = shell.directory / "in.results.jsonl"
    shell.run("submit", str(path), "--ordered")
    first, *others = output.read_bytes().splitlines(keepends=True)
    output.write_bytes(b"".join([*others, first]))
    _, err = shell.run("submit", str(path), "--ordered", code=2)
    assert err == "orcastream submit: output: holds results in order of arrival, allowed with --ordered: a new file\n"


def test_impossible_requests_are_one_line(shell: Shell) -> None:
    path = shell.write("in.jsonl", chat("What is 7 + 5?"))
    assert "file: got '/no/such', allowed: a file that can be read" in shell.run("submit", "/no/such", code=2)[1]
    assert "allowed: a regular file, because it is read twice" in shell.run("submit", "/dev/null", code=2)[1]
    assert "got 501, allowed: at most 500, half of" in shell.run("submit", str(path), "--window", "501", code=2)[1]
    shell.run("submit", str(path), "--job", "one")
    other = shell.write("other.jsonl", chat("What is 9 + 9?"))
    assert (
        "'one' exists and was submitted with other lines" in shell.run("submit", str(other), "--job", "one", code=1)[1]
    )


@pytest.fixture
def ctrl_c_counts() -> Iterator[None]:
    """Even if a shell started the tests in the background, which makes all child processes ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_counts")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_job_says_how_to_continue(
    own_redis: Callable[..., RedisServer], tmp_path: Path, number: signal.Signals
) -> None:
    """No line is answered: there is no worker."""
    server = own_redis()
    (tmp_path / "in.jsonl").write_text(json.dumps(chat("What is 7 + 5?")))
    command = [sys.executable, "-P", "-m", "orcastream.cli.main", "submit", str(tmp_path / "in.jsonl"), "--job", "one"]
    command += ["--redis-url", server.url, "--served-model-name", MODEL]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            with server.client() as client:
                while not client.xlen(Keys(MODEL).requests("low")):
                    assert process.poll() is None
                    time.sleep(0.02)
            process.send_signal(number)
            _, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 130
    assert err.endswith("orcastream submit: interrupted; run the same command again to continue\n")


def test_a_cancelled_job_ends(own_redis: Callable[..., RedisServer], tmp_path: Path) -> None:
    """Queued requests are canceled, and lines not posted yet are not posted: there is no worker."""
    server, number = own_redis(), 5
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(chat("What is 7 + 5?")) + "\n" for _ in range(number)))
    command = [sys.executable, "-P", "-m", "orcastream.cli.main", "submit", str(tmp_path / "in.jsonl"), "--job", "one"]
    flags = ["--redis-url", server.url, "--served-model-name", MODEL]
    process = subprocess.Popen(
        [*command, *flags, "--window", "2"], env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL
    )
    try:
        with server.client() as client:
            while client.xlen(Keys(MODEL).requests("low")) < 2:
                assert process.poll() is None
                time.sleep(0.02)
            assert main(["results", "one", "--cancel", *flags]) == 1, "it has not ended yet"
            assert process.wait(timeout=PATIENCE_S) == 1
            assert client.xlen(Keys(MODEL).requests("low")) == 0
    finally:
        process.kill()
        process.wait()
    results = read(tmp_path / "in.results.jsonl")
    assert [one["error"]["code"] for one in results] == ["cancelled"] * number
    assert len({one["id"] for one in results}) == number


@pytest.mark.parametrize("flags", [(), ("--ordered",)], ids=["as they come", "in order"])
def test_every_result_once_whatever_is_killed(
    own_redis: Callable[..., RedisServer], tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """Kills submit itself, a worker, the gateway and Redis, one after the other."""
    job = BulkJob(own_redis(aof="always"), tmp_path, 250, *flags, "--window", "40")
    try:
        outcome = job.run(rounds=1)
    finally:
        job.stop()
    assert outcome.faults == {"submit": 1, "worker": 1, "gateway": 1, "redis": 1}
    assert outcome.lines == outcome.results == outcome.distinct == outcome.right == 250, job.log
    assert outcome.in_order or not flags
