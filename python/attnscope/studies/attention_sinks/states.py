# SPDX-License-Identifier: MIT
"""A captured layer as the study reads it: maps, head mean, lengths, and the states that are there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from attnscope.engine.forward import head_mean
from attnscope.studies.supports import Seen

if TYPE_CHECKING:
    from attnscope.capture import Layer

#: Sites beside attention that the study takes where a model lets them be captured.
SITES = ("value", "hidden", "attention_output", "mlp_output", "block_output")


@dataclass(frozen=True)
class States(Seen):
    """What one layer of one batch left for measurement.

    Attributes:
        heads: maps [b, h, n, n], real tokens in each one's leading block.
        mean: their mean [b, 1, n, n], float64.
        lengths: real tokens [b].
        names: numbers of the heads.
        sites: captured states by site, on the CPU: value [b, kv, n, d], the others [b, n, D].
    """

    heads: Tensor
    mean: Tensor
    lengths: Tensor
    names: tuple[int, ...]
    sites: dict[str, Tensor]

    @classmethod
    def of(cls, layer: Layer) -> States:
        """Reads a captured layer."""
        heads = layer.matrices()
        sites = {site: layer.states(site).cpu() for site in SITES if site in layer.tensors}
        # each query head its own value head, unless the heads divide evenly, which the kernels read in place
        if "value" in sites and heads.shape[1] % sites["value"].shape[1]:
            sites["value"] = layer.states("value", per_head=True).cpu()
        seen = Seen.by(layer, heads)
        given = (seen.support, seen.supports, seen.learned)
        return cls(*given, heads, head_mean(heads), layer.lengths, tuple(layer.heads), sites)

    def copy(self) -> States:
        """The same numbers in memory of their own, which outlive the forward pass."""
        sites = {site: tensor.clone() for site, tensor in self.sites.items()}
        return replace(self, heads=self.heads.clone(), sites=sites)
