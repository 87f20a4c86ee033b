# SPDX-License-Identifier: MIT
"""Which attention a model runs: changed for the time of one run, restored whatever happens.

The name lives on the configuration objects, which every thread and every part of the model shares. So a run
holds them; another thread that wants to capture the same model waits, the same thread may nest.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass
class _Held:
    config: Any
    original: str | None
    current: str
    owner: int
    depth: int = 1


_condition = threading.Condition()
_held: dict[int, _Held] = {}


def configs(model: nn.Module) -> list[Any]:
    """Every configuration object that decides about attention in ``model``, each once.

    They are saved one by one: ``set_attn_implementation`` would flatten mixed sub-configurations, and only
    logs on legacy models.
    """
    found: dict[int, Any] = {}
    queue: list[Any] = [
        m.config for m in model.modules() if hasattr(getattr(m, "config", None), "sub_configs")
    ]
    while queue:
        config = queue.pop()
        if id(config) in found or not hasattr(config, "_attn_implementation_internal"):
            continue
        found[id(config)] = config
        queue += [sub for name in config.sub_configs if (sub := getattr(config, name, None)) is not None]
    return list(found.values())


@contextmanager
def implementation(model: nn.Module, name: str) -> Iterator[None]:
    """Runs the model under the attention implementation ``name`` inside the block."""
    mine = configs(model)
    _acquire(mine, name, type(model).__name__)
    try:
        yield
    finally:
        _release(mine)


def original_implementation(module: nn.Module) -> str | None:
    """The implementation that ``module`` has when nobody captures it; None when it has no configuration."""
    config = getattr(module, "config", None)
    with _condition:
        held = _held.get(id(config))
        if held is not None:
            return held.original
    # A deep copy taken during a run carries the name of that run.
    name = getattr(config, "_attn_implementation_internal", None)
    return "eager" if name == "attnscope" else name


def _acquire(mine: list[Any], name: str, model: str) -> None:
    me = threading.get_ident()
    with _condition:
        _condition.wait_for(lambda: all(_held[id(c)].owner == me for c in mine if id(c) in _held))
        for config in mine:
            held = _held.get(id(config))
            if held is not None and held.current != name:
                raise RuntimeError(
                    f"capture: {model} is being run with attention {held.current!r} further up in this "
                    f"thread; finish that run before one with {name!r}"
                )
        for config in mine:
            held = _held.get(id(config))
            if held is not None:
                held.depth += 1
                continue
            _held[id(config)] = _Held(config, config._attn_implementation_internal, name, me)
            config._attn_implementation_internal = name


def _release(mine: list[Any]) -> None:
    with _condition:
        for config in mine:
            held = _held[id(config)]
            held.depth -= 1
            if held.depth == 0:
                config._attn_implementation_internal = held.original
                del _held[id(config)]
        _condition.notify_all()
