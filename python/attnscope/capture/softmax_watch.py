# SPDX-License-Identifier: MIT
"""The softmaxes of one forward pass: the module that computes each, and the entries that it can see.

A module may add masks of its own to the one it is given, or read that one the other way round. The argument
of its softmax knows all of them. A softmax in an attention module that no map came from shows that a map is
missing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from attnscope.capture.visibility import visible_scores

_ATTENTION = re.compile("att", re.IGNORECASE)
# Functions that compute attention without a softmax that can be looked at.
_FUSED = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward"})
# Softmaxes that wait for the weights that a module returns: some modules compute several.
_WAITING = 4


class _Softmax(NamedTuple):
    """A softmax: the memory of its result, the modules that it ran in, and its visible entries."""

    storage: StorageWeakRef
    modules: tuple[str, ...]
    visible: Tensor


class SoftmaxWatch(TorchFunctionMode):
    """A record of the softmaxes inside the block.

    Args:
        names: names of the modules by identity.
        visible: keep which entries each softmax sees.
        keep_all: keep this for all softmaxes of the pass, not for the latest alone.

    Attributes:
        attention: attention modules that computed a softmax, in order, with the modules around them.
        taken: the module whose softmax `take` gave last; None where it gave none.
        has_sink: that softmax had one more column than the weights, of a learned sink.
    """

    def __init__(self, names: Mapping[int, str], *, visible: bool, keep_all: bool = False) -> None:
        super().__init__()
        self.attention: dict[str, tuple[str, ...]] = {}
        self.taken: str | None = None
        self.has_sink = False
        self._names = names
        self._visible = visible
        self._keep_all = keep_all
        self._softmaxes: list[_Softmax] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "softmax" and torch.is_tensor(result) and result.ndim > 2:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if dim in (-1, result.ndim - 1):
                self._record(args[0] if args else kwargs["input"], result)
        elif name in _FUSED:
            self._running()
        return result

    def _running(self) -> tuple[str, ...]:
        """Return the names of the modules that are running, innermost first, and note an attention module."""
        modules: dict[str, nn.Module] = {}
        frame = sys._getframe(2)
        while frame.f_back is not None:
            if frame.f_code.co_varnames[:1] == ("self",):
                module = frame.f_locals.get("self")
                if isinstance(module, nn.Module) and (name := self._names.get(id(module))) is not None:
                    modules.setdefault(name, module)
                    if not name:
                        break
            frame = frame.f_back
        running = tuple(modules)
        for name, module in modules.items():
            if isinstance(module, nn.Softmax):
                continue
            # by its class: gates and routers next to an attention have names like its own
            if _ATTENTION.search(type(module).__name__):
                self.attention.setdefault(name, running)
                break
        return running

    def _record(self, scores: Tensor, result: Tensor) -> None:
        running = self._running()
        if not self._visible or result.ndim > 4 or not result.is_contiguous():
            return
        storage = StorageWeakRef(result.untyped_storage())  # type: ignore[no-untyped-call]
        self._softmaxes.append(_Softmax(storage, running, visible_scores(scores.detach())))
        if not self._keep_all:
            del self._softmaxes[:-_WAITING]

    def missing(self, captured: Collection[str]) -> list[str]:
        """Return the attention modules that computed a softmax and gave no map.

        Args:
            captured: names of the modules whose maps came.
        """
        having = set(captured)
        return [name for name, running in self.attention.items() if having.isdisjoint(running)]

    def take(self, weights: Tensor, name: str | None = None) -> tuple[Tensor | None, bool]:
        """Return which entries of attention weights are visible, and True if nothing lies in between.

        Args:
            weights: [B, h, q, k], as a module or the model returned them.
            name: of the module that returned them; None for weights in the model's output.

        Returns:
            A boolean tensor [B, h or 1, q, k], None where no softmax of that size ran.
        """
        self.taken, self.has_sink = None, False
        storage = StorageWeakRef(weights.untyped_storage())  # type: ignore[no-untyped-call]
        for softmax in reversed(self._softmaxes):
            # the reference keeps the address of a storage that is gone from being used again
            if softmax.storage.cdata == storage.cdata:
                visible = softmax.visible.contiguous()
                seen = visible.as_strided(weights.shape, weights.stride(), weights.storage_offset())
                self._forget(softmax)
                self.taken = next(iter(softmax.modules), None)
                self.has_sink = softmax.visible.shape[-1] == weights.shape[-1] + 1
                return _over_heads(seen), True
        for softmax in reversed(self._softmaxes if name is not None else ()):
            if name not in softmax.modules:
                continue
            seen = softmax.visible
            if seen.numel() != weights.numel() and seen.shape[-1] == weights.shape[-1] + 1:
                seen = seen[..., :-1]  # a learned sink is one more column
                self.has_sink = True
            if seen.numel() == weights.numel() and seen.shape[-2:] == weights.shape[-2:]:
                self._forget(softmax)
                return _over_heads(seen.reshape(weights.shape)), False
        return None, False

    def _forget(self, softmax: _Softmax) -> None:
        """Drop the softmaxes up to one; in the model's output all may be asked for."""
        if not self._keep_all:
            place = next(i for i, other in enumerate(self._softmaxes) if other is softmax)
            del self._softmaxes[: place + 1]


def _over_heads(visible: Tensor) -> Tensor:
    """Return visible entries with one head where all heads see alike."""
    alike = visible.shape[1] > 1 and bool((visible == visible[:, :1]).all())
    return visible[:, :1].clone() if alike else visible
