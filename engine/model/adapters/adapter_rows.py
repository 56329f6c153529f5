"""The rows of an iteration that adapters change, and how the model's modules come to change them."""

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
    """One adapter of an iteration, and the rows of the stream it changes: `[m]`, rising, int64; also on the device."""

    adapter: Adapter
    rows: IntArray
    rows_device: torch.Tensor


_IN_FORCE: ContextVar[Sequence[AdapterRows]] = ContextVar("orcastream_adapters", default=())


@contextmanager
def adding(rows: Sequence[AdapterRows]) -> Iterator[None]:
    """Forward passes of this thread in this block are those of a batch of `rows`."""
    token = _IN_FORCE.set(rows)
    try:
        yield
    finally:
        _IN_FORCE.reset(token)


def let_modules_add(sites: Iterable[Site], user: object) -> None:
    """The modules of `sites` heed what is in force, whichever engine's it is, as long as such a `user` lives."""
    hooks = [_hook_of(site) for site in sites]
    finalize(user, _leave, hooks).atexit = False


def _hook_of(site: Site) -> "_Add":
    """The one of that module, which has a user more."""
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
    """A forward hook. Where nothing is in force it costs a call per module, and an MLP its fused operator."""

    site: str
    users: int = 0
    handle: RemovableHandle | None = None

    def __call__(self, module: nn.Module, arguments: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        for each in _IN_FORCE.get():
            change = each.adapter.changes.get(self.site)
            if change is not None:
                x = arguments[0][0].index_select(0, each.rows_device)
                output[0].index_add_(0, each.rows_device, change(x))
