"""Flags take precedence over the environment, then .env, then defaults; an error is one line."""

import re
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, CliPositionalArg, SettingsConfigDict

from orcastream.cli.errors import UserError
from orcastream.cli.parse import UnusableSettings, load_settings


class Boat(BaseSettings):
    """A boat."""

    model_config = SettingsConfigDict(env_prefix="ORCASTREAM_", env_file=".env", env_ignore_empty=True, extra="ignore")

    oars: int = Field(2, ge=0, le=8, description="How many. [oars]")
    speed_knots: float = Field(3.0, gt=0, description="How fast. [knots]")
    sail: Literal["main", "jib"] = Field("main", description="Which sail.")
    anchored: bool = Field(False, description="Does it lie still?")
    name: str | None = Field(
        None, pattern="^[a-z]+$", json_schema_extra={"allowed": "small letters"}, description="Its name."
    )
    crew: tuple[str, ...] = Field((), description="Who is aboard.")
    cargo: dict[str, int] = Field(default_factory=dict, description="What is aboard.")
    code: SecretStr = Field(SecretStr("none"), min_length=4, description="Whoever knows it may come aboard.")

    @field_validator("name")
    @classmethod
    def _no_ghosts(cls, name: str | None) -> str | None:
        if name == "dutchman":
            raise ValueError("no ghosts")
        return name


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(*arguments: str) -> Boat:
    return load_settings(Boat, arguments, "boat")


def complaints(*arguments: str) -> tuple[str, ...]:
    with pytest.raises(UnusableSettings) as caught:
        load(*arguments)
    assert all("\n" not in line for line in caught.value.lines)
    return caught.value.lines


def test_flags_beat_environment_beats_dotenv_beats_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load().oars == 2
    (tmp_path / ".env").write_text("ORCASTREAM_OARS=3\nORCASTREAM_SPEED_KNOTS=9\nUNRELATED=1\nORCASTREAM_OTHER=1\n")
    assert load().oars == 3
    monkeypatch.setenv("ORCASTREAM_OARS", "4")
    assert load().oars == 4
    boat = load("--oars", "5")
    assert (boat.oars, boat.speed_knots) == (5, 9)


def test_flags_are_kebab_case_and_switches_need_no_value() -> None:
    boat = load("--speed-knots=7.5", "--anchored", "--crew", "ann", "--crew", "bob", "--cargo", '{"tea": 2}')
    assert (boat.speed_knots, boat.anchored, boat.crew, boat.cargo) == (7.5, True, ("ann", "bob"), {"tea": 2})
    assert load("--no-anchored").anchored is False


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--oars", "9"), "oars (--oars, ORCASTREAM_OARS): got '9', allowed: a whole number, 0 to 8"),
        (("--oars", "two"), "oars (--oars, ORCASTREAM_OARS): got 'two', allowed: a whole number, 0 to 8"),
        (
            ("--speed-knots", "0"),
            "speed_knots (--speed-knots, ORCASTREAM_SPEED_KNOTS): got '0', allowed: a number, more than 0",
        ),
        (("--sail", "spinnaker"), "sail (--sail, ORCASTREAM_SAIL): got 'spinnaker', allowed: main, jib"),
        (("--name", "dutchman"), "name (--name, ORCASTREAM_NAME): got 'dutchman', allowed: no ghosts"),
        (
            ("--cargo", "tea"),
            'cargo (--cargo, ORCASTREAM_CARGO): got invalid JSON, allowed: an object such as {"key": "value"}',
        ),
        (
            ("--cargo", '{"tea": "much"}'),
            "cargo (--cargo, ORCASTREAM_CARGO): got 'much', allowed: a valid integer, unable to parse string as an "
            "integer",
        ),
        (("--name", "X1"), "name (--name, ORCASTREAM_NAME): got 'X1', allowed: small letters"),
        (
            ("--anchored=false",),
            "anchored (--anchored, ORCASTREAM_ANCHORED): got 'false', allowed: --anchored or --no-anchored, "
            "without a value",
        ),
        (("--nope", "1"), "unrecognized arguments: --nope 1"),
        (("--oars",), "argument --oars: expected one argument"),
    ],
)
def test_a_wrong_flag_is_one_line(arguments: tuple[str, ...], line: str) -> None:
    assert complaints(*arguments) == (line,)


