# SPDX-License-Identifier: MIT
"""What are you sinking? A geometric approach on attention sink (Ruscio et al., arXiv 2508.02546).

Every metric of every head and of the head mean (head −1) in both protocols, per layer and per sentence,
beside its value on uniform attention, on shuffled rows and under random weights; the model without its sinks;
the sensitivity of its loss; frames, specialisation and emergence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from attnscope._nearest import nearest
from attnscope.engine.config import ConfigError
from attnscope.engine.forward import Batch, depth
from attnscope.engine.recipe import Recipe, UnitRows, bar_columns
from attnscope.studies.attention_sinks import as_published as published
from attnscope.studies.attention_sinks import exact, summaries
from attnscope.studies.attention_sinks.examples import example_rows
from attnscope.studies.attention_sinks.readings import GRAPHS, HEADS
from attnscope.studies.attention_sinks.runs import Ablation, fisher_rows
from attnscope.studies.attention_sinks.sampling import by_focus_word
from attnscope.studies.attention_sinks.states import SITES, States
from attnscope.studies.nulls import (
    BASELINES,
    closed_form,
    per_sentence,
    shuffled_rows,
    uniform_attention,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from attnscope.capture import Layer
    from attnscope.engine.results import Results
    from attnscope.models import Encoder, LoadedModel

#: Metrics of the study that need more than one head, or more than attention.
OF_LAYERS = (
    "head_divergence",
    "sink_removal",
    "geometric_semantic_alignment",
    "transformation_magnitude",
    "entropy_magnitude_correlation",
    "reference_influence",
    "classify_frames",
)


#: What takes further runs of the model or of the metrics, and is done when `options.extra` names it.
EXTRA = ("fisher", "ablation", "random_weights", "row_permutation", "examples")


class SinkStudy(Recipe):
    """Fills `heads`, `graphs`, `layers`, `baselines`, `bars` on request, and what `options.extra` names.

    `options.extra` is a list, or "all": "fisher" (backward passes), "ablation" (the model without its
    sinks), "random_weights" (a twin of the same configuration, as null), "row_permutation" (every row of
    every map shuffled, as null), "examples" (two whole maps of each layer on the first sentence).
    """

    name = "attention_sinks"
    protocols = ("exact", "ruscio2025")
    samplers: ClassVar = {"paper": by_focus_word}
    takes_options = True
    measured = (*("heads", "graphs", "layers", "bars", "examples", "fisher", "ablation", "nulls"),)
    made = (
        *("frames", "frame_evidence", "specialization", "layer_tests", "removal_tests", "null_tests"),
        *("graph_depth", "emergence"),
    )

    def __init__(self, study: Any) -> None:
        super().__init__(study)
        self.extra = extra_analyses(study.options)
        self._ablation: Ablation | None = None
        self._held: _Held | None = None

    @classmethod
    def metrics(cls) -> list[str]:
        """Names of the metric functions that the study takes."""
        return sorted({one.metric for one in HEADS} | {*GRAPHS, *OF_LAYERS, *published.METRICS})

    def sites(self) -> tuple[str, ...]:
        """Attention, which most is made of."""
        return ("attention",)

    def extra_sites(self) -> tuple[str, ...]:
        """Value vectors and the residual stream, for what compares attention with meaning and motion."""
        wanted = ("geometric_semantic_alignment", "pca_correlation", "reference_influence")
        moving = ("transformation_magnitude", "entropy_magnitude_correlation")
        if any(map(self._takes, moving)):
            return SITES
        return ("value", "hidden") if any(map(self._takes, wanted)) else ()

    def twins(self) -> bool:
        """Whether a model with random weights reads the sentences too."""
        return "random_weights" in self.extra

    def pads(self) -> bool:
        """The Fisher notebook pads all texts to the longest and counts the padding."""
        return "fisher" in self.extra and "ruscio2025" in self.study.protocols

    def _takes(self, metric: str) -> bool:
        asked = self.study.metrics
        return not asked or metric in asked or any(one in asked for one in published.SYNONYMS.get(metric, ()))

    def measure(self, layer: Layer, number: int, batch: Batch, rows: UnitRows) -> None:
        """Every metric on every head of the layer and on their mean, in the study's protocols."""
        states = States.of(layer)
        if "exact" in self.study.protocols:
            self._exact(states, number, batch, rows)
        if "examples" in self.extra and not rows.null:
            heads, names = states.heads, list(states.names)
            example_rows(heads, names, number, batch, rows, bars=not self.study.bars)
        if "ruscio2025" in self.study.protocols:
            self._release(rows, last=None)
            self._held = self._published(states, number, batch, rows)
        if "row_permutation" in self.extra and not rows.null:
            self._permuted(states, number, batch, rows)
        if "ablation" in self.extra and not rows.null:
            self._ablation = self._ablation or Ablation(batch, self.study.seed)
            self._ablation.add(states.mean[:, 0])

    def after(
        self,
        loaded: LoadedModel,
        inputs: Mapping[str, Tensor],
        batch: Batch,
        encoder: Encoder,
        last: Tensor | None,
        rows: UnitRows,
    ) -> None:
        """What needs the whole forward pass, or others beside it."""
        whole = self._held is not None and self._held.number == depth(loaded.model) - 1
        self._release(rows, last=last if whole else None)
        ablation, self._ablation = self._ablation, None
        if rows.null:
            return
        if ablation is not None:
            self.note(ablation.run(loaded, inputs, rows))
        if "fisher" in self.extra:
            self.note(fisher_rows(loaded, batch, encoder, self.study, rows))

    def _exact(self, states: States, number: int, batch: Batch, rows: UnitRows) -> None:
        lengths = states.lengths[:, None]
        divergence = None
        for maps, names in ((states.mean, [-1]), (states.heads, list(states.names))):
            mean = names == [-1]
            found = exact.results_of(
                maps,
                lengths,
                self.study.thresholds,
                self._takes,
                heads=not mean,
                states=True,
                bars=self.study.bars,
            )
            columns = exact.head_columns(found, self._takes)
            columns |= exact.value_columns(states, maps, found, self._takes, mean=mean)
            divergence = None if mean else columns.get("head_divergence")
            if "sink_position" in columns:
                columns["sink_token"] = _tokens_at(columns["sink_position"], batch, len(names))
            self._add(rows, "exact", number, batch, names, columns)
            if self.study.bars:
                rows.add(
                    "bars", bar_columns(found["persistence"], _keys("exact", number, batch.samples, names))
                )
            graphs = exact.graph_columns(found)
            self._add_graphs(rows, "exact", number, batch.samples, batch.lengths, names, graphs)
        columns = exact.layer_columns(states, divergence, self._takes)
        if columns and not (self.study.metrics and set(columns) == {"head_divergence"}):
            keys = {"sample": list(batch.samples), "layer": number, "protocol": "exact"}
            rows.add("layers", {**keys, "n_tokens": list(batch.lengths), **columns})

    def _published(self, states: States, number: int, batch: Batch, rows: UnitRows) -> _Held:
        """The notebooks' numbers; what needs the next hidden state waits for it."""
        held = _Held(number)
        names = [-1, *states.names]
        for n, places in published.equal_lengths(batch.lengths):
            samples = [batch.samples[place] for place in places]
            maps, sites = published.whole(states, places, n)
            columns = published.head_columns(maps, self._takes)
            columns |= published.value_columns(maps, sites.get("hidden"), self._takes)
            if "sink_position" in columns:
                tokens = [batch.tokens[place] for place in places]
                columns["sink_token"] = _token_texts(columns["sink_position"], tokens, len(names))
            graphs = published.graph_columns(maps, self.study.thresholds, self._takes, like=states.heads)
            self._add_graphs(rows, "ruscio2025", number, samples, [n] * len(samples), names, graphs)
            of_layer = published.layer_columns(maps[:, 1:], self._takes)

            entropy = published.query_entropy(maps)

            def release(
                last: Tensor | None,
                *,
                entropy: Tensor = entropy,
                sites: Mapping[str, Tensor] = sites,
                columns: dict[str, Any] = columns,
                of_layer: dict[str, Any] = of_layer,
                samples: Sequence[int] = samples,
                places: Sequence[int] = places,
                n: int = n,
            ) -> None:
                before, after = sites.get("hidden"), sites.get("block_output")
                if last is not None and after is not None:
                    after = last[list(places), :n].cpu()
                whole = columns | published.moving_columns(entropy, before, after, self._takes)
                own = Batch(samples, [n] * len(samples), [], [], [])
                self._add(rows, "ruscio2025", number, own, names, whole)
                moved = of_layer | published.magnitude_columns(before, after, len(samples), self._takes)
                if moved and not (self.study.metrics and set(moved) == {"head_divergence"}):
                    keys = {"sample": list(samples), "layer": number, "protocol": "ruscio2025"}
                    rows.add("layers", {**keys, "n_tokens": n, **moved})

            held.releases.append(release)
        return held

    def _release(self, rows: UnitRows, last: Tensor | None) -> None:
        """Adds the rows of the layer before, now that it is known whether it was the last."""
        held, self._held = self._held, None
        for release in held.releases if held is not None else ():
            release(last)

    def _permuted(self, states: States, number: int, batch: Batch, rows: UnitRows) -> None:
        """The same numbers on maps with shuffled rows, into the rows of that null."""
        maps = torch.cat([states.mean, states.heads.to(states.mean.dtype)], 1)
        maps = shuffled_rows(maps, batch.lengths, batch.samples, number, self.study.seed)
        names = [-1, *states.names]
        null = rows.nulls("row_permutation")
        if "exact" in self.study.protocols:
            found = exact.results_of(maps, states.lengths[:, None], self.study.thresholds, self._takes)
            columns = exact.head_columns(found, self._takes)
            self._add(null, "exact", number, batch, names, columns)
            graphs = exact.graph_columns(found)
            self._add_graphs(null, "exact", number, batch.samples, batch.lengths, names, graphs)
        if "ruscio2025" in self.study.protocols:
            for n, places in published.equal_lengths(batch.lengths):
                own = Batch([batch.samples[place] for place in places], [n] * len(places), [], [], [])
                whole = maps[places][..., :n, :n]
                columns = published.head_columns(whole, self._takes)
                self._add(null, "ruscio2025", number, own, names, columns)
                graphs = published.graph_columns(whole, self.study.thresholds, self._takes, like=states.heads)
                self._add_graphs(null, "ruscio2025", number, own.samples, own.lengths, names, graphs)

    def _add(
        self,
        rows: UnitRows,
        protocol: str,
        number: int,
        batch: Batch,
        names: Sequence[int],
        columns: dict[str, Any],
    ) -> None:
        if columns:
            keys = _keys(protocol, number, batch.samples, names)
            rows.add("heads", {**keys, "n_tokens": np.repeat(batch.lengths, len(names)), **columns})

    def _add_graphs(
        self,
        rows: UnitRows,
        protocol: str,
        number: int,
        samples: Sequence[int],
        lengths: Sequence[int],
        names: Sequence[int],
        columns: dict[str, Any],
    ) -> None:
        if not columns:
            return
        each = len(self.study.thresholds)
        keys = {
            name: np.repeat(value, each) if np.ndim(value) else value
            for name, value in _keys(protocol, number, samples, names).items()
        }
        levels = [_levels(self.study.thresholds, n) for n in lengths for _ in names]
        rows.add("graphs", {**keys, "threshold": np.concatenate(levels), **columns})

    def baselines(self, n_tokens: int, causal: bool) -> list[dict[str, Any]]:
        """Every number of `heads` and `graphs` on uniform attention among the visible keys."""
        kind = "uniform_causal" if causal else "uniform_full"
        maps = uniform_attention(n_tokens, causal=causal)[None, None]
        levels = _levels(self.study.thresholds, n_tokens)
        found: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        if "exact" in self.study.protocols:
            own = exact.results_of(maps, None, self.study.thresholds, self._takes)
            found.append(("exact", exact.head_columns(own, self._takes), exact.graph_columns(own)))
        if "ruscio2025" in self.study.protocols:
            heads = published.head_columns(maps, self._takes)
            graphs = published.graph_columns(maps, self.study.thresholds, self._takes)
            found.append(("ruscio2025", heads, graphs))
        table = []
        for protocol, heads, graphs in found:
            table += [
                closed_form(n_tokens, kind, protocol, name, values[0], np.nan)
                for name, values in heads.items()
            ]
            table += [
                closed_form(n_tokens, kind, protocol, name, value, level)
                for name, values in graphs.items()
                for level, value in zip(levels, values, strict=True)
            ]
        assert all(tuple(row) == BASELINES for row in table)
        return table

    def reduced(self, tables: Mapping[str, pa.Table], kind: str) -> dict[str, Any]:
        """Columns of `nulls` from the tables that a null filled."""
        return per_sentence(tables, kind)

    def finish(self, results: Results) -> dict[str, pa.Table]:
        """Frames, specialisation, tests between layers, emergence, and the empirical baselines."""
        return summaries.made_from(results, self.study)


