# SPDX-License-Identifier: MIT
"""Maps as the notebooks hold them: whole, dense, in float64 here."""

from __future__ import annotations

import functools
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import torch

from attnscope import _checks, _core
from attnscope.metrics.quantity import Quantity

PROTOCOL = "ruscio2025."

#: A quantity of the protocol.
declared = functools.partial(Quantity, protocol="ruscio2025")
#: One that is called like its metric.
named = functools.partial(Quantity.of, protocol="ruscio2025")


def as_exact(module: ModuleType, name: str, scope: str = "map", **changed: Any) -> Quantity:
    """One that is declared like the exact quantity of a module, but for what is changed."""
    own = next(one for one in module.QUANTITIES if (one.name, one.scope) == (name, scope))
    return replace(own, protocol="ruscio2025", **changed)


def head_mean(function: str, attention: Any) -> tuple[torch.Tensor, _checks.Attention]:
    """`attention` [..., n, n] in float64 and the checked argument."""
    checked = _checks.attention_argument(PROTOCOL + function, attention)
    return checked.tensor.double(), checked


def all_heads(function: str, heads: Any) -> tuple[torch.Tensor, _checks.Attention]:
    """`heads` [..., h, n, n] in float64 and the checked argument."""
    checked = _checks.heads_argument(PROTOCOL + function, heads)
    return checked.tensor.double(), checked


def hidden_states(function: str, states: Any, attention: _checks.Attention) -> torch.Tensor:
    """`states` [..., n, d] in float64, with a row for every token of `attention`."""
    tensor = _checks.to_host(_checks.float_tensor(PROTOCOL + function, "hidden", states))
    if tensor.ndim < 2 or tensor.shape[-2] != attention.n or tensor.shape[-1] == 0:
        raise ValueError(
            f"{PROTOCOL}{function}: hidden must have shape [..., n, d] with n = {attention.n} and d >= 1, "
            f"got {tuple(tensor.shape)}"
        )
    _checks.expanded(f"{PROTOCOL}{function}: hidden", tensor, (*attention.leading, *tensor.shape[-2:]))
    return tensor.double()


def non_finite(*tensors: torch.Tensor) -> torch.Tensor:
    """Where the last two dimensions hold an entry that is NaN or infinite; tensors broadcast."""
    found = [
        ~_core.finite_matrices(tensor, None)
        if tensor.shape[-2] == tensor.shape[-1]
        # infinity minus itself is NaN; asking each entry costs ten times as much
        else (tensor - tensor).sum((-2, -1)).isnan()
        for tensor in tensors
    ]
    return functools.reduce(torch.logical_or, found)


def zeroed(tensor: torch.Tensor, bad: torch.Tensor) -> torch.Tensor:
    """`tensor` [..., n, m] with 0 wherever `bad` [...]; itself where nothing is, as a copy costs a tenth."""
    return torch.where(bad[..., None, None], 0.0, tensor) if bool(bad.any()) else tensor


def plogp(shares: torch.Tensor) -> torch.Tensor:
    """Each entry p as p log p, 0 for 0 and NaN below; torch.xlogy takes one at a time, log several."""
    return shares * (shares + torch.finfo(shares.dtype).tiny).log()


def percentile_of(mass: torch.Tensor, percentile: float) -> torch.Tensor:
    """NumPy's percentile of each row of [..., n], as [..., 1]; torch's refuses empty and large batches."""
    return torch.from_numpy(np.asarray(np.percentile(mass.numpy(), percentile, axis=-1, keepdims=True)))


def type_in_numpy(kind: torch.dtype) -> torch.dtype:
    """The type in which a notebook holds maps; NumPy has no bfloat16, such maps reach it as float32."""
    return torch.float32 if kind == torch.bfloat16 else kind
