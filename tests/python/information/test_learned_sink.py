# SPDX-License-Identifier: MIT
"""Rows that a learned sink leaves below one: n + 1 outcomes, against loops in NumPy."""

import math

import numpy as np
import pytest
import torch
import transformers

import attnscope as asc
from support import sweep

LENGTHS = torch.tensor([11, 8])
BAND = (torch.ones(11, 11).tril() * torch.ones(11, 11).triu(-3)).bool()


def layers(support="causal", seed=0):
    """[2, 3, 11, 11] maps and [2, 3, 11] masses of a softmax with one more logit a head."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 3, 11, 11, generator=generator, dtype=torch.float64)
    seen = torch.ones(11, 11, dtype=torch.bool)
    seen = BAND if isinstance(support, torch.Tensor) else seen.tril() if support == "causal" else seen
    sink = torch.tensor([-1.0, 1.0, 3.0], dtype=torch.float64).reshape(1, 3, 1, 1).expand(2, 3, 11, 1)
    rows_with_sink = torch.cat([logits.masked_fill(~seen, -math.inf), sink], -1).softmax(-1)
    return rows_with_sink[..., :-1].contiguous(), rows_with_sink[..., -1].contiguous(), seen.numpy()


def rows(maps, mass, seen, text, head, i):
    """One query's distribution over its visible keys and the learned sink."""
    size = int(LENGTHS[text])
    row = maps[text, head, i, :size].numpy()[seen[i, :size]]
    return np.append(row, mass[text, head, i])


SUPPORTS = pytest.mark.parametrize("support", ["causal", "full", BAND], ids=["causal", "full", "window"])


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


@SUPPORTS
def test_entropy_and_divergence(support):
    maps, mass, seen = layers(support)
    options = {"support": support, "lengths": LENGTHS[:, None], "sink_mass": mass}
    entropy, normalized = (asc.attention_entropy(maps, normalized=n, **options) for n in (False, True))
    divergence = asc.head_divergence(maps, **options)
    measured = asc.measure(
        maps,
        {
            "attention_entropy": {"sink_mass": mass},
            "head_divergence": {"sink_mass": mass},
            "plain": {"metric": "head_divergence"},
            "top_mass": {},
        },
        support=support,
        lengths=LENGTHS[:, None],
    )
    assert torch.equal(measured["head_divergence"], divergence)
    assert torch.equal(measured["attention_entropy"].nan_to_num(), entropy.nan_to_num())
    plain = asc.head_divergence(maps, support=support, lengths=LENGTHS)
    torch.testing.assert_close(measured["plain"], plain)
    for text, size in enumerate(LENGTHS.tolist()):
        for head in range(3):
            traces = []
            for i in range(size):
                p = rows(maps, mass, seen, text, head, i)
                assert p.sum() <= 1 + 1e-12
                h = -sum(x * math.log(x) for x in p if x > 0)
                assert entropy[text, head, i].item() == pytest.approx(h, rel=1e-12)
                assert normalized[text, head, i].item() == pytest.approx(h / math.log(len(p)), rel=1e-12)
                q = np.mean([rows(maps, mass, seen, text, other, i) for other in range(3)], 0)
                traces.append(kl(p, q))
            assert divergence[text, head].item() == pytest.approx(np.mean(traces), rel=1e-10)
    assert entropy[1, :, 8:].isnan().all()
    assert (divergence >= 0).all()
    assert (divergence <= math.log(3)).all()
    # Without the sink the rows are no distributions, and heads are nearer to their mean than equal ones.
    assert (plain < 0).any()


@SUPPORTS
def test_removal(support):
    maps, mass, seen = layers(support)
    keys = torch.zeros(2, 11, dtype=torch.bool)
    keys[0, [0, 4]] = True
    keys[1, 1] = True
    result = asc.sink_removal(maps, keys, sink_mass=mass, support=support, lengths=LENGTHS)
    assert result.excluded.sum() == 0  # what the learned sink takes is always left
    for text, size in enumerate(LENGTHS.tolist()):
        for head in range(3):
            before, after = [], []
            for i in range(size):
                stays = ~keys[text, :size].numpy()[seen[i, :size]]
                p = [rows(maps, mass, seen, text, other, i) for other in range(3)]
                r = [row * np.append(stays, True) for row in p]
                r = [row / row.sum() for row in r]
                before.append(kl(p[head], np.mean(p, 0)))
                after.append(kl(r[head], np.mean(r, 0)))
                rescaled = result.attention[text, head, i, :size].numpy()[seen[i, :size]]
                np.testing.assert_allclose(rescaled, r[head][:-1], rtol=1e-12)
            assert result.before[text, head].item() == pytest.approx(np.mean(before), rel=1e-10)
            assert result.after[text, head].item() == pytest.approx(np.mean(after), rel=1e-10)


