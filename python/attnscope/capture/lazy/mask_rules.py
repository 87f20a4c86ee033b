# SPDX-License-Identifier: MIT
"""Rules for the keys that a model lets its queries see, in the place of masks.

transformers describes a mask by a function of query and key numbers before anything of size n² exists. Where
that function is causal, a window or everything, the rule takes its place and the model gets a tensor
of one entry, expanded to the shape of the mask, by which its attention finds the rule again. A model that
computes with its mask, as those do that join it to another, computes with the mask itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from attnscope.metrics.lazy.arguments import Window

#: Pairs for which the function of a mask is evaluated together.
_PAIRS = 1 << 22

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class MaskRule:
    """Visibility of one kind of layer.

    causal, window: as of `LazyAttention`. real: keys that are no padding, bool [batch, keys]; None: all.
    is_dense: True if a mask says the rest.
    """

    causal: bool
    window: Window
    real: Tensor | None
    is_dense: bool = False


class StandIn(Tensor):
    """One entry in the place of a mask, expanded to its shape; views of it stand in for views of the mask.

    Any other function gets the mask.

    Attributes:
        mask: makes the mask.
    """

    mask: Callable[[], Tensor]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute a view of the stand-in, or the function of the mask."""
        del types
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
            if not isinstance(result, Tensor):
                return result  # a shape, a type, a device
            first = args[0] if args else None
            if isinstance(first, StandIn) and _memory(result) == _memory(first):
                view = result.as_subclass(cls)
                view.mask = lambda: _with_masks(func, args, kwargs)
                return view
            return _with_masks(func, args, kwargs)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _with_masks(func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return a function of arguments with masks in the place of their stand-ins."""
    args, kwargs = tree_map_only(StandIn, lambda stand_in: stand_in.mask(), (args, dict(kwargs)))
    return func(*args, **kwargs)


class MaskRules:
    """The rules of one forward pass, found by the memory of the tensors that stand for them."""

    def __init__(self) -> None:
        self._rules: dict[int, tuple[Tensor, MaskRule]] = {}

    def find(self, mask: Tensor) -> MaskRule | None:
        """Return the rule that a tensor stands for, None for any other mask."""
        entry = self._rules.get(_memory(mask))
        return None if entry is None else entry[1]

    def make(self, **description: Any) -> Tensor | None:
        """Return a stand-in for the mask that transformers describes, or the mask itself without a rule."""
        from transformers.masking_utils import sdpa_mask

        @functools.cache
        def dense() -> Tensor:
            # A mask that is left out would be read as causal.
            without_skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
            mask: Tensor = sdpa_mask(**{**description, **without_skips})
            seen = MaskRule(False, None, _real_keys(description), is_dense=True)
            self._rules[_memory(mask)] = (mask, seen)
            return mask

        rule = _rule_of(description)
        if rule is None:
            return dense()
        queries, _, device = _queries(description)
        marker = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)
        self._rules[_memory(marker)] = (marker, rule)
        batch, keys = int(description["batch_size"]), int(description["kv_length"])
        stand_in = marker.expand(batch, 1, queries, keys).as_subclass(StandIn)
        stand_in.mask = dense
        return stand_in


def _queries(description: Mapping[str, Any]) -> tuple[int, int, Any]:
    """Return how many queries a mask is for, the first one's place among all tokens, and their device."""
    positions = description.get("cache_position")  # of transformers 4
    if positions is not None:
        return len(positions), int(positions[0]), positions.device
    count, first = int(description["q_length"]), int(description.get("q_offset", 0))
    return count, first, description.get("device", "cpu")


def _rule_of(description: dict[str, Any]) -> MaskRule | None:
    """Return the rule of a mask, None where its function is no rule of this module."""
    from transformers import masking_utils
    from transformers.masking_utils import causal_mask_function

    (queries, first, _), keys = _queries(description), int(description["kv_length"])
    offsets = (first, int(description.get("kv_offset", 0)))
    if description.get("use_vmap") or queries != keys or offsets != (0, 0):
        return None
    real = _real_keys(description)
    function = description.get("mask_function", causal_mask_function)
    if function is causal_mask_function:
        return MaskRule(True, None, real)
    # transformers 4 has no function of that name, and its masks are looked at below
    if function is getattr(masking_utils, "bidirectional_mask_function", None):
        return MaskRule(False, None, real)
    window = description.get("local_size")
    batch = int(description["batch_size"])
    for causal, width in ((True, window), (True, None), (False, None)):
        later = 0 if causal else None
        if _agrees(function, batch, keys, None if width is None else width - 1, later):
            return MaskRule(causal, None if width is None or width >= keys else int(width), real)
    before, after = _sides(function, keys)
    return MaskRule(False, (before, after), real) if _agrees(function, batch, keys, before, after) else None


def _sides(function: MaskFunction, keys: int) -> tuple[int, int]:
    """Return how many keys before itself the last query sees, and how many after itself the first."""
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.int64, device="cpu")
    key = torch.arange(keys, device="cpu")[None, None, None, :]
    counts = []
    for query in (keys - 1, 0):
        try:
            visible = function(zero, zero, zero + query, key)
        except (RuntimeError, IndexError, TypeError):
            return 0, 0
        counts.append(int(visible.sum()) - 1 if torch.is_tensor(visible) else 0)
    before, after = (max(0, count) for count in counts)
    return before, after


def _real_keys(description: dict[str, Any]) -> Tensor | None:
    """Return which keys are no padding, bool [batch, keys], None if all are."""
    padding, keys = description.get("attention_mask"), int(description["kv_length"])
    if padding is None or padding.ndim != 2:
        return None
    begin = int(description.get("kv_offset", 0))  # a sliding cache has dropped the keys before
    real = padding[:, begin : begin + keys].bool().cpu()
    missing = keys - real.shape[-1]  # of places that nothing has filled
    real = torch.nn.functional.pad(real, (0, missing)) if missing > 0 else real
    return None if bool(real.all()) else real


def _agrees(function: MaskFunction, batch: int, keys: int, before: int | None, after: int | None) -> bool:
    """Return True if, by the function of a mask, every query sees so many keys before and after itself."""
    key = torch.arange(keys, device="cpu")[None, None, None, :]
    text = torch.arange(batch, device="cpu")[:, None, None, None]
    head = torch.zeros(1, 1, 1, 1, dtype=torch.int64, device="cpu")
    step = max(1, _PAIRS // max(1, batch * keys))
    for begin in range(0, keys, step):
        query = torch.arange(begin, min(begin + step, keys), device="cpu")[None, None, :, None]
        expected = torch.ones(1, dtype=torch.bool, device="cpu")
        if after is not None:
            expected = expected & (key <= query + after)
        if before is not None:
            expected = expected & (key >= query - before)
        try:
            visible = function(text, head, query, key)
        except (RuntimeError, IndexError, TypeError):
            return False
        if not torch.is_tensor(visible) or bool((visible != expected).any()):
            return False
    return True
