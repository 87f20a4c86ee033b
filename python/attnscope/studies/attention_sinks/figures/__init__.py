# SPDX-License-Identifier: MIT
"""The figures of the study on attention sinks, each drawn from stored tables alone."""

from __future__ import annotations

from attnscope.plots import standard
from attnscope.studies.attention_sinks.figures import fisher, frames, protocols, removal, sinks, values
from attnscope.studies.attention_sinks.figures.declared import FIGURES, METRICS

__all__ = ["FIGURES", "fisher", "frames", "protocols", "removal", "sinks", "values"]

FIGURES["metric_maps"] = standard.metric_maps(METRICS)
FIGURES["emergence"] = standard.emergence(METRICS)
FIGURES["depth"] = standard.depth(METRICS)
FIGURES["divergence"] = standard.depth(
    (("head_divergence", None), ("entropy_magnitude_correlation", None)),
    columns=2,
    width=4.8,
    says={
        "head_divergence": "how much heads differ from their mean",
        "entropy_magnitude_correlation": (
            "the correlation over tokens of entropy with how far the block moves the token"
        ),
    },
)
FIGURES["thresholds"] = standard.thresholds(
    ("density", "graph_fiedler_value", "betti_0", "betti_1", "hub_share", "gini"),
    logarithmic=("graph_fiedler_value",),
    says={
        "graph_fiedler_value": (
            "λ₂ here belongs to the unweighted thresholded graph and reaches n for the complete one."
        )
    },
)
FIGURES["examples"] = standard.examples(lambda matrix: float(matrix[:, 0].mean()))
