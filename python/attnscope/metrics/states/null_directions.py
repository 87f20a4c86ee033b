# SPDX-License-Identifier: MIT
"""Directions of a residual stream that are drawn without regard to what is asked."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

Kind = Literal["isotropic", "covariance", "labels"]
KINDS = ("isotropic", "covariance", "labels")


def null_directions(
    states: Tensor,
    kind: Kind = "isotropic",
    *,
    labels: Any = None,
    pairs: Any = None,
    draws: int = 20,
    seed: int = 0,
) -> Tensor:
    """Unit directions to compare a measured one with.

    "isotropic" directions are as likely one way as another. "covariance" directions are Σ_i g_i (h_i − μ)
    of standard normal g: they lie where the states vary. "labels" are the differences of means when labels
    are exchanged at random: they are what a difference is when there is none.

    Args:
        states: [n, D].
        kind: see above.
        labels: [n] of 0 and 1, for "labels".
        pairs: [n], the same number for two states whose labels are exchanged together; None permutes labels
            over all states.
        draws: number of directions.
        seed: of the draws.

    Returns:
        [draws, D] float64 of length 1; NaN where states do not vary, or a draw's difference is 0.

    Raises:
        ValueError: an unknown kind, states that are no matrix, "labels" without both labels.

    Example:
        States on a line: every direction of their covariance is that line.

        >>> import torch, attnscope as asc
        >>> states = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 4.0]])
        >>> asc.null_directions(states, "covariance", draws=3).abs().tolist()
        [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]
    """
    name = "null_directions"
    if kind not in KINDS:
        raise ValueError(f"{name}: kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if not torch.is_tensor(states) or states.ndim != 2 or not len(states):
        got = tuple(states.shape) if torch.is_tensor(states) else type(states).__name__
        raise ValueError(f"{name}: states must be [n, D], got {got}")
    if draws < 1:
        raise ValueError(f"{name}: draws must be at least 1, got {draws}")
    wide = states.detach().double().cpu()
    rng = np.random.default_rng(seed)
    if kind == "isotropic":
        found = torch.from_numpy(rng.standard_normal((draws, wide.shape[1])))
    elif kind == "covariance":
        found = torch.from_numpy(rng.standard_normal((draws, len(wide)))) @ (wide - wide.mean(0))
    else:
        found = exchanged(name, labels, pairs, draws, rng) @ (wide - wide.mean(0))
    length = found.norm(dim=-1, keepdim=True)
    return torch.where(length > 0, found / length, torch.nan)


def exchanged(function: str, labels: Any, pairs: Any, draws: int, rng: np.random.Generator) -> Tensor:
    """Weights [draws, n] that make differences of means of exchanged labels.

    Raises:
        ValueError: see `null_directions`.
    """
    given = np.asarray(labels) if labels is not None else np.zeros(0)
    if set(given.tolist()) != {0, 1}:
        raise ValueError(f"{function}: labels must be 0 and 1, got {sorted(set(given.tolist()))}")
    if pairs is None:
        drawn = np.stack([rng.permutation(given) for _ in range(draws)])
    else:
        _, place = np.unique(np.asarray(pairs), return_inverse=True)
        flips = rng.integers(0, 2, (draws, place.max() + 1))[:, place]
        drawn = np.where(flips == 1, 1 - given, given)
    ones = drawn.sum(1, keepdims=True)
    weights = np.where(drawn == 1, 1 / np.maximum(ones, 1), -1 / np.maximum(len(given) - ones, 1))
    return torch.from_numpy(weights)
