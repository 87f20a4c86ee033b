# SPDX-License-Identifier: MIT
"""The notebooks' numbers of a vocabulary head, of attention's last row and of neurons."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.protocols.ruscio2026._batches import direction_argument


class BoundaryReadout(NamedTuple):
    """Entropy and largest probability of softmax(W_U b).

    Attributes:
        entropy: nats, in the head's dtype.
        max_prob: the largest probability.
    """

    entropy: float
    max_prob: float


def boundary_readout(unembedding: Tensor, direction: Tensor) -> BoundaryReadout:
    """Entropy and largest probability of softmax(W_U b), in the dtype of W_U.

    No vector of length 1 reads out as anything: the entropy is ln V but for a little, and above
    ln V where the sum is rounded in half precision.

    Args:
        unembedding: W_U [V, D].
        direction: [D].

    Raises:
        ValueError: other shapes, a direction that is not finite.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2026
        >>> ruscio2026.boundary_readout(torch.zeros(4, 2), torch.ones(2)).max_prob
        0.25

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `LLM_analysis`.
    """
    weight, along = _pair("boundary_readout", unembedding, direction)
    p = (weight @ along.to(weight)).softmax(-1)
    return BoundaryReadout(float(-(p * (p + 1e-10).log()).sum()), float(p.max()))


def vocab_alignment(unembedding: Tensor, direction: Tensor, *, k: int = 100) -> float:
    """‖V_kᵀb‖, V_k the first k right singular vectors of W_U.

    Differs from `top_share` of `asc.readout`: the norm, not its square, so that chance is √(k/D) instead of
    k/D; W_U is neither centred nor multiplied with the final norm's gain. The top right singular vectors are
    the directions that logits read *most*.

    Args:
        unembedding: W_U [V, D].
        direction: [D].
        k: singular vectors; 200 in `null_ratio`, over that of one Gaussian direction.

    Returns:
        In [0, ‖b‖].

    Raises:
        ValueError: other shapes, a direction that is not finite, k outside 1..min(V, D).

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2026
        >>> direction = torch.tensor([0.6, 0.8])
        >>> round(ruscio2026.vocab_alignment(torch.diag(torch.tensor([1.0, 3.0])), direction, k=1), 6)
        0.8

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `LLM_analysis`, `checkpoints`.
    """
    name = "vocab_alignment"
    weight, along = _pair(name, unembedding, direction)
    if not 1 <= k <= min(weight.shape):
        raise ValueError(f"{name}: k must be in 1..{min(weight.shape)}, got {k}")
    # eigenvectors of WᵀW are the right singular vectors of W
    values, vectors = torch.linalg.eigh(weight.double().T @ weight.double())
    top = vectors[:, values.argsort(descending=True)[:k]]
    return float((top.T @ along.double().to(top)).norm())


def lens(unembedding: Tensor, hidden: Tensor) -> Tensor:
    """Logits W_U h without the final norm, [..., V].

    Differs from `asc.readout`: states of a middle layer are read at their own length, so that early layers
    read out as nearly nothing.

    Args:
        unembedding: W_U [V, D].
        hidden: [..., D].

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2026
        >>> ruscio2026.lens(torch.eye(2), torch.tensor([3.0, 1.0])).tolist()
        [3.0, 1.0]

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `LLM_analysis`.
    """
    return hidden.to(unembedding) @ unembedding.T


def attn_entropy(attention: Tensor) -> Tensor:
    """Entropy of the last row of the head mean, −Σ a log(a + 1e-10): [...] of [..., h, n, n].

    Differs from `attention_entropy`: one row of one mean map; with padding on the right the row of a
    padding token.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2026
        >>> round(ruscio2026.attn_entropy(torch.full((1, 2, 4, 4), 0.25)).item(), 6)
        1.386294

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `LLM_analysis`.
    """
    row = attention.double().mean(-3)[..., -1, :]
    return -(row * (row + 1e-10).log()).sum(-1)


def attn_sink(attention: Tensor) -> Tensor:
    """Attention of the last row of the head mean to the first key: [...] of [..., h, n, n].

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2026
        >>> ruscio2026.attn_sink(torch.full((1, 2, 4, 4), 0.25)).item()
        0.25

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `LLM_analysis`.
    """
    return attention.double().mean(-3)[..., -1, 0]


def neuron_score(reference: Tensor, other: Tensor) -> Tensor:
    """(μ_U − μ_F)/(σ_U + σ_F + 1e-6) of each neuron, the inputs of a down-projection in the last column.

    Args:
        reference: [n, d].
        other: [m, d].

    Returns:
        [d] float64.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2026
        >>> reference, other = torch.tensor([[0.0], [2.0]]), torch.tensor([[4.0], [6.0]])
        >>> round(ruscio2026.neuron_score(reference, other).item(), 4)
        1.4142

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `LLM_analysis`.
    """
    reference_states, other_states = reference.double(), other.double()
    return (other_states.mean(0) - reference_states.mean(0)) / (
        other_states.std(0) + reference_states.std(0) + 1e-6
    )


def _pair(function: str, unembedding: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    along = direction_argument(function, direction)
    if unembedding.ndim != 2 or unembedding.shape[1] != len(along):
        raise ValueError(
            f"{function}: unembedding must be [V, {len(along)}], got shape {tuple(unembedding.shape)}"
        )
    return unembedding, along
