# SPDX-License-Identifier: MIT
"""Sink metrics against NumPy in float64, closed forms and laws."""

import math
import resource
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnscope as asc

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def maps(*shape, causal=True, seed=0, sharpness=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(*shape, generator=generator, dtype=torch.float64)
    if causal:
        logits = logits.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return torch.softmax(logits, -1).to(dtype)


def uniform_causal(n):
    uniform = torch.ones(n, n, dtype=torch.float64).tril()
    return uniform / uniform.sum(-1, keepdim=True)


def mask_of(attention, support):
    """The visible pairs, by the definition's words."""
    a = attention.double().numpy()
    n = a.shape[-1]
    if support == "auto":
        causal = n >= 2 and not np.triu(a, 1).any()
        support = "causal" if causal else "full"
    if isinstance(support, str):
        return np.tril(np.ones((n, n), bool)) if support == "causal" else np.ones((n, n), bool)
    return support.numpy()


def incoming_oracle(attention, support="auto"):
    a, mask = attention.double().numpy(), mask_of(attention, support)
    with np.errstate(invalid="ignore"):
        return (a * mask).sum(0) / mask.sum(0)


def tokens_oracle(attention, support="auto", tau=None, gamma=0.4, min_visibility="0.3"):
    a, mask = attention.double().numpy(), mask_of(attention, support)
    tau = np.quantile(a[mask], 0.9) if tau is None else tau
    seen = mask.sum(0)
    strong = ((a >= tau) & mask).sum(0)
    required = math.ceil(Fraction(min_visibility) * len(a))
    return [bool(seen[j] > 0 and seen[j] >= required and strong[j] / seen[j] >= gamma) for j in range(len(a))]


def share_oracle(attention, support="auto", first=1, queries=None):
    a, mask = attention.double().numpy(), mask_of(attention, support)
    rows = [i for i in range(len(a)) if mask[i].any()]
    rows = rows if queries is None else [i for i in rows if i >= len(a) - queries]
    share = np.mean([a[i, :first][mask[i, :first]].sum() for i in rows])
    return share, np.mean([mask[i, :first].sum() / mask[i].sum() for i in rows])


def position_oracle(attention, support="auto", min_visibility="0.3"):
    mask = mask_of(attention, support)
    required = max(1, math.ceil(Fraction(min_visibility) * len(mask)))
    alpha = np.where(mask.sum(0) >= required, incoming_oracle(attention, support), -np.inf)
    return -1 if np.isinf(alpha).all() else int(np.argmax(alpha))


BAND = torch.ones(20, 20, dtype=torch.bool).tril() & ~torch.ones(20, 20, dtype=torch.bool).tril(-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n", [1, 2, 5, 16, 33, 70])
def test_equal_to_numpy_for_every_size_and_dtype(n, causal, dtype):
    attention = maps(2, n, n, causal=causal, sharpness=2.0, dtype=dtype)
    alpha, tokens = asc.incoming_attention(attention), asc.sink_tokens(attention, rule="frequency")
    shares = asc.sink_share(attention, first=min(2, n), queries=7)
    top, position = asc.top_mass(attention, min(3, n)), asc.sink_position(attention, rule="largest")
    for index, map_of_text in enumerate(attention):
        expected = incoming_oracle(map_of_text)
        np.testing.assert_allclose(alpha[index], expected, rtol=1e-13)
        assert tokens[index].tolist() == tokens_oracle(map_of_text)
        expected = share_oracle(map_of_text, first=min(2, n), queries=7)
        np.testing.assert_allclose([shares.share[index], shares.uniform[index]], expected, rtol=1e-13)
        mass = np.sort(map_of_text.double().numpy().sum(0))[::-1]
        np.testing.assert_allclose(top[index], mass[: min(3, n)].sum() / mass.sum(), rtol=1e-13)
        assert position[index] == position_oracle(map_of_text)
    assert torch.equal(asc.sink_rate(attention, epsilon=0.2), alpha[:, 0] > 0.2)


@pytest.mark.parametrize("support", ["auto", "causal", "full", BAND])
@pytest.mark.parametrize("causal", [True, False])
def test_supports(support, causal):
    attention = maps(20, 20, causal=causal, sharpness=2.0, seed=5)
    np.testing.assert_allclose(
        asc.incoming_attention(attention, support=support), incoming_oracle(attention, support), rtol=1e-13
    )
    for tau in (None, 0.05):
        result = asc.sink_tokens(attention, support=support, tau=tau, gamma=0.3, rule="frequency")
        assert result.tolist() == tokens_oracle(attention, support, tau=tau, gamma=0.3)
    shares = asc.sink_share(attention, support=support, first=3)
    np.testing.assert_allclose(shares[:2], share_oracle(attention, support, first=3), rtol=1e-13)
    assert asc.sink_position(attention, support=support, rule="largest") == position_oracle(
        attention, support
    )


def test_a_mask_per_matrix_and_a_key_nobody_sees():
    attention = maps(2, 6, 6, causal=False)
    support = torch.ones(2, 6, 6, dtype=torch.bool)
    support[1, :, 4] = False
    alpha = asc.incoming_attention(attention, support=support)
    assert alpha[1].isnan().tolist() == [False] * 4 + [True, False]
    assert not asc.sink_tokens(attention, support=support, rule="frequency")[1, 4]
    np.testing.assert_allclose(alpha[0], incoming_oracle(attention[0], "full"), rtol=1e-14)


def test_uniform_causal_closed_forms():
    n = 40
    uniform = uniform_causal(n)
    harmonic = np.cumsum(1 / np.arange(1, n + 1))
    alpha = asc.incoming_attention(uniform)
    assert alpha[0].item() == pytest.approx(harmonic[-1] / n, rel=1e-14)
    assert alpha[-1].item() == 1 / n
    shares = asc.sink_share(uniform, first=2)
    assert shares.boost.item() == pytest.approx(1, rel=1e-14)
    assert shares.share.item() == pytest.approx((1 + 2 * (harmonic[-1] - 1)) / n, rel=1e-14)
    assert asc.top_mass(uniform).item() == pytest.approx(harmonic[-1] / n, rel=1e-14)
    last = asc.sink_share(uniform, queries=8)
    assert last.uniform.item() == pytest.approx(np.mean(1 / np.arange(n - 7, n + 1)), rel=1e-14)
    # With short inputs key 0 passes the usual threshold without any sink.
    assert asc.sink_rate(uniform_causal(4)).item()
    assert not asc.sink_rate(uniform).item()


@pytest.mark.parametrize("causal", [True, False])
def test_the_ends_of_every_range_are_in_it(causal):
    attention = maps(20, 20, causal=causal, sharpness=2.0, seed=3)
    for gamma, visibility in [(1.0, "0"), (1.0, "1"), (0.05, "0"), (0.05, "1")]:
        result = asc.sink_tokens(
            attention, tau=0.04, gamma=gamma, min_visibility=float(visibility), rule="frequency"
        )
        assert result.tolist() == tokens_oracle(attention, tau=0.04, gamma=gamma, min_visibility=visibility)
        position = asc.sink_position(attention, min_visibility=float(visibility), rule="largest")
        assert position == position_oracle(attention, min_visibility=visibility)
    for queries in (1, 20, 2**40):
        shares = asc.sink_share(attention, first=20, queries=queries)
        np.testing.assert_allclose(shares[:2], share_oracle(attention, first=20, queries=queries), rtol=1e-13)
    last = asc.sink_rate(attention, position=19, epsilon=1e-9, support="full")
    assert last == (attention[:, 19].mean() > 1e-9)
    # A sink receives more than epsilon, not as much.
    halves = torch.full((2, 2), 0.5)
    assert not asc.sink_rate(halves, epsilon=0.5)
    assert asc.sink_rate(halves, epsilon=np.nextafter(0.5, 0))


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("way", ["contiguous", "head-fastest", "transposed", "torch", "lazy"])
def test_keys_that_maps_have_and_have_not(way, precision):
    generator = torch.Generator().manual_seed(3)
    query, key = (torch.randn(2, 3, 9, 4, generator=generator) for _ in range(2))
    lazy = asc.LazyAttention(query, key, causal=True, precision=precision)
    maps_of_heads = lazy.dense().float()
    attention = {
        "head-fastest": maps_of_heads.movedim(1, -1).contiguous().movedim(-1, 1),
        "transposed": maps_of_heads.mT.contiguous().mT,
        "lazy": lazy,
    }.get(way, maps_of_heads)
    mass = maps_of_heads.double().sum(-2)
    received = mass / torch.arange(9, 0, -1)
    with asc.devices.use("torch" if way == "torch" else "core"):
        for position in (0, 8):
            epsilon = received[..., position].mean().item()
            rate = asc.sink_rate(attention, epsilon=epsilon, position=position, precision=precision)
            assert torch.equal(rate, received[..., position] > epsilon)
            assert rate.any()
            assert not rate.all()
        together = asc.measure(
            attention,
            {"beyond": {"metric": "sink_rate", "position": 9, "epsilon": 1e-9}, "top_mass": {"k": 30}},
            precision=precision,
        )
    assert together["beyond"].tolist() == [[False] * 3] * 2
    assert together["top_mass"].numpy() == pytest.approx(1.0, abs=1e-6)


def test_ties_at_the_percentile_count():
    attention = torch.zeros(10, 10, dtype=torch.float64)
    attention[:, 0] = 0.5
    attention[:, 1] = 0.5
    assert asc.sink_tokens(attention, support="full", rule="frequency").tolist() == [True, True] + [False] * 8
    # A percentile of exactly 0 makes every entry strong, and every visible key a sink.
    sparse = torch.zeros(10, 10, dtype=torch.float32)
    sparse[3, 3] = 1
    assert asc.sink_tokens(sparse, support="full", rule="frequency").all()
    hidden = torch.ones(10, 10, dtype=torch.bool)
    hidden[1:, 5] = False
    assert (
        asc.sink_tokens(sparse, support=hidden, rule="frequency").tolist()
        == [True] * 5 + [False] + [True] * 4
    )


def test_ragged_lengths_strides_and_expanded_maps():
    attention = maps(3, 9, 9)
    lengths = [9, 4, 1]
    alpha = asc.incoming_attention(attention, lengths=lengths)
    tokens = asc.sink_tokens(attention, lengths=lengths, rule="frequency")
    shares = asc.sink_share(attention, first=3, lengths=lengths)
    position = asc.sink_position(attention, lengths=lengths, rule="largest")
    for index, length in enumerate(lengths):
        single_map = attention[index, :length, :length].clone()
        np.testing.assert_array_equal(alpha[index, :length], asc.incoming_attention(single_map))
        assert alpha[index, length:].isnan().all()
        assert not tokens[index, length:].any()
        assert tokens[index, :length].tolist() == tokens_oracle(single_map)
        np.testing.assert_allclose(
            [shares.share[index], shares.uniform[index]], share_oracle(single_map, first=3), rtol=1e-14
        )
        assert position[index] == position_oracle(single_map)
    rate = asc.sink_rate(attention, position=5, epsilon=1e-6, lengths=lengths)
    assert rate.tolist() == [True, False, False]
    wide = torch.zeros(3, 18, 27, dtype=torch.float64)
    wide[:, ::2, ::3] = attention
    sliced = asc.incoming_attention(wide[:, ::2, ::3])
    np.testing.assert_array_equal(sliced, asc.incoming_attention(attention))
    turned = attention.mT
    np.testing.assert_allclose(asc.incoming_attention(turned), asc.incoming_attention(turned.contiguous()))
    assert torch.equal(
        asc.sink_tokens(turned, rule="frequency"), asc.sink_tokens(turned.contiguous(), rule="frequency")
    )
    flat = torch.full((1, 1), 0.25).expand(4, 4)
    np.testing.assert_array_equal(asc.incoming_attention(flat), [0.25] * 4)


def test_a_non_finite_map_leaves_its_neighbours_alone():
    attention = maps(3, 8, 8)
    attention[1, 7, 0] = torch.inf
    clean = attention[[0, 2]]
    with pytest.warns(RuntimeWarning, match="1 of 3 matrices"):
        alpha = asc.incoming_attention(attention)
    assert alpha[1].isnan().all()
    np.testing.assert_array_equal(alpha[[0, 2]], asc.incoming_attention(clean))
    for function in (asc.sink_rate, asc.sink_tokens, asc.sink_position, asc.top_mass):
        with pytest.warns(RuntimeWarning, match=f"{function.__name__}: 1 of 3"):
            result = function(attention)
        assert torch.equal(result[[0, 2]], function(clean))
        assert not result[1].nan_to_num(nan=0).clamp(min=0).any()
    with pytest.warns(RuntimeWarning, match="sink_share: 1 of 3"):
        assert asc.sink_share(attention).boost.isnan().tolist() == [False, True, False]
    with pytest.raises(ValueError, match=r"inf at index \(1, 7, 0\)"):
        asc.sink_share(attention, validate=True)


@settings(max_examples=60)
@given(
    n=st.integers(1, 40),
    seed=st.integers(0, 10**6),
    sharpness=st.floats(0, 30),
    causal=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)
def test_laws(n, seed, sharpness, causal, dtype):
    attention = maps(n, n, causal=causal, seed=seed, sharpness=sharpness, dtype=dtype)
    alpha = asc.incoming_attention(attention)
    assert ((alpha >= 0) & (alpha <= 1)).all()
    assert asc.sink_tokens(attention, rule="frequency").tolist() == tokens_oracle(attention)
    tops = [asc.top_mass(attention, k).item() for k in range(1, n + 1)]
    assert all(a <= b + 1e-12 for a, b in pairwise(tops))
    assert tops[-1] == pytest.approx(1)
    shares = [asc.sink_share(attention, first=k).share.item() for k in range(1, n + 1)]
    assert all(a <= b + 1e-12 for a, b in pairwise(shares))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    relabelled = asc.incoming_attention(attention[order][:, order], support="full")
    np.testing.assert_allclose(
        relabelled, asc.incoming_attention(attention, support="full")[order], rtol=1e-12, atol=1e-15
    )


def test_a_large_map_is_never_copied():
    n = 8192
    attention = torch.full((1, n), 1 / n).expand(n, n).contiguous()
    attention[:, 0] = 0.5
    address = attention.data_ptr()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert asc.sink_tokens(attention, rule="frequency")[0]
    assert asc.incoming_attention(attention)[0].item() == 0.5
    assert asc.attention_entropy(attention).shape == (n,)
    asc.top_mass(attention, 4)
    # The map holds 256 MiB; a copy of any of it in float32 would show.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024
    assert attention.data_ptr() == address


def test_the_share_prints_its_shapes():
    assert repr(asc.sink_share(maps(2, 3, 5, 5))) == (
        "SinkShare(share=float64[2, 3], uniform=float64[2, 3], boost=float64[2, 3], learned=float64[2, 3])"
    )


@pytest.mark.parametrize(
    ("function", "options"),
    [
        ("sink_share", {"first": 4}),
        ("sink_share", {"first": 2**40, "queries": 2}),
        ("top_mass", {"k": 4}),
        ("sink_rate", {"position": 2, "epsilon": 0.01}),
    ],
)
def test_a_short_map_alone_answers_as_it_does_inside_a_batch(function, options):
    batch = maps(3, 6, 6)
    lengths = [1, 3, 6]
    together = getattr(asc, function)(batch, lengths=lengths, **options)
    for place, n in enumerate(lengths):
        single_result = getattr(asc, function)(batch[place, :n, :n].contiguous(), **options)
        parts = (
            [(together, single_result)]
            if isinstance(single_result, torch.Tensor)
            else zip(together, single_result, strict=True)
        )
        for inside, expected_part in parts:
            assert expected_part.dtype == inside.dtype
            assert expected_part.item() == inside[place].item()
        measured = asc.measure(batch[place, :n, :n], {function: options})[function]
        assert str(measured) == str(single_result)


def test_fewer_keys_than_asked_for_are_all_of_them():
    single_token = torch.ones(1, 1)
    assert asc.top_mass(single_token, 4).item() == 1
    assert [field.item() for field in asc.sink_share(single_token, first=4)] == [1, 1, 1, 0]
    assert not asc.sink_rate(single_token, position=1).item()
    assert asc.sink_rate(single_token, position=0).item()
    three = torch.full((2, 3, 3), 1 / 3, dtype=torch.float64)
    assert asc.top_mass(three, 7).tolist() == [1, 1]
    assert asc.sink_share(three, first=4).share.tolist() == pytest.approx([1, 1])
    assert asc.sink_rate(three, position=3).tolist() == [False, False]


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("sink_rate", {"epsilon": 0}, r"epsilon must lie strictly between 0 and 1, got 0"),
        ("sink_rate", {"epsilon": math.nan}, r"got nan"),
        ("sink_tokens", {"tau": 1.0}, r"tau must lie strictly between 0 and 1, got 1.0"),
        ("sink_rate", {"position": -1}, r"position must be at least 0, got -1"),
        ("sink_rate", {"epsilon": 1.5}, r"epsilon must lie strictly between 0 and 1, got 1.5"),
        ("sink_tokens", {"gamma": 0}, r"gamma must lie in \(0, 1\], got 0"),
        ("sink_tokens", {"gamma": 1.5}, r"gamma must lie in \(0, 1\], got 1.5"),
        ("sink_tokens", {"min_visibility": 1.5}, r"min_visibility must lie between 0 and 1, got 1.5"),
        ("sink_position", {"min_visibility": -1}, r"min_visibility must lie between 0 and 1, got -1"),
        ("sink_position", {"alpha": 1}, r"alpha must lie strictly between 0 and 1, got 1"),
        ("sink_position", {"rule": "frequency"}, r"rule must be one of 'test', 'largest', got 'frequency'"),
        (
            "sink_position",
            {"min_visibility": 0.5},
            r"min_visibility belongs to rule='largest', got 0.5 with rule='test'",
        ),
        ("sink_tokens", {"alpha": 0}, r"alpha must lie strictly between 0 and 1, got 0"),
        ("sink_tokens", {"rule": "largest"}, r"rule must be one of 'test', 'frequency', got 'largest'"),
        (
            "sink_tokens",
            {"tau": 0.1},
            r"tau, gamma and min_visibility belong to rule='frequency', got tau=0.1, gamma=0.4, "
            r"min_visibility=0.3 with rule='test'",
        ),
        (
            "sink_tokens",
            {"rule": "frequency", "alpha": 0.5},
            r"alpha belongs to rule='test', got 0.5 with rule='frequency'",
        ),
        (
            "sink_position",
            {"rule": "largest", "alpha": 0.5},
            r"alpha belongs to rule='test', got 0.5 with rule='largest'",
        ),
        (
            "sink_position",
            {"rule": "largest", "alpha": 7},
            r"alpha must lie strictly between 0 and 1, got 7",
        ),
        ("sink_share", {"first": 0}, r"first must be at least 1, got 0"),
        ("sink_share", {"queries": 0}, r"queries must be None or at least 1, got 0"),
        ("top_mass", {"k": 0}, r"k must be at least 1, got 0"),
        ("incoming_attention", {"support": "both"}, r"support must be one of"),
        ("incoming_attention", {"lengths": 0}, r"lengths must lie between 1 and n = 3, got 0"),
    ],
)
def test_bad_arguments_are_named(function, options, message):
    with pytest.raises(ValueError, match=f"{function}: .*{message}"):
        getattr(asc, function)(torch.rand(3, 3), **options)


