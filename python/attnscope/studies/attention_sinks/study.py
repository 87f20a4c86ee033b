# SPDX-License-Identifier: MIT
"""The study of *What are you sinking? A geometric approach on attention sink* (arXiv 2508.02546).

Every metric of every head and of the head mean in both protocols, per layer and per sentence, with its
value on uniform attention, on shuffled rows and under random weights; the model without its sinks; the
sensitivity of its loss; frames, specialisation and emergence.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from attnscope.errors import ConfigError
from attnscope.metrics.homology.barcodes import bar_columns
from attnscope.metrics.lazy.map_free import needs_no_map
from attnscope.metrics.lazy.passes import shared_pass
from attnscope.metrics.measured import measure_quantities
from attnscope.metrics.quantity import Quantity
from attnscope.metrics.support import measure_layer
from attnscope.models.architecture import depth
from attnscope.studies.attention_sinks import layer_rows, summaries
from attnscope.studies.attention_sinks.ablation_and_fisher import ablation, fisher_rows
from attnscope.studies.attention_sinks.layer_rows import States, write_rows
from attnscope.studies.attention_sinks.lazy_rows import (
    LazyStates,
    select_lazily,
    uniform_attention,
    write_lazy_layer,
)
from attnscope.studies.attention_sinks.options import SinkOptions, by_focus_word
from attnscope.studies.attention_sinks.shuffled_removal import removal_shares
from attnscope.studies.attention_sinks.sink_heads import SinkSums
from attnscope.studies.attention_sinks.tables import CONTROLS, MEASURED, PROFILES, TABLES
from attnscope.studies.nulls import shuffled_rows, write_baselines
from attnscope.studies.supports import keys_of, without_learned_sink
from attnscope.study_api.forward import Batch, batch_of, lazy_refusal
from attnscope.study_api.stage_run import StageRun
from attnscope.study_api.stages import Stages
from attnscope.study_api.study import Study
from attnscope.study_api.units import Cut, Unit, Units

if TYPE_CHECKING:
    from attnscope.config.run_config import RunConfig


#: What the exact protocol finds for both, as numbers of the mean over heads and of each head.
SHARED = ("singular_values", "graph_fiedler_value", "graph_laplacian_gap", "density")


def _with_final_states(states: States, outputs: list[object]) -> States:
    """Return the last layer's states with those that transformers gives for it: after the final norm."""
    final = getattr(outputs[0], "last_hidden_state", None) if outputs else None
    if final is None or "block_output" not in states.sites:
        return states
    return replace(states, sites={**states.sites, "block_output": final.cpu()})


STAGES = Stages()
#: Tables of options and of single texts.
FURTHER = ("bars", "head_mean_bars", "examples", "fisher", "ablation", "sink_sums")


def texts_and_controls(units: Units, study: SinkStudy) -> Cut:
    """Return blocks of texts, of the model and of each control."""
    # the Fisher notebook pads all texts to the longest and counts the padding
    options: SinkOptions = study.options
    longest = "fisher" in options.extra and "ruscio2025" in study.settings.protocols
    variants = ("random_weights",) if "random_weights" in options.extra else ()
    return units.texts(variants=variants, seeds=options.controls, longest=longest)


