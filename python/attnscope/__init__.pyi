# SPDX-License-Identifier: MIT
# The public names and the modules that they come from; `__init__.py` reads them here.

from attnscope import _core as _core
from attnscope import inference as inference
from attnscope import protocols as protocols
from attnscope.capture import capture as capture
from attnscope.capture import edit as edit
from attnscope.capture import edits as edits
from attnscope.capture.ablation import output_kl as output_kl
from attnscope.capture.weights.rank_one import RankOneEffect as RankOneEffect
from attnscope.capture.weights.rank_one import rank_one_effect as rank_one_effect
from attnscope.capture.weights.second_moments import second_moments as second_moments
from attnscope.commands.analyze import analyze as analyze
from attnscope.commands.doctor import show_config as show_config
from attnscope.engine.config import Study as Study
from attnscope.engine.results import Results as Results
from attnscope.engine.results import load as load
from attnscope.engine.run import resume as resume
from attnscope.engine.run import run as run
from attnscope.inference import Frames as Frames
from attnscope.inference import classify_frames as classify_frames
from attnscope.inference import emergence_step as emergence_step
from attnscope.metrics.graphs.fiedler import fiedler_value as fiedler_value
from attnscope.metrics.graphs.fiedler import fiedler_vector as fiedler_vector
from attnscope.metrics.graphs.graph_statistics import GraphStatistics as GraphStatistics
from attnscope.metrics.graphs.graph_statistics import graph_statistics as graph_statistics
from attnscope.metrics.graphs.laplacian import laplacian_eigenvalues as laplacian_eigenvalues
from attnscope.metrics.graphs.laplacian import laplacian_gap as laplacian_gap
from attnscope.metrics.homology.barcodes import Barcodes as Barcodes
from attnscope.metrics.homology.barcodes import bar_count as bar_count
from attnscope.metrics.homology.barcodes import betti_curve as betti_curve
from attnscope.metrics.homology.barcodes import max_persistence as max_persistence
from attnscope.metrics.homology.barcodes import persistent_entropy as persistent_entropy
from attnscope.metrics.homology.barcodes import total_persistence as total_persistence
from attnscope.metrics.homology.betti import betti_numbers as betti_numbers
from attnscope.metrics.homology.persistence import persistence as persistence
from attnscope.metrics.information.divergence import SinkRemoval as SinkRemoval
from attnscope.metrics.information.divergence import head_divergence as head_divergence
from attnscope.metrics.information.divergence import sink_removal as sink_removal
from attnscope.metrics.information.entropy import attention_entropy as attention_entropy
from attnscope.metrics.information.fisher import fisher_trace as fisher_trace
from attnscope.metrics.information.sinks import SinkShare as SinkShare
from attnscope.metrics.information.sinks import incoming_attention as incoming_attention
from attnscope.metrics.information.sinks import sink_position as sink_position
from attnscope.metrics.information.sinks import sink_rate as sink_rate
from attnscope.metrics.information.sinks import sink_share as sink_share
from attnscope.metrics.information.sinks import sink_tokens as sink_tokens
from attnscope.metrics.information.sinks import top_mass as top_mass
from attnscope.metrics.measure import measure as measure
from attnscope.metrics.signals.harmonics import harmonic_distortion as harmonic_distortion
from attnscope.metrics.signals.harmonics import softmax_harmonics as softmax_harmonics
from attnscope.metrics.signals.locality import local_global_ratio as local_global_ratio
from attnscope.metrics.signals.power_spectrum import PowerSpectrum as PowerSpectrum
from attnscope.metrics.signals.power_spectrum import power_spectrum as power_spectrum
from attnscope.metrics.signals.uncertainty import SpectralUncertainty as SpectralUncertainty
from attnscope.metrics.signals.uncertainty import spectral_uncertainty as spectral_uncertainty
from attnscope.metrics.signals.wavelet import WaveletTransform as WaveletTransform
from attnscope.metrics.signals.wavelet import morlet_scalogram as morlet_scalogram
from attnscope.metrics.signals.wavelet import scale_sensitivity as scale_sensitivity
from attnscope.metrics.signals.wavelet import wavelet_transform as wavelet_transform
from attnscope.metrics.spectra.marchenko_pastur import MarchenkoPastur as MarchenkoPastur
from attnscope.metrics.spectra.marchenko_pastur import marchenko_pastur as marchenko_pastur
from attnscope.metrics.spectra.marchenko_pastur import (
    marchenko_pastur_deviation as marchenko_pastur_deviation,
)
from attnscope.metrics.spectra.participation_ratio import participation_ratio as participation_ratio
from attnscope.metrics.spectra.singular_values import effective_rank as effective_rank
from attnscope.metrics.spectra.singular_values import singular_values as singular_values
from attnscope.metrics.spectra.singular_values import spectral_gap as spectral_gap
from attnscope.metrics.spectra.singular_values import spectral_ratio as spectral_ratio
from attnscope.metrics.spectra.singular_values import stable_rank as stable_rank
from attnscope.metrics.states.alignment import entropy_magnitude_correlation as entropy_magnitude_correlation
from attnscope.metrics.states.alignment import geometric_semantic_alignment as geometric_semantic_alignment
from attnscope.metrics.states.alignment import transformation_magnitude as transformation_magnitude
from attnscope.metrics.states.reference_influence import ReferenceInfluence as ReferenceInfluence
from attnscope.metrics.states.reference_influence import reference_influence as reference_influence
from attnscope.metrics.weights.alignment_gain import AlignmentGain as AlignmentGain
from attnscope.metrics.weights.alignment_gain import alignment_gain as alignment_gain
from attnscope.metrics.weights.delta_statistics import DeltaStatistics as DeltaStatistics
from attnscope.metrics.weights.delta_statistics import delta_statistics as delta_statistics
from attnscope.metrics.weights.haar import haar_deviation as haar_deviation
from attnscope.metrics.weights.low_rank import LowRank as LowRank
from attnscope.metrics.weights.moments import Moments as Moments
from attnscope.metrics.weights.subspace_fraction import RelativeSubspaceFraction as RelativeSubspaceFraction
from attnscope.metrics.weights.subspace_fraction import SubspaceFraction as SubspaceFraction
from attnscope.metrics.weights.subspace_fraction import concentration as concentration
from attnscope.metrics.weights.subspace_fraction import (
    relative_subspace_fraction as relative_subspace_fraction,
)
from attnscope.metrics.weights.subspace_fraction import subspace_fraction as subspace_fraction
from attnscope.models.architecture import weight_map as weight_map
from attnscope.models.head import EffectiveUnembedding as EffectiveUnembedding
from attnscope.models.head import Subspace as Subspace
from attnscope.models.head import effective_unembedding as effective_unembedding
from attnscope.models.head import prediction_subspace as prediction_subspace
from attnscope.models.head import readout as readout
from attnscope.models.weight_deltas import WeightDelta as WeightDelta
from attnscope.models.weight_deltas import weight_deltas as weight_deltas
from attnscope.models.weight_entries import WeightEntry as WeightEntry
from attnscope.models.weight_entries import WeightMap as WeightMap
from attnscope.models.weight_entries import WeightMapError as WeightMapError
from attnscope.models.weight_verification import verify_weight_map as verify_weight_map
from attnscope.view import view as view

__version__: str
