"""Dead letters are bounded by number and by bytes: the oldest are deleted."""

import pytest

from orcastream.broker import dead_letter
from orcastream.broker.dead_letter import bury
from orcastream.broker.letters import delete_letters, find_letter, newest_letters
from orcastream.broker.link import Link
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.keys import Keys
from tests.broker.scripted import enqueue, make_request

PROMPT = list(range(250))


async def set_aside(link: Link, keys: Keys, request_id: str, *, prompt: list[int] | None = None) -> None:
    entry = (await enqueue(link, keys, make_request(request_id, prompt=prompt or PROMPT))).entry
    assert await bury(link, keys, entry, reason=ErrorCode.DEAD_LETTER, message="x", waiting=True)


async def kept(link: Link, keys: Keys) -> list[str]:
    return [letter.request_id async for letter in newest_letters(link, keys)]


async def bytes_kept(link: Link, keys: Keys) -> int:
    return sum([sum(map(len, fields)) for _, fields in await link.call("XRANGE", keys.dead, "-", "+")])


async def test_the_oldest_are_deleted_beyond_the_maximum_number(
    link: Link, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter, "MAX_DEAD_LETTERS", 3)
    for number in range(5):
        await set_aside(link, keys, f"r{number}")
    assert await kept(link, keys) == ["r4", "r3", "r2"]
    monkeypatch.setattr(dead_letter, "MAX_DEAD_LETTERS", 1)
    await set_aside(link, keys, "r5")
    assert await kept(link, keys) == ["r5"]


async def test_the_oldest_are_deleted_beyond_the_maximum_bytes(
    link: Link, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    await set_aside(link, keys, "r0")
    bound = 3 * await bytes_kept(link, keys) + 100
    monkeypatch.setattr(dead_letter, "MAX_DEAD_LETTER_BYTES", bound)
    for number in range(1, 6):
        await set_aside(link, keys, f"r{number}")
        assert await bytes_kept(link, keys) <= bound
    assert await kept(link, keys) == ["r5", "r4", "r3"]
    await set_aside(link, keys, "large", prompt=PROMPT * 2)
    assert await kept(link, keys) == ["large", "r5"]
    await set_aside(link, keys, "larger", prompt=PROMPT * 10)
    assert await kept(link, keys) == ["larger"], "one is kept, however large"
    await set_aside(link, keys, "r6")
    assert await kept(link, keys) == ["r6"]


async def test_deleted_letters_make_room(link: Link, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    await set_aside(link, keys, "r0")
    monkeypatch.setattr(dead_letter, "MAX_DEAD_LETTER_BYTES", 3 * await bytes_kept(link, keys) + 100)
    await set_aside(link, keys, "r1")
    letters = [letter async for letter in newest_letters(link, keys)]
    assert await delete_letters(link, keys, [letter.letter_id for letter in letters]) == 2
    for number in range(2, 5):
        await set_aside(link, keys, f"r{number}")
    assert await kept(link, keys) == ["r4", "r3", "r2"]


async def test_a_letter_is_complete(link: Link, keys: Keys) -> None:
    request = make_request("r0", prompt=PROMPT)
    await set_aside(link, keys, "r0")
    (letter,) = [one async for one in newest_letters(link, keys)]
    found = await find_letter(link, keys, letter.letter_id)
    assert found is not None
    assert found[1][b"payload"] == request.fields()["payload"]


async def test_an_oversized_value_is_cut(link: Link, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letter, "MAX_PAYLOAD_BYTES", 1000)
    await set_aside(link, keys, "r0", prompt=PROMPT * 10)
    assert [one.payload_bytes async for one in newest_letters(link, keys)] == [1000]


async def test_foreign_letters_stop_nothing(link: Link, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letter, "MAX_DEAD_LETTERS", 2)
    await link.call("XADD", keys.dead, "*", "entry", "junk")
    await set_aside(link, keys, "r0")
    await link.call("XADD", keys.dead, "*", "bytes_before", "x")
    await set_aside(link, keys, "r1")
    assert len(await kept(link, keys)) == 2
    assert (await kept(link, keys))[0] == "r1"
