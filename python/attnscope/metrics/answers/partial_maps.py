# SPDX-License-Identifier: MIT
"""Arguments of measures that read the rows of an answer alone.

The measures take a square map, or the last q rows of a causal map of k tokens, [..., q, k]: decoding with
a cache computes no other rows. Row 0 is then query k − q.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnscope import _calls, _checks, _core
from attnscope.arguments import scalars
from attnscope.arguments.unmaterialized import Unmaterialized
from attnscope.gradients import dispatch
from attnscope.metrics._spans import spans_argument


def partial_argument(
    function: str, attention: Any, lengths: _checks.Lengths, *, validate: bool
) -> _checks.Attention:
    """Check maps [..., n, n], or their last rows [..., q, k] with q < k."""
    if isinstance(attention, Unmaterialized) or _core.is_plain_batch(attention):
        return _checks.attention_argument(function, attention, lengths, validate=validate)
    tensor = _checks.float_tensor(function, "attention", attention)
    if tensor.ndim < 2 or tensor.shape[-2] >= tensor.shape[-1] or tensor.shape[-2] == 0:
        return _checks.attention_argument(function, attention, lengths, validate=validate)
    if lengths is not None:
        raise ValueError(
            f"{function}: lengths are of square maps, got lengths with attention of shape "
            f"{tuple(tensor.shape)}"
        )
    tensor = _checks.to_host(tensor)
    if scalars.flag(function, "validate", validate):
        invalid = ~((tensor >= 0) & (tensor <= _checks.LARGEST_ENTRY))
        if bool(invalid.any()):
            index = tuple(invalid.nonzero()[0].tolist())
            raise ValueError(
                f"{function}: attention must hold finite entries in [0, {_checks.LARGEST_ENTRY}], got "
                f"{tensor[index].item()} at index {index}"
            )
    return _checks.Attention(tensor, None)


def call_partial(
    kernel: Callable[..., Any], function: str, checked: _checks.Attention, *arguments: Any
) -> Any:
    """Call a function of the core on checked maps or last rows, and warn about those that are not finite.

    Last rows that require a gradient become the square map that has them, whose other rows are 0.
    """
    rows, n = checked.tensor.shape[-2:]
    if rows < n and dispatch.needs_operator(checked.tensor):
        checked = checked._replace(tensor=torch.nn.functional.pad(checked.tensor, (0, 0, n - rows, 0)))
    return _calls.call_and_warn(kernel, function, checked, *arguments)


def partial_support(function: str, support: Any, checked: _checks.Attention) -> Any:
    """Return the support as the core takes it; of last rows, a mask gets the rows before them."""
    rows, n = checked.tensor.shape[-2:]
    if rows == n:
        return _checks.support_argument(function, support, checked)
    if isinstance(support, str):
        kind = _checks.support_argument(function, support, checked)
        return "causal" if kind == "auto" else kind
    flags = _checks.flags_argument(
        function, "support", support, checked.tensor.shape, "does not broadcast to attention of shape"
    )
    flags = flags.expand(*flags.shape[:-2], rows, n) if flags.ndim > 1 else flags.expand(rows, n)
    return torch.cat([flags.new_zeros(*flags.shape[:-2], n - rows, n), flags], -2)


def answers_argument(function: str, answer: Any, checked: _checks.Attention, *, first: int = 0) -> Tensor:
    """Return the answer of each map, int64 [count, 2], or of all maps, [1, 2].

    Args:
        function: the public function that errors name.
        answer: [..., 2].
        checked: the maps.
        first: how many tokens before an answer its first row is.
    """
    spans = spans_argument(function, "answer", answer, checked)
    rows, n = checked.tensor.shape[-2:]
    if rows == n:
        return spans
    early = (spans[:, 0] >= 0) & (spans[:, 0] - first < n - rows) & (spans[:, 0] > 0)
    if bool(early.any()):
        start, stop = spans[early][0].tolist()
        raise ValueError(
            f"{function}: the rows of the answer must be among the last {rows} of {n} queries, got answer "
            f"({start}, {stop})"
        )
    return spans