@STAGES.stage(texts_and_controls, name="texts", writes=(*MEASURED, *CONTROLS, *FURTHER, *PROFILES))
def measure_texts(study: SinkStudy, unit: Unit, run: StageRun) -> None:
    """Measure every layer of a block of texts, in each protocol."""
    if not study.holds_maps and not needs_maps_of(study, run):
        return measure_lazily(study, unit, run)
    loaded, extra = run.model(), () if unit.variant else study.options.extra
    last, sums = depth(loaded.model) - 1, SinkSums(run)
    tested = not study.options.metrics or {"sink_test", "classify_frames"} & set(study.options.metrics)
    pooled = "exact" in study.selected and tested and not unit.variant
    for batch in run.batches():
        outputs: list[object] = []
        # over heads, summed over layers
        mean, layers = torch.zeros((), dtype=torch.float32, device="cpu"), 0
        held: States | None = None
        for number, layer in run.layers(batch, extra=study.sites, outputs=outputs):
            states = States.of(layer)
            is_held = "ruscio2025" in study.selected and number == last
            write_layer(study, states, number, batch, run, is_held=is_held)
            if pooled:
                sums.add(states, number, batch)
            if is_held:  # with what was measured of it, which both protocols share
                held = states.copy()
            if "ablation" in extra:
                mean, layers = mean + states.mean[:, 0], layers + 1
            # while the next layer is computed, this one must be free
            del states, layer
        if held is not None:
            measure_as_published(study, _with_final_states(held, outputs), last, batch, run)
        if "ablation" in extra:
            run.note(ablation(loaded, mean / layers, batch, run))
        if "fisher" in extra:
            run.note(fisher_rows(loaded, batch, run))
    sums.write()


def needs_maps_of(study: SinkStudy, run: StageRun) -> bool:
    """Return True where a model does not hand over its queries and keys, and note why.

    Where the user asks for lazy attention, the model itself refuses.
    """
    if study.options.attention == "lazy":
        return False
    first = batch_of(run.unit.inputs[:1], run.encoder)
    refusal = lazy_refusal(run.model().model, run.inputs(first), layers=study.settings.layers or None)
    if refusal:
        run.note(f"attention: maps, because {refusal}")
    return bool(refusal)


def measure_lazily(study: SinkStudy, unit: Unit, run: StageRun) -> None:
    """Write rows and columns of a block of texts from queries and keys."""
    run.note("attention: measured from queries and keys, without maps")
    if study.left_out:
        run.note(f"attention: lazy leaves out {', '.join(study.left_out)}, which need the map")
    sums, profiles = SinkSums(run), study.options.attention == "lazy"
    for batch in run.batches():
        for number, layer in run.lazy_layers(batch):
            states = LazyStates.of(layer)
            quantities = study.lazily if states.learned is not None else without_learned_sink(study.lazily)
            with shared_pass():  # the sums over texts are of the pass that measures the quantities
                write_lazy_layer(states, number, quantities, batch, run, profiles=profiles)
                if not unit.variant:
                    sums.add(states, number, batch)
            # while the next layer is computed, this one must be free
            del states, layer
    sums.write()


@STAGES.stage(
    lambda units, options: units.once(),
    name="baselines",
    reads=("samples", *MEASURED, *CONTROLS),
    writes=("baselines",),
)
def write_uniform(study: SinkStudy, unit: Unit, run: StageRun) -> None:
    """Write the quantities of uniform attention of the same lengths."""
    chosen = {
        protocol: layer_rows.of_single_maps(quantities) for protocol, quantities in study.selected.items()
    }
    uniform = None
    if not study.holds_maps:
        chosen, uniform = {"exact": layer_rows.of_single_maps(study.lazily)}, uniform_attention
    masked = {protocol: without_learned_sink(quantities) for protocol, quantities in chosen.items()}
    tables = ("heads", "head_means", "graphs", "head_mean_graphs")
    write_baselines(run, tables, lambda support: chosen if support in ("causal", "full") else masked, uniform)


@STAGES.stage(
    lambda units, options: units.once(),
    name="summaries",
    reads=("samples", *MEASURED, *CONTROLS, "sink_sums"),
    writes=summaries.TABLES,
)
def summarize(study: SinkStudy, unit: Unit, run: StageRun) -> None:
    """Write the tables that are computed from the stored ones."""
    summaries.write_summaries(run, study.options.metrics, study.settings.seed)


