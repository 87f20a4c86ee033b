# SPDX-License-Identifier: MIT
"""Scores before the softmax: as they are, at positions moved by a constant, with the first key hidden."""

from __future__ import annotations

import torch

from attnscope.capture import Forward
from attnscope.capture.edits import HideKeys, SetPositionIds
from attnscope.study_api.stages import Stage
from attnscope.study_api.study import Options, Study
from attnscope.study_api.tables import Column, Table

KEYS = ("model", "revision", "step", "sample", "layer", "head")


class PositionOptions(Options):
    """How far positions are moved."""

    shift: int = 3


class MovedPositions(Study):
    """`scores` of every head beside the run whose positions are moved."""

    name = "moved_positions"
    Options = PositionOptions
    tables = (
        Table(
            "scores",
            keys=KEYS,
            columns=(
                Column("largest", label="largest score", symbol="max s"),
                Column("moved_by", meaning="Largest change of a score when all positions move.", low=0.0),
                Column("on_first_key", kind="ratio", low=0.0, high=1.0),
                Column("on_hidden_key", kind="ratio", low=0.0, high=1.0),
            ),
        ),
    )

    def stages(self, units):
        """Texts alone."""
        return [Stage("scores", units.texts(), self.measure, writes=("scores",))]

    def measure(self, unit, run):
        """Three passes over each batch; the second and third are changed."""
        sites = ("scores", "attention")
        for batch in run.batches():
            positions = torch.arange(max(batch.lengths)) + self.options.shift
            plain, moved, hidden = (
                self.states_of_batch(run, batch, Forward(sites=sites, edits=edits))
                for edits in ((), (SetPositionIds(ids=positions),), (HideKeys([0]),))
            )
            for layer, ((scores, attention), (other, _), (_, without)) in enumerate(
                zip(plain, moved, hidden, strict=True)
            ):
                for row, (sample, n) in enumerate(zip(batch.samples, batch.lengths, strict=True)):
                    seen = scores[row, :, :n, :n].isfinite()
                    scores_of_text = scores[row, :, :n, :n].masked_fill(~seen, 0.0)
                    change = (scores_of_text - other[row, :, :n, :n].masked_fill(~seen, 0.0)).abs()
                    run.write(
                        "scores",
                        sample=sample,
                        layer=layer,
                        head=range(scores_of_text.shape[0]),
                        largest=scores_of_text.flatten(1).amax(1),
                        moved_by=change.flatten(1).amax(1),
                        on_first_key=attention[row, :, 1:n, 0].mean(-1),
                        on_hidden_key=without[row, :, 1:n, 0].mean(-1),
                    )

    def states_of_batch(self, run, batch, site):
        """Scores and attention of every layer of one pass, in float64."""
        with run.forward(batch, site) as layers:
            return [(layer.scores.double(), layer.attention.double()) for layer in layers]


STUDY = MovedPositions
