# SPDX-License-Identifier: MIT
"""Attention of a word to the rest of its text, before and after it is replaced."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class MannWhitney(NamedTuple):
    """The test's numbers for one text.

    Attributes:
        u_real: Mann and Whitney's U of the real row.
        u_replaced: of the other, so that both add up to the number of pairs.
        p_value: two-sided; its mean over texts is ½ without a difference.
        difference_mean: of the two rows, 0 for rows that sum to 1.
        difference_std: of the two rows, with n − 1.
    """

    u_real: float
    u_replaced: float
    p_value: float
    difference_mean: float
    difference_std: float


def mann_whitney(real: Any, replaced: Any, span: tuple[int, int]) -> MannWhitney:
    """Mann and Whitney's test of a word's mean attention to the tokens outside it, real against replaced.

    Differs from a paired test of the same keys: the two rows are taken for independent samples although
    their keys correspond. The differences are those of whole rows.

    Args:
        real: head mean of the text as it stands [n, n].
        replaced: with another word [n, n].
        span: first token of the word and one past its last.

    Raises:
        ValueError: maps of other shapes, a span that is not inside, or that leaves nothing.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2023
        >>> ruscio2023.mann_whitney(torch.full((4, 4), 0.25), torch.full((4, 4), 0.25), (1, 2))[:3]
        (4.5, 4.5, 1.0)

    References:
        Mann and Whitney, On a test of whether one of two random variables is stochastically larger than the
        other, 1947.
    """
    from scipy import stats

    real_map, replaced_map = (
        torch.as_tensor(maps, device="cpu").detach().double() for maps in (real, replaced)
    )
    if real_map.shape != replaced_map.shape or real_map.ndim != 2 or real_map.shape[0] != real_map.shape[1]:
        raise ValueError(
            f"ruscio2023.mann_whitney: maps must be two of one shape [n, n], got {tuple(real_map.shape)} and "
            f"{tuple(replaced_map.shape)}"
        )
    n, (start, stop) = len(real_map), (int(end) for end in span)
    if not 0 <= start < stop <= n or stop - start == n:
        raise ValueError(
            f"ruscio2023.mann_whitney: span must hold 0 <= start < stop <= {n} and leave a token, got "
            f"({start}, {stop})"
        )
    rows = [maps[start:stop].mean(0) for maps in (real_map, replaced_map)]
    outside = [torch.cat([row[:start], row[stop:]]).numpy() for row in rows]
    test = stats.mannwhitneyu(*outside, alternative="two-sided")
    difference = rows[0] - rows[1]
    return MannWhitney(
        float(test.statistic),
        float(len(outside[0]) ** 2 - test.statistic),
        float(test.pvalue),
        float(difference.mean()),
        float(difference.std()),
    )
