# SPDX-License-Identifier: MIT
"""The figures of the study on attention sinks, each drawn from stored tables only."""

from __future__ import annotations

from attnscope.plots import standard
from attnscope.plots.figure import Figure, declared_in
from attnscope.studies.attention_sinks.figures import layers, positions, runs, sinks

#: The threshold at which Betti numbers are shown where a figure or a table has room for one.
THRESHOLD = 0.02

#: Quantities of the map, emergence and depth figures; those with a threshold come from `graphs`.
METRICS: tuple[tuple[str, float | None], ...] = (
    *(("sink_share", None), ("entropy_normalized", None), ("fiedler_value", None)),
    *(("fiedler_value_normalized", None), ("participation_ratio", None), ("mp_ks", None)),
    *(("betti_0", THRESHOLD), ("betti_1", THRESHOLD)),
)

FIGURES: dict[str, Figure] = {}
for _draw, _tables in (
    (runs.fisher, ("fisher",)),
    (sinks.frames, ("frame_evidence", "frames")),
    (layers.protocols, ("head_means",)),
    (runs.sink_removal, ("layers",)),
    (runs.ablation, ("ablation",)),
    (sinks.sink_emergence, ("heads",)),
    (sinks.sink_maps, ("heads",)),
    (sinks.persistence, ("bars", "heads")),
    (layers.alignment, ("heads",)),
    (layers.spectra, ("heads",)),
    (layers.reference, ("heads",)),
    (positions.positions, ("position_profiles",)),
):
    declared_in(FIGURES)(*_tables)(_draw)
FIGURES |= {
    "metric_maps": standard.metric_maps(METRICS),
    "emergence": standard.emergence(METRICS),
    "depth": standard.depth(METRICS),
    "divergence": standard.depth(
        (("head_divergence", None), ("entropy_magnitude_correlation", None)),
        columns=2,
        width=4.8,
        sentences={
            "head_divergence": "how much heads differ from their mean",
            "entropy_magnitude_correlation": (
                "the correlation over tokens of entropy with how far the block moves the token"
            ),
        },
    ),
    "thresholds": standard.thresholds(
        ("density", "graph_fiedler_value", "betti_0", "betti_1", "hub_share", "gini"),
        logarithmic=("graph_fiedler_value",),
        sentences={
            "graph_fiedler_value": (
                "λ₂ here belongs to the unweighted thresholded graph and reaches n for the complete one."
            )
        },
    ),
    "examples": standard.examples(lambda matrix: float(matrix[:, 0].mean())),
}
