# SPDX-License-Identifier: MIT
"""States of every layer as a cloud of points, then the model along the cloud's axes: gradients and steps."""

from __future__ import annotations

import numpy as np
import torch

from attnscope.capture import Forward, Gradient
from attnscope.capture.edits import AddDirection
from attnscope.study_api.stages import Stage
from attnscope.study_api.study import Options, Study
from attnscope.study_api.tables import Column, Table

CHECKPOINT = ("model", "revision", "step")


class CloudOptions(Options):
    """How many axes of the cloud, and how far a step goes along each."""

    axes: int = 2
    step: float = 1e-3


class StateClouds(Study):
    """`clouds` of every text and layer, `axes` of every checkpoint's clouds, `slopes` along them."""

    name = "state_clouds"
    Options = CloudOptions
    tables = (
        Table(
            "clouds",
            keys=(*CHECKPOINT, "sample", "layer"),
            columns=(
                Column("radius", label="mean distance to the centre", low=0.0),
                Column("points", kind="count"),
            ),
        ),
        Table(
            "axes",
            keys=(*CHECKPOINT, "layer", "axis"),
            columns=(
                Column("share", kind="ratio", low=0.0, high=1.0),
                Column("vector", dtype="list<float64>"),
            ),
        ),
        Table(
            "slopes",
            keys=(*CHECKPOINT, "sample", "layer", "direction"),
            columns=(
                Column("gradient", meaning="Slope of the likeliest token's logit, by backward pass."),
                Column("difference", meaning="The same by a step along the direction."),
            ),
        ),
    )

    def stages(self, units):
        """Texts, the checkpoint's clouds together, then the texts again along their axes."""
        return [
            Stage("clouds", units.texts(), self.cloud, writes=("clouds", "second_moment", "mean")),
            Stage(
                "axes",
                units.checkpoints(),
                self.axes,
                reads=("second_moment", "mean"),
                writes=("axes",),
                within="checkpoint",
            ),
            Stage(
                "slopes", units.texts(), self.slopes, reads=("axes",), writes=("slopes",), within="checkpoint"
            ),
        ]

    def cloud(self, unit, run):
        """Radius of each cloud, and the sums that the axes are made of."""
        for batch in run.batches():
            with run.forward(batch, Forward(sites=("block_output",))) as layers:
                for number, layer in enumerate(layers):
                    for row, (sample, n) in enumerate(zip(batch.samples, batch.lengths, strict=True)):
                        points = layer.block_output[row, :n].double()
                        radius = (points - points.mean(0)).norm(dim=-1).mean()
                        run.write("clouds", sample=sample, layer=number, radius=radius.item(), points=n)
                        run.reduce("second_moment", points.T @ points / n, layer=number)
                        run.reduce("mean", points.mean(0), layer=number)

    def axes(self, unit, run):
        """Principal axes of each layer's states."""
        moments, means = run.reduced("second_moment", by=("layer",)), run.reduced("mean", by=("layer",))
        for (layer,), moment in moments.items():
            centre = means[layer,].mean
            values, vectors = np.linalg.eigh(moment.mean - np.outer(centre, centre))
            for axis in range(self.options.axes):
                vector = vectors[:, -1 - axis]
                vector = vector * np.sign(vector[np.abs(vector).argmax()])
                share = values[-1 - axis] / values.sum()
                run.write("axes", layer=layer, axis=axis, share=share, vector=[vector.tolist()])

    def slopes(self, unit, run):
        """How the model answers a step along each axis, and along one drawn at random."""
        stored = run.read("axes")
        for batch in run.batches():
            for layer, group in stored.groupby("layer"):
                directions = {f"axis {row.axis}": np.asarray(row.vector) for row in group.itertuples()}
                drawn = run.rng("direction", int(layer)).standard_normal(len(group["vector"].iloc[0]))
                directions["random"] = drawn / np.linalg.norm(drawn)
                self.along(run, batch, int(layer), directions)

    def along(self, run, batch, layer, directions):
        """Slopes of one layer: by one backward pass, and by two steps for each direction."""
        likeliest = self.answer(run, batch, ()).argmax(-1)

        def value(outputs):
            return self.last(outputs.logits, batch).gather(-1, likeliest[:, None]).sum()

        specification = Forward(
            sites=("block_output", "logits"), layers=(layer,), gradient=Gradient(value, ("block_output",))
        )
        with run.forward(batch, specification) as layers:
            slopes = next(iter(layers)).gradients["block_output"].double().sum(1)
        for name, vector in directions.items():
            direction = torch.tensor(vector)
            step = self.options.step * direction.float()
            up, down = (
                self.answer(run, batch, (AddDirection(layer, value=side, positions="all"),)).double()
                for side in (step, -step)
            )
            change = (up - down).gather(-1, likeliest[:, None])[:, 0] / (2 * self.options.step)
            run.write(
                "slopes",
                sample=list(batch.samples),
                layer=layer,
                direction=name,
                gradient=slopes @ direction,
                difference=change,
            )

    def answer(self, run, batch, edits):
        """Logits of the last token of each text."""
        with run.forward(batch, Forward(sites=("logits",), edits=edits)) as layers:
            return self.last(layers.outputs.logits, batch)

    def last(self, logits, batch):
        """Of [B, n, V], the rows of each text's last token."""
        return logits[range(len(batch.lengths)), [n - 1 for n in batch.lengths]]


STUDY = StateClouds