def test_a_wrong_environment_variable_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCASTREAM_OARS", "many")
    assert complaints() == ("oars (--oars, ORCASTREAM_OARS): got 'many', allowed: a whole number, 0 to 8",)


def test_a_list_that_is_not_json_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCASTREAM_CREW", "ann, bob")
    assert complaints() == ('crew (--crew, ORCASTREAM_CREW): got invalid JSON, allowed: a list such as ["a", "b"]',)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (
            b"\nORCASTREAM_NAME=\xff\n",
            ".env, line 2: got bytes that are not UTF-8, allowed: UTF-8 text",
        ),
        (
            b"# oars\n\nthe secret is=? 5\nORCASTREAM_OARS=3\n'open\n",
            ".env, line 3, 5: got an invalid line, allowed: NAME=VALUE, a comment, or nothing",
        ),
    ],
)
def test_a_wrong_dotenv_is_one_line(content: bytes, line: str, tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(content)
    with pytest.raises(UserError) as caught:
        load()
    assert caught.value.lines == (line,)


def test_the_example_of_dotenv_can_be_read(tmp_path: Path) -> None:
    example = (Path(__file__).parents[2] / ".env.example").read_text()
    (tmp_path / ".env").write_text(re.sub(r"^#(?=\w+=)", "", example, flags=re.MULTILINE))
    assert load().oars == 2


@pytest.mark.parametrize("value", ["[1]", '{"captain": "ann"}'])
def test_a_list_of_the_wrong_type_is_one_line(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCASTREAM_CREW", value)
    (line,) = complaints()
    assert line.startswith("crew (--crew, ORCASTREAM_CREW): got ")
    assert line.endswith(', allowed: a list such as ["a", "b"]')


def test_every_wrong_field_has_its_line() -> None:
    assert [line.split()[0] for line in complaints("--oars", "9", "--sail", "x")] == ["oars", "sail"]


def test_a_wrong_secret_is_not_shown() -> None:
    (line,) = complaints("--code", "abc")
    assert "abc" not in line
    assert line.startswith("code (--code, ORCASTREAM_CODE): got a secret, allowed: ")


def test_a_long_value_is_cut() -> None:
    (line,) = complaints("--name", "X" * 500)
    assert len(line) < 250


def test_help_names_flag_default_and_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load("--help")
    assert caught.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for part in (
        "usage: orcastream boat",
        "--speed-knots",
        "How fast. [knots]",
        "default: 3.0",
        "ORCASTREAM_SPEED_KNOTS",
    ):
        assert part in shown


def test_a_child_process_gets_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    from orcastream.cli.environment import as_environment

    given: tuple[Any, ...] = ("--oars", "5", "--crew", "ann", "--cargo", '{"tea": 2}', "--code", "secret", "--anchored")
    variables = as_environment(load(*given), Boat)
    assert variables == {
        "ORCASTREAM_OARS": "5",
        "ORCASTREAM_CREW": '["ann"]',
        "ORCASTREAM_CARGO": '{"tea": 2}',
        "ORCASTREAM_CODE": "secret",
        "ORCASTREAM_ANCHORED": "true",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert load() == load(*given)


def test_a_positional_argument_is_named_as_in_the_usage() -> None:
    class Voyage(BaseSettings):
        """Where to."""

        model_config = SettingsConfigDict(env_prefix="ORCASTREAM_", env_ignore_empty=True, extra="ignore")

        port: CliPositionalArg[str] = Field(description="Where to.")
        berth: CliPositionalArg[int] = Field(1, ge=1, le=9, description="Which.")

    for arguments, lines in (
        (("lisbon", "10"), ("berth (BERTH, ORCASTREAM_BERTH): got '10', allowed: a whole number, 1 to 9",)),
        (("", "2"), ("port (PORT, ORCASTREAM_PORT): got nothing, allowed: a value",)),
    ):
        with pytest.raises(UnusableSettings) as caught:
            load_settings(Voyage, arguments, "voyage")
        assert caught.value.lines == lines