def test_measure_refuses_the_level_of_a_test_that_is_not_made():
    options = {"rule": "largest", "alpha": 0.5}
    with pytest.raises(ValueError, match=r"sink_position: alpha belongs to rule='test', got 0\.5"):
        asc.measure(torch.rand(3, 3), {"incoming_attention": {}, "top_mass": {}, "sink_position": options})


@pytest.mark.parametrize(
    "function",
    [
        *("incoming_attention", "sink_rate", "sink_tokens", "sink_position", "sink_excess", "sink_share"),
        "top_mass",
    ],
)
@pytest.mark.parametrize(
    ("attention", "message"),
    [
        (torch.rand(4, 3), "4 queries cannot stand at the last of 3 keys"),
        (torch.rand(3), r"at least two dimensions"),
        (torch.rand(2, 0, 0), r"at least one token"),
        (torch.ones(3, 3, dtype=torch.int32), r"got torch.int32"),
        (torch.ones(3, 3, dtype=torch.complex64), r"got torch.complex64"),
    ],
)
def test_bad_attention_is_named(function, attention, message):
    with pytest.raises(ValueError, match=f"{function}: .*{message}"):
        getattr(asc, function)(attention)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_share_sees_every_entry_that_is_not_finite_in_every_layout(dtype):
    for n in (3, 9, 33, 70):
        causal = torch.ones(n, n, dtype=torch.float64).tril()
        places = sorted({(i, j) for i in (0, 7, 8, n // 2, n - 1) for j in (0, 1, 8, n // 2, n - 1)})
        places = [(i, j) for i, j in places if i < n and j < n]
        maps = (causal / causal.sum(-1, keepdim=True)).to(dtype).repeat(len(places) + 1, 1, 1)
        expected = asc.sink_share(maps[-1]).share
        for index, (i, j) in enumerate(places):
            maps[index, i, j] = torch.nan if index % 2 else torch.inf
        for layout in (maps, maps.mT.contiguous().mT, maps.permute(1, 2, 0).contiguous().permute(2, 0, 1)):
            with pytest.warns(asc.errors.NonFiniteWarning, match=f"{len(places)} of {len(places) + 1} "):
                share = asc.sink_share(layout).share
            assert share[:-1].isnan().all()
            torch.testing.assert_close(share[-1], expected, rtol=1e-14, atol=0)


def test_the_share_of_heads_side_by_side_knows_each_hidden_entry():
    for n in (3, 9, 33):
        hidden = [(i, j) for i in range(n) for j in (i + 1, n - 1) if i < j < n]
        maps = torch.ones(n, n).tril().repeat(len(hidden), 1, 1)
        for index, (i, j) in enumerate(hidden):
            maps[index, i, j] = 0.5
        for layout in (maps, maps.permute(1, 2, 0).contiguous().permute(2, 0, 1), maps.mT.contiguous().mT):
            uniform = asc.sink_share(layout).uniform
            torch.testing.assert_close(uniform, torch.full_like(uniform, 1.0 / n), rtol=1e-14, atol=0)
