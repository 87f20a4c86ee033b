# SPDX-License-Identifier: MIT
"""The order of a model's modules in a pass, with the inputs and outputs of each.

Families name their modules differently, so none is found by name: one short pass is watched, and the order
of calls says which module projects the heads' output, where the block begins and what leaves it.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from attnscope.models.architecture import has_matrices, has_norm, text_config
from attnscope.models.layer_numbers import LayerNumbers

#: What versions of transformers call the argument that holds the keys and values of earlier passes.
CACHE = ("cache", "past_key_values")


def indices_argument(function: str, name: str, chosen: Any) -> list[int] | None:
    """Return numbers of layers or heads, or a single one, as integers; None stands for all.

    Raises:
        ValueError: no number, and what is none.
    """
    if chosen is None:
        return None
    words = f"{function}: {name} must be whole numbers, at least one, got {chosen!r}"
    try:
        numbers = [chosen] if isinstance(chosen, int) or getattr(chosen, "ndim", 1) == 0 else list(chosen)
        # a flag is no number, though Python counts with it
        indices = [operator.index(number) for number in numbers if not isinstance(number, (bool, np.bool_))]
    except (TypeError, RuntimeError):
        raise ValueError(words) from None
    if not indices or len(indices) < len(numbers):
        raise ValueError(words)
    return indices


def resolve_indices(numbers: Collection[int] | None, total: int, label: str) -> list[int]:
    """Return the non-negative numbers of ``numbers``, in its order."""
    if numbers is None:
        return list(range(total))
    outside = [i for i in numbers if not -total <= i < total]
    if outside:
        raise ValueError(f"capture: {label}: {outside} out of range for {total} (-{total} to {total - 1})")
    return [i + total if i < 0 else i for i in numbers]


def text_argument(function: str, name: str, text: str) -> str:
    """Return a text that has something to read in it."""
    if not text.strip():
        raise ValueError(f"{function}: {name} is an empty text: {text!r}")
    return text


def takes(model: nn.Module, argument: str) -> bool:
    """Return True if the model's forward pass names the argument."""
    return argument in inspect.signature(model.forward).parameters


def cached_tokens(inputs: Mapping[str, Any]) -> int:
    """Return how many tokens of earlier passes the cache among the inputs of a pass holds."""
    cache: Any = next((inputs[name] for name in CACHE if inputs.get(name) is not None), None)
    return int(cache.get_seq_length()) if hasattr(cache, "get_seq_length") else 0


