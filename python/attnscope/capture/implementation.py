# SPDX-License-Identifier: MIT
"""The attention implementation of a model during one run, and the weights that eager attention returns.

The name of the attention lives on the configuration objects, which every thread and every part of the model
shares. So a run holds them; another thread that wants to capture the same model waits, the same thread may
nest. They are restored whatever happens.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from attnscope._warn import warn
from attnscope.capture.layer import Layer
from attnscope.capture.layer_builder import LayerBuilder
from attnscope.capture.module_tracing import named_arguments
from attnscope.capture.recorder import LIVE, Recorder
from attnscope.capture.visibility import float_mask


@dataclass
class _Held:
    """The holder of a configuration.

    Attributes:
        original: its implementation without a run.
        owner: the thread that runs and edits belong to.
        depth: how many of them hold it.
        set_aside: how many of these do not count, because a trial gave it its original back.
    """

    original: str | None
    owner: int
    depth: int = 0
    set_aside: int = 0


# Whose run the code of this context belongs to: the thread that a run's layers go to, also in its worker.
_OWNER: ContextVar[int | None] = ContextVar("attnscope_owner", default=None)
_condition = threading.Condition()
_held: dict[int, _Held] = {}
# Seconds between two looks at whether the thread that a run waits for waits for this one.
_LOOK_AGAIN = 0.2
# Seconds of waiting after which that is said: what the other thread waits for cannot be seen in every case.
_SAY_AFTER = 30.0


def run_owner() -> int:
    """Return the thread whose run this code is part of."""
    owner = _OWNER.get()
    return threading.get_ident() if owner is None else owner


def belong_to(owner: int) -> None:
    """Make what runs in this context part of a thread's run.

    A run that begins inside another, in a hook or a logits processor, would wait for that one to end.
    """
    _OWNER.set(owner)


def configs(model: nn.Module) -> list[Any]:
    """Return every configuration object that decides about attention in ``model``, each once.

    They are saved one by one: ``set_attn_implementation`` would flatten mixed sub-configurations, and only
    logs on legacy models.
    """
    configurations: dict[int, Any] = {}
    queue: list[Any] = [
        m.config for m in model.modules() if hasattr(getattr(m, "config", None), "sub_configs")
    ]
    while queue:
        config = queue.pop()
        if id(config) in configurations or not hasattr(config, "_attn_implementation_internal"):
            continue
        configurations[id(config)] = config
        queue += [sub for name in config.sub_configs if (sub := getattr(config, name, None)) is not None]
    return list(configurations.values())


@contextmanager
def implementation(model: nn.Module, name: str = "") -> Iterator[None]:
    """Run the model under the attention implementation ``name``, if one is given, inside the block.

    It runs as written: compiled code would not look at hooks added later.
    """
    held_configs = configs(model) if name else []
    me = run_owner()
    say_at = time.monotonic() + _SAY_AFTER
    with _condition:
        while not _condition.wait_for(
            lambda: all(_held[id(c)].owner == me for c in held_configs if id(c) in _held), _LOOK_AGAIN
        ):
            for owner in {_held[id(c)].owner for c in held_configs if id(c) in _held} - {me}:
                if _waits_for(owner, me):
                    raise RuntimeError(
                        f"capture: {type(model).__name__} is being run in thread {_thread_name(owner)}, "
                        f"whose loop over layers waits for thread {_thread_name(me)}; begin a second run "
                        "of the model in the loop's own thread, or after the loop"
                    )
                if time.monotonic() > say_at:
                    say_at = math.inf
                    warn(
                        f"capture: thread {_thread_name(me)} has waited {_SAY_AFTER:g} s for the run of "
                        f"{type(model).__name__} in thread {_thread_name(owner)} to end; if the loop over "
                        "layers there waits for this thread, through a queue or an event, neither goes on: "
                        "begin a second run of the model in the loop's own thread, or after the loop",
                        UserWarning,
                    )
        for config in held_configs:
            current, held = config._attn_implementation_internal, _held.get(id(config))
            if held is not None and held.depth > held.set_aside and current != name:
                raise RuntimeError(
                    f"capture: {type(model).__name__} is being run with attention {current!r} further up in "
                    f"this thread; finish that run before one with {name!r}"
                )
        for config in held_configs:
            original = config._attn_implementation_internal
            _held.setdefault(id(config), _Held(original, me)).depth += 1
            config._attn_implementation_internal = name
    compiled = any(
        getattr(m, "_compiled_call_impl", None) is not None or hasattr(m, "_orig_mod")
        for m in model.modules()
    )
    try:
        stance: Any = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
        with stance:
            yield
    finally:
        with _condition:
            for config in held_configs:
                held = _held[id(config)]
                held.depth -= 1
                if held.depth == held.set_aside:
                    config._attn_implementation_internal = held.original
                if held.depth == 0:
                    del _held[id(config)]
            _condition.notify_all()


@contextmanager
def original_implementations(model: nn.Module) -> Iterator[None]:
    """Run a model inside the block as it is without the runs and edits of this thread, which hold it on.

    For trials of a model, which may begin inside an edit.
    """
    with _condition:
        holds = [(config, _held[id(config)]) for config in configs(model) if id(config) in _held]
        holds = [(config, held) for config, held in holds if held.owner == run_owner()]
        before = [(config._attn_implementation_internal, held.set_aside) for config, held in holds]
        for config, held in holds:
            config._attn_implementation_internal = held.original
            held.set_aside = held.depth
    try:
        yield
    finally:
        with _condition:
            for (config, held), (name, set_aside) in zip(holds, before, strict=True):
                config._attn_implementation_internal = name
                held.set_aside = set_aside


def _waits_for(waiting: int, thread: int) -> bool:
    """Return True if a thread waits until another ends, or until the future is there that it computes."""
    frames = sys._current_frames()
    # Locals of no other frame are looked at: a frame would keep them, and a layer may be among them.
    computed = [
        getattr(frame.f_locals.get("self"), "future", None)
        for frame in _stack(frames.get(thread))
        if frame.f_code.co_name == "run" and frame.f_globals.get("__name__") == "concurrent.futures.thread"
    ]
    for frame in _stack(frames.get(waiting)):
        if frame.f_code is threading.Thread.join.__code__ and frame.f_locals["self"].ident == thread:
            return True
        if frame.f_code is Future.result.__code__ and any(frame.f_locals["self"] is f for f in computed):
            return True
    return False


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _thread_name(ident: int) -> str:
    return next((thread.name for thread in threading.enumerate() if thread.ident == ident), str(ident))


def original_implementation(module: nn.Module) -> str | None:
    """Return the implementation that ``module`` has outside of a capture; None when it has no
    configuration.
    """
    config = getattr(module, "config", None)
    with _condition:
        if held := _held.get(id(config)):
            return held.original
    # A deep copy taken during a run carries the name of that run.
    name = getattr(config, "_attn_implementation_internal", None)
    return "eager" if name == "attnscope" else name


@contextmanager
def capture_eager_weights(
    recorder: Recorder,
    weights: dict[str, int],
    *,
    discover: bool = False,
    forced: Collection[str] = (),
    silent: set[str] | None = None,
) -> Iterator[None]:
    """Take the weights out of the outputs of eager modules and leave None in their place (second tier).

    Args:
        recorder: takes the weights.
        weights: the place of the weights in the output of each attention module, by its name.
        discover: watch every module with children and fill `weights`; the innermost module that returns
            weights is the attention.
        forced: modules that are given ``output_attentions=True``, whatever the block around them asks.
        silent: with `discover`, filled with the attention modules that returned no weights in some call.
    """

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if LIVE.get() is not recorder or not isinstance(output, tuple | list):
            return None
        name = recorder.names[id(module)]
        places = range(len(output) - 1, 0, -1) if discover else (weights[name],)
        for place in places:
            tensor = output[place] if place < len(output) else None
            if discover and not _looks_like_weights(tensor):
                continue
            if not torch.is_tensor(tensor):
                raise RuntimeError(f"capture: {name} returned no attention weights this time")
            weights[name] = place
            arguments = named_arguments(module, args, kwargs)
            cross = _reads_two_sequences(arguments)
            recorder.take_weights(module, tensor, _mask_argument(arguments), cross=cross)
            return type(output)([*output[:place], None, *output[place + 1 :]])
        if silent is not None and name in weights:
            silent.add(name)
        return None

    def ahead(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if LIVE.get() is not recorder:
            return None
        recorder.raise_if_abandoned()
        name = recorder.names[id(module)]
        return (args, {**kwargs, "output_attentions": True}) if name in forced else None

    with ExitStack() as hooks:
        for name, module in recorder.modules.items():
            if name in forced or (name in weights and not discover):
                hooks.enter_context(module.register_forward_pre_hook(ahead, with_kwargs=True))
            if name in weights or (discover and name and any(True for _ in module.children())):
                hooks.enter_context(module.register_forward_hook(hook, with_kwargs=True, prepend=True))
        yield


def _mask_argument(arguments: Mapping[str, Any]) -> Tensor | None:
    """Return the mask [B, h, q, k] among the arguments of an attention module."""
    masks = (arguments.get(name) for name in ("attention_mask", "mask"))
    return next((mask for mask in masks if torch.is_tensor(mask) and mask.ndim == 4), None)


def _reads_two_sequences(arguments: Mapping[str, Any]) -> bool:
    """Return True if an attention module reads keys of another sequence than its queries' (LXMERT)."""
    states, context = arguments.get("hidden_states"), arguments.get("context")
    return torch.is_tensor(context) and states is not context


