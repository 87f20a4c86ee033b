# SPDX-License-Identifier: MIT
"""Frames over heads that have a sink: of models without, with one anchor, with two, and of short texts."""

import math

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope import statistics

TEXTS, LAYERS, HEADS = 8, 3, 4


def attention(n, key_of, mass=0.3, *, causal=True, logits=1.0, seed=0):
    """[texts, layers, heads, n, n]: random rows; `key_of(layer, head)` gets `mass`, or no key does."""
    generator = torch.Generator().manual_seed(seed)
    scores = logits * torch.randn(TEXTS, LAYERS, HEADS, n, n, generator=generator, dtype=torch.float64)
    seen = torch.ones(n, n, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    a = torch.softmax(scores.masked_fill(~seen, -math.inf), -1)
    for layer in range(LAYERS):
        for head in range(HEADS):
            key = key_of(layer, head)
            if key is not None:
                rows = seen[:, key]
                a[:, layer, head, rows] *= 1 - mass
                a[:, layer, head, rows, key] += mass
    return a


def judged(maps, causal=True):
    result = asc.sink_test(maps, support="causal" if causal else "full")
    sums = asc.sink_sums(result)
    pooled = asc.pooled_sinks(sums, texts=len(maps))
    pooled = {
        divmod(int(row["map"]), HEADS): int(row["label"]) for _, row in pooled[pooled["sink"]].iterrows()
    }
    return statistics.frames_of_sinks(
        result.position, result.untested, lengths=maps.shape[-1], causal=causal, pooled=pooled
    )


@pytest.mark.parametrize("logits", [0.0, 1.0, 4.0])
def test_an_untrained_model_has_no_frame(logits):
    maps = attention(64, lambda layer, head: None, logits=logits)
    answer = judged(maps)
    assert (answer.frame, answer.share) == ("none", 0.0)
    # What the largest entry alone says of the same maps without any structure.
    if logits == 0.0:
        largest = asc.classify_frames(asc.sink_position(maps, rule="largest"), lengths=64, causal=True)
        assert largest.frame == "centralized"


@pytest.mark.parametrize("n", [12, 33, 64])
def test_a_first_key_of_three_tenths_is_centralized(n):
    answer = judged(attention(n, lambda layer, head: 0, mass=0.3 if n > 12 else 0.6))
    assert answer.frame == "centralized"
    assert answer.share == 1.0


def test_first_and_last_are_bidirectional():
    n = 33
    maps = attention(n, lambda layer, head: (0, n - 1)[(layer + head) % 2], causal=False)
    assert judged(maps, causal=False).frame == "bidirectional"


def test_few_heads_make_no_frame_and_their_share_is_reported():
    answer = judged(attention(64, lambda layer, head: 0 if (layer, head) == (1, 2) else None))
    assert answer.frame == "none"
    assert answer.share == pytest.approx(1 / 12)
    assert np.argwhere(answer.heads).tolist() == [[1, 2]]


def test_half_of_the_texts_and_only_those_that_were_tested():
    positions = np.full((4, 1, 3), -1)
    positions[:2, 0, 0] = 5  # half of four
    positions[:1, 0, 1] = 5  # one of four
    positions[:1, 0, 2] = 5  # one of two that were tested
    untested = np.zeros((4, 1, 3), dtype=bool)
    untested[2:, 0, 2] = True
    have, tested = statistics.heads_with_sinks(positions, untested)
    assert have.tolist() == [[True, False, True]]
    assert tested.all()
    have, tested = statistics.heads_with_sinks(positions[:, :, :1], np.ones((4, 1, 1), dtype=bool))
    assert not have.any()
    assert not tested.any()


def test_short_texts_take_the_pooled_label_from_either_end():
    nowhere = np.full((3, 1, 2), -1)
    answer = statistics.frames_of_sinks(
        nowhere, nowhere > 0, lengths=[6, 7, 6], causal=False, pooled={(0, 0): 0, (0, 1): -1}
    )
    assert answer.frame == "bidirectional"
    by_token = statistics.frames_of_sinks(nowhere, nowhere > 0, lengths=6, causal=True, pooled={(0, 0): None})
    assert (by_token.frame, by_token.share) == ("none", 0.5)


def test_arguments():
    with pytest.raises(ValueError, match=r"positions must be integers \[texts, layers, heads\], got int64"):
        statistics.heads_with_sinks([[1]], [[False]])
    with pytest.raises(ValueError, match="untested must be boolean of shape"):
        statistics.heads_with_sinks([[[1]]], [[[1]]])
    with pytest.raises(ValueError, match=r"pooled head \(3, 0\) is not among \(1, 1\)"):
        statistics.heads_with_sinks([[[1]]], [[[False]]], {(3, 0): 0})


def test_a_pooled_place_outside_a_short_text_is_none():
    """15 from the end of texts of 40 tokens is nowhere in one of 10."""
    positions, untested = np.full((2, 1, 1), -1), np.zeros((2, 1, 1), bool)
    for label in (-25, -10, -11, 9, 10, 39):
        result = statistics.frames_of_sinks(
            positions, untested, lengths=[10, 31], causal=True, pooled={(0, 0): label}
        )
        places = [label if label >= 0 else size + label for size in (10, 31)]
        expected = [place if 0 <= place < size else -1 for place, size in zip(places, (10, 31), strict=True)]
        assert result.positions.ravel().tolist() == expected, label