@SUPPORTS
@pytest.mark.parametrize("k", [1, 2, 50])
def test_top_mass_and_share(support, k):
    maps, mass, seen = layers(support)
    options = {"support": support, "lengths": LENGTHS[:, None], "sink_mass": mass}
    top, share = asc.top_mass(maps, k, **options), asc.sink_share(maps, queries=5, **options)
    for text, size in enumerate(LENGTHS.tolist()):
        for head in range(3):
            incoming = np.where(seen[:size, :size], maps[text, head, :size, :size].numpy(), 0).sum(0)
            sorted_masses = np.sort(np.append(incoming, mass[text, head, :size].sum()))[::-1]
            assert top[text, head].item() == pytest.approx(
                sorted_masses[:k].sum() / sorted_masses.sum(), rel=1e-12
            )
            learned = mass[text, head, size - 5 : size].mean().item()
            assert share.learned[text, head].item() == pytest.approx(learned, rel=1e-12)
    plain = asc.sink_share(maps, queries=5, support=support, lengths=LENGTHS[:, None])
    assert torch.equal(plain.share, share.share)
    assert not plain.learned.any()


def test_a_query_that_sees_the_learned_sink_alone_has_no_normalized_entropy():
    maps, mass, seen = layers()
    seen = torch.tensor(seen)
    seen[3] = False
    maps, mass = torch.where(seen, maps, 0.0), mass.clone()
    mass[..., 3] = 1 - 2**-11  # as a half type rounds it
    entropies = asc.attention_entropy(maps, normalized=True, support=seen, sink_mass=mass)
    assert entropies.isnan().nonzero()[:, -1].unique().tolist() == [3]
    assert ((entropies >= 0) & (entropies <= 1))[..., [0, 1, 2, 4, 10]].all()


def test_a_head_that_rests_on_its_learned_sink_shows_it():
    maps = torch.full((1, 2, 6, 6), 0.01 / 6, dtype=torch.float64)
    mass = torch.full((1, 2, 6), 0.99, dtype=torch.float64)
    assert asc.sink_share(maps, sink_mass=mass).learned.flatten().tolist() == pytest.approx([0.99] * 2)
    assert asc.top_mass(maps, sink_mass=mass).flatten().tolist() == pytest.approx([0.99] * 2)
    assert asc.top_mass(maps).flatten().tolist() == pytest.approx([1 / 6] * 2)  # of the real keys' mass


def test_bad_maps_and_shapes():
    maps, mass, _ = layers()
    maps[0, 0, 3, 1] = math.nan
    with pytest.warns(asc._warn.NonFiniteWarning):
        top = asc.top_mass(maps, sink_mass=mass)
    assert top.isnan().sum() == 1
    with pytest.raises(ValueError, match=r"head_divergence: sink_mass of shape \(5,\) does not broadcast"):
        asc.head_divergence(maps, sink_mass=torch.ones(5))


def test_lengths_of_a_layer_may_be_given_for_its_heads():
    maps, _, _ = layers()
    for by_layer, by_head in ((LENGTHS, LENGTHS[:, None]), (LENGTHS, LENGTHS[:, None].expand(2, 3))):
        assert torch.equal(
            asc.head_divergence(maps, lengths=by_layer), asc.head_divergence(maps, lengths=by_head)
        )
        first, other = (
            asc.sink_removal(maps, [0], lengths=lengths).before for lengths in (by_layer, by_head)
        )
        assert torch.equal(first, other)
    with pytest.raises(ValueError, match="lengths of the heads of one layer must be equal, got"):
        asc.head_divergence(maps, lengths=torch.tensor([[11, 11, 11], [8, 8, 7]]))


