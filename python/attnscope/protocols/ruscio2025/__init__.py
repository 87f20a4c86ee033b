# SPDX-License-Identifier: MIT
"""The computations of the notebooks of *What are you sinking?* (Ruscio et al. 2025, arXiv 2508.02546).

The same names as the exact metrics, on the head mean [..., n, n] unless an argument is called `heads`. Each
docstring names its notebook and the differences from the exact definition; arguments are refused with the
errors of the exact metrics. Use these to check published numbers, and the exact metrics to learn about a
model.
"""

from attnscope.protocols.ruscio2025.alignment import (
    PcaCorrelation,
    entropy_magnitude_correlation,
    geometric_semantic_alignment,
    pca_correlation,
    transformation_magnitude,
)
from attnscope.protocols.ruscio2025.betti import betti_numbers
from attnscope.protocols.ruscio2025.depth import (
    DepthTrend,
    MiddlePeak,
    depth_trend,
    fiedler_correlations,
    middle_peak,
    reported_layers,
)
from attnscope.protocols.ruscio2025.divergence import (
    SinkRemoval,
    combine_p_values,
    head_divergence,
    sink_removal,
    speed_layers,
)
from attnscope.protocols.ruscio2025.emergence import EmergenceChange, emergence_change
from attnscope.protocols.ruscio2025.entropy import attention_entropy
from attnscope.protocols.ruscio2025.fisher import fisher_trace
from attnscope.protocols.ruscio2025.graph_statistics import GraphStatistics, graph_statistics
from attnscope.protocols.ruscio2025.persistence import persistence
from attnscope.protocols.ruscio2025.random_matrix import (
    Bulk,
    bulk,
    marchenko_pastur_deviation,
    participation_ratio,
    sink_concentration,
    spectral_norm,
    spectral_ratio,
    stable_rank,
)
from attnscope.protocols.ruscio2025.reference_influence import ReferenceInfluence, reference_influence
from attnscope.protocols.ruscio2025.sinks import Specialization, head_specialization, sink_tokens
from attnscope.protocols.ruscio2025.topology import Topology, topology

#: The notebooks know whole maps only, one text at a time.
INPUT_FORM = "whole"

__all__ = [
    "Bulk",
    "DepthTrend",
    "EmergenceChange",
    "GraphStatistics",
    "MiddlePeak",
    "PcaCorrelation",
    "ReferenceInfluence",
    "SinkRemoval",
    "Specialization",
    "Topology",
    "attention_entropy",
    "betti_numbers",
    "bulk",
    "combine_p_values",
    "depth_trend",
    "emergence_change",
    "entropy_magnitude_correlation",
    "fiedler_correlations",
    "fisher_trace",
    "geometric_semantic_alignment",
    "graph_statistics",
    "head_divergence",
    "head_specialization",
    "marchenko_pastur_deviation",
    "middle_peak",
    "participation_ratio",
    "pca_correlation",
    "persistence",
    "reference_influence",
    "reported_layers",
    "sink_concentration",
    "sink_removal",
    "sink_tokens",
    "spectral_norm",
    "spectral_ratio",
    "speed_layers",
    "stable_rank",
    "topology",
    "transformation_magnitude",
]
