"""The adapters that a worker holds in memory: bounded in number, never evicted while in use, and no wait is endless."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from orcastream.engine import Adapter, EngineConfig, OrcaEngine, UnsupportedAdapter
from orcastream.worker.adapter_folders import adapter_folders
from orcastream.worker.adapter_shelf import AdapterShelf, HeldAdapter
from tests.engine.conftest import build
from tests.lora import save_adapter
from tests.worker.worker_process import MODEL

NAMES = ("a", "b", "c", "d")
Make = Callable[..., AdapterShelf]


@pytest.fixture(scope="module")
def engine() -> OrcaEngine:
    return OrcaEngine(EngineConfig("tiny", max_adapters=2, kv_cache_memory=1 << 20), build("llama"))


@pytest.fixture(scope="module")
def folder(engine: OrcaEngine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(NAMES):
        save_adapter(engine.model, folder / name, seed=seed)
    return folder


@pytest.fixture
def make(engine: OrcaEngine, folder: Path) -> Make:
    return lambda most=2: AdapterShelf(adapter_folders(str(folder), MODEL), engine.adapters, most)


async def turns() -> None:
    """Run every task that can proceed without a thread."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_read_once_and_kept(make: Make) -> None:
    shelf = make()
    assert shelf.names == NAMES
    assert not shelf.at_hand("a")
    first, second = await asyncio.gather(shelf.hold("a"), shelf.hold("a"))
    assert first.adapter is second.adapter
    first.release()
    second.release()
    assert shelf.at_hand("a")
    assert (await shelf.hold("a")).adapter is first.adapter
    assert (shelf.reads, shelf.num_resident) == (1, 1)


async def test_the_least_recently_used_is_evicted(make: Make) -> None:
    shelf = make()
    for name in ("a", "b", "a", "c"):
        (await shelf.hold(name)).release()
    assert [shelf.at_hand(name) for name in NAMES] == [True, False, True, False]
    assert (shelf.reads, shelf.evictions) == (3, 1)


async def test_an_adapter_in_use_is_not_evicted(make: Make) -> None:
    shelf = make()
    held = await shelf.hold("a")
    for name in ("b", "c", "d"):
        (await shelf.hold(name)).release()
    assert [shelf.at_hand(name) for name in NAMES] == [True, False, False, True]
    held.release()
    held.release()  # counts once
    again = await shelf.hold("a")
    (await shelf.hold("b")).release()
    (await shelf.hold("c")).release()
    assert shelf.at_hand("a")
    again.release()


async def test_a_request_waits_in_order_while_all_are_in_use(make: Make) -> None:
    shelf = make()
    order: list[str] = []

    async def hold(name: str) -> HeldAdapter:
        held = await shelf.hold(name)
        order.append(name)
        return held

    held = {name: await hold(name) for name in ("a", "b")}
    waiting = [asyncio.create_task(hold(name)) for name in ("c", "a", "b")]
    await turns()
    assert order == ["a", "b"]
    assert not shelf.at_hand("a"), "a later request waits behind the one that waits for a slot"
    held["b"].release()
    for name, task in zip(("c", "a"), waiting[:2], strict=True):
        assert (await task).adapter.name == name
    assert order[:4] == ["a", "b", "c", "a"]
    (await waiting[0]).release()
    assert (await waiting[2]).adapter.name == "b"
    assert shelf.num_resident == 2


async def test_an_abandoned_wait_blocks_no_other(make: Make) -> None:
    shelf = make(1)
    held = await shelf.hold("a")
    given_up = asyncio.create_task(shelf.hold("b"))
    other = asyncio.create_task(shelf.hold("c"))
    await turns()
    given_up.cancel()
    held.release()
    assert (await other).adapter.name == "c"


async def test_an_abandoned_read_keeps_its_place(
    make: Make, engine: OrcaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread cannot be interrupted: until it ends, and afterwards, it counts towards the bound."""
    assert engine.adapters is not None
    read, begun, go_on = engine.adapters.read, threading.Semaphore(0), threading.Event()
    names: list[str] = []

    def slow(name: str, folder: Path) -> Adapter:
        names.append(name)
        begun.release()
        go_on.wait()
        return read(name, folder)

    monkeypatch.setattr(engine.adapters, "read", slow)
    shelf = make(1)
    given_up = asyncio.create_task(shelf.hold("a"))
    await asyncio.to_thread(begun.acquire)
    given_up.cancel()
    other = asyncio.create_task(shelf.hold("b"))
    again = asyncio.create_task(shelf.hold("a"))
    try:
        await turns()
        assert names == ["a"]
    finally:
        go_on.set()
    (await other).release()
    assert (await again).adapter.name == "a"
    assert (names, shelf.num_resident, shelf.evictions) == (["a", "b", "a"], 1, 2)


async def test_an_unreadable_adapter(engine: OrcaEngine, folder: Path, tmp_path: Path) -> None:
    assert engine.adapters is not None
    shelf = AdapterShelf({"gone": tmp_path / "gone", "a": folder / "a"}, engine.adapters, 1)
    with pytest.raises(UnsupportedAdapter, match=r"gone.adapter_config\.json"):
        shelf.check()
    with pytest.raises(UnsupportedAdapter, match=r"gone.adapter_config\.json"):
        await shelf.hold("gone")
    assert (await shelf.hold("a")).adapter.name == "a"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("a=/x,b", "adapters: got 'b', allowed: name=folder, or several separated by commas"),
        ("a=/x,a=/y", "adapters: got 'a' twice, allowed: each name once"),
        ("a b=/x", "adapters: got the name 'a b', allowed: 1 to 128 characters"),
        (f"a=/x,{MODEL}=/y", f"adapters: got the name '{MODEL}', allowed: other names than the model's"),
        ("/nowhere", "adapters: got '/nowhere', allowed: an existing folder, or name=folder"),
        ("{empty}", "allowed: a folder of folders that hold adapter_config.json"),
    ],
)
def test_settings_without_adapters(setting: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="adapters: got") as refused:
        adapter_folders(setting.format(empty=tmp_path), MODEL)
    assert message in str(refused.value)


def test_settings(folder: Path) -> None:
    assert adapter_folders("", MODEL) == {}
    assert adapter_folders("sql=/x/y, org/chat=z", MODEL) == {"sql": Path("/x/y"), "org/chat": Path("z")}
    assert adapter_folders(str(folder), MODEL) == {name: folder / name for name in NAMES}
