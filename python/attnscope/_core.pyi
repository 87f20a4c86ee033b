# SPDX-License-Identifier: MIT
# Tensors are checked by attnscope._checks before they come here. A tuple's last entry counts the matrices
# that were not finite. Under `precision="fast"` one more count stands behind it: of the maps that were
# measured exactly after all.
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

_Lengths = Tensor | None
# keys and queries of each map, the key of each query, whether queries stand at no key
_Extent = _Lengths | tuple[Tensor | None, Tensor | None, Tensor | None, bool]
_Support = str | Tensor

def interfaces() -> tuple[str, str]: ...
def is_plain_batch(attention: object) -> bool: ...
def are_plain_vectors(vectors: object) -> bool: ...
def is_usual_attention(attention: object, tokens: int, maps: int, tolerance: float) -> bool: ...
def called_if_usual(
    kernel: Callable[..., Any],
    attention: object,
    tokens: int,
    maps: int,
    tolerance: float,
    arguments: tuple[Any, ...],
) -> Any: ...
def holds_memory(tensor: object) -> bool: ...
def power_scales(matrices: Tensor, lengths: _Lengths) -> Tensor | None: ...
def first_invalid(
    attention: Tensor, lengths: _Extent, upper: float
) -> tuple[int, int, int, float] | None: ...
def finite_matrices(attention: Tensor, lengths: _Extent) -> Tensor: ...
def laplacian_eigenvalues(
    attention: Tensor,
    lengths: _Lengths,
    k: int,
    symmetrize: str,
    threshold: float | None,
    normalized: bool,
    precision: str = "exact",
) -> tuple[Tensor, int]: ...
def fiedler_value(
    attention: Tensor,
    lengths: _Lengths,
    symmetrize: str,
    threshold: float | None,
    normalized: bool,
    precision: str = "exact",
) -> tuple[Tensor, int]: ...
def fiedler_vector(
    attention: Tensor, lengths: _Lengths, symmetrize: str, threshold: float | None, normalized: bool
) -> tuple[Tensor, int]: ...
def graph_statistics(
    attention: Tensor, lengths: _Lengths, thresholds: Tensor, precision: str = "exact"
) -> tuple[tuple[Tensor, ...], int]: ...
def power_spectrum(
    attention: Tensor,
    lengths: _Extent,
    support: _Support,
    signal: str,
    drop_first: bool,
    detrend: bool,
    min_keys: int,
    hann: bool,
    padding: float,
    bands: int,
) -> tuple[Tensor, int]: ...
def spectral_uncertainty(
    attention: Tensor,
    lengths: _Extent,
    support: _Support,
    signal: str,
    drop_first: bool,
    min_keys: int,
    root: bool,
) -> tuple[Tensor, int]: ...
def local_global_ratio(
    attention: Tensor,
    lengths: _Extent,
    support: _Support,
    window: float,
    drop_first: bool,
    precision: str = "exact",
) -> tuple[Tensor, int]: ...
def wavelet_levels(n: int) -> int: ...
def wavelet_transform(
    attention: Tensor,
    lengths: _Extent,
    support: _Support,
    signal: str,
    drop_first: bool,
    detrend: bool,
    min_keys: int,
    levels: int,
    resample: int,
) -> tuple[Tensor, Tensor, int]: ...
def morlet_scalogram(
    attention: Tensor,
    lengths: _Extent,
    support: _Support,
    signal: str,
    drop_first: bool,
    detrend: bool,
    min_keys: int,
    scales: Tensor,
    omega: float,
) -> tuple[Tensor, int]: ...
def attention_entropy(
    attention: Tensor, lengths: _Extent, support: _Support, normalized: bool, precision: str = "exact"
) -> tuple[Any, ...]: ...
def sink_statistics(
    attention: Tensor,
    lengths: _Extent,
    support: _Support,
    incoming: bool,
    entropy: bool,
    min_visibility: float | None,
    first_and_queries: tuple[int, int] | None,
    top: int,
    rate: tuple[float, int] | None,
    precision: str = "exact",
) -> tuple[Any, ...]: ...
def sink_tokens(
    attention: Tensor,
    lengths: _Extent,
    support: _Support,
    tau: float | None,
    gamma: float,
    min_visibility: float,
) -> tuple[Tensor, int]: ...
def far_attention(
    attention: Tensor, lengths: _Extent, support: _Support
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int]: ...
def betti_numbers(
    attention: Tensor, lengths: _Lengths, thresholds: Tensor, symmetrize: str
) -> tuple[Tensor, int]: ...
def persistence(
    attention: Tensor, lengths: _Lengths, max_dimension: int, symmetrize: str, metric: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int]: ...
