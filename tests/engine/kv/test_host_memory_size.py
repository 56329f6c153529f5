"""Available memory, read from files in the kernel's format."""

from pathlib import Path

import pytest

from orcastream.engine.kv import size
from orcastream.engine.kv.host_memory_size import available_host_memory

GIB = 1 << 30

MEMINFO = """\
MemTotal:       16326428 kB
MemFree:          412340 kB
MemAvailable:    8388608 kB
Buffers:          108276 kB
"""
"""8 GiB available; the free pages are 0.4 GiB, as page cache fills the rest."""


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2(group: str, limit: str, usage: int, inactive_file: int = 0) -> dict[str, str]:
    folder = f"sys/fs/cgroup/{group}".rstrip("/")
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{usage}\n",
        f"{folder}/memory.stat": f"anon 123\nfile 456\nactive_file 7\ninactive_file {inactive_file}\n",
    }


def v1(group: str, limit: int, usage: int, inactive_file: int = 0) -> dict[str, str]:
    folder = f"sys/fs/cgroup/memory/{group}".rstrip("/")
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{usage}\n",
        f"{folder}/memory.stat": f"cache 1\ninactive_file 2\ntotal_inactive_file {inactive_file}\n",
    }


V1_GROUPS = "12:cpu,cpuacct:/a/b\n7:memory:/a/b\n1:name=systemd:/a/b\n0::/a/b\n"
V1_NO_LIMIT = 9223372036854771712


def test_without_cgroups_it_is_the_kernels_available_memory(tmp_path: Path) -> None:
    assert available_host_memory(write(tmp_path, {})) == 8 * GIB


@pytest.mark.parametrize(
    ("groups", "available"),
    [
        (v2("a/b", str(4 * GIB), 1 * GIB), 3 * GIB),
        (v2("a/b", str(4 * GIB), 3 * GIB, inactive_file=2 * GIB), 3 * GIB),  # file cache is reclaimable
        (v2("a/b", "max", 1 * GIB), 8 * GIB),
        (v2("a/b", str(64 * GIB), 1 * GIB), 8 * GIB),  # a limit above the machine's memory
        (v2("a/b", str(4 * GIB), 1 * GIB) | v2("a", str(3 * GIB), 2 * GIB), 1 * GIB),  # the outer limit is tighter
        (v2("a/b", str(2 * GIB), 1 * GIB) | v2("a", str(9 * GIB), 2 * GIB), 1 * GIB),  # the inner limit is tighter
        (v2("a/b", "max", 1 * GIB) | v2("a", str(6 * GIB), 1 * GIB), 5 * GIB),
        (v2("a/b", str(1 * GIB), 2 * GIB), 0),  # a limit lowered below the usage
        (v2("", str(2 * GIB), 1 * GIB), 1 * GIB),  # a mount that begins at the container's own group
    ],
)
def test_version_2(groups: dict[str, str], available: int, tmp_path: Path) -> None:
    assert available_host_memory(write(tmp_path, {"proc/self/cgroup": "0::/a/b\n", **groups})) == available


@pytest.mark.parametrize(
    ("groups", "available"),
    [
        (v1("a/b", 4 * GIB, 1 * GIB), 3 * GIB),
        (v1("a/b", 4 * GIB, 3 * GIB, inactive_file=1 * GIB), 2 * GIB),
        (v1("a/b", V1_NO_LIMIT, 1 * GIB), 8 * GIB),
        (v1("a/b", 4 * GIB, 1 * GIB) | v1("a", 5 * GIB, 3 * GIB), 2 * GIB),
        (v1("", 2 * GIB, 1 * GIB), 1 * GIB),
    ],
)
def test_version_1(groups: dict[str, str], available: int, tmp_path: Path) -> None:
    assert available_host_memory(write(tmp_path, {"proc/self/cgroup": V1_GROUPS, **groups})) == available


def test_a_group_of_another_controller_does_not_count(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "3:cpu:/a\n"} | v1("a", 1 * GIB, 0)
    assert available_host_memory(write(tmp_path, files)) == 8 * GIB


def test_a_system_without_memory_information(tmp_path: Path) -> None:
    assert available_host_memory(tmp_path) is None


def test_damaged_files_are_ignored(tmp_path: Path) -> None:
    files = {"proc/meminfo": "MemAvailable: lots\n", "proc/self/cgroup": "\nx\n0::/a\n", **v2("a", "-3", 0)}
    assert available_host_memory(write(tmp_path, files)) is None


def test_this_machine_reports_its_memory() -> None:
    available = available_host_memory()
    assert available is None or available > 0


def test_caches_larger_than_the_machines_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size, "available_host_memory", lambda: 4 * GIB)
    size.refuse_more_than_there_is(3 * GIB, 1 * GIB, None)
    with pytest.raises(ValueError, match=rf"^kv_cache_memory: got {5 * GIB} bytes, allowed: at most {4 * GIB}, "):
        size.refuse_more_than_there_is(5 * GIB, 0, None)
    with pytest.raises(ValueError, match=rf"^host_cache_memory: got {2 * GIB} bytes, allowed: at most {1 * GIB}, "):
        size.refuse_more_than_there_is(3 * GIB, 2 * GIB, None)
    monkeypatch.setattr(size, "available_host_memory", lambda: None)
    size.refuse_more_than_there_is(5 * GIB, 5 * GIB, None)


def test_a_cache_on_a_device_is_limited_by_the_devices_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size, "available_host_memory", lambda: 4 * GIB)
    size.refuse_more_than_there_is(6 * GIB, 4 * GIB, 6 * GIB)
    with pytest.raises(ValueError, match=rf"^kv_cache_memory: got {7 * GIB} bytes, allowed: at most {6 * GIB}, what t"):
        size.refuse_more_than_there_is(7 * GIB, 0, 6 * GIB)
    with pytest.raises(ValueError, match=rf"^host_cache_memory: got {5 * GIB} bytes, allowed: at most {4 * GIB}, "):
        size.refuse_more_than_there_is(6 * GIB, 5 * GIB, 6 * GIB)


@pytest.mark.parametrize(("available", "spare"), [(None, 2 * GIB), (4 * GIB, 1 * GIB), (100 * GIB, 2 * GIB)])
def test_the_share_of_the_cache(available: int | None, spare: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size, "available_host_memory", lambda: available)
    assert size.spare_host_memory() == spare