def named_arguments(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of the module by name."""
    if not args:
        return dict(kwargs)
    return {**dict(zip(inspect.signature(module.forward).parameters, args, strict=False)), **kwargs}


def reads_tokens(module: nn.Module, inputs: Mapping[str, Any]) -> bool:
    """Return True if a (sub)model is given tokens or their embeddings, and no image or sound."""
    main = getattr(module, "main_input_name", None)
    values = [inputs.get(name) for name in ("input_ids", "inputs_embeds")]
    if main is not None and torch.is_tensor(inputs.get(main)):
        values += [inputs[main]] if not inputs[main].is_floating_point() else []
    return any(torch.is_tensor(value) for value in values)


class TokenMasks:
    """The masks of the tokens that a model and the models inside it read in one forward pass.

    Args:
        modules: of the model, by name.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules
        # By name of the (sub)model that was given them; None where it reads no tokens.
        self._masks: dict[str, Tensor | None] = {}
        # The same of tokens that came without any mask: which of them are no padding for certain.
        self._unmasked: dict[str, Tensor | None] = {}

    def enter(self, name: str, inputs: Mapping[str, Any]) -> None:
        """Take the mask of a (sub)model that begins; the outermost one begins the pass."""
        if not name:
            self._masks.clear()
            self._unmasked.clear()
        mask = inputs.get("attention_mask")
        self._unmasked[name] = _real_without_mask(self._modules[name], inputs)
        if torch.is_tensor(mask) and mask.ndim == 2:
            self._masks[name] = mask
        elif name and reads_tokens(self._modules[name], inputs):
            self._masks.pop(name, None)  # the mask of the model around it is about the same tokens
        else:
            self._masks[name] = None

    def of(self, name: str) -> Tensor | None:
        """Return the mask [B, n] of the tokens that a module reads, from the nearest model around it."""
        return self._nearest(self._masks, name)

    def unmasked(self, name: str) -> Tensor | None:
        """Return which of the tokens [B, n] that a module reads are real though no mask says it; None under
        a mask.

        The layers of a sparse attention may leave a token to no query, which makes no padding of it.
        """
        return None if self.of(name) is not None else self._nearest(self._unmasked, name)

    def _nearest(self, masks: Mapping[str, Tensor | None], name: str) -> Tensor | None:
        """Return the mask of the nearest model around a module."""
        parts = name.split(".")
        for cut in range(len(parts), -1, -1):
            model = ".".join(parts[:cut])
            if model not in masks:
                continue
            # the mask that is given to an encoder and a decoder is the encoder's
            of_decoder = any("decoder" in part for part in parts[cut:])
            if of_decoder and takes(self._modules[model], "decoder_input_ids"):
                return None
            return masks[model]
        return None


def _real_without_mask(module: nn.Module, inputs: Mapping[str, Any]) -> Tensor | None:
    """Return which tokens [B, n] of a (sub)model, those of its cache first, are no padding for certain.

    None where a mask says it, and where the model is given no tokens. Some models take their padding from the
    tokens, where it is one of them like any other.
    """
    tokens = next(
        (t for t in (inputs.get("input_ids"), inputs.get("inputs_embeds")) if torch.is_tensor(t)), None
    )
    if inputs.get("attention_mask") is not None or tokens is None or tokens.ndim < 2:
        return None
    past = cached_tokens(inputs)
    real = torch.ones(tokens.shape[0], past + tokens.shape[1], dtype=torch.bool, device=tokens.device)
    padding = getattr(text_config(getattr(module, "config", None)), "pad_token_id", None)
    if tokens.ndim == 2 and isinstance(padding, int):
        real[:, past:] = tokens != padding
    return real


@contextmanager
def entering(
    modules: Mapping[str, nn.Module],
    numbers: LayerNumbers,
    enter_model: Callable[[str, dict[str, Any]], None],
    is_live: Callable[[], bool],
) -> Iterator[None]:
    """Count the runs of shared blocks, and name each (sub)model that begins with its inputs.

    A pass begins with the outermost module. Where `generate` hands over to a model inside, as an adapter's
    does, and that of a model of pictures to its decoder, the pass is that model's, and begins with it.

    Args:
        modules: of the model, by name.
        numbers: of its layers.
        enter_model: takes the name of a model and its inputs by name.
        is_live: whether the pass that runs in this thread is the one listened to.
    """
    from transformers import GenerationMixin, PreTrainedModel

    models = [name for name, module in modules.items() if isinstance(module, PreTrainedModel)]
    outermost = [name for name in models if name and not any(_is_inside(name, other) for other in models)]
    writing = [name for name in models if name and isinstance(modules[name], GenerationMixin)]
    # a prompt that is read in pieces may come in by the forward function, past the hooks of the module itself
    bodies = {id(modules[name].base_model) for name in ("", *writing) if name in models}
    #: Modules whose run is a pass, unless another one is under way.
    beginning = {"", *outermost, *writing, *(name for name in models if id(modules[name]) in bodies)}
    running: set[str] = set()

    # A deep copy of the model copies its hooks: functions as they are, bound methods with their object.
    def starting(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            if not is_live():
                return
            inputs = named_arguments(module, args, kwargs)
            if name and name in beginning and not running:
                enter_model("", inputs)
            if name in beginning:
                running.add(name)
            enter_model(name, inputs)

        return hook

    def ending(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if is_live():
                running.discard(name)

        return hook

    def counting(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if is_live():
                numbers.enter_block(name)

        return hook

    with ExitStack() as hooks:
        for name in numbers.single:
            hooks.enter_context(modules[name].register_forward_pre_hook(counting(name)))
        for name in dict.fromkeys(["", *models]):
            hooks.enter_context(modules[name].register_forward_pre_hook(starting(name), with_kwargs=True))
        for name in beginning:
            hooks.enter_context(modules[name].register_forward_hook(ending(name), always_call=True))
        yield


def _is_inside(name: str, other: str) -> bool:
    """Return True if a module lies inside another one, by their names."""
    return name != other and (not other or name.startswith(f"{other}."))


class Trace:
    """The order of the modules in one forward pass, and the modules that took more than the residual stream.

    Attributes:
        modules: that are watched, by name.
        events: ``("enter" | "exit" | "softmax", module name)`` in order; the name of a softmax is empty when
            only its place between the modules tells whose it is.
        mixing: modules that were given two tensors of one shape: they add the residual themselves.
        given: the identity of the first tensor that each module was given last, valid while it runs.
        tokens_first: modules that were given or hand on states [q, B, D], see `is_tokens_first`.

    Args:
        modules: see above.
        sizes: texts and tokens (B, q) of what the model reads.
    """

    def __init__(self, modules: Mapping[str, nn.Module], sizes: Collection[tuple[int, int]] = ()) -> None:
        self.modules = modules
        self.tokens_first: set[str] = set()
        self._sizes = sizes
        self.events: list[tuple[str, str]] = []
        self.mixing: set[str] = set()
        self.given: dict[str, int] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Log the modules' calls inside the block."""

        def enter(name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.events.append(("enter", name))
            tensors = [t for t in (*args, *kwargs.values()) if torch.is_tensor(t) and t.is_floating_point()]
            self.given[name] = id(tensors[0]) if tensors else 0
            self._note_axes(name, tensors[0] if tensors else None)
            shapes = [tensor.shape for tensor in tensors]
            if shapes and shapes.count(shapes[0]) > 1:
                self.mixing.add(name)

        def leave(name: str, _: nn.Module, __: Any, output: Any) -> None:
            self.events.append(("exit", name))
            self._note_axes(name, output[0] if isinstance(output, (tuple, list)) and output else output)

        with ExitStack() as hooks:
            for name, module in self.modules.items():
                hooks.enter_context(module.register_forward_pre_hook(partial(enter, name), with_kwargs=True))
                hooks.enter_context(module.register_forward_hook(partial(leave, name), prepend=True))
            yield

    def _note_axes(self, name: str, states: Any) -> None:
        """Note a module whose states have the axis of tokens in front of that of texts."""
        if torch.is_tensor(states) and any(is_tokens_first(states, *size) for size in self._sizes):
            self.tokens_first.add(name)

    def output_projection(self, core: str, block: str) -> str | None:
        """Return the name of the first module with matrices behind the softmax of the attention named
        ``core``.

        A module that reads what the attention itself was given, such as a gate on its output, is none.
        """
        start = end = len(self.events)
        inside = False
        for i, (event, name) in enumerate(self.events):
            if name == core and event in ("enter", "exit"):
                inside = event == "enter"
                if not inside and start < end:
                    break
            elif event == "softmax" and (name == core or (inside and name == "")):
                start = i
        gates = {name for name in self._entered(core, start) if self.given[name] == self.given.get(core)}
        for name in self._entered(block, start):
            module = self.modules[name]
            if has_matrices(module) and not has_norm(module) and name not in self.mixing | gates:
                return name
        return None

    def first_matrix(self, block: str, attention: Collection[str | None]) -> str | None:
        """Return the name of the first matrix that runs in the block when the modules of its attention are
        over.
        """
        exits = (i for i, (event, name) in enumerate(self.events) if event == "exit" and name in attention)
        for name in self._entered(block, max(exits, default=len(self.events))):
            module = self.modules[name]
            if has_matrices(module) and not any(map(has_matrices, module.children())):
                return name
        return None

    def _entered(self, block: str, behind: int) -> Iterator[str]:
        """Yield the modules of the block that began behind an event, up to the block's end."""
        for event, name in self.events[behind + 1 :]:
            if event == "exit" and name == block:
                return
            if event == "enter" and name.startswith(f"{block}."):
                yield name


class SoftmaxWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Logs every softmax inside the block, for models whose attention does not say when it runs."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._trace = trace

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "softmax" in str(func):
            self._trace.events.append(("softmax", ""))
        return func(*args, **(kwargs or {}))


def is_tokens_first(states: Tensor, batch: int, queries: int, *, was_seen: bool = False) -> bool:
    """Return True for states [q, B, D], which some models hand on between their blocks (FSMT).

    >>> is_tokens_first(torch.zeros(5, 2, 8), 2, 5), is_tokens_first(torch.zeros(2, 5, 8), 2, 5)
    (True, False)

    Args:
        states: of a module.
        batch, queries: B and q.
        was_seen: the module had such states in another pass, which decides where B is q.
    """
    is_first = states.ndim == 3 and tuple(states.shape[:2]) == (queries, batch)
    return is_first and (was_seen or batch != queries)


def hook(module: nn.Module, *, enters: bool, act: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Pass ``act`` the residual stream that enters or leaves a module; its result replaces the stream.

    Among arguments it is the first if that is a tensor, else ``hidden_states``, else the first tensor given
    by name; of an output, its first part.
    """

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args and torch.is_tensor(args[0]):
            new = act(args[0])
            return None if new is None else ((new, *args[1:]), kwargs)
        for name in ("hidden_states", *kwargs):
            if torch.is_tensor(kwargs.get(name)):
                new = act(kwargs[name])
                return None if new is None else (args, {**kwargs, name: new})
        raise RuntimeError(
            f"capture: no tensor among the arguments {[type(a).__name__ for a in args]}, {sorted(kwargs)}"
        )

    def after(_: nn.Module, args: Any, output: Any) -> Any:
        new = act(output if torch.is_tensor(output) else output[0])
        if new is None or torch.is_tensor(output):
            return new
        if isinstance(output, tuple):
            rest = (new, *output[1:])
            return type(output)(*rest) if hasattr(output, "_fields") else rest
        output[next(iter(output)) if hasattr(output, "keys") else 0] = new
        return output

    if enters:
        return module.register_forward_pre_hook(before, with_kwargs=True)
    return module.register_forward_hook(after)
