# SPDX-License-Identifier: MIT
"""attnscope: a microscope for transformer attention.

Metrics take attention tensors [..., n, n] (rows are queries, columns keys) and return tensors [...];
`capture` streams attention out of a Hugging Face model one layer at a time; `run` does whole studies from a
config.
Importing the package loads torch and NumPy, and nothing that was not asked for. Without torch, `load` works.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

# Stored results are read where there is no torch too.
if importlib.util.find_spec("torch") is not None:
    from attnscope import _isa

    _isa.load_core()

    from attnscope import inference, protocols
    from attnscope.capture import capture, edit, edits
    from attnscope.capture.weights.rank_one import RankOneEffect, rank_one_effect
    from attnscope.capture.weights.second_moments import second_moments
    from attnscope.inference import Frames, classify_frames, emergence_step
    from attnscope.metrics.graphs.fiedler import fiedler_value, fiedler_vector
    from attnscope.metrics.graphs.graph_statistics import GraphStatistics, graph_statistics
    from attnscope.metrics.graphs.laplacian import laplacian_eigenvalues, laplacian_gap
    from attnscope.metrics.homology.barcodes import (
        Barcodes,
        bar_count,
        betti_curve,
        max_persistence,
        persistent_entropy,
        total_persistence,
    )
    from attnscope.metrics.homology.betti import betti_numbers
    from attnscope.metrics.homology.persistence import persistence
    from attnscope.metrics.information.divergence import SinkRemoval, head_divergence, sink_removal
    from attnscope.metrics.information.entropy import attention_entropy
    from attnscope.metrics.information.fisher import fisher_trace
    from attnscope.metrics.information.sinks import (
        SinkShare,
        incoming_attention,
        sink_position,
        sink_rate,
        sink_share,
        sink_tokens,
        top_mass,
    )
    from attnscope.metrics.measure import measure
    from attnscope.metrics.signals.harmonics import harmonic_distortion, softmax_harmonics
    from attnscope.metrics.signals.locality import local_global_ratio
    from attnscope.metrics.signals.power_spectrum import PowerSpectrum, power_spectrum
    from attnscope.metrics.signals.uncertainty import SpectralUncertainty, spectral_uncertainty
    from attnscope.metrics.signals.wavelet import (
        WaveletTransform,
        morlet_scalogram,
        scale_sensitivity,
        wavelet_transform,
    )
    from attnscope.metrics.spectra.marchenko_pastur import (
        MarchenkoPastur,
        marchenko_pastur,
        marchenko_pastur_deviation,
    )
    from attnscope.metrics.spectra.participation_ratio import participation_ratio
    from attnscope.metrics.spectra.singular_values import (
        effective_rank,
        singular_values,
        spectral_gap,
        spectral_ratio,
        stable_rank,
    )
    from attnscope.metrics.states.alignment import (
        entropy_magnitude_correlation,
        geometric_semantic_alignment,
        transformation_magnitude,
    )
    from attnscope.metrics.states.reference_influence import ReferenceInfluence, reference_influence
    from attnscope.metrics.weights.alignment_gain import AlignmentGain, alignment_gain
    from attnscope.metrics.weights.delta_statistics import DeltaStatistics, delta_statistics
    from attnscope.metrics.weights.haar import haar_deviation
    from attnscope.metrics.weights.low_rank import LowRank
    from attnscope.metrics.weights.moments import Moments
    from attnscope.metrics.weights.subspace_fraction import (
        RelativeSubspaceFraction,
        SubspaceFraction,
        concentration,
        relative_subspace_fraction,
        subspace_fraction,
    )
    from attnscope.models.architecture import weight_map
    from attnscope.models.head import (
        EffectiveUnembedding,
        Subspace,
        effective_unembedding,
        prediction_subspace,
        readout,
    )
    from attnscope.models.weight_deltas import WeightDelta, weight_deltas
    from attnscope.models.weight_entries import WeightEntry, WeightMap, WeightMapError
    from attnscope.models.weight_verification import verify_weight_map
    from attnscope.view import view

if TYPE_CHECKING:
    from attnscope.capture.ablation import output_kl as output_kl
    from attnscope.commands.doctor import show_config as show_config
    from attnscope.engine.config import Study as Study
    from attnscope.engine.results import Results as Results
    from attnscope.engine.results import load as load
    from attnscope.engine.run import resume as resume
    from attnscope.engine.run import run as run
    from attnscope.studies.analyze import analyze as analyze

__version__ = "0.1.0"

# Names that pull in pandas, transformers or matplotlib are imported when they are first used.
_LAZY: dict[str, str] = {
    "Results": "attnscope.engine.results",
    "Study": "attnscope.engine.config",
    "analyze": "attnscope.studies.analyze",
    "load": "attnscope.engine.results",
    "output_kl": "attnscope.capture.ablation",
    "resume": "attnscope.engine.run",
    "run": "attnscope.engine.run",
    "show_config": "attnscope.commands.doctor",
}

__all__ = [
    "__version__",
    "AlignmentGain",
    "Barcodes",
    "DeltaStatistics",
    "EffectiveUnembedding",
    "Frames",
    "GraphStatistics",
    "LowRank",
    "MarchenkoPastur",
    "Moments",
    "PowerSpectrum",
    "RankOneEffect",
    "ReferenceInfluence",
    "RelativeSubspaceFraction",
    "SinkRemoval",
    "SinkShare",
    "SpectralUncertainty",
    "Subspace",
    "SubspaceFraction",
    "WaveletTransform",
    "WeightDelta",
    "WeightEntry",
    "WeightMap",
    "WeightMapError",
    "alignment_gain",
    "attention_entropy",
    "bar_count",
    "betti_curve",
    "betti_numbers",
    "capture",
    "classify_frames",
    "concentration",
    "delta_statistics",
    "edit",
    "edits",
    "effective_rank",
    "effective_unembedding",
    "emergence_step",
    "entropy_magnitude_correlation",
    "fiedler_value",
    "fiedler_vector",
    "fisher_trace",
    "geometric_semantic_alignment",
    "graph_statistics",
    "haar_deviation",
    "harmonic_distortion",
    "head_divergence",
    "incoming_attention",
    "inference",
    "laplacian_eigenvalues",
    "laplacian_gap",
    "local_global_ratio",
    "marchenko_pastur",
    "marchenko_pastur_deviation",
    "max_persistence",
    "measure",
    "morlet_scalogram",
    "participation_ratio",
    "persistence",
    "persistent_entropy",
    "power_spectrum",
    "prediction_subspace",
    "protocols",
    "rank_one_effect",
    "readout",
    "reference_influence",
    "relative_subspace_fraction",
    "scale_sensitivity",
    "second_moments",
    "singular_values",
    "sink_position",
    "sink_rate",
    "sink_removal",
    "sink_share",
    "sink_tokens",
    "softmax_harmonics",
    "spectral_gap",
    "spectral_ratio",
    "spectral_uncertainty",
    "stable_rank",
    "subspace_fraction",
    "top_mass",
    "total_persistence",
    "transformation_magnitude",
    "verify_weight_map",
    "view",
    "wavelet_transform",
    "weight_deltas",
    "weight_map",
    *_LAZY,
]


def __getattr__(name: str) -> Any:
    if name in __all__ and name not in _LAZY:
        raise ImportError(f"attnscope.{name} needs torch, which is not installed; attnscope.load does not")
    if name not in _LAZY:
        import difflib

        # Python suggests only names that are loaded already, and notebooks do not show what it suggests.
        close = [] if name.startswith("_") else difflib.get_close_matches(name, __all__, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise AttributeError(f"module 'attnscope' has no attribute {name!r}{hint}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
