"""What code of others may leave behind in torch and Python, and putting it back.

A network, a loader, a sampler or a plug-in shares the process with everything else. What it sets
for all, such as the default type of numbers, would change what other networks answer. So every
call of such code is between `GlobalState.now` and `restore` (`hardcase.errors.guarded`).
Nothing here imports torch: what it holds is looked at once it is there.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, NoReturn

__all__ = ["LEAVE", "Changes", "GlobalState"]


class Setting(NamedTuple):
    """A global setting of the process: its name in a sentence."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], None]


def _attribute(name: str, owner: Any, attribute: str) -> Setting:
    return Setting(name, partial(getattr, owner, attribute), partial(setattr, owner, attribute))


STREAMS = (
    _attribute("the standard output", sys, "stdout"),
    _attribute("the standard error", sys, "stderr"),
)
PYTHON = (
    _attribute("how JSON separates entries", json.JSONEncoder, "item_separator"),
    _attribute("how JSON separates names", json.JSONEncoder, "key_separator"),
    *STREAMS,
)
"""Settings of Python that decide what is written."""
_torch: tuple[Setting, ...] = ()


def _settings() -> tuple[Setting, ...]:
    """Every setting that there is now: torch may not be loaded yet."""
    global _torch
    torch: Any = sys.modules.get("torch")
    if not _torch and hasattr(torch, "set_default_device"):  # whole, not half imported
        _torch = _settings_of(torch)
    return PYTHON + _torch


def _settings_of(torch: Any) -> tuple[Setting, ...]:
    def set_deterministic(value: tuple[bool, bool]) -> None:
        torch.use_deterministic_algorithms(value[0], warn_only=value[1])

    def deterministic() -> tuple[bool, bool]:
        strict = torch.are_deterministic_algorithms_enabled()
        return strict, torch.is_deterministic_algorithms_warn_only_enabled()

    def set_device(device: Any) -> None:
        # on the CPU no default is set: a mode of torch's would slow every call down
        torch.set_default_device(None if device.type == "cpu" else device)

    cudnn = torch.backends.cudnn
    return (
        Setting("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
        Setting("the default device", lambda: torch.empty(0).device, set_device),
        Setting("whether gradients are kept", torch.is_grad_enabled, torch.set_grad_enabled),
        Setting("the deterministic algorithms", deterministic, set_deterministic),
        Setting("the number of threads", torch.get_num_threads, torch.set_num_threads),
        Setting(
            "autocast",
            partial(torch.is_autocast_enabled, "cpu"),
            partial(torch.set_autocast_enabled, "cpu"),
        ),
        _attribute("cudnn.deterministic", cudnn, "deterministic"),
        _attribute("cudnn.benchmark", cudnn, "benchmark"),
    )


LEAVE = os._exit
"""What ends this process at once."""
_streams = list[Any]()


class Changes(NamedTuple):
    """What foreign code did: settings that it changed, streams that it closed."""

    settings: list[str]
    closed: list[str]


@dataclass(frozen=True, slots=True)
class GlobalState:
    """What was set before a call of foreign code.

    Example:
        >>> import torch
        >>> before = GlobalState.now()
        >>> torch.set_default_dtype(torch.float64)
        >>> before.restore().settings
        ['the default dtype']
        >>> torch.get_default_dtype()
        torch.float32
    """

    values: tuple[tuple[Setting, Any], ...]

    @classmethod
    def now(cls) -> GlobalState:
        """Return what is set; until `restore`, `os._exit` of this thread is a `SystemExit`."""
        os._exit = partial(_refuse_exit, os.getpid(), threading.get_ident())
        return cls(tuple((setting, setting.read()) for setting in _settings()))

    def restore(self) -> Changes:
        """Put everything back that is set otherwise now; return what that was."""
        os._exit = LEAVE
        changed = []
        for setting, value in self.values:
            now = setting.read()
            if now is value or now == value:
                continue
            if setting in STREAMS:
                _streams.append(now)  # a wrapper that nobody holds would close what it wraps
            setting.write(value)
            changed.append(setting.name)
        streams = {name: getattr(sys, name) for name in ("stdout", "stderr")}
        closed = [name for name, stream in streams.items() if getattr(stream, "closed", False)]
        for name in closed:  # without another one nothing could be told at all
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - it stays
        return Changes(changed, [f"sys.{name}" for name in closed])


def _refuse_exit(process: int, thread: int, code: int) -> NoReturn:
    """End a process that was forked, or on the word of another thread; raise for this one."""
    if (os.getpid(), threading.get_ident()) != (process, thread):
        LEAVE(code)
    raise SystemExit(code)
