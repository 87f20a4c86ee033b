# SPDX-License-Identifier: MIT
"""Trees over prompt and answer: closed forms, networkx, ripser, and persistence of the contracted map."""

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ripser import ripser

import attnscope as asc


def maps(*shape, causal=True, seed=0, dtype=torch.float64, sink=0.0):
    logits = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2
    if causal:
        logits = logits.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    attention = logits.softmax(-1) * (1 - sink)
    attention[..., 0] += sink
    return attention.to(dtype)


def contracted(attention, start, stop):
    """Distances of the prompt, as one vertex, and the answer's tokens."""
    a = attention.double().numpy()[:stop, :stop]
    distance = 1.0 - np.minimum(np.maximum(a, a.T), 1.0)
    r = stop - start
    result = np.zeros((r + 1, r + 1))
    result[1:, 1:] = distance[start:, start:]
    result[0, 1:] = result[1:, 0] = distance[start:, :start].min(1)
    np.fill_diagonal(result, 0.0)
    return result


def tree(distances):
    """The minimum spanning tree's length by networkx, in which an edge of length 0 is one too."""
    graph = networkx.Graph()
    r = len(distances)
    graph.add_weighted_edges_from((i, j, distances[i, j]) for i in range(r) for j in range(i))
    return sum(data["weight"] for _, _, data in networkx.minimum_spanning_edges(graph))


def test_star_identity_and_uniform_attention():
    star = torch.zeros(7, 7)
    star[:, 0] = 1
    assert tuple(field.item() for field in asc.prompt_divergence(star, [3, 7])) == (0, 0, 0)
    assert tuple(field.item() for field in asc.prompt_divergence(torch.eye(7), [3, 6])) == (1, 3, 1)
    uniform = torch.ones(7, 7, dtype=torch.float64).tril()
    uniform /= uniform.sum(-1, keepdim=True)
    expected = np.mean([1 - 1 / (i + 1) for i in range(3, 7)])
    result = asc.prompt_divergence(uniform, [3, 7])
    assert result.per_token.item() == pytest.approx(expected, abs=1e-15)
    assert result.star.item() == pytest.approx(expected, abs=1e-15)


def test_a_chain_is_shorter_than_its_star():
    chain = torch.zeros(4, 4, dtype=torch.float64)
    chain[1, 0], chain[2, 1], chain[3, 2] = 0.75, 0.75, 0.75
    result = asc.prompt_divergence(chain, [1, 4])
    assert result.total.item() == pytest.approx(0.75)
    assert result.star.item() == pytest.approx((0.25 + 1 + 1) / 3)


@given(st.integers(0, 10**6), st.integers(2, 30), st.booleans(), st.data())
@settings(max_examples=40)
def test_the_tree_is_that_of_networkx_and_of_ripser(seed, n, causal, data):
    attention = maps(n, n, causal=causal, seed=seed)
    start = data.draw(st.integers(1, n - 1))
    stop = data.draw(st.integers(start + 1, n))
    result = asc.prompt_divergence(attention, [start, stop])
    distances = contracted(attention, start, stop)
    r = stop - start
    assert result.total.item() == pytest.approx(tree(distances), abs=1e-13 * r)
    assert result.per_token.item() == result.total.item() / r
    assert result.star.item() == pytest.approx(distances[0, 1:].mean(), abs=1e-14)
    assert result.star >= result.per_token - 1e-15
    if r > 1:
        bars = ripser(distances.astype(np.float32), distance_matrix=True, maxdim=0)["dgms"][0][:, 1]
        assert result.total.item() == pytest.approx(bars[np.isfinite(bars)].sum(), abs=1e-6 * r)
    # our own bars: similarities of the contracted map
    bars = asc.persistence(torch.from_numpy(1.0 - distances), max_dimension=0)
    assert asc.total_persistence(bars)[0].item() == pytest.approx(result.total.item(), abs=1e-13 * r)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_element_types_and_strides(dtype):
    wide = maps(2, 24, 24, causal=False, dtype=dtype)
    for view in (wide[0, 3:15, 5:17], wide[1, ::2, ::2], wide[0, :12, :12].T):
        expected = tree(contracted(view, 4, 10))
        assert asc.prompt_divergence(view, [4, 10]).total.item() == pytest.approx(expected, abs=1e-13)


