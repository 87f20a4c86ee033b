# SPDX-License-Identifier: MIT
"""classify_frames: verdicts by construction, ragged anchors, margins, and the disagreement with tokens."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.statistics import frames


def positions(*thirds, samples=10, heads=10):
    """Layers of one third each: `thirds` maps a position to its number of heads out of ten."""
    layers = []
    for shares in thirds:
        row = [position for position, count in shares.items() for _ in range(count)]
        assert len(row) == heads
        layers.append(row)
    return torch.tensor(layers).expand(samples, len(thirds), heads).clone()


def classify(sink_positions, *, causal=True, lengths=20, **options):
    return asc.classify_frames(sink_positions, lengths=lengths, causal=causal, **options)


def test_one_position_in_every_third_is_centralized():
    verdict = classify(positions({0: 9, 3: 1}, {0: 10}, {0: 8, 4: 2}))
    assert verdict.frame == "centralized"
    assert verdict.margin == pytest.approx(0.0, abs=1e-12)
    assert verdict.probability == 1.0
    assert verdict.evidence["top_1"].tolist() == [0.9, 1.0, 0.8]
    assert verdict.evidence["third"].tolist() == ["early", "middle", "late"]
    entropy = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1)) / math.log(20)
    assert verdict.evidence["entropy"][0] == pytest.approx(entropy)
    assert verdict.evidence["entropy"][1] == 0


def test_another_position_in_one_third_is_not():
    verdict = classify(positions({0: 10}, {0: 10}, {5: 10}))
    assert verdict.frame == "distributed"
    assert verdict.margin == pytest.approx(0.8)
    just_below = classify(positions({0: 10}, {0: 7, 1: 3}, {0: 10}))
    assert just_below.frame == "distributed"
    assert just_below.margin == pytest.approx(0.1)
    assert classify(positions({0: 10}, {0: 7, 1: 3}, {0: 10}), dominant=0.7).frame == "centralized"


def test_two_ends_make_a_bidirectional_frame_only_without_a_causal_mask():
    ends = positions({0: 7, 3: 3}, {3: 10}, {19: 6, 4: 4})
    verdict = classify(ends, causal=False)
    assert verdict.frame == "bidirectional"
    assert verdict.margin == pytest.approx(0.1)
    causal = classify(ends, causal=True)
    assert (causal.frame, causal.probability) == ("distributed", 1.0)
    # Together 0.8, each 0.1, though never half of any third.
    shared = positions({0: 4, 19: 4, 2: 2}, {0: 4, 19: 4, 2: 2}, {0: 4, 19: 4, 2: 2})
    assert classify(shared, causal=False).frame == "bidirectional"
    lone = positions({0: 8, 7: 2}, {0: 8, 7: 2}, {0: 7, 7: 3})
    assert classify(lone, causal=False).frame == "distributed"
    # Centralized comes first.
    assert classify(positions({0: 10}, {0: 10}, {0: 10}), causal=False).frame == "centralized"


def test_the_last_anchor_of_ragged_samples_is_their_own_last_position():
    lengths = [5, 9, 14]
    sink_positions = torch.stack([torch.full((3, 4), length - 1) for length in lengths])
    verdict = classify(sink_positions, causal=False, lengths=lengths)
    assert verdict.frame == "centralized"
    assert verdict.evidence["top"].tolist() == ["last"] * 3
    assert verdict.evidence["last_anchor"].tolist() == [1.0] * 3
    special = torch.zeros(3, 14, dtype=torch.bool)
    special[:, 1] = special[:, 3] = True
    marked = classify(torch.full((3, 3, 4), 3), causal=False, lengths=lengths, special=special)
    assert marked.evidence["last_anchor"].tolist() == [1.0] * 3
    assert marked.evidence["first_anchor"].tolist() == [0.0] * 3


def test_position_and_token_disagree_without_a_special_first_token():
    sink_positions = torch.zeros(6, 3, 4, dtype=torch.int64)
    sentences = [[first, "x", "y"] for first in ("In", "This", "A", "It", "For", "The")]
    verdict = classify(sink_positions, lengths=3, tokens=sentences)
    assert (verdict.frame, verdict.token_frame) == ("centralized", "distributed")
    with_bos = [["<s>", *sentence[1:]] for sentence in sentences]
    assert classify(sink_positions, lengths=3, tokens=with_bos).token_frame == "centralized"
    rows = classify(sink_positions, lengths=3, tokens=with_bos).evidence
    assert rows["kind"].tolist() == ["position"] * 3 + ["token"] * 3
    assert rows["top"].tolist() == ["0"] * 3 + ["<s>"] * 3


def test_missing_sinks_are_left_out_and_few_layers_are_one_group():
    sink_positions = positions({0: 5, 3: 5}, {0: 10})
    sink_positions[:, 0, 5:] = -1
    verdict = classify(sink_positions)
    assert verdict.frame == "centralized"
    assert verdict.evidence["third"].tolist() == ["all"]
    assert verdict.evidence["sinks"].tolist() == [150]
    assert classify(torch.full((2, 3, 4), -1)).frame == "none"


def test_the_probability_counts_samples_and_is_seeded():
    # Four of five samples rest on 0: close to the threshold, so that resampling changes the verdict.
    sink_positions = torch.zeros(5, 3, 4, dtype=torch.int64)
    sink_positions[0] = 7
    first, again = classify(sink_positions), classify(sink_positions)
    assert first.probability == again.probability
    # At most one draw in five is the odd sample: binomial, 5 trials of 0.2.
    expected = 0.8**5 + 5 * 0.2 * 0.8**4
    assert first.frame == "centralized"
    assert first.probability == pytest.approx(expected, abs=0.05)
    assert classify(sink_positions, seed=1).probability != first.probability


def test_thirds_are_cut_at_a_third_and_two_thirds():
    sink_positions = torch.zeros(2, 7, 3, dtype=torch.int64)
    sink_positions[:, 2:4] = 5
    shares = classify(sink_positions).evidence
    # Layers 0-1, 2-3, 4-6.
    assert shares["sinks"].tolist() == [12, 12, 18]
    assert shares["top"].tolist() == ["0", "5", "0"]


def test_gpt2_like_maps_end_to_end():
    attention = torch.zeros(2, 3, 4, 24, 24)
    attention[..., 0] = 0.9
    attention += 0.1 * torch.eye(24)
    attention[..., 0, :] = torch.eye(24)[0]
    sink_positions = asc.sink_position(attention)
    assert classify(sink_positions, lengths=24).frame == "centralized"


@pytest.mark.parametrize("causal", [True, False])
def test_an_untrained_model_has_no_frame(causal):
    """Uniform attention and random softmax: every causal map has its largest key, and no map a sink."""
    draw = torch.Generator().manual_seed(0)
    logits = (
        torch.randn(3, 4, 2, 33, 33, generator=draw)
        * torch.tensor([0.0, 0.1, 1.0])[:, None, None, None, None]
    )
    if causal:
        logits = logits.masked_fill(torch.ones(33, 33, dtype=torch.bool).triu(1), -torch.inf)
    maps = logits.softmax(-1)
    verdict = classify(asc.sink_position(maps), lengths=33, causal=causal, tokens=[["a"] * 33] * 3)
    assert (verdict.frame, verdict.token_frame, verdict.probability) == ("none", "none", 1.0)
    assert math.isnan(verdict.margin)
    assert verdict.evidence["sinks"].tolist() == [0] * 6
    assert set(verdict.evidence["top"]) == {""}
    assert verdict.evidence["top_1"].isna().all()
    largest = classify(asc.sink_position(maps, rule="largest"), lengths=33, causal=True)
    assert largest.frame == ("centralized" if causal else "distributed")


@pytest.mark.parametrize(("with_sink", "frame"), [(11, "none"), (12, "centralized"), (120, "centralized")])
def test_a_tenth_of_the_heads_needs_a_sink(with_sink, frame):
    """Of 120 heads; a model whose heads have none has a few by chance."""
    positions = torch.full((5, 6, 4), -1)
    positions.view(-1)[:with_sink] = 0
    assert classify(positions, lengths=9).frame == frame
    assert classify(positions, lengths=9, least=0).frame == "centralized"
    assert classify(torch.full((5, 6, 4), -1), lengths=9, least=0).frame == "none"


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
        (
            {"special": torch.ones(2, 4)},
            r"special must be boolean of shape \[2, n\] with n >= 4, got float32",
        ),
        (
            {"special": torch.ones(8, dtype=torch.bool)},
            r"special must be boolean .* got bool of shape \(8,\)",
        ),
        ({"special": torch.ones(2, 4, 1, dtype=torch.bool)}, r"special must .* of shape \(2, 4, 1\)"),
        ({"special": torch.ones(3, 4, dtype=torch.bool)}, r"special must .* of shape \(3, 4\)"),
        ({"positions": torch.zeros(2, 3, 4, dtype=torch.bool)}, "positions must be integers, got torch.bool"),
        (
            {"positions": torch.zeros(2, 3, 4, dtype=torch.complex64)},
            "positions must be integers, got torch.complex64",
        ),
        ({"positions": torch.zeros(2, 0, 4, dtype=torch.int64)}, r"positions must have .* got \(2, 0, 4\)"),
        (
            {"positions": torch.tensor([[[0, 0]], [[-2, 0]]])},
            "positions of sample 1 must lie between -1 and 3, got -2",
        ),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"dominant": 1.0}, "dominant must lie strictly between 0 and 1, got 1.0"),
        ({"half": 0.0}, "half must lie strictly between 0 and 1, got 0.0"),
        ({"least": 1.5}, "least must lie between 0 and 1, got 1.5"),
        ({"minor": np.nan}, "minor must lie strictly between 0 and 1, got nan"),
    ],
)
def test_bad_arguments_are_named(change, message):
    options = {"positions": torch.zeros(2, 3, 4, dtype=torch.int64), "lengths": 4, "causal": True, **change}
    with pytest.raises(ValueError, match="classify_frames: " + message):
        asc.classify_frames(options.pop("positions"), **options)


@pytest.mark.parametrize("tokens", [5, [["a"] * 4, 5], [5, ["a"] * 4]])
def test_tokens_are_lists_of_lists(tokens):
    with pytest.raises(TypeError, match=r"classify_frames: tokens must be a list of tokens .* got int"):
        classify(torch.zeros(2, 3, 4, dtype=torch.int64), lengths=4, tokens=tokens)


def by_hand(sink_positions, lengths, causal, tokens, special, dominant, half, minor, weights=None):
    """The definition sink by sink: each kind's verdict with its margin, and its rows."""
    samples, layers, _ = sink_positions.shape
    cuts = (0, layers // 3, 2 * layers // 3, layers) if layers >= 3 else (0, layers)
    anchors, order = [], {}
    for s in range(samples):
        marked = [k for k in range(lengths[s]) if special is not None and special[s][k]]
        anchors.append((marked[0], marked[-1]) if marked else (0, lengths[s] - 1))
        for token in tokens[s] if tokens else ():
            order.setdefault(token, len(order))
    verdicts, rows = {}, []
    for kind in ("position", "token") if tokens else ("position",):
        # Of every sink of a third: what it rests on, and whether that is the first, another last and the last
        # anchor. A token at both ends is one anchor.
        thirds = []
        for begin, end in itertools.pairwise(cuts):
            sinks = []
            for s in range(samples):
                first, last = anchors[s]
                weight = weights[s] if weights is not None else 1
                for p in sink_positions[s, begin:end].flatten().tolist():
                    if p >= 0 and kind == "token":
                        token, ends = tokens[s][p], (tokens[s][first], tokens[s][last])
                        is_last = token == ends[1]
                        sinks += [(token, token == ends[0], is_last and ends[0] != ends[1], is_last)] * weight
                    elif p >= 0:
                        ends_it = p == last and last > first
                        sinks += [("last" if ends_it else str(p), p == first, ends_it, ends_it)] * weight
            thirds.append(sinks)
        heads = sink_positions[0].numel() * (samples if weights is None else sum(weights))
        verdicts[kind] = verdict_by_hand(thirds, causal, dominant, half, minor)
        if 10 * sum(map(len, thirds)) < heads or not any(thirds):
            verdicts[kind] = "none", math.nan
        for third, sinks in zip(
            ("early", "middle", "late") if layers >= 3 else ("all",), thirds, strict=True
        ):
            counts = Counter(label for label, *_ in sinks)
            place = (
                order.__getitem__
                if kind == "token"
                else lambda label: math.inf if label == "last" else int(label)
            )
            shares = sorted((c / len(sinks) for c in counts.values()), reverse=True)
            labels = len(order) if kind == "token" else max(lengths)
            rows.append(
                {
                    "kind": kind,
                    "third": third,
                    "sinks": len(sinks),
                    # The first of those that occur most.
                    "top": min(counts, key=lambda label: (-counts[label], place(label))) if sinks else "",
                    **{f"top_{k}": sum(shares[:k]) if sinks else math.nan for k in (1, 2, 3)},
                    "entropy": -sum(x * math.log(x) for x in shares) / (math.log(labels) if labels > 1 else 1)
                    if sinks
                    else math.nan,
                    "first_anchor": np.mean([first for _, first, *_ in sinks]) if sinks else math.nan,
                    "last_anchor": np.mean([last for *_, last in sinks]) if sinks else math.nan,
                }
            )
    return verdicts, rows


def verdict_by_hand(thirds, causal, dominant, half, minor):
    used = [sinks for sinks in thirds if sinks] or [[("", False, False, False)]]
    labels = {label for sinks in used for label, *_ in sinks}
    central = (
        max(min(sum(x[0] == y for x in sinks) / len(sinks) for sinks in used) for y in labels) - dominant
    )
    if central >= 0:
        return "centralized", central
    if causal:
        return "distributed", -central
    first = [sum(x[1] for x in sinks) / len(sinks) for sinks in used]
    last = [sum(x[2] for x in sinks) / len(sinks) for sinks in used]
    all_sinks = list(itertools.chain(*used))
    pooled = [sum(x[k] for x in all_sinks) / len(all_sinks) for k in (1, 2)]
    ended = min(sum(pooled) - dominant, min(pooled) - minor)
    for a in range(len(used)):
        for b in range(len(used)):
            if a != b:
                ended = max(ended, min(first[a], last[b]) - half)
    return ("bidirectional", min(ended, -central)) if ended >= 0 else ("distributed", min(-central, -ended))


def drawn_case(draw):
    samples, layers, heads = draw.integers(1, 5), draw.integers(1, 8), draw.integers(1, 4)
    lengths = draw.integers(1, 7, samples)
    pull, sink_positions = draw.random(), np.empty((samples, layers, heads), dtype=np.int64)
    side = draw.integers(0, 2, layers)
    for s, layer, h in np.ndindex(sink_positions.shape):
        usual = 0 if side[layer] else lengths[s] - 1
        sink_positions[s, layer, h] = usual if draw.random() < pull else draw.integers(-1, lengths[s])
    if draw.random() < 0.3:
        sink_positions[:, draw.integers(layers)] = -1
    if (sink_positions < 0).all():
        sink_positions[0, 0, 0] = 0
    spare = int(lengths.max()) + draw.integers(0, 2)
    return {
        "sink_positions": torch.from_numpy(sink_positions),
        "lengths": lengths.tolist(),
        "causal": bool(draw.random() < 0.3),
        "tokens": [list(draw.choice(list("abc"), spare)) for _ in range(samples)]
        if draw.random() < 0.6
        else None,
        "special": draw.random((samples, spare)) < 0.3 if draw.random() < 0.4 else None,
        **{name: float(draw.uniform(0.05, 0.9)) for name in ("dominant", "half", "minor")},
    }


@pytest.mark.parametrize(
    "change", [{"causal": np.ones(2)}, {"seed": "x"}, {"positions": "x"}, {"lengths": "x"}, {"special": "x"}]
)
def test_what_others_refuse_is_refused_by_this_name(change):
    options = {"positions": torch.zeros(2, 3, 4, dtype=torch.int64), "lengths": 4, "causal": True, **change}
    with pytest.raises((TypeError, ValueError), match=r"^classify_frames: "):
        asc.classify_frames(options.pop("positions"), **options)


@pytest.mark.filterwarnings("error")
def test_verdicts_and_evidence_are_those_of_the_definition(monkeypatch):
    monkeypatch.setattr(frames, "DRAWS", 5)
    draw, seen = np.random.default_rng(5), Counter()
    for _ in range(100):
        case = drawn_case(draw)
        options = dict(case)
        if case["special"] is not None:
            options["special"] = torch.from_numpy(case["special"])
        verdict = classify(options.pop("sink_positions"), **options)
        by_kind, rows = by_hand(**case)
        assert verdict.frame == by_kind["position"][0]
        assert verdict.margin == pytest.approx(by_kind["position"][1], abs=1e-12, nan_ok=True)
        assert verdict.token_frame == by_kind.get("token", (None,))[0]
        assert list(verdict.evidence) == list(rows[0])
        for measured, row in zip(verdict.evidence.to_dict("records"), rows, strict=True):
            for key, value in row.items():
                assert measured[key] == (
                    value if isinstance(value, str) else pytest.approx(value, abs=1e-12, nan_ok=True)
                )
        seen[verdict.frame] += 1
        seen[verdict.token_frame, "token"] += 1
    assert min(seen[frame] for frame in ("centralized", "bidirectional", "distributed")) > 10, seen
    assert min(seen[frame, "token"] for frame in ("centralized", "bidirectional", "distributed")) > 5, seen


def test_the_probability_is_the_share_of_draws_with_the_same_verdict():
    draw = np.random.default_rng(6)
    between = 0
    for seed in range(8):
        case = {**drawn_case(draw), "tokens": None, "special": None}
        sink_positions = case["sink_positions"]
        if seed < 4 and len(sink_positions) > 1:
            sink_positions[0] = -1  # of some draws no sink is left
            sink_positions[1, 0, 0] = 0
        verdict = classify(seed=seed, **case)
        drawn = np.random.default_rng(seed).multinomial(
            len(sink_positions), np.full(len(sink_positions), 1 / len(sink_positions)), 1000
        )
        frames_of_draws = {}
        for weights in map(tuple, drawn.tolist()):
            if weights not in frames_of_draws:
                frames_of_draws[weights] = by_hand(**case, weights=weights)[0]["position"][0]
        agreeing = sum(frames_of_draws[tuple(weights)] == verdict.frame for weights in drawn.tolist())
        assert verdict.probability == agreeing / 1000
        between += 0 < agreeing < 1000
    assert between > 2


def error_of_chance(exact):
    """The standard error of draws up to 1,000, or until 100 agree."""
    return max(math.sqrt(exact * (1 - exact) / 1000), exact * math.sqrt((1 - exact) / 100)) + 2e-4


@pytest.mark.parametrize(
    ("heads", "causal", "frame", "exact"),
    [
        ([0, 0], True, "centralized", 1 / 8),
        ([3, 3], True, "centralized", 1 / 8),
        ([0, 0, 0], True, "centralized", 1 / 64),
        ([0], True, "centralized", 1),
        ([0, 5], True, "distributed", 7 / 8),
        ([0, 7], False, "bidirectional", 2 / 64),  # first and last, or last and first
    ],
)
def test_the_chance_of_unrelated_heads_in_closed_form(heads, causal, frame, exact):
    """One layer over eight tokens: a frame asks all of so few heads for their place."""
    verdict = classify(torch.tensor([[heads]] * 3), causal=causal, lengths=8)
    assert verdict.frame == frame
    assert verdict.chance == pytest.approx(exact, abs=5 * error_of_chance(exact))


def test_a_head_agrees_with_itself_by_chance_as_before():
    """A step of 6 makes the last position of the shortest text of what is another one in the others."""
    verdict = classify(torch.zeros(3, 1, 1, dtype=torch.int64), lengths=[7, 8, 9])
    assert verdict.frame == "centralized"
    assert verdict.chance == pytest.approx(6 / 7, abs=5 * error_of_chance(6 / 7))


def test_the_chance_is_that_of_all_steps_of_all_heads():
    draw = np.random.default_rng(8)
    between = compared = 0
    while compared < 30:
        case = {**drawn_case(draw), "tokens": None}
        sink_positions, lengths = case["sink_positions"], case["lengths"]
        count = sink_positions[0].numel()
        verdict = classify(**case)
        if verdict.frame == "none":
            assert math.isnan(verdict.chance)
            continue
        if not 1 < min(lengths) ** count <= 300:
            continue
        agreeing = []
        for steps in itertools.product(range(min(lengths)), repeat=count):
            moved = sink_positions + torch.tensor(steps).reshape(sink_positions[0].shape)
            moved = torch.where(sink_positions < 0, -1, moved % torch.tensor(lengths)[:, None, None])
            agreeing.append(by_hand(**{**case, "sink_positions": moved})[0]["position"][0] == verdict.frame)
        exact = np.mean(agreeing)
        assert verdict.chance == pytest.approx(exact, abs=5 * error_of_chance(exact))
        between += 0.05 < exact < 0.95
        compared += 1
    assert between > 5


def test_a_token_at_both_ends_is_one_anchor():
    """Half of the sinks lie on the one token: twice counted they were all, and a bidirectional frame."""
    sinks = positions({0: 5, 2: 5}, {0: 5, 2: 5}, {0: 5, 2: 5})
    tokens = [["the", "a", "b", "c", "the"]] * len(sinks)
    verdict = classify(sinks, causal=False, lengths=5, tokens=tokens)
    assert verdict.token_frame == "distributed"
    apart = [["the", "a", "b", "c", "end"]] * len(sinks)
    ends = positions({0: 5, 4: 5}, {0: 5, 4: 5}, {0: 5, 4: 5})
    assert classify(ends, causal=False, lengths=5, tokens=apart).token_frame == "bidirectional"
