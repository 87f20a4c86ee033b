# SPDX-License-Identifier: MIT
"""Derivatives of the measures, as operators that `torch.autograd` and `torch.compile` know.

A measure of a tensor that requires a gradient can be part of a loss. Each module holds the derivatives of the
measures of its name in closed form. Results are the core's, bit by bit; derivatives are computed on the
tensor's device in float64, and second derivatives are refused by name.

    >>> import torch, attnscope as asc
    >>> logits = torch.zeros(4, 4, dtype=torch.float64, requires_grad=True)
    >>> asc.sink_share(logits.softmax(-1)).share.backward()
    >>> logits.grad.sum(0)
    tensor([ 0.1875, -0.0625, -0.0625, -0.0625], dtype=torch.float64)
"""