def attention_outputs(
    output: Any, inputs: Mapping[str, Any], recorder: Recorder, field: str = ""
) -> list[Layer]:
    """Return the layers of the third tier, taken out of what the model returned.

    Args:
        output: of the model under ``output_attentions=True``; outputs of its parts may be inside it.
        inputs: of the model.
        recorder: has watched the pass, and so knows which module computed a map.
        field: name of the output inside that of the model.
    """
    layers: list[Layer] = []
    addresses: set[int] = set()
    for name in [name for name in output if name.endswith("attentions")] if hasattr(output, "keys") else ():
        for index, tensor in enumerate(output[name] if isinstance(output[name], tuple | list) else ()):
            if not _looks_like_weights(tensor) or tensor.data_ptr() in addresses:
                continue
            addresses.add(tensor.data_ptr())  # an output may list the maps of a part of the model again
            builder = LayerBuilder(f"{field}{name}", index)
            builder.size, builder.total = (tensor.shape[0], tensor.shape[2]), tensor.shape[1]
            builder.layer.heads = builder.layer.kv_heads = tuple(range(builder.total))
            builder.layer.cross = name.startswith("cross")
            builder.layer.tensors = {"attention": tensor}
            of_tokens = name != "decoder_attentions" and not field
            recorder.describe_output(builder, inputs.get("attention_mask") if of_tokens else None)
            layers.append(builder.layer)
        if output[name] is not None:
            output[name] = None
    for name in list(output) if hasattr(output, "keys") else ():
        if hasattr(output[name], "keys"):
            layers += attention_outputs(output[name], inputs, recorder, f"{field}{name}.")
    return layers


def _looks_like_weights(tensor: Any) -> bool:
    if not (torch.is_tensor(tensor) and tensor.ndim == 4 and tensor.is_floating_point() and tensor.numel()):
        return False
    sums = tensor.sum(-1, dtype=torch.float32)
    defined = ~sums.isnan()  # a query that sees no key may be NaN
    if not bool(defined.any()):  # and so may all be, where the weights of the model are
        return tensor.shape[-1] == tensor.shape[-2]
    return not bool((tensor < 0).any()) and 0.01 < float(sums[defined].max()) < 1.02


def float_masks(inputs: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Return the inputs for eager attention, which adds its mask: a boolean one would count as 0 and 1.

    A model whose own attention is eager gets them as they are: what it computes is what is measured.
    """
    dtype = next(model.parameters()).dtype
    arguments = dict(inputs)
    if original_implementation(model) == "eager":
        return arguments
    for name, mask in inputs.items():
        of_maps = name.endswith("attention_mask") and torch.is_tensor(mask) and mask.ndim == 4
        if of_maps and mask.dtype == torch.bool:
            arguments[name] = float_mask(mask, dtype)
    return arguments
