# SPDX-License-Identifier: MIT
"""One attention layer of one forward pass, of which queries and keys are there and no map."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnscope.capture.layer import End, require_tokens
from attnscope.metrics.discovery import registry
from attnscope.metrics.lazy.lazy_attention import LazyAttention
from attnscope.metrics.measure import measure
from attnscope.metrics.request import options_taken, requests_of
from attnscope.metrics.signatures import takes_rectangles


@dataclass(eq=False)
class LazyLayer:
    """An attention module in one forward pass, with its attention as queries and keys.

    Attributes:
        index: number of the layer inside its stack, from 0.
        stack: qualified name of the attention module with numbers name_pattern.
        call: 0, or how often this layer ran before in the same forward pass.
        cross: True if keys come from another sequence.
        heads: numbers of the captured query heads.
        valid: bool [B, k], True at real keys as the model got them.
        query_valid: of cross attention bool [B, q], True at real queries, where the decoder was given a mask
            of its tokens; None: all.
        attention: `attnscope.LazyAttention` [B, h, m, m]; padding is behind the lengths, also where the model
            had it in front. A text without a token has a length of 1, and no numbers.
    """

    index: int
    stack: str
    call: int
    _: KW_ONLY
    cross: bool
    heads: tuple[int, ...]
    valid: Tensor
    attention: LazyAttention
    query_valid: Tensor | None = None
    end: End = field(default_factory=End, init=False, repr=False)

    @property
    def lengths(self) -> Tensor:
        """Number of real keys of each sample, int64 [B]."""
        return self.valid.sum(-1, dtype=torch.int64)

    @property
    def sink_logits(self) -> Tensor | None:
        """Learned logit of each head without a key, [h]; None where the model has none."""
        return self.attention.sink_logits

    @property
    def sink_mass(self) -> Tensor:
        """Mass that the learned sink takes of each row, [B, h, m]."""
        return self.attention.sink_mass

    def measure(
        self, metrics: str | Iterable[str] | Mapping[str, Mapping[str, Any]], **options: Any
    ) -> dict[str, Any]:
        """Return metrics of every head of every sample, as `attnscope.measure` of the attention.

        Metrics that ask what a learned sink takes get it from the layer, as those of a layer with maps do.

        Raises:
            ValueError: for a text without a token; in cross attention, of a metric that asks where queries
                stand among the keys, or that takes square maps only; and as `attnscope.measure`.
        """
        if isinstance(metrics, Iterator):
            metrics = list(metrics)  # they are looked at twice
        require_tokens(self.valid, self.query_valid)
        if self.cross:
            self._refuse_metrics_of_places(metrics, options)
        if self.sink_logits is not None and "sink_mass" in options_taken(metrics) - options.keys():
            options["sink_mass"] = self.sink_mass
        return measure(self.attention, metrics, **options)

    def _refuse_metrics_of_places(
        self, metrics: str | Iterable[str] | Mapping[str, Mapping[str, Any]], options: Mapping[str, Any]
    ) -> None:
        """Raise where a metric would take the queries of another text for tokens among the keys."""
        for request in requests_of(metrics, options):
            name, rule = request.metric, request.options.get("rule", "test")
            by_test = name in ("sink_tokens", "sink_position") and rule == "test"
            by_distance = name in ("sink_test", "sink_excess", "local_global_ratio")
            if by_test or by_distance or not takes_rectangles(registry().function("exact", name)):
                raise ValueError(
                    f"measure: {name} asks where queries stand among the keys, and layer {self.index} "
                    f"({self.stack}) is cross attention; layer.attention.dense() makes its map, which "
                    "attnscope.measure takes with cross=True"
                )
