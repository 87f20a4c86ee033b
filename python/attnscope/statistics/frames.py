# SPDX-License-Identifier: MIT
"""The reference frame of a model: one anchor for all heads, two ends, or many."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice, permutations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from attnscope import _checks
from attnscope._memory import memory_errors
from attnscope.arguments import scalars

if TYPE_CHECKING:
    import pandas as pd

THIRDS = ("early", "middle", "late")
DRAWS = 1000
#: Draws from the null with the same verdict, after which no more are made.
ENOUGH = 100

Counts = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]


class Frames(NamedTuple):
    """The verdict by position, the verdict by token identity, and their evidence."""

    frame: str
    token_frame: str | None
    margin: float
    probability: float
    evidence: pd.DataFrame
    chance: float = math.nan

    def __repr__(self) -> str:
        return (
            f"Frames(frame={self.frame!r}, token_frame={self.token_frame!r}, margin={self.margin:.3f}, "
            f"probability={self.probability:.3f}, chance={self.chance:.3f}, "
            f"evidence={len(self.evidence)} rows)"
        )


@memory_errors("classify_frames")
def classify_frames(
    positions: torch.Tensor,
    *,
    lengths: torch.Tensor | Sequence[int] | int,
    causal: bool,
    tokens: Sequence[Sequence[Any]] | None = None,
    special: torch.Tensor | None = None,
    seed: int = 0,
    dominant: float = 0.8,
    half: float = 0.5,
    minor: float = 0.1,
    least: float = 0.1,
) -> Frames:
    """Return the reference frame of a model from where its heads put their sinks.

    Sink positions are pooled over samples and heads in each third of the layers. In this order:

    * none: fewer than the share `least` of the heads of all samples have a sink;
    * centralized: one position holds `dominant` of the sinks in every third;
    * bidirectional: the model is not causal, and its two anchors hold `half` each in different thirds, or
      over all layers `dominant` together and `minor` each;
    * distributed: otherwise.

    The last anchor of a sample is its own last valid position, so samples of several lengths agree on it.

    Args:
        positions: sink position of every head, int64 [samples, layers, heads], as `sink_position` gives;
            −1 is a head without a sink.
        lengths: tokens per sample.
        causal: whether queries see earlier keys only.
        tokens: token strings or ids of every sample, for the verdict by token identity. The two disagree
            where a tokenizer prepends no special token: heads then agree on position 0 and not on a string.
        special: bool [samples, n], special tokens; the first and last of them are the anchors instead of
            the first and last position.
        seed: of the bootstrap over samples and of the draws from the null.
        dominant: see above, in (0, 1).
        half: see above, in (0, 1).
        minor: see above, in (0, 1).
        least: see above, in [0, 1]; with 0 a single sink has a frame.

    Returns:
        Frames: margin >= 0 is the distance in share to the nearest other verdict, NaN of none; probability
        the share of 1,000 bootstrap samples with the same verdict, which says how far samples agree and is 1
        of a single one; a third without a sink decides nothing; evidence a row for each kind (position,
        token) and third with the number of sinks, the three largest shares, the normalised entropy and the
        shares of the anchors; chance, in (0, 1], how often heads that have nothing to do with each other have
        the frame: the share of this and 1,000 drawn verdicts that are the same (of fewer draws once 100 are),
        NaN of none. In a draw all sinks of a head move by a number of positions that is drawn for the head,
        below the length of the shortest sample and modulo that of their own. Where few heads have a sink the
        chance is large, and that of "distributed" mostly is: only a frame with a small one says that heads
        share their places.

    Raises:
        ValueError: positions of another shape or past a sample's length, thresholds outside their bounds,
            another number of lengths, tokens or special rows.

    Example:
        Every head of every layer attends to position 0.

        >>> import torch, attnscope as asc
        >>> first = torch.zeros(5, 6, 4, dtype=torch.int64)
        >>> frames = asc.classify_frames(first, lengths=[7, 8, 9, 7, 8], causal=True)
        >>> frames.frame, round(frames.margin, 3), frames.probability, round(frames.chance, 3)
        ('centralized', 0.2, 1.0, 0.001)

        The only head with a sink has one frame wherever it looks, by chance too.

        >>> lone = torch.full((5, 6, 4), -1)
        >>> lone[:, 2, 1] = 0
        >>> asc.classify_frames(lone, lengths=9, causal=True, least=0).chance
        1.0

        An untrained model: no head has a sink.

        >>> asc.classify_frames(torch.full((5, 6, 4), -1), lengths=9, causal=True).frame
        'none'

    References:
        What are you sinking? A geometric approach on attention sink, arXiv 2508.02546, 2025.
        Besag and Clifford, Sequential Monte Carlo p-values, Biometrika 78, 1991, for `chance`.
    """
    name = "classify_frames"
    shares = {"dominant": dominant, "half": half, "minor": minor}
    thresholds = [scalars.fraction_argument(name, key, value) for key, value in shares.items()]
    causal = scalars.flag(name, "causal", causal)
    least = scalars.between(name, "least", least, 0, 1)
    seed = scalars.at_least(name, "seed", seed, 0)
    sinks, sizes = _arguments(positions, lengths)
    anchors = _anchors(special, sizes)
    groups = _thirds(sinks.shape[1])
    # A sample's own last anchor gets one label for all samples.
    n = int(sizes.max())
    labels = np.where(
        (sinks == anchors[:, 1, None, None]) & (anchors[:, 1] > anchors[:, 0])[:, None, None], n, sinks
    )
    ends = np.stack([anchors[:, 0], np.full(len(sinks), n)], -1)
    by_position, at_anchors = _counts(labels, ends, sinks >= 0, groups, n + 1)
    needed = least * sinks.size
    frame, margin = _verdict(by_position.sum(0), at_anchors.sum(0), causal, thresholds, needed)
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(len(sinks), np.full(len(sinks), 1 / len(sinks)), DRAWS)
    agreeing = 0
    for weights in drawn:
        counts = np.tensordot(weights, by_position, 1)
        anchored = np.tensordot(weights, at_anchors, 1)
        agreeing += _verdict(counts, anchored, causal, thresholds, needed)[0] == frame
    chance = math.nan
    if frame != "none":
        chance = _chance(
            _verdict(counts, anchored, causal, thresholds, needed)[0] == frame
            for counts, anchored in _counts_of_moved_heads(sinks, sizes, anchors, generator)
        )
    names = [*map(str, range(n)), "last"]
    rows = _evidence("position", by_position.sum(0), at_anchors.sum(0), names, n)
    token_frame = None
    if tokens is not None:
        labels, ends, names = _by_token(sinks, tokens, sizes, anchors)
        by_token, at_tokens = _counts(labels, ends, sinks >= 0, groups, len(names))
        rows += _evidence("token", by_token.sum(0), at_tokens.sum(0), names, len(names))
        # one token at both ends of a text is one anchor, whose sinks count once
        at_tokens[ends[:, 0] == ends[:, 1], :, 1] = 0.0
        token_frame, _ = _verdict(by_token.sum(0), at_tokens.sum(0), causal, thresholds, needed)
    import pandas as pd

    return Frames(frame, token_frame, margin, agreeing / DRAWS, pd.DataFrame(rows), chance)


def _verdict(
    counts: Counts, at_anchors: Counts, causal: bool, thresholds: Sequence[float], needed: float
) -> tuple[str, float]:
    """Return the frame of counts [thirds, labels] and [thirds, 2], and the distance to the nearest other
    frame.

    Fewer sinks than `needed`, or none at all, have no frame and no distance.
    """
    dominant, half, minor = thresholds
    totals = counts.sum(-1)
    used = totals > 0
    if not used.any() or totals.sum() < needed - 1e-9:
        return "none", math.nan
    shares = counts[used] / totals[used, None]
    central = float(shares.min(0).max()) - dominant
    two_ended = -math.inf
    if not causal:
        ends = at_anchors[used] / totals[used, None]
        pooled = at_anchors.sum(0) / totals.sum()
        together = min(float(pooled.sum()) - dominant, float(pooled.min()) - minor)
        apart = [min(first[0], second[1]) - half for first, second in permutations(ends, 2)]
        two_ended = max([together, *map(float, apart)])
    if central >= 0:
        return "centralized", central
    if two_ended >= 0:
        return "bidirectional", min(two_ended, -central)
    return "distributed", min(-central, -two_ended)


def _chance(agreements: Iterator[bool]) -> float:
    """Return the p-value of a verdict from whether drawn ones are the same, up to 1,000 of them.

    Once 100 are, it is their share of the draws so far (Besag and Clifford, Biometrika 78, 1991): where many
    places of many heads are drawn, which takes time, most verdicts are the same.
    """
    agreeing = 0
    for drawn, agrees in enumerate(islice(agreements, DRAWS), 1):
        agreeing += agrees
        if agreeing == ENOUGH:
            return agreeing / drawn
    return (1 + agreeing) / (1 + DRAWS)


def _counts_of_moved_heads(
    sinks: Numbers, sizes: Numbers, anchors: Numbers, generator: np.random.Generator
) -> Iterator[tuple[Counts, Counts]]:
    """Yield what `_verdict` takes, for draws in which each head has places of its own.

    All sinks of a head move by the same number of positions, so that it agrees with itself over texts as
    before, and with other heads by chance.
    """
    _, layers, heads = sinks.shape
    groups = np.repeat(_thirds(layers), heads)
    n, thirds = int(sizes.max()), int(groups.max()) + 1
    sample, layer, head = np.nonzero(sinks >= 0)
    columns = layer * heads + head, sizes[sample], *anchors[sample].T, sinks[sample, layer, head]
    (heads_of_sinks, lengths, first, last, places), weights = np.unique(columns, axis=1, return_counts=True)
    third, weights_of_sinks = groups[heads_of_sinks], weights.astype(np.float64)
    last = np.where(last > first, last, -1)
    begin = third * (n + 1)  # of a third's labels
    while True:
        steps = generator.integers(sizes.min(), size=layers * heads)
        labels = places + steps[heads_of_sinks]
        np.subtract(labels, lengths, out=labels, where=labels >= lengths)
        at_first = np.bincount(third, weights_of_sinks * (labels == first), thirds)
        labels[labels == last] = n
        labels += begin
        of_labels: Counts = np.bincount(labels, weights_of_sinks, thirds * (n + 1)).astype(np.float64)
        counts = of_labels.reshape(thirds, n + 1)
        yield counts, np.stack([at_first, counts[:, n]], 1)


def _by_token(
    sinks: Numbers, tokens: Sequence[Sequence[Any]], sizes: Numbers, anchors: Numbers
) -> tuple[Numbers, Numbers, list[str]]:
    """Return numbers of the tokens at the sinks and at the anchors of each sample, and the tokens by
    number.
    """
    for text in (tokens, *(tokens if isinstance(tokens, Sequence) else ())):
        if not isinstance(text, Sequence):
            raise TypeError(
                f"classify_frames: tokens must be a list of tokens for each sample, got {type(text).__name__}"
            )
    if len(tokens) != len(sinks):
        raise ValueError(f"classify_frames: tokens must hold {len(sinks)} samples, got {len(tokens)}")
    names: dict[Any, int] = {}
    identities = np.zeros_like(sinks)
    ends = np.zeros((len(sinks), 2), dtype=np.int64)
    for index, sample in enumerate(tokens):
        if len(sample) < sizes[index]:
            raise ValueError(
                f"classify_frames: tokens of sample {index} must hold {sizes[index]} entries, got "
                f"{len(sample)}"
            )
        token_numbers = np.array([names.setdefault(token, len(names)) for token in sample], dtype=np.int64)
        identities[index] = token_numbers[sinks[index].clip(min=0)]
        ends[index] = token_numbers[anchors[index]]
    return identities, ends, [*map(str, names)]


def _evidence(
    kind: str, counts: Counts, at_anchors: Counts, names: Sequence[str], most: int
) -> list[dict[str, Any]]:
    """Return a row for each third; its entropy is 1 where `most` labels have equal shares."""
    rows: list[dict[str, Any]] = []
    scale = math.log(most) if most > 1 else 1.0
    thirds = THIRDS if len(counts) == 3 else ("all",)
    for third, third_counts, ends in zip(thirds, counts, at_anchors, strict=True):
        total = third_counts.sum()
        shares = third_counts / total if total else np.full_like(third_counts, math.nan)
        largest = np.sort(shares)[::-1]
        positive = shares[shares > 0]
        rows.append(
            {
                "kind": kind,
                "third": third,
                "sinks": int(total),
                "top": names[int(np.argmax(third_counts))] if total else "",
                "top_1": float(largest[0]),
                "top_2": float(largest[:2].sum()),
                "top_3": float(largest[:3].sum()),
                "entropy": abs(float(-(positive * np.log(positive)).sum())) / scale if total else math.nan,
                "first_anchor": float(ends[0] / total) if total else math.nan,
                "last_anchor": float(ends[1] / total) if total else math.nan,
            }
        )
    return rows


def _counts(
    labels: Numbers, ends: Numbers, valid: npt.NDArray[np.bool_], groups: Numbers, size: int
) -> tuple[Counts, Counts]:
    """Return how often each label occurs, [samples, thirds, labels], and the two ends of each sample."""
    sample, third = (
        np.broadcast_to(axis, labels.shape)
        for axis in (np.arange(len(labels))[:, None, None], groups[:, None])
    )
    counts = np.zeros((len(labels), int(groups.max()) + 1, size))
    np.add.at(counts, (sample[valid], third[valid], labels[valid]), 1.0)
    return counts, np.take_along_axis(counts, ends[:, None], 2)


def _thirds(layers: int) -> Numbers:
    """Return the third of every layer, cut at L//3 and 2L//3; one group for fewer than three layers."""
    cuts = (layers // 3, 2 * layers // 3) if layers >= 3 else (layers,)
    return np.digitize(np.arange(layers), cuts)


def _anchors(special: torch.Tensor | None, sizes: Numbers) -> Numbers:
    """Return the first and last anchor of every sample, [samples, 2]."""
    ends = np.stack([np.zeros_like(sizes), sizes - 1], -1)
    if special is None:
        return ends
    flags = np.asarray(_checks.as_tensor("classify_frames", "special", special).cpu())
    if flags.dtype != bool or flags.ndim != 2 or len(flags) != len(sizes) or flags.shape[1] < sizes.max():
        raise ValueError(
            f"classify_frames: special must be boolean of shape [{len(sizes)}, n] with n >= {sizes.max()}, "
            f"got {flags.dtype} of shape {flags.shape}"
        )
    for index, size in enumerate(sizes):
        marked = np.flatnonzero(flags[index, :size])
        if len(marked):
            ends[index] = marked[0], marked[-1]
    return ends


def _arguments(positions: Any, lengths: Any) -> tuple[Numbers, Numbers]:
    name = "classify_frames"
    tensor = _checks.as_tensor(name, "positions", positions)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(f"classify_frames: positions must be integers, got {tensor.dtype}")
    if tensor.ndim != 3 or tensor.numel() == 0:
        raise ValueError(
            f"classify_frames: positions must have shape [samples, layers, heads], got {tuple(tensor.shape)}"
        )
    sinks = tensor.cpu().numpy().astype(np.int64)
    sizes = np.asarray(_checks.as_tensor(name, "lengths", lengths).cpu())
    if not np.issubdtype(sizes.dtype, np.integer) or sizes.shape not in ((), (len(sinks),)):
        raise ValueError(
            f"classify_frames: lengths must be {len(sinks)} integers, got {sizes.dtype} of shape "
            f"{sizes.shape}"
        )
    sizes = np.broadcast_to(sizes, len(sinks)).astype(np.int64)
    if (sizes < 1).any():
        raise ValueError(f"classify_frames: lengths must be at least 1, got {sizes.min()}")
    outside = (sinks >= sizes[:, None, None]) | (sinks < -1)
    if outside.any():
        sample = int(np.argwhere(outside)[0, 0])
        raise ValueError(
            f"classify_frames: positions of sample {sample} must lie between -1 and {sizes[sample] - 1}, got "
            f"{sinks[outside][0]}"
        )
    return sinks, sizes
