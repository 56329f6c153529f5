"""Numbers that allow no measurement are refused, and a service without capacity is named."""

from typing import Any

import pytest

from orcastream.bench.main import main
from orcastream.bench.overload import command as overload
from orcastream.bench.overload.client import LeanClient
from orcastream.bench.serve.client import Client
from orcastream.bench.serve.http_pool import HttpPool
from orcastream.bench.soak import command as soak
from orcastream.cli.errors import UserError
from tests.bench.scripted_gateway import Answer, scripted_gateway


@pytest.mark.parametrize(
    ("command", "flag", "value"),
    [
        (["serve"], "--patience", "nan"),
        (["offline", "--model", "not loaded"], "--time-scale", "-1"),
        (["redis-memory"], "--count", "0"),
        (["redis-rate"], "--streams", "0"),
        (["redis-rate"], "--seconds", "nan"),
        (["autoscale"], "--faster", "0"),
        (["autoscale"], "--max-replicas", "0"),
        (["autoscale"], "--drain-grace", "nan"),
        (["telemetry-cost"], "--rounds", "0"),
        (["telemetry-cost"], "--interval", "0"),
    ],
)
def test_out_of_range_numbers_are_one_line(
    command: list[str], flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, flag, value]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"orcastream bench {command[0]}: argument {flag}: got {value}, allowed: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", ["redis-memory", "redis-enqueue", "redis-rate"])
@pytest.mark.parametrize(
    ("url", "shown", "why"),
    [
        ("nothing", "nothing", "Redis URL must specify one of the following schemes"),
        ("redis://me:secret@127.0.0.1:1", "redis://***@127.0.0.1:1", "cannot connect"),
    ],
)
def test_a_server_that_does_not_answer_is_one_line(
    command: str, url: str, shown: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--redis-url", url]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"orcastream bench {command}: --redis-url: got '{shown}', allowed: the URL of one server")
    assert why in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("profile", ["0:1", "0:nan,10:1"])
def test_a_profile_is_refused_with_the_reason(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["autoscale", "--profile", profile]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"orcastream bench autoscale: argument --profile: got '{profile}', allowed: SECONDS:RATE,")
    assert "seconds ascending" in error
    assert error.count("\n") == 1


def refuse(*_: Any) -> Answer:
    return Answer([b'{"error": {"code": "invalid_request"}}'], status=422)


async def test_a_service_that_answers_nothing_has_no_capacity() -> None:
    async with scripted_gateway(refuse) as url:
        with pytest.raises(UserError, match=r"capacity: no request was answered in the second .*: 422 invalid"):
            async with HttpPool(url) as http:
                await overload.stretches(LeanClient(http, "m", 1.0), overload.parse(["--capacity-seconds", "0.1"]))
        with pytest.raises(UserError, match="capacity: no request was answered: 422 invalid_request"):
            async with Client(url, "m") as client:
                await soak.capacity_of(client, soak.parse(["--capacity-seconds", "0.1"]))


async def test_a_phase_in_which_nothing_arrives_is_refused_before_the_first_one() -> None:
    def answer(*_: Any) -> Answer:
        return Answer([b"data: [DONE]\n\n"])

    for flag in ("--seconds", "--normal-seconds"):
        short = ("--capacity-seconds", "1", "--normal-seconds", "0.1", "--seconds", "0.1", "--deadline", "1e-9")
        options = overload.parse([*short, flag, "1e-9"])
        async with scripted_gateway(answer) as url, HttpPool(url) as http:
            with pytest.raises(UserError, match=f"^{flag}: got 1e-09, allowed: more, because no request arrives"):
                await overload.stretches(LeanClient(http, "m", 1.0), options)
