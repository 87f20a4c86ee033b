# SPDX-License-Identifier: MIT
"""Whether a head keeps to one sink token, as the topology notebook decides it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

CONSISTENT = 0.3
MOSTLY_CONSISTENT = 0.5
FEWEST_SAMPLES = 5


class Specialization(NamedTuple):
    """The modal token, the share of samples that have it, and the two verdicts."""

    modal: Any
    consistency: float
    samples: int
    specialised: bool
    specialised_half: bool


def head_specialization(tokens: Sequence[Any]) -> Specialization:
    """The share of samples in which a head's sink is its most frequent token.

    A head counts as specialised from a share of 0.3 over at least 5 samples; 0.5 is counted as well.

    Quirk: the notebook takes token strings, so that a head which always attends to position 0 counts as
    unspecialised where sentences begin with different words. With positions instead of strings the same
    count tells that apart.

    Args:
        tokens: the sink of one head in every sample, as a token string (or a position).

    Returns:
        Specialization; the first of several equally frequent tokens is the modal one.

    Raises:
        ValueError: no sample.

    Example:
        >>> from attnscope.protocols import ruscio2025
        >>> ruscio2025.head_specialization(["<s>", "<s>", "the", "<s>", ","])
        Specialization(modal='<s>', consistency=0.6, samples=5, specialised=True, specialised_half=True)

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, topology notebook.
    """
    if len(tokens) == 0:
        raise ValueError("ruscio2025.head_specialization: tokens must hold at least one sample, got none")
    modal, count = Counter(tokens).most_common(1)[0]
    share, enough = count / len(tokens), len(tokens) >= FEWEST_SAMPLES
    return Specialization(
        modal, share, len(tokens), enough and share >= CONSISTENT, enough and share >= MOSTLY_CONSISTENT
    )
