# SPDX-License-Identifier: MIT
"""Changes of rank one in the base: along directions of its predictions and inputs, and along others of
equal size.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnscope.capture.weights.rank_one import attention_change, rank_one_effect
from attnscope.errors import ConfigError
from attnscope.models.architecture import weight_map
from attnscope.models.unembedding import effective_unembedding
from attnscope.models.weight_entries import WeightMap
from attnscope.models.weights import WeightFolder
from attnscope.studies.pretraining_writes.subspaces import Directions, Subspaces
from attnscope.studies.pretraining_writes.sums import Sums, distinct_samples, rank_of, texts_of, title_of

if TYPE_CHECKING:
    from attnscope.studies.pretraining_writes.options import RankOneOptions, WeightsOptions
    from attnscope.study_api.stage_run import StageRun
    from attnscope.study_api.units import Unit

WRITING, READING = ("o", "down"), ("q", "k")
#: Class of directions -> u [directions, out] and v [directions, in].
Classes = dict[str, tuple[Tensor, Tensor]]


def measure(unit: Unit, run: StageRun, options: WeightsOptions) -> None:
    """Write `rank_one` of the first texts of a base, equal ones once; means over the directions of each
    class.
    """
    chosen = options.rank_one
    chosen_samples = [sample for sample in distinct_samples(unit) if sample < chosen.texts] if chosen else []
    assert unit.checkpoint is not None
    if not chosen or not chosen_samples:
        return
    model = run.model().model
    if next(model.parameters()).dtype.itemsize < 4:
        model = model.float()
    matrices = weight_map(run.folder())
    subspaces = Subspaces(
        run, Sums(run, title_of(unit.checkpoint), rank_of(options, matrices)), run.folder(), options
    )
    prediction = subspaces.prediction()
    if prediction is None:
        return
    for layer in _layers(chosen, matrices.layers):
        for role in (*WRITING, *READING):
            inputs = subspaces.of_moment(layer, role, "in")
            if inputs is None or (layer, role, None) not in {entry.key for entry in matrices}:
                continue
            draw = _Draw(run, layer, role, chosen)
            if role in WRITING:
                gradients = subspaces.of_moment(layer, role, "out")
                classes = _writing(draw, inputs, prediction, gradients, options)
                if chosen.tokens is not None:
                    classes["tokens"] = _tokens(run, matrices, chosen.tokens, inputs)
            else:
                classes = _reading(draw, inputs, matrices[layer, role].shape[0], options)
            for batch in run.batches():
                for sample, ids in texts_of(batch, chosen_samples):
                    keys = {"sample": sample, "layer": layer, "role": role}
                    measure_text(
                        run, model, torch.as_tensor(ids, device="cpu").long(), keys, classes, chosen.size
                    )


def _layers(chosen: RankOneOptions, total: int) -> list[int]:
    """Return the layers whose matrices are changed, counted from the first."""
    outside = [number for number in chosen.layers if not -total <= number < total]
    if outside:
        raise ConfigError(
            f"options.rank_one.layers: the model has {total} layers, -{total} to {total - 1}, got {outside}"
        )
    return sorted({number % total for number in chosen.layers})


def measure_text(
    run: StageRun, model: Any, ids: Tensor, keys: dict[str, Any], classes: Classes, size: float
) -> None:
    us, vs = (torch.cat(parts) for parts in zip(*classes.values(), strict=True))
    place = keys["layer"], keys["role"]
    effect = rank_one_effect(model, ids[None], *place, us, vs, size=size)
    fields = {name: value[:, 0] for name, value in effect._asdict().items()}
    if keys["role"] in READING:
        try:
            fields["attention_change"] = attention_change(model, ids, *place, us, vs, size=size)
        except NotImplementedError as reason:
            run.note(str(reason))
    first = 0
    for name, (written, _) in classes.items():
        means = {field: float(value[first : first + len(written)].mean()) for field, value in fields.items()}
        first += len(written)
        run.write("rank_one", **keys, direction=name, **{"attention_change": math.nan, **means})


class _Draw:
    """Seeded unit directions of one matrix."""

    def __init__(self, run: StageRun, layer: int, role: str, chosen: RankOneOptions) -> None:
        self._generator = run.rng("rank_one", layer, role)
        self.count = chosen.directions

    def gaussian(self, d: int) -> Tensor:
        """Return [directions, d], any length."""
        return torch.from_numpy(self._generator.standard_normal((self.count, d)))

    def classes(self, basis: Tensor) -> dict[str, Tensor]:
        """Return unit directions inside a subspace [d, k], orthogonal to it, and anywhere."""
        inside, outside, anywhere = (self.gaussian(len(basis)) for _ in range(3))
        drawn = {
            "inside": inside @ basis @ basis.mT,
            "complement": outside - outside @ basis @ basis.mT,
            "haar": anywhere,
        }
        return {name: _unit(directions) for name, directions in drawn.items()}


def _unit(directions: Tensor) -> Tensor:
    lengths: Tensor = directions.norm(dim=1, keepdim=True)
    return directions / lengths.clamp_min(math.ulp(0.0))


def _writing(
    draw: _Draw,
    inputs: Directions,
    prediction: Directions,
    gradients: Directions | None,
    options: WeightsOptions,
) -> Classes:
    """Return changes that read the first input direction and write directions of each class."""
    k = options.directions(len(prediction.basis))
    written = draw.classes(prediction.basis[:, :k])
    written = {("prediction" if name == "inside" else name): drawn for name, drawn in written.items()}
    if gradients is not None:
        written["gradients"] = draw.classes(gradients.basis[:, :k])["inside"]
    v = inputs.basis[:, 0].expand(draw.count, -1)
    return {name: (u, v) for name, u in written.items()}


def _reading(draw: _Draw, inputs: Directions, out: int, options: WeightsOptions) -> Classes:
    """Return changes that read directions of each class and write one drawn in all rows of the heads."""
    read = draw.classes(inputs.basis[:, : options.directions(len(inputs.basis))])
    u = _unit(draw.gaussian(out))
    return {("inputs" if name == "inside" else name): (u, v) for name, v in read.items()}


def _tokens(
    run: StageRun, matrices: WeightMap, tokens: tuple[int, int], inputs: Directions
) -> tuple[Tensor, Tensor]:
    """Return the direction W̃_y − W̃_x that tells two tokens apart."""
    folder = WeightFolder(run.folder())
    entry = matrices[-1, "embed" if matrices.tied else "unembed"]
    if max(tokens) >= entry.shape[0]:
        raise ConfigError(
            f"options.rank_one.tokens: the model has {entry.shape[0]} tokens, got {max(tokens)}"
        )
    x, y = (next(folder.blocks(entry.tensor, None, token, token + 1))[1][0].double() for token in tokens)
    difference = y - x
    if matrices.project_out is not None:
        difference = difference @ folder.read(matrices.project_out).double()
    difference = difference * effective_unembedding(run.folder()).gain
    if matrices.layer_norm:
        difference = difference - difference.mean()
    return _unit(difference[None]), inputs.basis[:, :1].mT