def write_layer(
    study: SinkStudy, states: States, number: int, batch: Batch, run: StageRun, *, is_held: bool
) -> None:
    """Write the rows of a layer: its numbers in each protocol, examples and shuffled rows.

    Args:
        is_held: the published numbers wait for the end of the pass, which changes the layer's states.
    """
    extra = () if run.unit.variant else study.options.extra
    if "exact" in study.selected:
        measure_exactly(study, states, number, batch, run)
    if "ruscio2025" in study.selected and not is_held:
        measure_as_published(study, states, number, batch, run)
    if "examples" in extra:
        layer_rows.write_examples(states, number, batch, run, bars=not study.options.bars)
    if "row_permutation" in extra:
        measure_shuffled(study, states, number, batch, run)


def measure_exactly(study: SinkStudy, states: States, number: int, batch: Batch, run: StageRun) -> None:
    """Measure the exact quantities of a layer's heads and of their mean.

    `SHARED` ones join the sites, where they are exact: the published protocol reads no others.
    """
    bars = ("persistence",) if study.options.bars and not run.unit.variant else ()
    removed = not study.options.metrics or "sink_removal" in study.options.metrics
    measured_sites: list[dict[str, torch.Tensor]] = []
    shared = {site: tensor for site, tensor in states.sites.items() if site != "value"}
    for heads, scope, sites in (
        (None, "means", {"attention": states.mean, **shared}),
        (states.names, "all", {"attention": states.heads, "head_mean": states.mean, **states.sites}),
    ):
        quantities = study.quantities_of("exact", scope, states.learned is not None)
        if not quantities and not bars:
            continue
        measured = measure_layer(
            sites,
            quantities,
            states,
            lengths=states.lengths,
            heads=heads,
            mean=heads is None,
            full_results=(*bars, *study.full_results),
            precision=study.settings.precision,
        )
        measured_sites.append(measured.as_sites(*SHARED))
        removal: dict[str, Any] = {}
        if heads is not None and removed and not run.unit.variant:
            removal = removal_shares(
                *(states.heads, states.lengths, batch.samples, number, study.settings.seed),
                support=states.rows(mean=True).get("support"),
                learned=states.learned,
            )
        write_rows(run, measured, batch, "exact", number, heads, supports=states.supports, **removal)
        if bars:
            table = "bars" if heads is not None else "head_mean_bars"
            run.write(table, **bar_columns(measured.results["persistence"], keys_of(batch, number, heads)))
    shared_names = measured_sites[0] if measured_sites and study.settings.precision == "exact" else ()
    for name in shared_names:
        states.sites[name] = torch.cat([sites_of_maps[name] for sites_of_maps in measured_sites], 1)


def measure_as_published(study: SinkStudy, states: States, number: int, batch: Batch, run: StageRun) -> None:
    """Measure as published: whole maps in float64, the head mean next to the heads as one more map."""
    chosen = study.selected["ruscio2025"]
    shared = {site: tensor for site, tensor in states.sites.items() if site != "value"}
    maps = torch.cat([states.mean, states.heads.to(states.mean.dtype)], 1)
    settings: dict[str, Any] = {"lengths": states.lengths, "held": states.heads.dtype}
    of_maps = measure_quantities({"attention": maps, **shared}, layer_rows.of_means(chosen), **settings)
    together = measure_quantities(
        {"attention": states.heads, **states.sites},
        layer_rows.of_layers(chosen),
        heads=states.names,
        **settings,
    )
    of_heads = of_maps.part(slice(1, None)).select(together, chosen)
    for heads, part in ((None, of_maps.part(slice(1))), (states.names, of_heads)):
        write_rows(run, part, batch, "ruscio2025", number, heads, supports=states.supports)


