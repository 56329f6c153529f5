"""A leaner torch, without parts that a worker never uses; loading them takes a second and 140 MiB."""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

_COMPILER: Final = "torch._dynamo"
_OF_USE: Final = f"{_COMPILER}._trace_wrapped_higher_order_op"
"""A part that transformers needs to build masks, and that does not depend on the rest."""


def lean_torch(device: str) -> None:
    """Disable torch's compiler, tensors of several processes, and, on a CPU, Triton in this process.

    Call it before transformers is loaded. `device` is the worker's setting.
    """
    import torch

    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        sys.modules.setdefault("triton", None)  # type: ignore[arg-type]  # Python's mark for 'cannot be found'
    torch.distributed.is_available = lambda: False
    if _COMPILER not in sys.modules:
        sys.modules[_COMPILER] = _NoCompiler(_COMPILER)
        sys.meta_path.insert(0, _PARTS)


class _NoCompiler(ModuleType):
    """Replaces the compiler's package: its decorators leave functions unchanged. Any other attribute loads the real
    one.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        spec = find_spec(name)
        self.__path__ = [] if spec is None else list(spec.submodule_search_locations or ())
        self.disable = self.allow_in_graph = self.assume_constant_result = _as_it_is

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_load_compiler(), name)


class _Parts(MetaPathFinder, Loader):
    """Loads the real compiler when any part of it other than `_OF_USE` is imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a part that was loaded with the whole compiler."""
        if not name.startswith(f"{_COMPILER}.") or name == _OF_USE:
            return None
        _load_compiler()
        return ModuleSpec(name, self) if name in sys.modules else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the loaded part."""
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the part is already loaded."""


_PARTS: Final = _Parts()


def _load_compiler() -> ModuleType:
    if isinstance(sys.modules[_COMPILER], _NoCompiler):
        del sys.modules[_COMPILER]
        sys.meta_path.remove(_PARTS)
    return import_module(_COMPILER)


def _as_it_is(function: Callable[..., Any] | None = None, *_: object, **__: object) -> Any:
    """Return a function unchanged, or a decorator that does."""
    return (lambda decorated: decorated) if function is None else function
