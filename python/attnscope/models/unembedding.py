# SPDX-License-Identifier: MIT
"""The linear map from the final residual stream to what a model predicts, by its Gram matrix.

W̃ = (I − 11ᵀ/V)·W_U·diag(γ)·C: a logit that all tokens share predicts nothing, γ is the gain of the final
norm, and C = I − 11ᵀ/d where that norm is a LayerNorm. Only W̃ᵀW̃ is ever formed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attnscope.arguments.scalars import flag
from attnscope.metrics._named import shown_by_shape
from attnscope.models.architecture import weight_map
from attnscope.models.families import OUTSIDE
from attnscope.models.weight_entries import WeightEntry, WeightMap, in_memory
from attnscope.models.weights import WeightFolder

#: Rows of the unembedding that are widened to float64 at a time.
_ROWS = 4096

#: Parts between the last hidden state and the unembedding of encoders, which are no linear map.
_TRANSFORMS = ("transform.", "lm_head.dense", "vocab_transform", "head.dense")


@shown_by_shape
class EffectiveUnembedding(NamedTuple):
    """The matrix W̃ of a model by its Gram matrix.

    Attributes:
        gram: W̃ᵀW̃ [d, d] float64.
        gain: γ of the final norm [d]; ones where it was not folded or there is none.
        tokens: V, rows of the unembedding that were taken.
    """

    gram: Tensor
    gain: Tensor
    tokens: int


def effective_unembedding(
    source: str | Path | nn.Module, *, fold_norm: bool = True, center: bool = True, rows: int | None = None
) -> EffectiveUnembedding:
    """Compute the linear map from the final residual stream to the model's predictions, W̃ᵀW̃.

    Args:
        source: folder of config.json and safetensors files, or a model, whose norm's gain is probed.
        fold_norm: multiply by the gain of the final norm, and remove the mean where it is a LayerNorm.
        center: leave out what all tokens share.
        rows: leading rows of the unembedding that are tokens, for one that is padded; None takes those of the
            folder's tokenizer.json, of a model all.

    Returns:
        `EffectiveUnembedding`. A constant factor of a family's logits is left out.

    Raises:
        NotImplementedError: no unembedding, or a non-linear transform before it.
        ValueError: `rows` outside 2 .. V.

    Example:
        Two tokens: only the difference of their rows predicts anything.

        >>> import torch, attnscope as asc
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=2, hidden_size=4, intermediate_size=4, num_hidden_layers=1,
        ...                      num_attention_heads=1)
        >>> model = LlamaForCausalLM(config)
        >>> _ = model.lm_head.weight.data.copy_(torch.tensor([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]]))
        >>> found = asc.prediction_subspace(model, 1)
        >>> found.basis.abs().round(decimals=6).flatten().tolist(), round(found.pr.item(), 6)
        ([1.0, 0.0, 0.0, 0.0], 1.0)

    References:
        nostalgebraist, Interpreting GPT: the logit lens, 2020, for residual states read by the unembedding.
    """
    fold_norm = flag("effective_unembedding", "fold_norm", fold_norm)
    center = flag("effective_unembedding", "center", center)
    reader: FolderTensors | ModelTensors
    reader = ModelTensors(source) if isinstance(source, nn.Module) else FolderTensors(source)
    entry = unembedding_entry(reader)
    total = entry.shape[0]
    chosen_rows = reader.tokens(total) if rows is None else rows
    if not 2 <= chosen_rows <= total:
        raise ValueError(f"effective_unembedding: rows must lie in 2 .. {total}, got {rows}")
    width = entry.shape[1]
    gram = torch.zeros(width, width, dtype=torch.float64, device="cpu")
    row_sum = torch.zeros(width, dtype=torch.float64, device="cpu")
    for block in reader.rows(entry, chosen_rows):
        wide = block.double()
        gram += wide.mT @ wide
        row_sum += wide.sum(0)
    if center:
        gram -= torch.outer(row_sum, row_sum) / chosen_rows
    if reader.map.project_out is not None:
        projection = reader.matrix(reader.map.project_out).double()
        gram = projection.mT @ gram @ projection
    d = len(gram)
    gain = torch.ones(d, dtype=torch.float64, device="cpu")
    if fold_norm and reader.map.final_norm is not None:
        gain = reader.gain(d)
        gram = gain[:, None] * gram * gain
    if fold_norm and reader.map.layer_norm:
        gram = gram - gram.mean(0, keepdim=True)
        gram = gram - gram.mean(1, keepdim=True)
    return EffectiveUnembedding((gram + gram.mT) / 2, gain, chosen_rows)


def before_unembedding(model: nn.Module, weights: WeightMap) -> list[str]:
    """Return the names of the modules between the last block and the unembedding: a norm, a projection, or
    none.
    """
    norm = weights.final_norm and weights.final_norm.removesuffix(".weight")
    if norm is None and weights.layer_norm:  # one without parameters
        parent = weights.blocks.rpartition(".")[0]
        inside = dict(model.get_submodule(parent).named_children())
        norm = next((f"{parent}.{name}" for name in OUTSIDE["final_norm"] if name in inside), None)
    projection = weights.project_out and weights.project_out.removesuffix(".weight")
    return [name for name in (norm, projection) if name]


def unembedding_entry(reader: FolderTensors | ModelTensors) -> WeightEntry:
    if any(part in name for name in reader.names for part in _TRANSFORMS):
        raise NotImplementedError(
            f"prediction_subspace: {reader.map.model_type} has a transform before its unembedding"
        )
    roles = ("embed", "unembed") if reader.map.tied else ("unembed",)
    for role in reversed(roles):
        first_entry = next((entry for entry in reader.map if entry.role == role), None)
        if first_entry is not None:
            return first_entry
    raise NotImplementedError(
        f"prediction_subspace: {reader.map.model_type or 'the model'} has no unembedding"
    )


class FolderTensors:
    """A folder's tensors; the gain of a norm is what is stored and what its family adds."""

    def __init__(self, path: str | Path) -> None:
        self.folder = WeightFolder(path)
        self.map = weight_map(self.folder.path)
        self.names = list(self.folder.shapes)

    def tokens(self, total: int) -> int:
        """Return the rows that are tokens."""
        from attnscope.models.weight_deltas import vocabulary_of

        vocabulary = vocabulary_of(self.folder.path)
        return min(total, max(vocabulary) + 1) if vocabulary else total

    def rows(self, entry: WeightEntry, count: int) -> Iterator[Tensor]:
        """Yield the leading rows of a matrix in blocks."""
        for _, block in self.folder.blocks(entry.tensor, None, 0, count):
            yield block

    def matrix(self, name: str) -> Tensor:
        """Return a whole tensor."""
        return self.folder.read(name)

    def gain(self, d: int) -> Tensor:
        """Return γ of the final norm."""
        assert self.map.final_norm is not None
        return self.folder.read(self.map.final_norm).double() + self.map.norm_offset


