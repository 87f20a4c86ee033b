# SPDX-License-Identifier: MIT
"""Token states beside attention maps: which state belongs to which head."""

from __future__ import annotations

from typing import Any

import torch

from attnscope import _checks, _device


def states_argument(function: str, states: Any, attention: _checks.Attention) -> torch.Tensor:
    """`states` [..., n, d] with one entry per matrix of `attention`, shared ones by stride 0, no copy.

    Leading axes broadcast against those of attention. Grouped queries: where attention has h heads and
    states have kv of them, kv dividing h, head k belongs to state k // (h // kv), as in the model.
    """
    tensor = _device.to_host(_checks.float_tensor(function, "states", states))
    if tensor.ndim < 2 or tensor.shape[-2] != attention.n or tensor.shape[-1] == 0:
        raise ValueError(
            f"{function}: states must have shape [..., n, d] with n = {attention.n} and d >= 1, got "
            f"{tuple(tensor.shape)}"
        )
    leading, own = attention.leading, tuple(tensor.shape[:-2])
    trailing = tensor.shape[-2:]
    try:
        return tensor.expand(*leading, *trailing)
    except RuntimeError:
        pass
    if leading and own and own[-1] > 1 and leading[-1] % own[-1] == 0:
        grouped = (*leading[:-1], own[-1], leading[-1] // own[-1])
        try:
            return tensor.unsqueeze(-3).expand(*grouped, *trailing)
        except RuntimeError:
            pass
    raise ValueError(
        f"{function}: states of shape {tuple(tensor.shape)} neither broadcast to attention of shape "
        f"{tuple(attention.tensor.shape)} nor divide its heads into groups"
    )


def tokens_argument(function: str, name: str, flags: Any, attention: _checks.Attention) -> torch.Tensor:
    """`flags`, a boolean tensor [..., n] that broadcasts to attention's leading axes."""
    tensor = _checks.as_tensor(function, name, flags)
    if tensor.dtype != torch.bool:
        raise ValueError(f"{function}: {name} must be boolean, got {tensor.dtype}")
    _checks.expanded(f"{function}: {name}", tensor, (*attention.leading, attention.n))
    return _device.to_host(tensor)
