"""A benchmark waits for a gateway and says so, but not for one that will not serve it."""

from pathlib import Path

import pytest

from orcastream.bench.main import main
from orcastream.bench.serve.command import ServeBench, parse
from orcastream.bench.serve.gateway import GatewayUnavailable, served_model
from tests.bench.scripted_gateway import Answer, scripted_gateway


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "nonsense", "ftp://127.0.0.1"])
async def test_an_unusable_url_is_refused(url: str) -> None:
    with pytest.raises(GatewayUnavailable, match=f"gateway: got '{url}', allowed: an http:// or https:// URL"):
        await served_model(url, patience_s=0)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer([b"no such key"], status=401), "refuses the API key: 401 no such key"),
        (Answer([b"not you"], status=403), "refuses the API key: 403 not you"),
        (Answer([b"<html>"]), "got 200 <html>, allowed: OpenAI's list of models"),
        (Answer([b"[]"]), "got 200 \\[\\], allowed"),
        (Answer([b'{"data": []}']), "allowed: OpenAI's list of models, with at least one"),
    ],
)
async def test_what_no_waiting_helps_is_refused_at_once(answer: Answer, reason: str) -> None:
    async with scripted_gateway(lambda *_: answer) as url:
        with pytest.raises(GatewayUnavailable, match=reason):
            await served_model(url, patience_s=3600)


async def test_the_command_says_once_what_it_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    answers = [Answer([b"no worker"], status=503)] * 2 + [Answer([b"{}"])] * 2

    async with scripted_gateway(lambda *_: answers.pop(0)) as url:
        with pytest.raises(GatewayUnavailable):
            await ServeBench(parse(["--url", url])).run()
    assert not answers
    assert capsys.readouterr().err == f"orcastream bench serve: waiting up to 60 s for {url}: 503 no worker\n"


@pytest.mark.parametrize("flag", ["--prompts", "--only-tenant"])
def test_what_cannot_be_asked_is_refused_before_the_wait(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = str(tmp_path / "mistyped")
    assert main(["serve", "--url", "http://127.0.0.1:1", "--patience", "3600", flag, given]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert given in line