def extra_analyses(options: Mapping[str, Any]) -> tuple[str, ...]:
    """What `options.extra` asks for, checked.

    Args:
        options: of the study.

    Raises:
        ConfigError: an unknown option or analysis.

    >>> extra_analyses({"extra": "all"})
    ('fisher', 'ablation', 'random_weights', 'row_permutation', 'examples')
    """
    for name in options:
        if name not in ("extra", "thresholds", "bars", "metrics"):
            raise ConfigError(f"options: attention_sinks has no option {name!r}{nearest(name, ['extra'])}")
    given = options.get("extra") or []
    asked = [given] if isinstance(given, str) else list(given)
    if asked == ["all"]:
        return EXTRA
    for name in asked:
        if name not in EXTRA:
            raise ConfigError(f"options.extra: there is no {name!r}{nearest(str(name), [*EXTRA, 'all'])}")
    return tuple(name for name in EXTRA if name in asked)


class _Held:
    """UnitRows of one layer that wait to know whether it was the last."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.releases: list[Callable[[Tensor | None], None]] = []


def _keys(protocol: str, number: int, samples: Sequence[int], names: Sequence[int]) -> dict[str, Any]:
    return {
        "sample": np.repeat(samples, len(names)),
        "layer": number,
        "head": list(names) * len(samples),
        "protocol": protocol,
    }


def _tokens_at(positions: Any, batch: Batch, each: int) -> list[str]:
    return _token_texts(positions, batch.tokens, each)


def _token_texts(positions: Any, tokens: Sequence[Sequence[str]], each: int) -> list[str]:
    """The token at every map's position, "" where there is none."""
    found = np.asarray(positions).reshape(len(tokens), each).tolist()
    return [
        own[position] if position >= 0 else ""
        for own, row in zip(tokens, found, strict=True)
        for position in row
    ]


def _levels(thresholds: Sequence[float | str], n: int) -> np.ndarray[Any, Any]:
    """Thresholds as numbers for a map of n tokens."""
    return np.asarray(
        [float(one.partition("/")[0]) / n if isinstance(one, str) else one for one in thresholds]
    )


STUDY = SinkStudy
