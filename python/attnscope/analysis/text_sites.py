# SPDX-License-Identifier: MIT
"""Sites that no module of a model holds: tokens and answers of texts, and norms of what keys write.

Metrics read them by name as they read captured tensors. A layer that reads something else than the text, such
as the image of a model with two inputs, has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnscope.analysis.answer_regions import Region, restrict
from attnscope.metrics.states.value_norms import value_norms
from attnscope.metrics.support import LayerSupport
from attnscope.models.inputs.answer_spans import NO_ANSWER
from attnscope.study_api.forward import Batch

if TYPE_CHECKING:
    from attnscope.capture import Layer

#: Sites of texts, and the captured site that each is computed from.
TEXT_SITES = {"tokens": None, "answer": None, "value_norms": "value"}


@dataclass(frozen=True)
class TextSites:
    """The tokens and answers of all texts of a call.

    Attributes:
        model: of transformers, whose output projections weight values.
        answers: first token of each text's answer and one past its last; None where none were passed.
        virtual: number of virtual tokens before each text.
        region: the part of each text that is measured.
    """

    model: Any
    answers: Sequence[tuple[int, int]] | Mapping[int, tuple[int, int]] | None = None
    virtual: int = 0
    region: Region = "text"

    def of(
        self, names: Sequence[str], layer: Layer, batch: Batch, reasons: dict[str, str]
    ) -> dict[str, Tensor]:
        """Return the sites of these names that a layer has; `reasons` takes why it lacks one."""
        sites = {}
        ids = [[*range(-self.virtual, 0), *row] for row in batch.token_ids]
        if "tokens" in names and self._reads_text(batch):
            padded = torch.full((len(ids), 1, max(map(len, ids))), -1, dtype=torch.int64, device="cpu")
            for row, tokens in enumerate(ids):
                padded[row, 0, : len(tokens)] = torch.tensor(tokens, device="cpu")
            sites["tokens"] = padded
        if "answer" in names and (spans := self._spans(batch)):
            sites["answer"] = torch.tensor(spans, device="cpu")[:, None]
        if "value_norms" in names and "value" in layer.tensors and self._reads_text(batch):
            norms = self._value_norms(layer, reasons)
            if norms is not None:
                sites["value_norms"] = norms
        return sites

    def restrict(
        self, batch: Batch, seen: LayerSupport, sites: Mapping[str, Tensor]
    ) -> tuple[Batch, LayerSupport, dict[str, Tensor]]:
        """Return the batch, its support and its sites in the region that is measured."""
        spans = self._spans(batch)
        return restrict(self.region if spans else "text", spans, batch, seen, sites)

    def before_text(self, batch: Batch) -> int | None:
        """Return how many virtual tokens a layer has before each text, None where it reads no text."""
        return self.virtual if self._reads_text(batch) else None

    def _reads_text(self, batch: Batch) -> bool:
        """Return True if a layer's tokens are those of the texts."""
        return [len(row) + self.virtual for row in batch.token_ids] == list(batch.lengths)

    def _spans(self, batch: Batch) -> list[tuple[int, int]]:
        """Return the answers of a batch as tokens of a layer, none where there are none."""
        if self.answers is None or not self._reads_text(batch):
            return []
        spans = [self.answers[sample] for sample in batch.samples]
        return [
            (start + self.virtual, stop + self.virtual) if stop > 0 else NO_ANSWER for start, stop in spans
        ]

    def _value_norms(self, layer: Layer, reasons: dict[str, str]) -> Tensor | None:
        if getattr(self.model.config, "is_encoder_decoder", False):
            reasons["value_norms"] = "layers of encoder and decoder have the same numbers"
            return None
        from attnscope.capture.positions import output_projection
        from attnscope.errors import WeightMapError

        try:
            projection = output_projection(self.model, layer.index)
            return value_norms(layer.states("value").cpu(), projection.cpu())[:, list(layer.heads)]
        except (KeyError, ValueError, WeightMapError) as error:
            reasons["value_norms"] = f"the model's output projection is not known: {error}"
            return None
