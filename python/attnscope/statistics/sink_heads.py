# SPDX-License-Identifier: MIT
"""The heads that have a sink, and their reference frame.

Every head has a largest entry, so frames of all heads exist for any model, an untrained one too. Here
a head counts when a test finds its sink in text after text, and where few heads have one no frame is
reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from attnscope import _checks
from attnscope.statistics.frames import Frames, classify_frames

#: Shorter texts are too few keys for a test: their heads' sinks are those of the pooled test.
SHORT = 32
#: A frame needs this share of the tested heads.
LEAST_SHARE = 0.1

Pooled = Mapping[tuple[int, int], int | None]


class SinkFrames(NamedTuple):
    """A verdict over the heads that have a sink.

    frame: "none" below a tenth of the tested heads, else as `classify_frames`. share: of the tested heads,
    those with a sink; NaN where none was tested. heads: bool [layers, heads]. tested: bool [layers, heads].
    frames: of those heads, or None. positions: of the sinks, int64 [texts, layers, heads], −1 elsewhere.
    """

    frame: str
    share: float
    heads: npt.NDArray[np.bool_]
    tested: npt.NDArray[np.bool_]
    frames: Frames | None
    positions: npt.NDArray[np.int64]


def heads_with_sinks(
    positions: Any, untested: Any, pooled: Pooled | None = None
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return heads that have a sink: a text's own test finds one in half of the texts, or a pooled test
    does.

    Args:
        positions: of the strongest sink by the test, int64 [texts, layers, heads], −1 without one.
        untested: bool of the same shape, where a window left no key to test; such a text does not count.
        pooled: (layer, head) -> label of the sink that a pooled test found.

    Returns:
        Two arrays bool [layers, heads]: heads with a sink, heads that were tested in any text.

    Raises:
        ValueError: shapes that differ or are not [texts, layers, heads], a pooled head that is not there.

    Example:
        >>> from attnscope import statistics
        >>> positions, untested = [[[0, -1, -1]], [[0, 3, -1]], [[0, -1, -1]]], [[[False, False, True]]] * 3
        >>> [mask.tolist() for mask in statistics.heads_with_sinks(positions, untested)]
        [[[True, False, False]], [[True, True, False]]]
    """
    name = "heads_with_sinks"
    sinks, without = _shaped(name, positions, untested)
    tested = (~without).sum(0)
    have = (tested > 0) & (2 * ((sinks >= 0) & ~without).sum(0) >= tested)
    for layer, head in pooled or {}:
        if not (0 <= layer < have.shape[0] and 0 <= head < have.shape[1]):
            raise ValueError(f"{name}: pooled head {(layer, head)} is not among {have.shape}")
        have[layer, head] = True
    return have, (tested > 0) | have


def frames_of_sinks(
    positions: Any,
    untested: Any,
    *,
    lengths: Sequence[int] | torch.Tensor | int,
    causal: bool,
    pooled: Pooled | None = None,
    **options: Any,
) -> SinkFrames:
    """Return the reference frame of the heads that have a sink, "none" where fewer than a tenth have one.

    A head's positions are those of the single texts, or in texts of fewer than 32 tokens that of the pooled
    test. "Last" and "special" are positions relative to the text.

    Args:
        positions: as for `heads_with_sinks`.
        untested: likewise.
        lengths: tokens of every text.
        causal: whether queries see earlier keys only.
        pooled: (layer, head) -> label of the pooled sink: from the start, negative from the end, or None of
            one that is pooled by token and has no place.
        options: tokens, special, seed and thresholds of `classify_frames`.

    Returns:
        SinkFrames.

    Raises:
        ValueError: as `heads_with_sinks` and `classify_frames`.

    Example:
        An untrained model: no head has a sink.

        >>> import numpy as np
        >>> from attnscope import statistics
        >>> nowhere = np.full((5, 3, 4), -1)
        >>> result = statistics.frames_of_sinks(nowhere, nowhere > 0, lengths=64, causal=True)
        >>> result.frame, result.share
        ('none', 0.0)

    References:
        What are you sinking? A geometric approach on attention sink, arXiv 2508.02546, 2025.
    """
    have, tested = heads_with_sinks(positions, untested, pooled)
    sinks, without = _shaped("frames_of_sinks", positions, untested)
    share = float(have.sum() / tested.sum()) if tested.any() else float("nan")
    sizes = _checks.as_tensor("frames_of_sinks", "lengths", lengths).cpu().numpy()
    sizes = np.broadcast_to(sizes, len(sinks))
    chosen = np.where(have & ~without, sinks, -1)
    for text in np.flatnonzero(sizes < SHORT):
        chosen[text] = -1
        for (layer, head), label in (pooled or {}).items():
            place = -1 if label is None else label if label >= 0 else int(sizes[text]) + label
            # a place that is counted from the end of longer texts may be before the start of a short text
            chosen[text, layer, head] = place if 0 <= place < sizes[text] else -1
    if not share >= LEAST_SHARE or not (chosen >= 0).any():
        return SinkFrames("none", share, have, tested, None, chosen)
    frames = classify_frames(
        torch.from_numpy(chosen),
        lengths=torch.from_numpy(sizes.copy()),
        causal=causal,
        # heads were counted above
        **{"least": 0.0, **options},
    )
    return SinkFrames(frames.frame, share, have, tested, frames, chosen)


def _shaped(
    function: str, positions: Any, untested: Any
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return both arguments as arrays [texts, layers, heads]."""
    sinks = _checks.as_tensor(function, "positions", positions).detach().cpu().numpy()
    without = _checks.as_tensor(function, "untested", untested).detach().cpu().numpy()
    if sinks.ndim != 3 or not np.issubdtype(sinks.dtype, np.integer):
        raise ValueError(
            f"{function}: positions must be integers [texts, layers, heads], got {sinks.dtype} of shape "
            f"{sinks.shape}"
        )
    if without.shape != sinks.shape or without.dtype != bool:
        raise ValueError(
            f"{function}: untested must be boolean of shape {sinks.shape}, got {without.dtype} of shape "
            f"{without.shape}"
        )
    return sinks.astype(np.int64), without