def measure_shuffled(study: SinkStudy, states: States, number: int, batch: Batch, run: StageRun) -> None:
    """Measure maps with shuffled rows, as a control."""
    maps = torch.cat([states.mean, states.heads.to(states.mean.dtype)], 1)
    support = states.rows(mean=True).get("support")
    maps = shuffled_rows(maps, batch.lengths, batch.samples, number, study.settings.seed, support)
    measured_sites: dict[str, torch.Tensor] = {}
    for protocol in study.selected:
        quantities = study.quantities_of(protocol, "alone", states.learned is not None)
        if not quantities:
            continue
        sites, full_results = (
            {"attention": maps, **measured_sites},
            study.full_results if protocol == "exact" else (),
        )
        if protocol == "exact" and states.learned is not None:
            mass = states.rows(mean=True)["sink_mass"]
            sites["sink_mass"] = torch.cat([mass, states.learned.double()], 1)
        measured = measure_layer(
            sites,
            quantities,
            states,
            lengths=states.lengths,
            mean=True,
            full_results=full_results,
            held=states.heads.dtype,
            precision=study.settings.precision,
        )
        measured_sites = measured.as_sites(*SHARED) if study.settings.precision == "exact" else {}
        for heads, maps_of_scope in ((None, slice(1)), (states.names, slice(1, None))):
            part = measured.part(maps_of_scope)
            write_rows(run, part, batch, protocol, number, heads, variant="row_permutation")


class SinkStudy(Study):
    """The study: fills `heads`, `graphs`, `layers` and the tables of its options, and computes the others
    from them.
    """

    name = "attention_sinks"
    Options = SinkOptions
    protocols = ("exact", "ruscio2025")
    joins_equal_texts = True
    tables = TABLES
    declared_stages = STAGES
    samplers: ClassVar = {"paper": by_focus_word}

    def __init__(self, settings: RunConfig) -> None:
        super().__init__(settings)
        options: SinkOptions = self.options
        self.selected = {
            protocol: layer_rows.select_quantities(protocol, options.metrics, options.thresholds)
            for protocol in settings.protocols
        }
        has_both_protocols = len(self.selected) > 1 and any(
            quantity.name == "stable_rank" for quantity in self.selected["exact"]
        )
        has_both_protocols &= settings.precision == "exact"
        self.full_results = SHARED[:1] if has_both_protocols else ()
        # one list for each kind of layer: plans are kept by the quantities that they are of
        self.quantities_of = functools.cache(self._quantities)
        needed = {site for chosen in self.selected.values() for quantity in chosen for site in quantity.needs}
        self.sites = tuple(site for site in layer_rows.SITES if site in needed)
        self.lazily, self.left_out = self._select_lazily(options)

    @property
    def holds_maps(self) -> bool:
        """False where attention is measured from queries and keys."""
        if self.options.attention != "auto":
            return bool(self.options.attention == "maps")
        quantities = self.selected.get("exact", [])
        return bool(self._needing_maps()) or not all(map(needs_no_map, quantities)) or not quantities

    def _needing_maps(self) -> list[str]:
        """Return the settings that need maps, whatever the metrics are."""
        options: SinkOptions = self.options
        unfit = [f"protocols: {protocol}" for protocol in self.selected if protocol != "exact"]
        return unfit + [f"extra: {name}" for name in options.extra] + ["bars: true"] * options.bars

    def _select_lazily(self, options: SinkOptions) -> tuple[list[Quantity], list[str]]:
        """Return the quantities that are measured from queries and keys, and metrics that are left out.

        There are none where maps are measured.
        """
        if self.holds_maps:
            return [], []
        if unfit := self._needing_maps():
            raise ConfigError(f"attention: lazy has no maps, which {unfit[0]} needs; use attention: maps")
        chosen, left_out = select_lazily(self.selected.get("exact", []), options.metrics)
        if not chosen:
            names = ", ".join(options.metrics)
            raise ConfigError(f"attention: lazy measures none of {names}, which need the map")
        return chosen, left_out

    def _quantities(self, protocol: str, scope: str, learned: bool) -> list[Quantity]:
        """Return the quantities of a protocol of a layer with or without a learned sink."""
        quantities = self.selected[protocol]
        quantities = layer_rows.of_means(quantities) if scope == "means" else quantities
        quantities = layer_rows.of_single_maps(quantities) if scope == "alone" else quantities
        return quantities if learned or protocol != "exact" else without_learned_sink(quantities)


STUDY = SinkStudy
