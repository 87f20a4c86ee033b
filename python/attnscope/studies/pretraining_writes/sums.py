# SPDX-License-Identifier: MIT
"""Moments of a run's base, summed text by text into partials of the engine and read back layer by layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import torch

from attnscope.capture.weights.second_moments import Tracer, check_length, identity_errors
from attnscope.errors import ConfigError
from attnscope.metrics.weights.moment_sums import MomentSums
from attnscope.metrics.weights.moments import Moments, sketch_rank
from attnscope.models import LoadError, WeightMapError, verify_weight_map
from attnscope.models.unembedding import effective_unembedding

if TYPE_CHECKING:
    from attnscope.models import Checkpoint, WeightMap
    from attnscope.studies.pretraining_writes.options import WeightsOptions
    from attnscope.study_api.forward import Batch
    from attnscope.study_api.stage_run import StageRun
    from attnscope.study_api.units import Unit

#: Widths whose moments are kept whole unless a run asks for something else.
WIDE = 2048
TOLERANCE = 1e-5
#: Sums that are kept in memory, of all layers and controls that pairs ask for again.
KEPT_BYTES = 256 * 2**20


def title_of(checkpoint: Checkpoint) -> str:
    """Return model and revision, which name a base in keys."""
    return checkpoint.title


def add_texts(unit: Unit, run: StageRun, options: WeightsOptions) -> None:
    """Add the unit's texts, equal ones once, to the moments of its checkpoint or random-weight control."""
    loaded = run.model()
    model = loaded.model
    distinct = distinct_samples(unit)
    first = int((distinct or [unit.inputs[0].sentence.sample])[0])
    gradients = options.gradients and not unit.variant
    if gradients and next(model.parameters()).dtype.itemsize < 4:
        model = upcast(model, run, unit.title, str(loaded.dtype))
    if not unit.variant:
        try:
            verify_weight_map(model)
        except WeightMapError as error:
            raise LoadError(str(error)) from None
        run.write("checks", sample=first, check="weight_map", value=0.0, tolerance=0.0, holds=True, reason="")
    tracer = _tracer(unit, run, options, model, gradients=gradients)
    rank = rank_of(options, tracer.map)
    foreign = _foreign(unit, run, options)
    summed = {unit.variant: Moments(rank), **({"foreign": Moments(rank)} if foreign else {})}
    for batch in run.batches():
        for sample, ids in texts_of(batch, distinct):
            _check_length(int(sample), len(ids), options)
            tokens = torch.as_tensor(ids, device="cpu")
            if gradients and sample == first:
                _check_identity(tracer, tokens, run, first)
            moments = summed["foreign" if sample in foreign else unit.variant]
            group = min(options.groups - 1, int(sample) * options.groups // max(1, run.samples))
            for trace in tracer.run(tokens):
                trace.add_to(moments, group, skip_first=options.skip_first)
                if moments is summed.get(""):
                    squares = trace.x[int(options.skip_first) :].double().square().sum(1)
                    keys = {"sample": sample, "layer": trace.layer, "role": trace.role, "side": "in"}
                    energies = {"energy": float(squares.sum()), "largest_energy": float(squares.max())}
                    run.write("token_energies", **keys, tokens=len(squares), **energies)
    of = title_of(unit.checkpoint) if unit.checkpoint else ""
    for control, moments in summed.items():
        for (layer, site, side), group, sums in moments.items():
            keys = {"of": of, "control": control, "draw": unit.seed, "layer": layer, "site": site}
            sums.counts[3] = 0  # a maximum, which no sum over units gives
            run.reduce("sums", sums.packed(), **keys, side=side, group=group, width=len(sums.total))
    if unit.variant:
        keys = {"of": of, "draw": unit.seed}
        try:
            run.reduce("unembeddings", effective_unembedding(model, **_folding(options)).gram, **keys)
        except NotImplementedError:
            run.note(f"{unit.title}: no prediction subspace")


def distinct_samples(unit: Unit) -> list[int]:
    """Return the numbers of a unit's texts that repeat no earlier text."""
    return [text.sentence.sample for text in unit.inputs if not text.is_repeated]


def texts_of(batch: Batch, samples: Collection[int]) -> Iterator[tuple[int, Any]]:
    """Yield number and token ids of the texts of a batch that are among some."""
    for sample, ids in zip(batch.samples, batch.token_ids, strict=True):
        if sample in samples:
            yield sample, ids


def _tracer(unit: Unit, run: StageRun, options: WeightsOptions, model: Any, *, gradients: bool) -> Tracer:
    """Return what follows the model's texts; ConfigError for roles or layers that it lacks."""
    try:
        tracer = Tracer(model, gradients=gradients, layers=run.settings.layers or None)
        tracer.map.select(options.roles or None, run.settings.layers or None)
    except ValueError as error:
        raise ConfigError(f"{unit.title}: {error}") from None
    return tracer


def _check_length(sample: int, tokens: int, options: WeightsOptions) -> None:
    """Raise ConfigError for a text that is too short."""
    try:
        check_length(f"pretraining_writes: text {sample}", tokens, skip_first=options.skip_first)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def upcast(model: Any, run: StageRun, title: str, stored: str) -> Any:
    """Return the model in float32, where the run's memory allows it."""
    need = 4 * sum(parameter.numel() for parameter in model.parameters())
    most = run.settings.max_memory
    if most is not None and need > int(most):
        raise LoadError(
            f"{title}: gradients need float32, in which the weights take {need / 1e6:.3g} MB, and max_memory "
            f"is {int(most) / 1e6:.3g} MB; set options.gradients=false"
        )
    run.note(f"{title}: gradients are taken in float32, the weights are stored in {stored}")
    return model.float()


def _foreign(unit: Unit, run: StageRun, options: WeightsOptions) -> set[int]:
    """Return the texts of other groups than the first, where their inputs are a null."""
    if "foreign" not in options.nulls or unit.variant:
        return set()
    groups = list(dict.fromkeys(text.group for text in run.settings.texts))
    if len(groups) < 2:
        run.note("nulls: foreign needs texts of two groups, and the run has one")
        return set()
    return {int(text.sentence.sample) for text in unit.inputs if text.sentence.group != groups[0]}


def _folding(options: WeightsOptions) -> dict[str, bool]:
    return {"fold_norm": options.fold_norm, "center": options.center}


def rank_of(options: WeightsOptions, matrices: WeightMap) -> int | None:
    """Return the columns of the sketch, None where moments are kept whole."""
    return columns_of(options, max(max(entry.shape) for entry in matrices if entry.layer >= 0))


def columns_of(options: WeightsOptions, width: int) -> int | None:
    """Return the columns of the sketch for matrices with a given longest side."""
    if options.moments == "exact" or (options.moments == "auto" and width <= WIDE):
        return None
    return sketch_rank(max(options.curve, options.directions(width)))


def _check_identity(tracer: Tracer, tokens: torch.Tensor, run: StageRun, sample: int) -> None:
    errors = identity_errors(tracer, tokens)
    for (layer, role), error in errors.items():
        keys_of_matrix = {"sample": sample, "layer": layer, "role": role, "side": "out"}
        run.write("token_energies", **keys_of_matrix, tokens=len(tokens), identity_error=error)
    worst = max(errors, key=errors.__getitem__)
    holds = errors[worst] <= TOLERANCE
    reason = "" if holds else f"layer {worst[0]} {worst[1]}"
    keys = {"sample": sample, "check": "gradient_identity"}
    run.write("checks", **keys, value=errors[worst], tolerance=TOLERANCE, holds=holds, reason=reason)
    if not holds:
        raise LoadError(
            f"gradient of layer {worst[0]} {worst[1]} is not the sum over tokens (off by {errors[worst]:.1g})"
        )


class Sums:
    """The stored moments of one base, a layer at a time.

    Args:
        run: of a stage that reads `sums`.
        of: title of the base.
        rank: of the sketch, None for whole moments.
    """

    def __init__(self, run: StageRun, of: str, rank: int | None) -> None:
        self.run, self.of, self._rank = run, of, rank
        self._kept: dict[tuple[int, str, int], Moments] = {}
        self._bytes = 0

    def layer(self, layer: int, control: str = "", draw: int = 0) -> Moments:
        """Return the moments of one layer; empty where nothing was summed."""
        key = (layer, control, draw)
        if key not in self._kept:
            only: dict[str, Any] = {"of": self.of, "control": control, "draw": draw, "layer": layer}
            stored = self.run.reduced("sums", ("site", "side", "group", "width"), **only)
            moments = Moments(self._rank)
            for (site, side, group, width), partial in stored.items():
                sums = MomentSums.unpacked(torch.as_tensor(partial.sum, device="cpu"), int(width))
                moments.store_sums((layer, str(site), str(side)), int(group), sums)
            self._kept[key] = moments
            self._bytes += moments_bytes(moments)
            while self._bytes > KEPT_BYTES and len(self._kept) > 1:
                self._bytes -= moments_bytes(self._kept.pop(next(iter(self._kept))))
        else:
            # the next pair reads all layers again: the layer that was read last is dropped last
            self._kept[key] = self._kept.pop(key)
        return self._kept[key]


def moments_bytes(moments: Moments) -> int:
    """Return the memory of the sums of a layer."""
    return sum(8 * (sums.total.nelement() + 2 * sums.second.nelement()) for _, _, sums in moments.items())
