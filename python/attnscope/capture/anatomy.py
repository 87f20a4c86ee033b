# SPDX-License-Identifier: MIT
"""What a pass shows of a model: which module ran when, what it was given and what it handed on.

Among a module's arguments and in its output, the residual stream is the first tensor.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from attnscope.models.architecture import has_matrices, has_norm


def choose(wanted: Collection[int] | None, total: int, what: str) -> list[int]:
    """Non-negative numbers for ``wanted``, in its order."""
    if wanted is None:
        return list(range(total))
    outside = [i for i in wanted if not -total <= i < total]
    if outside:
        raise ValueError(f"capture: {what}: {outside} out of range for {total} (-{total} to {total - 1})")
    return [i + total if i < 0 else i for i in wanted]


def instead(given: object) -> str:
    """What to give in the place of an object that is not a model: a name is loaded, a wrapper holds one."""
    if isinstance(given, str):
        return f"; attnscope.models.load_model loads one: load_model(find_checkpoints({given!r})[0]).model"
    held = (name for name in ("original_model", "_model", "model") if hasattr(given, name))
    name = next(held, "")
    return f"; the model that it holds may be its .{name}" if name else ""


def absent(model: nn.Module, inputs: Mapping[str, Any]) -> str:
    """What a model lacks that refuses its inputs, in words."""
    name = type(model).__name__
    if "input_ids" in inputs or "inputs_embeds" in inputs:
        return f"run: {name} has a decoder, which needs inputs of its own: give decoder_input_ids"
    return f'run: {name} takes token ids: run(**tokenizer(text, return_tensors="pt"))'


def text_argument(function: str, name: str, text: str) -> str:
    """A text that has something to read in it."""
    if not text.strip():
        raise ValueError(f"{function}: {name} is an empty text: {text!r}")
    return text


def takes(model: nn.Module, argument: str) -> bool:
    """Whether the model's forward pass names the argument."""
    return argument in inspect.signature(model.forward).parameters


def output_projection(core: str, block: str, modules: Mapping[str, nn.Module], trace: Trace) -> str | None:
    """Name of the first module with matrices that runs after the softmax of the attention named ``core``."""
    start = None
    inside = False
    for i, (event, name) in enumerate(trace.events):
        if name == core and event in ("enter", "exit"):
            inside = event == "enter"
            if not inside and start is not None:
                break
        elif event == "softmax" and (name == core or (inside and name == "")):
            start = i
    if start is None:
        return None
    for event, name in trace.events[start + 1 :]:
        if event == "exit" and name == block:
            return None
        if event != "enter" or not name.startswith(f"{block}."):
            continue
        module = modules[name]
        if has_matrices(module) and not has_norm(module) and name not in trace.mixing:
            return name
    return None


def first_matrix(
    block: str,
    cores: Collection[str],
    projections: Collection[str | None],
    modules: Mapping[str, nn.Module],
    trace: Trace,
) -> str | None:
    """Name of the first matrix that runs in the block when its attention is over."""
    over = {*cores, *(name for name in projections if name)}
    last = max(
        (i for i, (event, name) in enumerate(trace.events) if event == "exit" and name in over), default=None
    )
    if last is None:
        return None
    for event, name in trace.events[last + 1 :]:
        if event == "exit" and name == block:
            return None
        if event != "enter" or not name.startswith(f"{block}.") or not has_matrices(modules[name]):
            continue
        if not any(has_matrices(child) for child in modules[name].children()):
            return name
    return None


class Trace:
    """Which module ran when in one forward pass, and which ones took more than the residual stream.

    Attributes:
        events: ``("enter" | "exit" | "softmax", module name)`` in order; the name of a softmax is empty when
            only its place between the modules tells whose it is.
        mixing: modules that were given two tensors of one shape: they add the residual themselves.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.mixing: set[str] = set()

    @contextmanager
    def watching(self, modules: Mapping[str, nn.Module]) -> Iterator[None]:
        """Logs the modules' calls inside the block."""

        def enter(name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.events.append(("enter", name))
            shapes = [
                t.shape for t in (*args, *kwargs.values()) if torch.is_tensor(t) and t.is_floating_point()
            ]
            if shapes and shapes.count(shapes[0]) > 1:
                self.mixing.add(name)

        def leave(name: str, *_: Any) -> None:
            self.events.append(("exit", name))

        with ExitStack() as hooks:
            for name, module in modules.items():
                hooks.enter_context(module.register_forward_pre_hook(partial(enter, name), with_kwargs=True))
                hooks.enter_context(module.register_forward_hook(partial(leave, name), prepend=True))
            yield

    def softmaxes(self) -> TorchDispatchMode:
        """A mode that logs every softmax, for models whose attention does not say when it runs."""
        return _SoftmaxWatch(self)


class _SoftmaxWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, trace: Trace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._trace = trace

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "softmax" in str(func):
            self._trace.events.append(("softmax", ""))
        return func(*args, **(kwargs or {}))


def _place(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | str:
    """The first argument if it is a tensor, else ``hidden_states``, else the first tensor given by name."""
    if args and torch.is_tensor(args[0]):
        return 0
    for name in ("hidden_states", *kwargs):
        if torch.is_tensor(kwargs.get(name)):
            return name
    raise RuntimeError(
        f"capture: no tensor among the arguments {[type(a).__name__ for a in args]}, {sorted(kwargs)}"
    )


def entering(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The residual stream, or what a sub-layer made of it, among a module's arguments."""
    place = _place(args, kwargs)
    tensor = args[place] if isinstance(place, int) else kwargs[place]
    assert torch.is_tensor(tensor)
    return tensor


def with_entering(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], tensor: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with another tensor in that place."""
    place = _place(args, kwargs)
    if isinstance(place, int):
        return (tensor, *args[1:]), dict(kwargs)
    return args, {**kwargs, place: tensor}


def leaving(output: Any) -> Tensor:
    """The tensor that a module hands on: its output or the first part of it."""
    tensor = output if torch.is_tensor(output) else output[0]
    assert torch.is_tensor(tensor)
    return tensor


def with_leaving(output: Any, tensor: Tensor) -> Any:
    """The output with another tensor in that place."""
    if torch.is_tensor(output):
        return tensor
    if isinstance(output, tuple):
        rest = (tensor, *output[1:])
        return type(output)(*rest) if hasattr(output, "_fields") else rest
    output[next(iter(output)) if hasattr(output, "keys") else 0] = tensor
    return output