def bar_sums(
    birth: Tensor, death: Tensor, dimension: Tensor, offsets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
def bar_entropies(birth: Tensor, death: Tensor, dimension: Tensor, offsets: Tensor) -> Tensor: ...
def count_alive(
    birth: Tensor, death: Tensor, dimension: Tensor, offsets: Tensor, scales: Tensor, scale_count: int
) -> Tensor: ...
def marchenko_pastur(
    attention: Tensor,
    lengths: _Extent,
    support: _Support,
    null: str,
    draws: int,
    seed: int,
    all_fields: bool,
    precision: str = "exact",
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int, int]: ...
def null_law_cdf(x: Iterable[float], aspect: float | None, causal: bool) -> list[float]: ...
def participation_ratio(
    attention: Tensor, lengths: _Extent, spectrum: str, precision: str = "exact"
) -> tuple[Tensor, int]: ...
def singular_values(attention: Tensor, lengths: _Extent, precision: str = "exact") -> tuple[Tensor, int]: ...

max_vertices: int
large_result: int

def head_divergence(
    heads: Tensor, lengths: _Extent, support: _Support, entropy: Tensor | None, precision: str = "exact"
) -> tuple[Tensor, int]: ...
def sink_removal(
    heads: Tensor,
    lengths: _Extent,
    support: _Support,
    keys: Tensor,
    keep_attention: bool,
    sink_mass: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, int]: ...
def geometric_semantic_alignment(
    attention: Tensor,
    lengths: _Extent,
    support: _Support,
    states: Tensor,
    without: Tensor | None,
    query_states: Tensor | None,
    precision: str = "exact",
) -> tuple[Tensor, int]: ...
def reference_influence(
    attention: Tensor,
    lengths: _Extent,
    support: _Support,
    states: Tensor,
    reference: Tensor,
    precision: str = "exact",
) -> tuple[Tensor, Tensor, Tensor, int]: ...
def span_attention(
    attention: Tensor, lengths: _Extent, support: _Support, spans: list[int], special: Tensor | None
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], int]: ...
def pattern_share(
    attention: Tensor,
    lengths: _Lengths,
    support: _Support,
    patterns: list[str],
    tokens: Tensor | None,
    marked: Tensor | None,
    all: bool,
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor, Tensor], int]: ...
def lookback(
    attention: Tensor, lengths: _Lengths, support: _Support, answers: Tensor, predicting: bool
) -> tuple[Tensor, Tensor, int]: ...
def prompt_divergence(
    attention: Tensor, lengths: _Lengths, support: _Support, answers: Tensor
) -> tuple[tuple[Tensor, Tensor, Tensor], int]: ...
def toeplitz_split(
    scores: Tensor, lengths: _Lengths, late: bool, weights: Tensor | None, weight_matrices: int
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], int]: ...
def mask_only(
    scores: Tensor, lengths: _Lengths, sinks: Tensor | None, sink_count: int, queries: list[int], body: bool
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], int]: ...
def offset_variance(values: Tensor, lengths: _Lengths) -> tuple[tuple[Tensor, Tensor, Tensor], int]: ...
def cloud_distances(points: Tensor, lengths: _Lengths, metric: str) -> tuple[Tensor, int]: ...
def cloud_components(
    distances: Tensor, lengths: _Lengths, scales: Tensor, scale_count: int, min_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, int]: ...
def fragmentation(
    distances: Tensor, lengths: _Lengths, subsets: Tensor | None, subset_count: int
) -> tuple[Tensor, int]: ...
def local_dimension(
    distances: Tensor,
    lengths: _Lengths,
    groups: Tensor | None,
    one_group_for_all: bool,
    subsets: Tensor | None,
    subset_count: int,
    k: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, int]: ...
def two_nn(
    distances: Tensor, lengths: _Lengths, subsets: Tensor | None, subset_count: int, discard: float
) -> tuple[Tensor, int]: ...
def delta_statistics(before: Tensor, after: Tensor, delta: Tensor | None) -> tuple[Tensor, int]: ...
def lazy_measures(
    query: Tensor,
    key: Tensor,
    numbers: Tensor,
    lengths: Tensor,
    positions: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    window: int,
    after: int,
    exact: bool,
    asked: list[str],
    firsts: list[int],
    nears: Tensor | None,
    without_first: bool,
    far: Tensor | None,
    threshold: float,
    top: int,
    right: Tensor | None,
    left: Tensor | None,
    log_z: Tensor | None,
) -> dict[str, Tensor]: ...
def lazy_weights(
    query: Tensor,
    key: Tensor,
    numbers: Tensor,
    lengths: Tensor,
    positions: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    window: int,
    after: int,
    exact: bool,
    log_z: Tensor,
    begin: int,
    end: int,
    start: int,
    stop: int,
) -> Tensor: ...
