# SPDX-License-Identifier: MIT
"""Forward passes that leave a model, its configuration and the random states as they were.

Some models change themselves when they run: BigBird switches to full attention for good when a text is short,
Reformer writes a number of buckets into its configuration, a rotary embedding keeps the frequencies of the
longest text. A trial of such a model must not decide how it computes for its owner.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# Containers of a module that hold its parts; of other containers the plain ones are copied.
_PARTS = ("_parameters", "_buffers", "_modules")
_COPIED = (list, dict, set)
# The mark of transformers at a model with hooks for its attention.
_INSTALLED = "_output_capturing_hooks_installed"
_HOOKS = ("_hooks", "_hooks_with_kwargs", "_hooks_always_called")
# Buffers of more elements are watched, but not copied.
_SMALL = 1 << 16


@dataclass
class Effects:
    """The effects that a forward pass had before they were undone.

    Attributes:
        settings: names of what it changed in modules and configurations, tensors apart: the model computes in
            another way from then on.
        tensors: names of the tensors that it changed or put into modules, as states of earlier passes.
        drew: True if it changed a global random state.
    """

    settings: list[str] = field(default_factory=list)
    tensors: list[str] = field(default_factory=list)
    drew: bool = False

    @property
    def has_changes(self) -> bool:
        """True if it changed the model."""
        return bool(self.settings or self.tensors)


# Effects of the trial passes of a model, by model.
_effects_by_model: weakref.WeakKeyDictionary[nn.Module, Effects] = weakref.WeakKeyDictionary()


def remember(model: nn.Module, effects: Effects) -> None:
    """Note that passes of the model have these effects, so that later passes undo them."""
    remembered = _effects_by_model.setdefault(model, Effects())
    remembered.settings += [name for name in effects.settings if name not in remembered.settings]
    remembered.tensors += [name for name in effects.tensors if name not in remembered.tensors]
    remembered.drew |= effects.drew


@contextmanager
def preserved(model: nn.Module) -> Iterator[Effects]:
    """Undo at the end of the block all that happened to the model and to the random states inside it.

    Gives the effects, which are complete behind the block.
    """
    effects = Effects()
    _release_gathered(model)
    states, restore, remove = _random_states(), _snapshot(model, model.modules()), _hooks_before(model)
    try:
        yield effects
    finally:
        remove("")
        _release_gathered(model)
        restore(effects)
        effects.drew = _restore_random(states)


@contextmanager
def preserved_run(model: nn.Module) -> Iterator[None]:
    """Undo at the end of a run what the model does to itself.

    The loop over layers is the caller's, who may change the model and draw random numbers in it. So all of
    the model, and the random states, are put back only where trial passes have shown that the model changes
    them; of other models the modules with buffers, as rotary embeddings that follow the longest text.
    """
    effects = _effects_by_model.get(model, Effects())
    modules = model.modules() if effects.has_changes else (m for m in model.modules() if m._buffers)
    _release_gathered(model)
    restore, remove = _snapshot(model if effects.has_changes else None, modules), _hooks_before(model)
    states = _random_states() if effects.drew else None
    try:
        yield
    finally:
        remove("transformers.")
        _release_gathered(model)
        restore(Effects())
        if states is not None:
            _restore_random(states)


def _release_gathered(model: nn.Module) -> None:
    """Let modules of FSDP give up the weights that they gathered from other processes.

    The root keeps its weights after a pass. They lie in the modules in the place of its share, and it is
    FSDP's to put that back: otherwise it holds the weights for gathered and does not gather them again.
    """
    for module in model.modules():
        if hasattr(type(module), "unshard") and hasattr(type(module), "reshard"):
            module.reshard()  # type: ignore[operator]


class EvaluationMode:
    """Every module of a model in evaluation mode, until `put_back`."""

    def __init__(self, model: nn.Module) -> None:
        self._training = [module for module in model.modules() if module.training]
        for module in self._training:
            module.training = False

    def put_back(self) -> None:
        """Set the modules in training mode that were."""
        for module in self._training:
            module.training = True
        self._training = []


def _snapshot(model: nn.Module | None, modules: Iterable[nn.Module]) -> Callable[[Effects], None]:
    """Return a function that puts the modules and a model's configurations back and notes the changes."""
    owners: list[tuple[str, Any]] = [(type(module).__name__, module) for module in modules]
    if model is not None:
        owners += [(type(config).__name__, config) for config in _configurations(model)]
    attributes = [_attributes(owner) for _, owner in owners]
    tensors = [
        (f"{name}.{place}", tensor, tensor._version, tensor.clone() if tensor.numel() <= _SMALL else None)
        for name, owner in owners
        if isinstance(owner, nn.Module)
        for place, tensor in owner._buffers.items()
        if tensor is not None and not tensor.is_meta and not tensor.is_inference()
    ]

    def restore(effects: Effects) -> None:
        for (name, owner), (values, copies) in zip(owners, attributes, strict=True):
            settings, states = _put_back(owner, values, copies)
            effects.settings += [f"{name}.{attribute}" for attribute in settings]
            effects.tensors += [f"{name}.{attribute}" for attribute in states]
        for name, tensor, version, copy in tensors:
            if tensor._version != version:
                effects.tensors.append(name)
                if copy is not None:
                    with torch.no_grad():
                        tensor.copy_(copy)

    return restore


