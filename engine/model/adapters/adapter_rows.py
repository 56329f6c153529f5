"""The rows of an iteration that adapters change, and the hooks with which the model's modules change them."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from weakref import finalize

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from orcastream.engine.batch.flat_batch import IntArray
from orcastream.engine.model.adapters.adapter import Adapter
from orcastream.engine.model.adapters.site import Site


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """One adapter of an iteration, and the stream rows that it changes: `[m]`, ascending, int64; also on the device."""

    adapter: Adapter
    rows: IntArray
    rows_device: torch.Tensor


_IN_FORCE: ContextVar[Sequence[AdapterRows]] = ContextVar("orcastream_adapters", default=())


@contextmanager
def adding(rows: Sequence[AdapterRows]) -> Iterator[None]:
    """Apply the adapters of `rows` in this thread's forward passes within the block."""
    token = _IN_FORCE.set(rows)
    try:
        yield
    finally:
        _IN_FORCE.reset(token)


def let_modules_add(sites: Iterable[Site], user: object) -> None:
    """Let the modules of `sites` apply the current adapters, of any engine, as long as a `user` is alive."""
    hooks = [_hook_of(site) for site in sites]
    finalize(user, _leave, hooks).atexit = False


def _hook_of(site: Site) -> "_Add":
    """Return the hook of that module, with one more user."""
    found = next((each for each in site.module._forward_hooks.values() if isinstance(each, _Add)), None)
    if found is None:
        found = _Add(site.name)
        found.handle = site.module.register_forward_hook(found)
    found.users += 1
    return found


def _leave(hooks: Iterable["_Add"]) -> None:
    for hook in hooks:
        hook.users -= 1
        if not hook.users and hook.handle is not None:
            hook.handle.remove()


@dataclass(eq=False, slots=True)
class _Add:
    """A forward hook. Without current adapters it still costs a call per module, and an MLP its fused operator."""

    site: str
    users: int = 0
    handle: RemovableHandle | None = None

    def __call__(self, module: nn.Module, arguments: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        for each in _IN_FORCE.get():
            change = each.adapter.changes.get(self.site)
            if change is not None:
                x = arguments[0].flatten(0, -2).index_select(0, each.rows_device)
                output.view(-1, output.shape[-1]).index_add_(0, each.rows_device, change(x))
