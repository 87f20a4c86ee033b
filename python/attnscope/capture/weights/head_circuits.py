# SPDX-License-Identifier: MIT
"""Spectra of a head's weights: the products of queries and keys, and of values and outputs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from attnscope.errors import MissingError
from attnscope.metrics._named import shown_by_shape


@shown_by_shape
class HeadCircuits(NamedTuple):
    """The two products of each head of a layer.

    Attributes:
        qk: singular values of W_Qᵀ W_K, falling, [h, d] float64, d the width of queries.
        ov: singular values of W_O W_V, likewise, d the width of values.
        qk_rank: singular values above rounding, [h] int64.
        ov_rank: likewise.
        copying: Σλ/Σ|λ| over the eigenvalues of W_O W_V, [h] in [−1, 1]: 1 of a head that adds what it reads
            to what it writes; NaN where all are 0.
    """

    qk: Tensor
    ov: Tensor
    qk_rank: Tensor
    ov_rank: Tensor
    copying: Tensor


def head_circuits(model: nn.Module, layer: int) -> HeadCircuits:
    """Return spectra of the query-key and the output-value circuit of each head of a layer.

    Both are of rank d in D dimensions, so their spectra are those of d × d matrices. Weights are taken as
    they are stored: without biases, the 1/√d of the scores, rotary positions and the gains of norms, which
    TransformerLens folds in. Keys and values of grouped heads are repeated.

    Args:
        model: of transformers.
        layer: number of the block.

    Returns:
        HeadCircuits.

    Raises:
        MissingError: the layer has no such projection.
        WeightMapError: the model's structure is not known.

    Example:
        >>> import attnscope as asc
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=8, num_hidden_layers=1,
        ...                      num_attention_heads=2)
        >>> found = asc.head_circuits(LlamaForCausalLM(config), 0)
        >>> found.qk.shape, found.ov_rank.tolist()
        (torch.Size([2, 8]), [8, 8])

    References:
        Elhage et al., A mathematical framework for transformer circuits, 2021.
    """
    from attnscope.models.architecture import weight_map

    entries = weight_map(model)
    parameters = dict(model.named_parameters(remove_duplicate=False))

    def matrix(role: str) -> tuple[Tensor, int]:
        try:
            entry = entries[layer, role]
        except KeyError:
            roles = sorted({entry.role for entry in entries if entry.layer == layer})
            raise MissingError(
                f"head_circuits: layer {layer!r} of {type(model).__name__} has no matrix {role!r} that reads "
                f"the residual stream; it has {', '.join(roles) or 'none'}, and its {entries.layers} layers "
                "are numbered from 0"
            ) from None
        return entry.of(parameters[entry.tensor].detach()).double().cpu(), entries.heads_of(entry.layer)

    output, heads = matrix("o")
    output = output.reshape(output.shape[0], heads, -1).transpose(0, 1)
    query = matrix("q")[0]
    query = query.reshape(heads, -1, query.shape[-1])
    key, value = (
        _by_head(matrix(role)[0], heads, width)
        for role, width in (("k", query.shape[1]), ("v", output.shape[-1]))
    )
    qk, ov = _singular_values(query.mT, key.mT), _singular_values(output, value.mT)
    eigenvalues = torch.linalg.eigvals(value @ output)
    sizes = eigenvalues.abs().sum(-1)
    copying = torch.where(sizes > 0, eigenvalues.real.sum(-1) / sizes, torch.nan)
    longest = output.shape[-2]
    return HeadCircuits(qk, ov, _rank(qk, longest), _rank(ov, longest), copying)


def _by_head(matrix: Tensor, heads: int, width: int) -> Tensor:
    """Return a projection [kv·d, D] as [h, d, D], grouped heads repeated."""
    by_group = matrix.reshape(-1, width, matrix.shape[-1])
    return by_group.repeat_interleave(heads // len(by_group), 0)


def _singular_values(left: Tensor, right: Tensor) -> Tensor:
    """Return the singular values of left @ right.mT, [h, d] of [h, D, d], from their triangles."""
    triangles = [torch.linalg.qr(part, mode="r").R for part in (left, right)]
    return torch.linalg.svdvals(triangles[0] @ triangles[1].mT)


def _rank(values: Tensor, longest: int) -> Tensor:
    """Return how many singular values are above the rounding of the largest."""
    smallest = longest * torch.finfo(torch.float32).eps * values[:, :1]
    return (values > smallest).sum(-1)
