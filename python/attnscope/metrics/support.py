# SPDX-License-Identifier: MIT
"""The measurement of a captured layer under what its queries see.

Metrics of a map depend on more than the map: on the keys that each query sees (a window is no causal
attention) and on the mass that a learned sink takes of each row. `LayerSupport` reads both off a layer, and
`measure_layer` is the only function that hands them to quantities, for `Layer.measure`, studies, `analyze`
and `view`.

Example:
    Uniform attention to the two nearest keys is as even as a window of two allows.

    >>> import torch
    >>> from attnscope.metrics.discovery import quantity
    >>> from attnscope.metrics.support import LayerSupport, measure_layer
    >>> window = torch.ones(4, 4, dtype=torch.bool).tril().triu(-1)
    >>> maps = (window / window.sum(-1, keepdim=True))[None, None]
    >>> evenness = quantity("entropy_normalized").mean_over("query")
    >>> [round(measure_layer({"attention": maps}, [evenness], LayerSupport(support, None))
    ...        .values[evenness].item(), 3) for support in (window, "causal")]
    [1.0, 0.71]
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnscope._precision import Precision
from attnscope.arguments.maps import Places
from attnscope.metrics.measured import Measured, measure_quantities
from attnscope.metrics.quantity import Quantity, Shared, Site


@dataclass(frozen=True)
class LayerSupport:
    """The keys that the queries of a layer see, and the mass of its learned sink.

    Attributes:
        support: as metrics take it: a word, or a boolean tensor [n, n] or [b, 1 or h, n, n].
        learned: the share of each row that a learned sink takes [b, h, n]; None in models without a learned
            sink.
    """

    support: Any
    learned: Tensor | None

    @classmethod
    def of(cls, layer: Any) -> LayerSupport:
        """Return the support of a captured self-attention layer, on the CPU."""
        support = layer.visibility.support
        return LayerSupport(
            support.cpu() if isinstance(support, Tensor) else support,
            layer.states("sink_mass").cpu() if layer.has_sink else None,
        )

    @property
    def kind(self) -> str:
        """The support as a word, "mask" for a tensor."""
        return "mask" if isinstance(self.support, Tensor) else str(self.support)

    def options(self, names: Collection[str]) -> dict[str, Any]:
        """Return the options of metrics of the layer's heads, restricted to the names that they take."""
        options = {"support": self.support}
        if self.learned is not None:
            options["sink_mass"] = self.learned
        return {name: value for name, value in options.items() if name in names}

    def rows(self, *, mean: bool) -> dict[str, Tensor]:
        """Return the sites of the maps' rows: the support where it is a tensor, and the learned sink's mass.

        Args:
            mean: of the mean over heads, whose queries see what any head sees.
        """
        sites = {}
        if isinstance(self.support, Tensor):
            per_head = self.support.ndim == 4 and self.support.shape[1] > 1
            sites["support"] = self.support.any(1, keepdim=True) if mean and per_head else self.support
        if self.learned is not None:
            sites["sink_mass"] = self.learned.double().mean(1, keepdim=True) if mean else self.learned
        return sites


def with_support(quantity: Quantity, kind: str, *, learned: bool = False) -> Quantity:
    """Return an exact quantity of maps whose support is known.

    Args:
        quantity: of any metric.
        kind: "causal", "full", "auto", or "mask": the site `support` holds it.
        learned: the site `sink_mass` holds what a learned sink takes.
    """
    bound: dict[str, Any] = {"support": Site("support") if kind == "mask" else kind}
    if learned:
        bound["sink_mass"] = Site("sink_mass")
    shared = {
        name: replace(value, options=(*value.options, ("support", bound["support"])))
        for name, value in quantity.options.items()
        if isinstance(value, Shared)
    }
    # an option that the caller set is the caller's
    bound = {name: value for name, value in bound.items() if name not in quantity.options}
    return quantity.with_options(**bound, **shared)


@functools.lru_cache(maxsize=256)
def _with_support(quantities: tuple[Quantity, ...], kind: str, learned: bool) -> tuple[Quantity, ...]:
    """Return quantities under a support; the same objects each time, because plans are cached by them."""
    return tuple(with_support(quantity, kind, learned=learned) for quantity in quantities)


def measure_layer(
    sites: Mapping[str, Tensor],
    quantities: Sequence[Quantity],
    seen: LayerSupport,
    *,
    lengths: Tensor | Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    mean: bool = False,
    full_results: Sequence[str] = (),
    held: torch.dtype | None = None,
    places: Places | None = None,
    precision: Precision = "exact",
) -> Measured:
    """Return quantities of the maps of a layer under what its queries see.

    Args:
        sites: captured tensors, as `measure_quantities` takes them; a site `support` or `sink_mass` among
            them replaces the layer's.
        quantities: of one protocol; only those of the exact protocol take a support.
        seen: of the layer.
        lengths: tokens of each text.
        heads: numbers of the heads whose maps these are, None of other maps.
        mean: the maps are means over the heads of the layer.
        full_results: metrics whose unreduced result is also returned.
        held: the type in which the model holds its maps.
        places: where the queries of maps that are not square stand.
        precision: of the exact protocol, as in `measure_quantities`.

    Returns:
        `Measured`, its keys the given quantities.
    """
    rest = {
        "lengths": lengths,
        "heads": heads,
        "full_results": full_results,
        "held": held,
        "places": places,
        "precision": precision,
    }
    if any(quantity.protocol != "exact" for quantity in quantities):
        return measure_quantities(sites, quantities, **rest)  # type: ignore[arg-type]
    bound = _with_support(tuple(quantities), seen.kind, seen.learned is not None)
    measured = measure_quantities({**seen.rows(mean=mean), **sites}, bound, **rest)  # type: ignore[arg-type]
    names = dict(zip(bound, quantities, strict=True))
    values = {names[quantity]: value for quantity, value in measured.values.items()}
    defined = {names[quantity]: value for quantity, value in measured.defined.items()}
    return replace(measured, values=values, defined=defined)