def test_ties_do_not_matter():
    levels = torch.randint(0, 3, (20, 20), generator=torch.Generator().manual_seed(1)).double() / 4
    order = torch.cat([torch.randperm(8, generator=torch.Generator().manual_seed(2)), torch.arange(8, 20)])
    result = asc.prompt_divergence(levels, [8, 20])
    shuffled = asc.prompt_divergence(levels[order][:, order], [8, 20])
    assert result.total == shuffled.total
    assert result.total.item() == pytest.approx(tree(contracted(levels, 8, 20)))


def test_with_a_first_token_sink_of_one_half_tree_and_star_are_equal():
    attention = maps(90, 24, 24, sink=0.5)
    result = asc.prompt_divergence(attention, [10, 24])
    assert int((result.star - result.per_token).abs().lt(1e-12).sum()) == 90
    without = asc.prompt_divergence(maps(90, 24, 24), [10, 24])
    assert int((without.star - without.per_token).gt(1e-3).sum()) > 80


def test_a_batch_is_a_loop_and_nothing_behind_the_answer_counts():
    attention = maps(3, 2, 11, 11)
    spans, lengths = [[2, 5], [-1, -1], [5, 9]], [11, 7, 9]
    options = {"lengths": torch.tensor(lengths)[:, None]}
    result = asc.prompt_divergence(attention, torch.tensor(spans)[:, None], **options)
    for s, h in np.ndindex(3, 2):
        if spans[s][0] < 0:
            assert result.star[s, h].isnan()
            continue
        stop = spans[s][1]
        single = asc.prompt_divergence(attention[s, h, :stop, :stop], spans[s])
        for field, expected in zip(result, single, strict=True):
            assert torch.equal(field[s, h], expected)


def test_the_last_rows_give_what_the_square_map_gives():
    square = maps(2, 12, 12)
    result, expected = asc.prompt_divergence(square[:, 6:], [7, 11]), asc.prompt_divergence(square, [7, 11])
    for field, other in zip(result, expected, strict=True):
        assert torch.equal(field, other)
    with pytest.raises(ValueError, match=r"among the last 6 of 12 queries, got answer \(5, 9\)"):
        asc.prompt_divergence(square[:, 6:], [5, 9])


def test_invisible_entries_count_as_nothing():
    attention = maps(9, 9, causal=False)
    causal = asc.prompt_divergence(attention, [4, 9], support="causal")
    masked = asc.prompt_divergence(attention.tril(), [4, 9])
    by_mask = asc.prompt_divergence(attention, [4, 9], support=torch.ones(9, 9, dtype=torch.bool).tril())
    assert torch.equal(causal.total, masked.total)
    assert torch.equal(causal.total, by_mask.total)
    assert causal.total > asc.prompt_divergence(attention, [4, 9]).total


def test_a_prompt_of_no_token_is_nan():
    assert all(field.isnan() for field in asc.prompt_divergence(maps(6, 6), [0, 4]))


def test_a_map_that_is_not_finite_is_nan_with_one_warning():
    attention = maps(2, 8, 8)
    attention[0, 7, 0] = torch.nan
    with pytest.warns(RuntimeWarning, match="prompt_divergence: 1 of 2 matrices hold NaN or infinite"):
        result = asc.prompt_divergence(attention, [4, 7])
    assert result.total.isnan().tolist() == [True, False]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([4, 4], r"answer must hold 0 <= start < stop <= 8, .*got \(4, 4\)"),
        ([6, 3], r"got \(6, 3\)"),
        ([2, 9], r"got \(2, 9\)"),
    ],
)
def test_bad_input_is_named(answer, words):
    with pytest.raises(ValueError, match=f"prompt_divergence: .*{words}"):
        asc.prompt_divergence(maps(8, 8), answer)