class ModelTensors:
    """A model's tensors; the gain of its norm is probed."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.map = weight_map(model)
        self.names = [name for name, _ in model.named_parameters()]

    def tokens(self, total: int) -> int:
        """Return all rows."""
        return total

    def rows(self, entry: WeightEntry, count: int) -> Iterator[Tensor]:
        """Yield the leading rows of a matrix in blocks."""
        stored = in_memory(entry.tensor, self.model.get_parameter(entry.tensor).detach())
        for start in range(0, count, _ROWS):
            yield stored[start : min(count, start + _ROWS)].cpu()

    def matrix(self, name: str) -> Tensor:
        """Return a whole tensor."""
        return in_memory(name, self.model.get_parameter(name).detach()).cpu()

    def gain(self, d: int) -> Tensor:
        """Return γ_i = (norm(x) − norm(−x))_i/(2x_i) at x of entries ±1 with sum 0."""
        assert self.map.final_norm is not None
        norm = self.model.get_submodule(self.map.final_norm.removesuffix(".weight"))
        parameter = next(norm.parameters(), None)
        if parameter is not None:
            in_memory(self.map.final_norm, parameter)
        kind = torch.float32 if parameter is None else parameter.dtype
        device = torch.device("cpu") if parameter is None else parameter.device
        x = torch.ones(d, dtype=torch.float64, device="cpu")
        x[1::2] = -1
        if d % 2:
            x[-1] = 0
        gain = torch.ones(d, dtype=torch.float64, device="cpu")
        with torch.no_grad():
            for probe in (x, x.roll(1)) if d % 2 else (x,):
                positive, other = (
                    norm((sign * probe).to(device, kind)).double().cpu() for sign in (1.0, -1.0)
                )
                seen = probe != 0
                gain[seen] = (positive - other)[seen] / (2 * probe[seen])
        return gain
