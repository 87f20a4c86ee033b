# SPDX-License-Identifier: MIT
"""Maps as the notebooks hold them: dense, here in float64."""

from __future__ import annotations

import functools
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import torch

from attnscope import _checks, _core
from attnscope.arguments.host_copies import row_major
from attnscope.metrics.quantity import Quantity
from attnscope.metrics.states.alignment import states_of_tokens

#: A quantity of the protocol.
declared = functools.partial(Quantity, protocol="ruscio2025")
#: One that is called like its metric.
named = functools.partial(Quantity.of, protocol="ruscio2025")


def as_exact(module: ModuleType, name: str, scope: str = "map", **changed: Any) -> Quantity:
    """Return a quantity declared like the exact quantity of a module, except for the changed fields."""
    exact = next(
        quantity for quantity in module.QUANTITIES if (quantity.name, quantity.scope) == (name, scope)
    )
    return replace(exact, protocol="ruscio2025", **changed)


def head_mean(function: str, attention: Any) -> tuple[torch.Tensor, torch.Tensor, _checks.Attention]:
    """`attention` [..., n, n] in float64, 0 where not all is finite; where that is; the checked argument."""
    checked = _checks.attention_argument(function, attention)
    _checks.require_map(function, checked)
    bad = non_finite(checked.tensor)
    return _zeroed(checked.tensor, bad), bad, checked


def all_heads(function: str, heads: Any) -> tuple[torch.Tensor, torch.Tensor, _checks.Attention]:
    """`heads` [..., h, n, n] in float64, 0 in layers where not all is finite; which; the checked argument."""
    checked = _checks.heads_argument(function, heads)
    _checks.require_map(function, checked)
    bad = non_finite(checked.tensor).any(-1)
    return _zeroed(checked.tensor, bad.unsqueeze(-1)), bad, checked


def hidden_states(
    function: str, states: Any, attention: _checks.Attention
) -> tuple[torch.Tensor, torch.Tensor]:
    """`states` [..., n, d], one for every token, in float64, 0 where not all is finite; where that is."""
    tensor = states_of_tokens(function, "hidden", states, attention.n)
    _checks.expanded(f"{function}: hidden", tensor, (*attention.leading, *tensor.shape[-2:]))
    bad = non_finite(tensor)
    return _zeroed(tensor, bad), bad


def non_finite(tensor: torch.Tensor) -> torch.Tensor:
    """Return a mask of maps with an entry that is NaN or infinite in the last two dimensions."""
    if tensor.shape[-2] == tensor.shape[-1]:
        return ~_core.finite_matrices(tensor, None)
    # infinity minus itself is NaN; asking each entry costs ten times as much
    return (tensor - tensor).sum((-2, -1)).isnan()


def _zeroed(tensor: torch.Tensor, bad: torch.Tensor) -> torch.Tensor:
    """Return float64 values in the order of their rows, 0 wherever `bad` [...]; without a copy if no map is
    bad, as a copy costs a tenth.
    """
    wide = row_major(tensor.double())
    return torch.where(bad[..., None, None], 0.0, wide) if bool(bad.any()) else wide


def plogp(shares: torch.Tensor) -> torch.Tensor:
    """Return p log p of each entry p, 0 for 0 and NaN below; torch.xlogy takes one at a time, log several."""
    return shares * (shares + torch.finfo(shares.dtype).tiny).log()


def percentile_of(mass: torch.Tensor, percentile: float) -> torch.Tensor:
    """NumPy's percentile of each row of [..., n], as [..., 1]; torch's refuses empty and large batches."""
    return torch.from_numpy(np.asarray(np.percentile(mass.numpy(), percentile, axis=-1, keepdims=True)))


def type_in_numpy(kind: torch.dtype) -> torch.dtype:
    """Return the type in which a notebook holds maps; NumPy has no bfloat16, such maps reach it as
    float32.
    """
    return torch.float32 if kind == torch.bfloat16 else kind
