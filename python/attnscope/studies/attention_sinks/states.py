# SPDX-License-Identifier: MIT
"""A captured layer as the study reads it: maps, head mean, lengths, and the states that are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from attnscope.engine.forward import head_mean

if TYPE_CHECKING:
    from attnscope.capture import Layer
    from attnscope.capture.visibility import Visibility

#: Sites beside attention that the study takes where a model lets them be captured.
SITES = ("value", "hidden", "attention_output", "mlp_output", "block_output")


@dataclass(frozen=True)
class States:
    """What one layer of one batch left for measurement.

    Attributes:
        heads: maps [b, h, n, n], real tokens in each one's leading block.
        mean: their mean [b, 1, n, n], float64.
        lengths: real tokens [b].
        names: numbers of the heads.
        sites: captured states by site, on the CPU: value [b, kv, n, d], the others [b, n, D].
        support: which keys queries see, as metrics take it.
        supports: that in a word, of each text by itself.
        learned: what a learned sink takes of each row [b, h, n], None in models without one.
    """

    heads: Tensor
    mean: Tensor
    lengths: Tensor
    names: tuple[int, ...]
    sites: dict[str, Tensor]
    support: Any
    supports: tuple[str, ...]
    learned: Tensor | None

    @classmethod
    def of(cls, layer: Layer) -> States:
        """Reads a captured layer.

        Args:
            layer: self-attention over whole sentences.
        """
        heads = layer.matrices()
        sites = {site: layer.states(site).cpu() for site in SITES if site in layer.tensors}
        # each query head its own value head, unless the heads divide evenly, which the kernels read in place
        if "value" in sites and heads.shape[1] % sites["value"].shape[1]:
            sites["value"] = layer.states("value", per_head=True).cpu()
        learned = None if layer.sink_logits is None else layer.states("sink_mass").cpu()
        seen = layer.visibility
        support = seen.support.cpu() if isinstance(seen.support, Tensor) else seen.support
        names = support_names(seen, layer.lengths.tolist(), heads)
        return cls(heads, head_mean(heads), layer.lengths, tuple(layer.heads), sites, support, names, learned)

    @property
    def kind(self) -> str:
        """The support in a word, "mask" for a tensor."""
        return "mask" if isinstance(self.support, Tensor) else str(self.support)

    def rows(self, *, mean: bool) -> dict[str, Tensor]:
        """Sites that belong to the rows of the maps: the support, and the learned sink's mass.

        Args:
            mean: of the head mean instead of the heads.
        """
        found = {"support": self.support} if isinstance(self.support, Tensor) else {}
        if self.learned is not None:
            found["sink_mass"] = self.learned.double().mean(1, keepdim=True) if mean else self.learned
        return found

    def copy(self) -> States:
        """The same numbers in memory of their own, which outlive the forward pass."""
        sites = {site: tensor.clone() for site, tensor in self.sites.items()}
        return replace(self, heads=self.heads.clone(), sites=sites)


def support_names(seen: Visibility, lengths: Sequence[int], heads: Tensor) -> tuple[str, ...]:
    """What each text's queries see, in a word that does not depend on the texts beside it.

    A window that a text is not longer than is causal or full attention of this text.

    Args:
        seen: of the layer.
        lengths: of the texts.
        heads: maps [b, h, n, n], which say it where the layer does not.
    """
    names = []
    for text, n in enumerate(lengths):
        name = seen.name
        if seen.kind == "auto":
            name = "full" if bool((heads[text, :, 0, 1:n] != 0).any()) else "causal"
        elif seen.kind == "window":
            left, right = (side is None or side >= n - 1 for side in (seen.before, seen.after))
            name = "full" if left and right else "causal" if left and seen.after == 0 else name
        names.append("causal" if n < 2 else name)
    return tuple(names)
