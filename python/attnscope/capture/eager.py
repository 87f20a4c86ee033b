# SPDX-License-Identifier: MIT
"""The second and third tier: weights that a model's own eager attention returns.

Taken out of each attention module's output by a hook, one layer at a time (second tier), or all together from
the model's output (third tier).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.capture.recorder import LIVE, Recorder


@contextmanager
def taking(recorder: Recorder, weights: dict[str, int], *, discover: bool = False) -> Iterator[None]:
    """Second tier: hooks that take the weights out of an eager module's output and leave None in their place.

    With ``discover`` every module with children is watched and ``weights`` is filled; the innermost module
    that returns weights is the attention. Without it, only the modules in ``weights`` are.
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
            recorder.take_weights(module, tensor, _mask_argument(module, args, kwargs))
            return type(output)([*output[:place], None, *output[place + 1 :]])
        return None

    def ahead(module: nn.Module, args: tuple[Any, ...]) -> None:
        if LIVE.get() is recorder:
            recorder.pulse()

    with ExitStack() as hooks:
        for name, module in recorder.modules.items():
            if name in weights and not discover:
                hooks.enter_context(module.register_forward_pre_hook(ahead))
            if name in weights or (discover and name and any(True for _ in module.children())):
                hooks.enter_context(module.register_forward_hook(hook, with_kwargs=True, prepend=True))
        yield


def _mask_argument(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    names = list(inspect.signature(module.forward).parameters)
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    for name in ("attention_mask", "mask"):
        mask = given.get(name)
        if torch.is_tensor(mask) and mask.ndim == 4:
            return mask
    return None


def attention_outputs(output: Any) -> Iterator[tuple[str, int, Tensor]]:
    """Field, layer number and map of everything that ``output_attentions=True`` returned."""
    for name in ("encoder_attentions", "attentions", "decoder_attentions", "cross_attentions"):
        for index, tensor in enumerate(getattr(output, name, None) or ()):
            if _looks_like_weights(tensor):
                yield name, index, tensor


def _looks_like_weights(tensor: Any) -> bool:
    if not (torch.is_tensor(tensor) and tensor.ndim == 4 and tensor.is_floating_point() and tensor.numel()):
        return False
    sums = tensor.sum(-1, dtype=torch.float32)
    known = ~sums.isnan()  # a query that sees no key may be NaN
    if not bool(known.any()):  # and so may all be, where the weights of the model are
        return tensor.shape[-1] == tensor.shape[-2]
    sums = sums[known]
    return sums.numel() > 0 and not bool((tensor < 0).any()) and 0.01 < float(sums.max()) < 1.02
