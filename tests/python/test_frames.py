# SPDX-License-Identifier: MIT
"""classify_frames: verdicts by construction, ragged anchors, margins, and the disagreement with tokens."""

import math

import numpy as np
import pytest
import torch

import attnscope as asc


def positions(*thirds, samples=10, heads=10):
    """Layers of one third each: `thirds` maps a position to its number of heads out of ten."""
    layers = []
    for shares in thirds:
        row = [position for position, count in shares.items() for _ in range(count)]
        assert len(row) == heads
        layers.append(row)
    return torch.tensor(layers).expand(samples, len(thirds), heads).clone()


def classify(found, *, causal=True, lengths=20, **options):
    return asc.classify_frames(found, lengths=lengths, causal=causal, **options)


def test_one_position_in_every_third_is_centralized():
    found = classify(positions({0: 9, 3: 1}, {0: 10}, {0: 8, 4: 2}))
    assert found.frame == "centralized"
    assert found.margin == pytest.approx(0.0, abs=1e-12)
    assert found.probability == 1.0
    assert found.evidence["top_1"].tolist() == [0.9, 1.0, 0.8]
    assert found.evidence["third"].tolist() == ["early", "middle", "late"]
    entropy = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1)) / math.log(20)
    assert found.evidence["entropy"][0] == pytest.approx(entropy)
    assert found.evidence["entropy"][1] == 0


def test_another_position_in_one_third_is_not():
    found = classify(positions({0: 10}, {0: 10}, {5: 10}))
    assert found.frame == "distributed"
    assert found.margin == pytest.approx(0.8)
    just_below = classify(positions({0: 10}, {0: 7, 1: 3}, {0: 10}))
    assert just_below.frame == "distributed"
    assert just_below.margin == pytest.approx(0.1)
    assert classify(positions({0: 10}, {0: 7, 1: 3}, {0: 10}), dominant=0.7).frame == "centralized"


def test_two_ends_make_a_bidirectional_frame_only_without_a_causal_mask():
    ends = positions({0: 7, 3: 3}, {3: 10}, {19: 6, 4: 4})
    found = classify(ends, causal=False)
    assert found.frame == "bidirectional"
    assert found.margin == pytest.approx(0.1)
    assert classify(ends, causal=True).frame == "distributed"
    # Together 0.8, each 0.1, though never half of any third.
    shared = positions({0: 4, 19: 4, 2: 2}, {0: 4, 19: 4, 2: 2}, {0: 4, 19: 4, 2: 2})
    assert classify(shared, causal=False).frame == "bidirectional"
    lone = positions({0: 8, 7: 2}, {0: 8, 7: 2}, {0: 7, 7: 3})
    assert classify(lone, causal=False).frame == "distributed"
    # Centralized comes first.
    assert classify(positions({0: 10}, {0: 10}, {0: 10}), causal=False).frame == "centralized"


def test_the_last_anchor_of_ragged_samples_is_their_own_last_position():
    lengths = [5, 9, 14]
    found = torch.stack([torch.full((3, 4), length - 1) for length in lengths])
    verdict = classify(found, causal=False, lengths=lengths)
    assert verdict.frame == "centralized"
    assert verdict.evidence["top"].tolist() == ["last"] * 3
    assert verdict.evidence["last_anchor"].tolist() == [1.0] * 3
    special = torch.zeros(3, 14, dtype=torch.bool)
    special[:, 1] = special[:, 3] = True
    marked = classify(torch.full((3, 3, 4), 3), causal=False, lengths=lengths, special=special)
    assert marked.evidence["last_anchor"].tolist() == [1.0] * 3
    assert marked.evidence["first_anchor"].tolist() == [0.0] * 3


def test_position_and_token_disagree_without_a_special_first_token():
    found = torch.zeros(6, 3, 4, dtype=torch.int64)
    sentences = [[first, "x", "y"] for first in ("In", "This", "A", "It", "For", "The")]
    verdict = classify(found, lengths=3, tokens=sentences)
    assert (verdict.frame, verdict.token_frame) == ("centralized", "distributed")
    with_bos = [["<s>", *sentence[1:]] for sentence in sentences]
    assert classify(found, lengths=3, tokens=with_bos).token_frame == "centralized"
    rows = classify(found, lengths=3, tokens=with_bos).evidence
    assert rows["kind"].tolist() == ["position"] * 3 + ["token"] * 3
    assert rows["top"].tolist() == ["0"] * 3 + ["<s>"] * 3


def test_missing_sinks_are_left_out_and_few_layers_are_one_group():
    found = positions({0: 5, 3: 5}, {0: 10})
    found[:, 0, 5:] = -1
    verdict = classify(found)
    assert verdict.frame == "centralized"
    assert verdict.evidence["third"].tolist() == ["all"]
    assert verdict.evidence["sinks"].tolist() == [150]
    with pytest.raises(ValueError, match="no sink at all"):
        classify(torch.full((2, 3, 4), -1))


def test_the_probability_counts_samples_and_is_seeded():
    # Four of five samples rest on 0: close to the threshold, so that resampling changes the verdict.
    found = torch.zeros(5, 3, 4, dtype=torch.int64)
    found[0] = 7
    one, again = classify(found), classify(found)
    assert one.probability == again.probability
    # At most one draw in five is the odd sample: binomial, 5 trials of 0.2.
    expected = 0.8**5 + 5 * 0.2 * 0.8**4
    assert one.frame == "centralized"
    assert one.probability == pytest.approx(expected, abs=0.05)
    assert classify(found, seed=1).probability != one.probability


def test_thirds_are_cut_at_a_third_and_two_thirds():
    found = torch.zeros(2, 7, 3, dtype=torch.int64)
    found[:, 2:4] = 5
    shares = classify(found).evidence
    # Layers 0-1, 2-3, 4-6.
    assert shares["sinks"].tolist() == [12, 12, 18]
    assert shares["top"].tolist() == ["0", "5", "0"]


def test_gpt2_like_maps_end_to_end():
    attention = torch.zeros(2, 3, 4, 8, 8)
    attention[..., 0] = 0.9
    attention += 0.1 * torch.eye(8)
    attention[..., 0, :] = torch.eye(8)[0]
    found = asc.sink_position(attention)
    assert classify(found, lengths=8).frame == "centralized"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": torch.zeros(2, 3)}, "positions must be integers, got torch.float32"),
        ({"positions": torch.zeros(2, 3, dtype=torch.int64)}, r"positions must have .* got \(2, 3\)"),
        ({"lengths": [4, 4, 4]}, r"lengths must be 2 integers, got int64 of shape \(3,\)"),
        ({"lengths": 0}, "lengths must be at least 1, got 0"),
        ({"positions": torch.full((2, 3, 4), 4)}, "positions of sample 0 must lie between -1 and 3, got 4"),
        ({"tokens": [["a"] * 4]}, "tokens must hold 2 samples, got 1"),
        ({"tokens": [["a"] * 4, ["a"]]}, "tokens of sample 1 must hold 4 entries, got 1"),
        ({"special": torch.ones(2, 3, dtype=torch.bool)}, r"special must be boolean of shape \[2, n\]"),
        ({"dominant": 1.0}, "dominant must lie strictly between 0 and 1, got 1.0"),
        ({"minor": np.nan}, "minor must lie strictly between 0 and 1, got nan"),
    ],
)
def test_bad_arguments_are_named(change, message):
    options = {"positions": torch.zeros(2, 3, 4, dtype=torch.int64), "lengths": 4, "causal": True, **change}
    with pytest.raises(ValueError, match="classify_frames: " + message):
        asc.classify_frames(options.pop("positions"), **options)
