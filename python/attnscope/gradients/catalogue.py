# SPDX-License-Identifier: MIT
"""The operator of each function of the core that has a derivative, and the sums over bars that have one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnscope.gradients import (
    alignment,
    divergence,
    entropy,
    laplacian,
    lookback,
    marchenko_pastur,
    participation_ratio,
    pattern_share,
    persistence,
    prompt_divergence,
    reference_influence,
    singular_values,
    sinks,
)

#: By the name of the core's function; arguments and results are the same.
OPERATORS: dict[str, Callable[..., Any]] = {
    "attention_entropy": entropy.attention_entropy,
    "fiedler_value": laplacian.fiedler_value,
    "geometric_semantic_alignment": alignment.geometric_semantic_alignment,
    "head_divergence": divergence.head_divergence,
    "laplacian_eigenvalues": laplacian.laplacian_eigenvalues,
    "lookback": lookback.lookback,
    "marchenko_pastur": marchenko_pastur.marchenko_pastur,
    "participation_ratio": participation_ratio.participation_ratio,
    "pattern_share": pattern_share.pattern_share,
    "persistence": persistence.persistence,
    "prompt_divergence": prompt_divergence.prompt_divergence,
    "reference_influence": reference_influence.reference_influence,
    "singular_values": singular_values.singular_values,
    "sink_statistics": sinks.sink_statistics,
}
#: By the name of the public function of barcodes; each takes the barcodes and the number of dimensions.
OF_BARS: dict[str, Callable[..., Any]] = {
    "max_persistence": persistence.max_persistence,
    "persistent_entropy": persistence.persistent_entropy,
    "total_persistence": persistence.total_persistence,
}
