"""The C++ guard that tells torch which CUDA device is the current one; a build of torch without CUDA has none."""

import ctypes
import subprocess
from pathlib import Path

import torch

from orcastream.engine.native.compiler import Compiler

_SOURCE = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace c10::impl {
struct Emulated final : NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device getDevice() const override { return Device(DeviceType::CUDA, 0); }
  Device exchangeDevice(Device) const override { return Device(DeviceType::CUDA, 0); }
};
C10_REGISTER_GUARD_IMPL(CUDA, Emulated);
}
"""

_LOADED: list[ctypes.CDLL] = []
"""The guard, once this process has loaded it. It stays loaded: torch cannot unregister it."""


def load_guard(folder: Path) -> None:
    """Compile the guard in `folder` and load it, unless this process has loaded it before.

    Raises FileNotFoundError if there is no C++ compiler, subprocess.CalledProcessError if it fails.
    """
    if not _LOADED:
        _LOADED.append(ctypes.CDLL(str(_build(folder))))


def _build(folder: Path) -> Path:
    torch_folder = Path(torch.__file__).parent
    source, library = folder / "guard.cpp", folder / "guard.so"
    source.write_text(_SOURCE, encoding="utf-8")
    subprocess.run(
        [
            *(*Compiler.find().command, "-std=c++20", "-shared", "-fPIC", f"-I{torch_folder / 'include'}"),
            *(str(source), f"-L{torch_folder / 'lib'}", "-lc10", "-o", str(library)),
        ],
        check=True,
    )
    return library
