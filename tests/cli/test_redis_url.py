"""The URL of Redis is checked before anything starts, in one line that shows no password."""

from pathlib import Path

import pytest

from orcastream.broker.settings import BrokerSettings
from orcastream.cli.credentials import without_credentials
from orcastream.cli.main import main

GOOD = (
    "redis://127.0.0.1:6379/0",
    "redis://localhost",
    "redis:///1",
    "redis://[::1]:6379/0",
    "redis://:word@host:1",
    "redis://user:w%2Frd@host/?db=3",
    "redis://host?password=word&protocol=2&max_connections=5",
    "rediss://user:word@host:6380/1?ssl_cert_reqs=none",
    "unix:///tmp/redis.sock?db=2",
    "unix://user@/tmp/redis.sock?password=word",
    "redis+sentinel://one:26379,two,[::1]:3/service",
    "rediss+sentinel://user:word@one,two/service/1?sentinel_username=u&sentinel_password=p&ssl_cert_reqs=none",
)
BAD = (
    "",
    "localhost:6379",
    "redis:localhost:6379",
    "http://localhost:6379",
    "redis://host:port/0",
    "redis://host:0",
    "redis://host:70000",
    "redis://host/abc",
    "redis://host/-1",
    "redis://host/0/1",
    "redis://host?db=one",
    "redis://host?db=-1",
    "redis://host?databse=1",
    "redis://host?databse",
    "redis://host?host=other",
    "redis://host?retry=5",
    "redis://host?protocol=9",
    "redis://host?socket_timeout=long",
    "redis://host?ssl_cert_reqs=none",
    "rediss://host?ssl_cert_reqs=perhaps",
    "rediss://host?ssl_other=1",
    "redis://[::1",
    "redis://user:sw/rd@host:6379/0",
    "unix://",
    "unix://tmp/redis.sock",
    "redis+sentinel://one,two",
    "redis+sentinel://one,two/",
    "redis+sentinel:///service",
    "redis+sentinel://one,,two/service",
    "redis+sentinel://one,:5/service",
    "redis+sentinel://one:port/service",
    "redis+sentinel://one/service/abc",
    "redis+sentinel://one/service?databse=1",
    "redis+sentinel://one/service?ssl_cert_reqs=none",
    "redis+cluster://",
    "redis+cluster://one,,two",
    "redis+cluster://one/1",
    "redis+cluster://one/service",
    "redis+cluster://one?ssl_cert_reqs=none",
    "unix+cluster://one",
    "unix+sentinel://one/service",
)


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("url", GOOD)
def test_urls_that_redis_py_accepts_are_used_unchanged(url: str) -> None:
    assert BrokerSettings(redis_url=url).redis_url == url


@pytest.mark.parametrize("url", BAD)
def test_an_invalid_redis_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="redis_url"):
        BrokerSettings(redis_url=url)


@pytest.mark.parametrize("command", ["up", "gateway", "worker"])
@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("localhost:6379", "localhost:6379"),
        ("user:sword@localhost:6379", "***@localhost:6379"),
        ("redis://user:sw/ord@localhost:6379", "redis://***@localhost:6379"),
        ("unix://tmp/redis.sock?password=sword&db=1", "unix://tmp/redis.sock?password=***&db=1"),
    ],
)
def test_every_command_reports_it_in_one_line(
    command: str, url: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--redis-url", url]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        f"orcastream {command}: redis_url (--redis-url, ORCASTREAM_REDIS_URL): got {shown!r}, allowed: redis://"
    )
    assert error.count("\n") == 1


def test_an_error_in_a_sentinel_url_shows_the_expected_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "--redis-url", "redis+sentinel://user:sword@one,two"]) == 2
    error = capsys.readouterr().err
    assert "got 'redis+sentinel://***@one,two', allowed: redis+sentinel://[USER:PASSWORD@]HOST[:PORT]" in error


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--redis-url", "redis://host", "--redis-ca-file", "here"), "allowed: with a rediss:// URL as redis_url"),
        (("--redis-ca-file", "here"), "allowed: with a rediss:// URL as redis_url"),
        (("--redis-url", "rediss://host", "--redis-key-file", "here"), "allowed: with redis_cert_file"),
        (
            ("--redis-url", "rediss://host?ssl_ca_certs=there", "--redis-ca-file", "here"),
            "allowed: where redis_url has no ssl_ca_certs",
        ),
        (
            ("--redis-url", "rediss://host", "--redis-ca-file", "gone"),
            "redis_ca_file (--redis-ca-file, ORCASTREAM_REDIS_CA_FILE): got 'gone', "
            "allowed: a file that can be read (No such file or directory)",
        ),
    ],
)
def test_unusable_tls_files_are_refused(
    flags: tuple[str, ...], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").touch()
    assert main(["gateway", *flags]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(("url", "joint"), [("rediss://host/1", "?"), ("rediss+sentinel://host/service?db=1", "&")])
def test_tls_files_become_part_of_the_address(url: str, joint: str, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    settings = BrokerSettings(redis_url=url, redis_ca_file=Path("ca.pem"))
    assert settings.redis_url == url
    assert settings.connection_url == f"{url}{joint}ssl_ca_certs={str(tmp_path / 'ca.pem').replace('/', '%2F')}"


def test_settings_made_in_python_show_no_password_either() -> None:
    with pytest.raises(ValueError, match="redis_url") as caught:
        BrokerSettings(redis_url="user:sword@localhost:6379")
    assert "sword" not in str(caught.value)


def test_a_good_url_is_shown_without_its_credentials() -> None:
    assert without_credentials("redis://host:1/0") == "redis://host:1/0"
    assert without_credentials("https://user:word@host") == "https://***@host"