def _hooks_before(model: nn.Module) -> Callable[[str], None]:
    """Return a function that removes the hooks that were added since to a model's modules.

    It takes the beginning of the names of the Python modules whose hooks are removed. transformers adds hooks
    to a model for good when it is first asked for its attention, and marks the model.
    """
    before = [
        (module, _INSTALLED in vars(module), {number for hooks in _hooks_of(module) for number in hooks})
        for module in model.modules()
    ]

    def remove(origin: str) -> None:
        for module, marked, numbers in before:
            if not marked:
                vars(module).pop(_INSTALLED, None)
            for hooks in _hooks_of(module):
                for number in [number for number in hooks if number not in numbers]:
                    if str(getattr(hooks[number], "__module__", "")).startswith(origin):
                        del hooks[number]

    return remove


def _hooks_of(module: nn.Module) -> list[dict[int, Any]]:
    """Return the tables of a module's forward hooks."""
    return [module._forward_hooks, module._forward_pre_hooks]


def _configurations(model: nn.Module) -> list[Any]:
    """Return the configuration objects of a model's modules, and those inside them."""
    configurations: dict[int, Any] = {}
    queue = [
        getattr(module, name, None) for module in model.modules() for name in ("config", "generation_config")
    ]
    while queue:
        config = queue.pop()
        if config is None or id(config) in configurations or not hasattr(config, "to_dict"):
            continue
        configurations[id(config)] = config
        queue += list(vars(config).values())
    return list(configurations.values())


def _attributes(owner: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the attributes of a module or configuration, and copies of those that are containers.

    Hooks are left out: captures add and remove their own.
    """
    values = {
        name: value for name, value in vars(owner).items() if not name.endswith(_HOOKS) and name != _INSTALLED
    }
    copies = {
        name: value.copy()
        for name, value in values.items()
        if name in _PARTS or (type(value) in _COPIED and len(value) < 1000)
    }
    return values, copies


def _put_back(owner: Any, values: dict[str, Any], copies: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Give a module or configuration its attributes back.

    Returns:
        The names of the attributes that differed: those that are no tensors, and tensors.
    """
    _drop_methods(owner, values)
    now, _ = _attributes(owner)
    settings: list[str] = []
    states: list[str] = []
    for name in {**values, **now}:
        before, after = values.get(name), now.get(name)
        if before is not after:
            if name in values:
                vars(owner)[name] = before
            else:
                del vars(owner)[name]
            _note(name, before, after, settings, states)
    for name, copy in copies.items():
        container = values[name]
        if isinstance(container, dict):
            keys = [key for key in {**copy, **container} if copy.get(key) is not container.get(key)]
            if not keys:
                continue
            for key in keys:
                _note(str(key), copy.get(key), container.get(key), settings, states)
        elif container == copy if isinstance(container, set) else _same_objects(container, copy):
            continue
        else:
            settings.append(name)
        container.clear()
        if isinstance(container, list):
            container.extend(copy)
        else:
            container.update(copy)
    return settings, states


def _drop_methods(owner: Any, before: Collection[str]) -> None:
    """Remove new attributes of a module that are the methods of its class, which change nothing.

    transformers 4 wraps `forward` of modules while it collects their outputs, and sets it so afterwards.
    """
    for name, value in list(vars(owner).items()):
        function = None if name in before else getattr(value, "__func__", None)
        if function is not None and value.__self__ is owner and function is getattr(type(owner), name, None):
            del vars(owner)[name]


def _same_objects(objects: list[Any], other: list[Any]) -> bool:
    """Return True if two lists hold the same objects."""
    return len(objects) == len(other) and all(a is b for a, b in zip(objects, other, strict=True))


def _note(name: str, before: Any, after: Any, settings: list[str], states: list[str]) -> None:
    """Add the name of an attribute that holds another object now to the changes, if the values differ."""
    if all(value is None or torch.is_tensor(value) for value in (before, after)):
        states.append(name)
    elif type(before) is not type(after) or not isinstance(after, int | float | str) or before != after:
        settings.append(name)


def _random_states() -> tuple[Any, ...]:
    """Return the states of the generators that code without one of its own draws from."""
    cuda: list[Tensor] = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return torch.get_rng_state(), cuda, np.random.get_state(), random.getstate()  # noqa: NPY002


def _restore_random(states: tuple[Any, ...]) -> bool:
    """Put the generators back and return True if one of them had moved."""
    torch_state, cuda, numpy_state, python_state = states
    now = _random_states()
    unchanged = (
        torch.equal(now[0], torch_state) and all(map(torch.equal, now[1], cuda)) and now[3] == python_state
    )
    unchanged = unchanged and all(np.array_equal(a, b) for a, b in zip(now[2], numpy_state, strict=True))
    if not unchanged:
        torch.set_rng_state(torch_state)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)
    return not unchanged
