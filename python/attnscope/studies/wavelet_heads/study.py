# SPDX-License-Identifier: MIT
"""Wavelet-like heads and RoPE harmonics (Ruscio et al., arXiv 2410.18067).

Attention along the keys as a signal: its spectrum, its wavelet energies, its uncertainty, their change with a
longer text; and RoPE's frequencies behind the model's nonlinearities.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnscope.metrics.quantity import Quantity
from attnscope.metrics.signals.wavelet import ENERGY
from attnscope.metrics.support import measure_layer
from attnscope.results.equal_texts import of_distinct_texts
from attnscope.studies.nulls import shuffled_rows, write_baselines
from attnscope.studies.supports import LayerVisibility, keys_of
from attnscope.studies.wavelet_heads import summaries
from attnscope.studies.wavelet_heads.harmonics import harmonics
from attnscope.studies.wavelet_heads.tables import (
    BANDS,
    LEARNED,
    MEASURED,
    POWER_SHARE,
    PROFILE,
    TABLES,
    WaveletOptions,
    of_heads,
    over_queries,
)
from attnscope.study_api.forward import Batch, head_mean
from attnscope.study_api.stages import Stages
from attnscope.study_api.study import Study
from attnscope.study_api.units import Cut, Unit, Units

if TYPE_CHECKING:
    from attnscope.config.run_config import RunConfig
    from attnscope.study_api.stage_run import StageRun

#: What a text's beginning is compared with, of the heads of a layer or of their mean: energies of the scales,
#: their coefficients.
Descriptions = dict[tuple[int, bool], list[Tensor]]


class Chosen(NamedTuple):
    """The quantities of a layer: of `heads`, of the bands, of the scales."""

    heads: list[Quantity]
    power: list[Quantity]
    scales: list[Quantity]


STAGES = Stages()


def texts_and_controls(units: Units, study: WaveletStudy) -> Cut:
    """Return blocks of texts, of the model and of each control."""
    return units.texts(
        variants=("random_weights",) if "random_weights" in study.options.nulls else (), seeds=1
    )


@STAGES.stage(
    lambda units, study: units.checkpoints(),
    name="harmonics",
    writes=("harmonics",),
    when=lambda study: bool(study.options.harmonics),
)
def measure_harmonics(study: WaveletStudy, unit: Unit, run: StageRun) -> None:
    """Write the harmonics of RoPE's frequencies behind the activation."""
    model = run.model().model
    columns = harmonics(model)
    if columns:
        run.write("harmonics", **columns)
    else:
        run.note(
            f"{type(model).__name__}: no harmonics, for want of RoPE, of an activation, or of queries and "
            "keys that can be captured and do nothing but rotate"
        )


@STAGES.stage(texts_and_controls, name="texts", writes=MEASURED)
def measure_texts(study: WaveletStudy, unit: Unit, run: StageRun) -> None:
    """Measure every layer of a block of texts."""
    for batch in run.batches():
        descriptions: Descriptions = {}
        measured: dict[str, list[dict[str, Tensor]]] = {"": [], "row_permutation": []}  # layer by layer
        for number, layer in run.layers(batch):
            heads, names = layer.matrices(), list(layer.heads)
            seen = LayerVisibility.by(layer, heads)
            write_maps(study, run, head_mean(heads), seen, None, number, batch, descriptions)
            measured[""].append(write_maps(study, run, heads, seen, names, number, batch, descriptions))
            if not unit.variant:
                write_signals(study, run, heads, seen, names, number, batch)
                if "row_permutation" in study.options.nulls:
                    support = seen.rows(mean=False).get("support")
                    shuffle_arguments = (
                        batch.lengths,
                        batch.samples,
                        number,
                        study.settings.seed,
                        support,
                    )
                    maps = shuffled_rows(heads, *shuffle_arguments)
                    numbers = write_maps(study, run, maps, seen, names, number, batch, {}, "row_permutation")
                    measured["row_permutation"].append(numbers)
            # while the next layer is computed, this one must be free
            del heads, layer
        if not unit.variant and study.options.takes("scale_sensitivity"):
            compare_beginnings(study, run, batch, descriptions)
        for variant, layers in measured.items():
            write_uncertainty(study, run, layers, batch, variant)


@STAGES.stage(
    lambda units, study: units.once(),
    name="summaries",
    reads=("samples", *MEASURED),
    writes=("baselines", "phases", "published"),
)
def summarize(study: WaveletStudy, unit: Unit, run: StageRun) -> None:
    """Write the baselines, the phases of training and the published values."""
    chosen = {"exact": study.selected.heads} if study.selected.heads else {}
    write_baselines(run, ("heads", "head_means"), lambda _: chosen)
    phases = summaries.phases(of_distinct_texts(run.stored))
    for name, rows in (("phases", phases), ("published", summaries.published(phases))):
        if len(rows):
            run.write(name, **{str(column): rows[column] for column in rows})


