# SPDX-License-Identifier: MIT
"""Eigenvalues of causal attention and of its in-degree Laplacian: both are diagonals, without a solver."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.arguments.unmaterialized import Unmaterialized
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.closed_forms import uniform_causal_map
from attnscope.metrics.information.sinks import ReadOptions, from_one_read
from attnscope.metrics.quantity import ClosedForm, Quantity

#: Eigenvalues that columns hold, from the largest down.
LARGEST = 10


@shown_by_shape
class CausalSpectrum(NamedTuple):
    """Eigenvalues of causal maps, float64, in the order of the tokens.

    Attributes:
        laplacian: α_j − A_jj, [..., n], in [−1, 1]; NaN past a map's length.
        attention: A_jj, [..., n], in [0, 1]; likewise.
        log_determinant: mean of ln max(A_jj, floor), [...], in [ln floor, 0].
    """

    laplacian: Tensor
    attention: Tensor
    log_determinant: Tensor


@memory_errors("causal_spectrum")
def causal_spectrum(
    attention: Tensor,
    *,
    floor: float = 1e-12,
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    validate: bool = False,
) -> CausalSpectrum:
    """Return the eigenvalues of a causal map, of its Laplacian, and its log determinant over n.

    laplacian_j = α_j − A_jj with the mean α_j that key j receives (`incoming_attention`), attention_j = A_jj,
    log_determinant = mean_j ln max(A_jj, floor). Under a causal mask, or a window of it, these are the
    eigenvalues of diag(α) − A and of A, and ln det A/n. Under full support they are only diagonals.

    Args:
        attention: maps [..., n, n], any strides; rows are queries.
        floor: smallest diagonal entry whose logarithm is taken, in (0, 1).
        support: which keys a query sees: "auto", "causal", "full", or a boolean tensor.
        precision: "fast" gives the exact value: it has no faster way.
        lengths: tokens per map, broadcast against the leading axes.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning NaN for that map.

    Returns:
        CausalSpectrum; NaN for a map that is not finite.

    Raises:
        ValueError: a floor outside (0, 1), and as `incoming_attention`.

    Example:
        >>> import torch, attnscope as asc
        >>> uniform = torch.ones(4, 4, dtype=torch.float64).tril()
        >>> uniform /= uniform.sum(-1, keepdim=True)
        >>> result = asc.causal_spectrum(uniform)
        >>> result.laplacian
        tensor([-0.4792, -0.1389, -0.0417,  0.0000], dtype=torch.float64)
        >>> round(result.log_determinant.item(), 6)  # -ln(24)/4
        -0.794513

    References:
        Binkowski et al., Hallucination detection in LLMs using spectral features of attention maps, arXiv
        2502.17598, 2025. Sriramanan et al., LLM-Check, 2024, who sum ln A_jj over heads without a floor.
    """
    name = "causal_spectrum"
    _checks.precision_argument(name, precision, attention)
    smallest = scalars.fraction_argument(name, "floor", floor)
    checked = _checks.attention_argument(name, attention, lengths, validate=validate)
    maps: Any = checked.tensor
    is_lazy = isinstance(maps, Unmaterialized)
    # numbers of a tensor of a class of its own are plain tensors
    maps = maps if is_lazy else maps.as_subclass(Tensor)
    incoming = ReadOptions.of(name, {"incoming_attention": {}})
    _, sums = from_one_read(name, maps, incoming, support, checked.lengths, False)
    received = sums["incoming_attention"]
    inside = checked.inside()
    diagonal = maps.diagonal() if is_lazy else maps.diagonal(dim1=-2, dim2=-1)
    entries = _checks.to_host(diagonal).double()
    without_gradient = maps if is_lazy else maps.detach()
    finite = _calls.call_kernel(_core.finite_matrices, _checks.Attention(without_gradient, checked.lengths))
    counts = inside & finite[..., None]
    diagonal = torch.where(counts, entries, torch.nan)
    # a logarithm of what does not count would have a gradient of NaN
    logarithms = torch.where(counts, entries, 1.0).clamp_min(smallest).log()
    logarithms = torch.where(inside & ~counts, torch.nan, logarithms)
    # one after another, so that padding does not change the order of the sum
    totals = logarithms.cumsum(-1)[..., -1]
    return CausalSpectrum(received - diagonal, diagonal, totals / inside.sum(-1))


def largest_values(values: Tensor) -> Tensor:
    """Return the ten largest of [..., n], falling, [..., 10]; NaN where there are fewer."""
    falling = values.nan_to_num(-torch.inf).sort(-1, descending=True).values[..., :LARGEST]
    missing = LARGEST - falling.shape[-1]
    falling = torch.nn.functional.pad(falling, (0, missing), value=-torch.inf)
    return torch.where(falling.isinf(), torch.nan, falling)


QUANTITIES = (
    Quantity(
        "laplacian_top",
        "causal_spectrum",
        "largest eigenvalues of diag(α) − A",
        "Mean attention that a key receives without its own, the ten largest.",
        ClosedForm(0.0, uniform_causal_map(4), entry=(0,)),
        low=-1,
        high=1,
        read=lambda result: largest_values(result.laplacian),
        axes=("rank",),
    ),
    Quantity(
        "attention_top",
        "causal_spectrum",
        "largest eigenvalues of A",
        "Attention of tokens to themselves, the ten largest.",
        ClosedForm(0.5, uniform_causal_map(4), entry=(1,)),
        low=0,
        high=1,
        read=lambda result: largest_values(result.attention),
        axes=("rank",),
    ),
    Quantity(
        "log_determinant",
        "causal_spectrum",
        "ln det A / n",
        "Mean over tokens of the logarithm of the attention to themselves.",
        ClosedForm(-math.log(24) / 4, uniform_causal_map(4)),
        low=math.log(1e-12),
        high=0,
        read=lambda result: result.log_determinant,
    ),
)