@pytest.mark.filterwarnings("error")
def test_padding_behind_the_lengths_may_hold_anything_without_a_word():
    lengths = torch.tensor([12, 9])[:, None]
    maps = torch.softmax(torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0)), -1)
    maps[1, :, 9:] = math.nan
    maps[1, ..., 9:] = math.nan
    before, after = torch.randn(2, 3, 12, 4), torch.randn(2, 3, 12, 4)
    before[1, :, 9:] = math.nan
    after[1, :, 9:] = math.inf
    reference = torch.zeros(2, 3, 12, dtype=torch.bool)
    reference[..., 0] = True
    results = [
        *(
            getattr(asc, name)(maps, lengths=lengths)
            for name in ("attention_entropy", "incoming_attention", "head_divergence", "stable_rank")
        ),
        *(getattr(asc, name)(maps, lengths=lengths)[0] for name in ("sink_share", "sink_test")),
        asc.sink_removal(maps, [0], lengths=lengths).kl_reduction,
        asc.geometric_semantic_alignment(maps, before, lengths=lengths),
        asc.reference_influence(maps, before, reference, lengths=lengths)[0],
        asc.transformation_magnitude(before, after, lengths=lengths),
        asc.entropy_magnitude_correlation(maps, before, after, lengths=lengths),
        asc.entropy_magnitude_correlation(maps, before[:, :1], after[:, :1], lengths=lengths),
    ]
    for result in results:
        assert not result[1].isnan().all()


@pytest.mark.parametrize(
    "function",
    [
        lambda maps, mass: asc.attention_entropy(maps, sink_mass=mass),
        lambda maps, mass: asc.attention_entropy(maps, sink_mass=mass, normalized=True),
        lambda maps, mass: asc.head_divergence(maps, sink_mass=mass),
        lambda maps, mass: asc.top_mass(maps, 2, sink_mass=mass),
        lambda maps, mass: asc.sink_share(maps, sink_mass=mass).learned,
    ],
    ids=["entropy", "normalized entropy", "divergence", "top mass", "share"],
)
def test_gradients_of_what_the_sink_takes(function):
    maps, mass, _ = layers("full")
    maps, mass = (part[:1, :, :4].contiguous() for part in (maps[..., :4], mass))
    maps.requires_grad_()
    mass.requires_grad_()
    assert torch.autograd.gradcheck(lambda masses: function(maps.detach(), masses), (mass,))
    if function(maps, mass.detach()).requires_grad:
        assert torch.autograd.gradcheck(lambda rows: function(rows, mass.detach()), (maps,))
    none = torch.where(torch.arange(4) == 2, 0.0, mass.detach()).requires_grad_()
    (gradient,) = torch.autograd.grad(function(maps.detach(), none).sum(), none)
    assert gradient.isfinite().all()


def test_the_last_queries_of_lazy_attention_stand_anywhere():
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, 5, 4, generator=generator) for _ in range(2))
    lazy = asc.LazyAttention(
        query,
        key,
        sink_logits=torch.tensor([0.0, 1.0]),
        query_positions=torch.tensor([4, 0, 3, 1, 2]),
        lengths=3,
    )
    share = asc.sink_share(lazy, queries=2, sink_mass=lazy.sink_mass)
    # queries 1, 3 and 4 are real
    torch.testing.assert_close(share.learned, lazy.sink_mass[:, 3:].mean(-1))
    torch.testing.assert_close(share.share, lazy.dense()[:, 3:, 0].mean(-1))


@pytest.mark.parametrize("name", ["hy_v4", "inkling2_text"])
@pytest.mark.filterwarnings("ignore:capture")
def test_a_learned_sink_of_a_model_without_the_interface(name):
    """Its mass is what eager attention's rows leave of 1, of one logit a head or one a query."""
    if name not in sweep.types("causal"):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    model = sweep.build(*sweep.classes("causal", name))
    inputs = sweep.inputs_of(model, "none")
    with torch.no_grad():
        eager = [
            maps.double()
            for maps in sweep.eager_copy(model)(**inputs, use_cache=False, output_attentions=True).attentions
            if maps is not None and maps.ndim == 4
        ]
    with asc.capture(model) as recording:
        layers = list(recording.run(**inputs))
    assert recording.tier == 2
    for layer in layers:
        expected = min(eager, key=lambda maps: (maps - layer.attention).abs().max())
        mass = 1 - expected.sum(-1)
        assert mass.min() > 0.01
        assert layer.has_sink
        torch.testing.assert_close(layer.sink_mass.double(), mass, rtol=0, atol=1e-6)
        outcomes = torch.cat([expected, mass[..., None]], -1).clamp_min(1e-300)
        entropy = layer.measure("attention_entropy")["attention_entropy"]
        torch.testing.assert_close(entropy, -(outcomes * outcomes.log()).sum(-1), rtol=0, atol=1e-5)
    assert asc.verify(model).ok
