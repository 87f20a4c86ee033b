# SPDX-License-Identifier: MIT
"""Changes of rank one in the matrices that write: directions of the predictions against others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnscope.capture.weights.rank_one import rank_one_effect
from attnscope.models.architecture import weight_map
from attnscope.studies.pretraining_writes.subspaces import Subspaces
from attnscope.studies.pretraining_writes.sums import Sums, rank_of, title_of

if TYPE_CHECKING:
    from attnscope.engine.stage_run import StageRun
    from attnscope.engine.units import Unit
    from attnscope.studies.pretraining_writes.options import WeightsOptions

ROLES = ("o", "down")


def measure(unit: Unit, run: StageRun, options: WeightsOptions) -> None:
    """Fills `rank_one` of the first texts of a base; means over the directions of each class."""
    chosen = options.rank_one
    assert unit.checkpoint is not None
    if not chosen or int(unit.inputs[0].sentence.sample) >= chosen.texts:
        return
    model = run.model().model
    if next(model.parameters()).dtype.itemsize < 4:
        model = model.float()
    found = weight_map(run.folder())
    subspaces = Subspaces(
        run, Sums(run, title_of(unit.checkpoint), rank_of(options, found)), run.folder(), options
    )
    if subspaces.prediction() is None:
        return
    for layer in sorted({number % found.layers for number in chosen.layers}):
        for role in ROLES:
            inputs = subspaces.of_moment(layer, role, "in")
            if inputs is None:
                continue
            classes = _classes(subspaces, layer, role, run, options)
            stacked = torch.cat(list(classes.values()))
            for batch in run.batches():
                for sample, ids in zip(batch.samples, batch.token_ids, strict=True):
                    if sample >= chosen.texts:
                        continue
                    effect = rank_one_effect(
                        model,
                        torch.as_tensor(ids)[None].long(),
                        layer,
                        role,
                        stacked,
                        inputs.basis[:, 0],
                        size=chosen.size,
                    )
                    for at, name in enumerate(classes):
                        own = slice(at * chosen.directions, (at + 1) * chosen.directions)
                        values = {
                            field: float(value[own].mean()) for field, value in effect._asdict().items()
                        }
                        keys = {"sample": sample, "layer": layer, "role": role, "direction": name}
                        run.write("rank_one", **keys, **values)


def _classes(
    subspaces: Subspaces, layer: int, role: str, run: StageRun, options: WeightsOptions
) -> dict[str, Tensor]:
    """Class -> unit directions [directions, d]."""
    prediction = subspaces.prediction()
    assert prediction is not None
    assert options.rank_one
    d = len(prediction.basis)
    basis = prediction.basis[:, : options.directions(d)]
    drawn = run.rng("rank_one", layer, role).standard_normal((3, options.rank_one.directions, d))
    gaussian = torch.as_tensor(drawn)
    inside = gaussian[0] @ basis @ basis.mT
    outside = gaussian[1] - gaussian[1] @ basis @ basis.mT
    classes = {"prediction": inside, "complement": outside, "haar": gaussian[2]}
    gradients = subspaces.of_moment(layer, role, "out")
    if gradients is not None:
        own = gradients.basis[:, : options.directions(d)]
        classes["gradients"] = gaussian[0] @ own @ own.mT
    return {
        name: one / one.norm(dim=1, keepdim=True).clamp_min(math.ulp(0.0)) for name, one in classes.items()
    }
