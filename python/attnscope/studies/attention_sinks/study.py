# SPDX-License-Identifier: MIT
"""What are you sinking? A geometric approach on attention sink (Ruscio et al., arXiv 2508.02546).

Every metric of every head and of the head mean in both protocols, per layer and per sentence, beside its
value on uniform attention, on shuffled rows and under random weights; the model without its sinks; the
sensitivity of its loss; frames, specialisation and emergence.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from attnscope.metrics.homology.barcodes import bar_columns
from attnscope.metrics.measure import measure_quantities
from attnscope.metrics.quantity import Quantity
from attnscope.metrics.support import measure_layer
from attnscope.models.architecture import depth
from attnscope.studies.attention_sinks import columns, summaries
from attnscope.studies.attention_sinks.columns import States, write_rows
from attnscope.studies.attention_sinks.options import SinkOptions, by_focus_word
from attnscope.studies.attention_sinks.runs import ablation, fisher_rows
from attnscope.studies.attention_sinks.shuffled_removal import removal_shares
from attnscope.studies.attention_sinks.sink_heads import SinkSums
from attnscope.studies.attention_sinks.tables import CONTROLS, MEASURED, TABLES
from attnscope.studies.nulls import shuffled_rows, write_baselines
from attnscope.studies.supports import keys_of, without_learned_sink
from attnscope.study_api.forward import Batch
from attnscope.study_api.stage_run import StageRun
from attnscope.study_api.stages import Stage
from attnscope.study_api.study import Study
from attnscope.study_api.units import Unit, Units

if TYPE_CHECKING:
    from attnscope.config.run_config import Settings


#: What the exact protocol finds for both, as numbers of the mean over heads and of each head.
SHARED = ("singular_values", "graph_fiedler_value", "graph_laplacian_gap", "density")


class SinkStudy(Study):
    """Fills `heads`, `graphs`, `layers` and what the options name, and makes the other tables of them."""

    name = "attention_sinks"
    Options = SinkOptions
    protocols = ("exact", "ruscio2025")
    tables = TABLES
    samplers: ClassVar = {"paper": by_focus_word}

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        options: SinkOptions = self.options
        self._taken = {
            protocol: columns.taken(protocol, options.metrics, options.thresholds)
            for protocol in settings.protocols
        }
        both = len(self._taken) > 1 and any(one.name == "stable_rank" for one in self._taken["exact"])
        self._whole = SHARED[:1] if both else ()
        # one list for each kind of layer: plans are kept by the quantities that they are of
        self._chosen = functools.cache(self._quantities)
        needed = {site for some in self._taken.values() for one in some for site in one.needs}
        self._sites = tuple(site for site in columns.SITES if site in needed)

    def stages(self, units: Units) -> list[Stage]:
        """Texts, uniform attention of their lengths, and what is made of both."""
        extra = self.options.extra
        more = ("bars", "head_mean_bars", "examples", "fisher", "ablation", "sink_sums")
        # the Fisher notebook pads all texts to the longest and counts the padding
        longest = "fisher" in extra and "ruscio2025" in self.settings.protocols
        variants = ("random_weights",) if "random_weights" in extra else ()
        texts = units.texts(variants=variants, seeds=self.options.controls, longest=longest)
        there, written = ("samples", *MEASURED, *CONTROLS), summaries.TABLES
        return [
            Stage("texts", texts, self._texts, writes=(*MEASURED, *CONTROLS, *more)),
            Stage("baselines", units.once(), self._baselines, reads=there, writes=("baselines",)),
            Stage("summaries", units.once(), self._summaries, reads=(*there, "sink_sums"), writes=written),
        ]

    def _texts(self, unit: Unit, run: StageRun) -> None:
        loaded, extra = run.model(), () if unit.variant else self.options.extra
        last, sums = depth(loaded.model) - 1, SinkSums(run)
        tested = not self.options.metrics or {"sink_test", "classify_frames"} & set(self.options.metrics)
        pooled = "exact" in self._taken and tested and not unit.variant
        for batch in run.batches():
            outputs: list[object] = []
            mean, layers = (
                torch.zeros((), dtype=torch.float32, device="cpu"),
                0,
            )  # over heads, summed over layers
            held: States | None = None
            for number, layer in run.layers(batch, extra=self._sites, outputs=outputs):
                states = States.of(layer)
                if "exact" in self._taken:
                    self._measure(states, number, batch, run)
                if pooled:
                    sums.add(states, number, batch)
                if "ruscio2025" in self._taken and number == last:
                    held = states.copy()
                elif "ruscio2025" in self._taken:
                    self._measure_whole(states, number, batch, run)
                if "examples" in extra:
                    columns.write_examples(states, number, batch, run, bars=not self.options.bars)
                if "row_permutation" in extra:
                    self._permuted(states, number, batch, run)
                if "ablation" in extra:
                    mean, layers = mean + states.mean[:, 0], layers + 1
                # while the next layer is computed, this one must be free
                del states, layer
            if held is not None:
                # transformers gives the last layer's states after the final norm
                final = getattr(outputs[0], "last_hidden_state", None) if outputs else None
                if final is not None and "block_output" in held.sites:
                    held = replace(held, sites={**held.sites, "block_output": final.cpu()})
                self._measure_whole(held, last, batch, run)
            if "ablation" in extra:
                run.note(ablation(loaded, mean / layers, batch, run))
            if "fisher" in extra:
                run.note(fisher_rows(loaded, batch, run))
        sums.write()

    def _measure(self, states: States, number: int, batch: Batch, run: StageRun) -> None:
        """Everything exact of the heads of a layer and of their mean; what is `SHARED` joins the sites."""
        bars = ("persistence",) if self.options.bars and not run.unit.variant else ()
        removed = not self.options.metrics or "sink_removal" in self.options.metrics
        known: list[dict[str, torch.Tensor]] = []
        shared = {site: tensor for site, tensor in states.sites.items() if site != "value"}
        for heads, what, sites in (
            (None, "means", {"attention": states.mean, **shared}),
            (states.names, "all", {"attention": states.heads, "head_mean": states.mean, **states.sites}),
        ):
            quantities = self._chosen("exact", what, states.learned is not None)
            if not quantities and not bars:
                continue
            measured = measure_layer(
                sites,
                quantities,
                states,
                lengths=states.lengths,
                heads=heads,
                mean=heads is None,
                full_results=(*bars, *self._whole),
            )
            known.append(measured.as_sites(*SHARED))
            more: dict[str, Any] = {}
            if heads is not None and removed and not run.unit.variant:
                more = removal_shares(
                    *(states.heads, states.lengths, batch.samples, number, self.settings.seed),
                    support=states.rows(mean=True).get("support"),
                    learned=states.learned,
                )
            write_rows(run, measured, batch, "exact", number, heads, supports=states.supports, **more)
            if bars:
                table = "bars" if heads is not None else "head_mean_bars"
                run.write(
                    table, **bar_columns(measured.results["persistence"], keys_of(batch, number, heads))
                )
        for name in known[0] if known else ():
            states.sites[name] = torch.cat([one[name] for one in known], 1)

    def _measure_whole(self, states: States, number: int, batch: Batch, run: StageRun) -> None:
        """The same as published: whole maps in float64, the head mean beside the heads as one more map."""
        chosen = self._taken["ruscio2025"]
        shared = {site: tensor for site, tensor in states.sites.items() if site != "value"}
        maps = torch.cat([states.mean, states.heads.to(states.mean.dtype)], 1)
        given: dict[str, Any] = {"lengths": states.lengths, "held": states.heads.dtype}
        each = measure_quantities({"attention": maps, **shared}, columns.of_means(chosen), **given)
        together = measure_quantities(
            {"attention": states.heads, **states.sites},
            columns.of_layers(chosen),
            heads=states.names,
            **given,
        )
        of_heads = each.part(slice(1, None)).select(together, chosen)
        for heads, found in ((None, each.part(slice(1))), (states.names, of_heads)):
            write_rows(run, found, batch, "ruscio2025", number, heads, supports=states.supports)

    def _quantities(self, protocol: str, what: str, learned: bool) -> list[Quantity]:
        """Return the quantities of a protocol of a layer with or without a learned sink."""
        some = self._taken[protocol]
        some = columns.of_means(some) if what == "means" else some
        some = columns.of_attention_alone(some) if what == "alone" else some
        return some if learned or protocol != "exact" else without_learned_sink(some)

    def _permuted(self, states: States, number: int, batch: Batch, run: StageRun) -> None:
        """The same numbers of maps with shuffled rows, as a control."""
        maps = torch.cat([states.mean, states.heads.to(states.mean.dtype)], 1)
        support = states.rows(mean=True).get("support")
        maps = shuffled_rows(maps, batch.lengths, batch.samples, number, self.settings.seed, support)
        known: dict[str, torch.Tensor] = {}
        for protocol in self._taken:
            quantities = self._chosen(protocol, "alone", states.learned is not None)
            if not quantities:
                continue
            sites, whole = {"attention": maps, **known}, self._whole if protocol == "exact" else ()
            if protocol == "exact" and states.learned is not None:
                mass = states.rows(mean=True)["sink_mass"]
                sites["sink_mass"] = torch.cat([mass, states.learned.double()], 1)
            measured = measure_layer(
                sites,
                quantities,
                states,
                lengths=states.lengths,
                mean=True,
                full_results=whole,
                held=states.heads.dtype,
            )
            known = measured.as_sites(*SHARED)
            for heads, own in ((None, slice(1)), (states.names, slice(1, None))):
                found = measured.part(own)
                write_rows(run, found, batch, protocol, number, heads, variant="row_permutation")

    def _baselines(self, unit: Unit, run: StageRun) -> None:
        chosen = {protocol: columns.of_attention_alone(some) for protocol, some in self._taken.items()}
        masked = {protocol: without_learned_sink(some) for protocol, some in chosen.items()}
        tables = ("heads", "head_means", "graphs", "head_mean_graphs")
        write_baselines(run, tables, lambda support: chosen if support in ("causal", "full") else masked)

    def _summaries(self, unit: Unit, run: StageRun) -> None:
        summaries.write_summaries(run, self.options.metrics, self.settings.seed)


STUDY = SinkStudy