def write_maps(
    study: WaveletStudy,
    run: StageRun,
    maps: Tensor,
    seen: LayerVisibility,
    names: Sequence[int] | None,
    number: int,
    batch: Batch,
    descriptions: Descriptions,
    variant: str = "",
) -> dict[str, Tensor]:
    """Write rows of `heads`, or of `head_means` if `names` is None; return numbers [batch, maps]."""
    control = variant or run.unit.variant
    chosen = study.quantities_of(seen.learned is not None)
    quantities = chosen.heads if control else [*chosen.heads, *chosen.power, *chosen.scales]
    if not quantities:
        return {}
    mean = names is None
    measured = measure_layer(
        {"attention": maps},
        quantities,
        seen,
        lengths=batch.lengths,
        mean=mean,
        precision=study.settings.precision,
    )
    values = {quantity.name: measured.values[quantity] for quantity in chosen.heads}
    if values:
        columns: dict[str, Any] = {name: numbers.flatten().numpy() for name, numbers in values.items()}
        if not control:
            columns["n_tokens"] = np.repeat(batch.lengths, maps.shape[1])
            columns["support"] = np.repeat(seen.supports, maps.shape[1]).tolist()
        table = "head_means" if names is None else "heads"
        run.write(table, variant=variant, **keys_of(batch, number, names), **columns)
    if control:
        return values
    if chosen.power and names is not None:
        shares = measured.values[chosen.power[0]].nanmean(1)
        keys = {"sample": np.repeat(batch.samples, BANDS), "layer": number, "protocol": "exact"}
        centers = np.tile((np.arange(BANDS) + 0.5) / BANDS, len(batch.samples))
        run.write("spectra", **keys, frequency=centers, power_share=shares.flatten().numpy())
    descriptions[number, names is None] = [measured.values[quantity].flatten(2) for quantity in chosen.scales]
    return values


def write_uncertainty(
    study: WaveletStudy, run: StageRun, layers: Sequence[dict[str, Tensor]], batch: Batch, variant: str
) -> None:
    """Write the correlation of the entropies of each text's heads, over all layers."""
    names = [name for name in summaries.ENTROPIES if layers and name in layers[0]]
    if not {"position_entropy", "spectral_entropy"} <= set(names):
        return
    heads = {name: torch.cat([numbers[name] for numbers in layers], 1).numpy() for name in names}
    for place, sample in enumerate(batch.samples):
        heads_of_text = {name: values[place] for name, values in heads.items()}
        count = {} if variant or run.unit.variant else {"heads": len(heads_of_text["position_entropy"])}
        keys = {"sample": sample, "protocol": "exact"}
        run.write("uncertainty", variant=variant, **keys, **count, **summaries.correlated(heads_of_text))


def write_signals(
    study: WaveletStudy,
    run: StageRun,
    maps: Tensor,
    seen: LayerVisibility,
    names: Sequence[int],
    number: int,
    batch: Batch,
) -> None:
    """Write the last query's attention, among its visible keys, of the samples that the options name."""
    for place, sample in enumerate(batch.samples):
        if sample in study.options.signals:
            n = batch.lengths[place]
            visible = seen.of_text(place, n)[n - 1]
            signals = [row[:n][visible].double().tolist() for row in maps[place, :, n - 1].cpu()]
            keys = {"sample": sample, "layer": number, "head": list(names), "protocol": "exact"}
            run.write("signals", **keys, n_tokens=n, signal=signals)


def compare_beginnings(study: WaveletStudy, run: StageRun, batch: Batch, descriptions: Descriptions) -> None:
    """Read the first tokens of each text again, and compare their wavelet description with the full
    text's.

    A text whose beginning is too short for a signal has no row.
    """
    for fraction in study.options.prefixes:
        # a product such as 0.7 · 10 may lie behind the whole number that it is
        sizes = [math.ceil(fraction * n - 1e-9) for n in batch.lengths]
        # whether a text is long enough must not depend on the texts beside it
        long = [place for place, n in enumerate(sizes) if n >= study.options.min_keys]
        if not long:
            continue
        lengths = [sizes[place] for place in long]
        part = replace(
            batch,
            samples=[batch.samples[place] for place in long],
            groups=[batch.groups[place] for place in long],
            lengths=lengths,
            token_ids=[batch.token_ids[place][: sizes[place]] for place in long],
            tokens=[batch.tokens[place][: sizes[place]] for place in long],
        )
        for number, layer in run.layers(part):
            heads = layer.matrices()
            seen = LayerVisibility.by(layer, heads)
            chosen = study.quantities_of(seen.learned is not None).scales
            for maps, names in ((head_mean(heads), None), (heads, list(layer.heads))):
                mean = names is None
                measured = measure_layer(
                    {"attention": maps},
                    chosen,
                    seen,
                    lengths=lengths,
                    mean=mean,
                    precision=study.settings.precision,
                )
                parts = [measured.values[quantity].flatten(2) for quantity in chosen]
                of_text = [values[long] for values in descriptions[number, names is None]]
                energy, coefficients = (
                    (1.0 - torch.nn.functional.cosine_similarity(*pair, dim=-1)).flatten().numpy()
                    for pair in zip(of_text, parts, strict=True)
                )
                keys = {**keys_of(part, number, names), "fraction": fraction}
                tokens = np.repeat(lengths, maps.shape[1])
                table = "head_mean_scale_sensitivity" if names is None else "scale_sensitivity"
                run.write(table, **keys, n_tokens=tokens, energy=energy, coefficients=coefficients)
            del heads, layer, maps


class WaveletStudy(Study):
    """The study: fills `heads`, `spectra`, `signals`, `scale_sensitivity`, `harmonics`, and tables computed
    from them.
    """

    name = "wavelet_heads"
    Options = WaveletOptions
    joins_equal_texts = True
    tables = TABLES
    declared_stages = STAGES

    def __init__(self, settings: RunConfig) -> None:
        super().__init__(settings)
        options: WaveletOptions = self.options
        scales = [over_queries(ENERGY, options), over_queries(PROFILE, options)]
        self.selected = Chosen(
            of_heads(options),
            [over_queries(POWER_SHARE, options)] if options.takes("power_spectrum") else [],
            scales if options.takes("scale_sensitivity") else [],
        )
        # one choice for each kind of layer: plans are kept by the quantities that they are of
        self.quantities_of = functools.cache(self._select)

    def _select(self, learned: bool) -> Chosen:
        """Return the quantities of a layer with or without a learned sink."""
        heads, power, scales = self.selected
        return Chosen([*heads, LEARNED] if learned and heads else heads, power, scales)


STUDY = WaveletStudy
