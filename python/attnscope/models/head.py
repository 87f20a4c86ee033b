# SPDX-License-Identifier: MIT
"""From the residual stream to logits: the readout of a model, and the directions that it tells apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnscope.metrics._named import shown_by_shape
from attnscope.models.head_rows import row_logits as row_logits
from attnscope.models.readout import Readout
from attnscope.models.unembedding import (
    ModelTensors,
    before_unembedding,
    effective_unembedding,
    unembedding_entry,
)


@shown_by_shape
class Subspace(NamedTuple):
    """The main directions of a symmetric matrix.

    Attributes:
        basis: [d, k] orthonormal float64, the largest first.
        energies: all d eigenvalues, descending.
        share: of all energy, that in the k directions.
        pr: participation ratio (Σe)²/Σe² of the energies.
    """

    basis: Tensor
    energies: Tensor
    share: Tensor
    pr: Tensor


def prediction_subspace(
    source: str | Path | nn.Module,
    k: int | None = None,
    *,
    fold_norm: bool = True,
    center: bool = True,
    rows: int | None = None,
) -> Subspace:
    """Return the k directions of the residual stream that a model's predictions depend on most: the top right
    singular vectors of `effective_unembedding`.

    Args:
        source: folder or model.
        k: number of directions; None takes all that are above rounding.
        fold_norm: as in `effective_unembedding`.
        center: likewise.
        rows: likewise.

    Returns:
        `Subspace`; energies are squared singular values.

    Raises:
        ValueError: k beyond the numerical rank.
        NotImplementedError: as `effective_unembedding`.

    Example:
        See `effective_unembedding`, whose model has one such direction.

        >>> from attnscope.models.head import subspace_of
        >>> import torch
        >>> subspace_of(torch.diag(torch.tensor([1.0, 3.0])), 1).share.item()
        0.75
    """
    unembedding = effective_unembedding(source, fold_norm=fold_norm, center=center, rows=rows)
    return subspace_of(unembedding.gram, k)


def subspace_of(gram: Tensor, k: int | None = None) -> Subspace:
    """Return the top k eigenvectors of a symmetric matrix [d, d]."""
    values, vectors = torch.linalg.eigh(gram.double())
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    rank = int((values > len(values) * torch.finfo(torch.float64).eps * values[0]).sum())
    count = rank if k is None else k
    if not 1 <= count <= rank:
        raise ValueError(f"prediction_subspace: k must lie in 1 .. {rank}, the numerical rank, got {k}")
    total = values.sum()
    return Subspace(
        vectors[:, :count], values, values[:count].sum() / total, total.square() / values.square().sum()
    )


def readout(model: nn.Module) -> Readout:
    """Return the model's own way from the last block's output [..., d] to logits [..., V].

    Args:
        model: of transformers.

    Returns:
        `Readout`: called with states it gives logits (factors and bounds are the configuration's); its
        `gain` and `share` say how much of what the logits read a direction is.

    Raises:
        NotImplementedError: a non-linear transform before the unembedding, or no unembedding.

    Example:
        A state of zeros says nothing of any token.

        >>> import torch, attnscope as asc
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=3, hidden_size=4, intermediate_size=4, num_hidden_layers=1,
        ...                      num_attention_heads=1)
        >>> read = asc.readout(LlamaForCausalLM(config))
        >>> read(torch.zeros(1, 4)).tolist(), round(read.share(torch.ones(4), 4).share, 6)
        ([[0.0, 0.0, 0.0]], 1.0)
    """
    reader = ModelTensors(model)
    unembedding_entry(reader)
    config: Any = model.config
    modules = before_unembedding(model, reader.map)
    scale = float(getattr(config, "logit_scale", None) or 1.0)
    divisor = float(getattr(config, "logits_scaling", None) or 1.0)
    cap = getattr(config, "final_logit_softcapping", None)
    head = model.get_output_embeddings()  # type: ignore[operator]

    def logits_of(hidden: Tensor) -> Tensor:
        for name in modules:
            hidden = model.get_submodule(name)(hidden)
        logits: Tensor = head(hidden) * scale / divisor
        return logits if cap is None else float(cap) * torch.tanh(logits / float(cap))

    return Readout(model, logits_of)
