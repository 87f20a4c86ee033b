# SPDX-License-Identifier: MIT
"""Protocol ruscio2025, topology: against the ripser package called as the notebook calls it."""

import warnings

import numpy as np
import pytest
import torch

from attnscope.protocols import ruscio2025
from topology_inputs import KINDS, attention_map


def notebook_bars(attention):
    """The notebook's lines: keep 30 tokens, D = 1 − A in float32, hand it over with its diagonal."""
    ripser = pytest.importorskip("ripser").ripser
    a = np.asarray(attention, dtype=np.float32)
    n = len(a)
    if n > 30:
        keep = np.linspace(0, n - 1, 30).astype(int)
        a = a[np.ix_(keep, keep)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        diagrams = ripser(np.float32(1.0) - a, distance_matrix=True, maxdim=1)["dgms"]
    return [
        bars[np.lexsort((bars[:, 1], bars[:, 0]))]
        for bars in (np.asarray(b).reshape(-1, 2) for b in diagrams)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [2, 3, 8, 30, 31, 47])
def test_bars_equal_the_ripser_package(kind, n):
    for seed in range(3):
        a = attention_map(kind, n, seed).astype(np.float32)
        diagrams = ruscio2025.persistence(torch.from_numpy(a))[()]
        for dimension, (ours, theirs) in enumerate(zip(diagrams, notebook_bars(a), strict=True)):
            np.testing.assert_array_equal(ours, theirs, err_msg=f"H{dimension} of {kind}, seed {seed}")


def test_entries_of_one_are_lost_and_loops_can_be_infinite():
    # The edges of a ring at distance 1/2, and chords at distance 0, which the conversion drops.
    a = np.full((4, 4), 1.0, dtype=np.float32)
    for i, j in ((0, 1), (1, 2), (2, 3), (0, 3)):
        a[i, j] = 0.5
    np.fill_diagonal(a, 0.75)
    result = ruscio2025.persistence(torch.from_numpy(a))
    assert result[()][1].tolist() == [[0.5, np.inf]]
    np.testing.assert_array_equal(result[()][1], notebook_bars(a)[1])
    assert result.edges(())[1][0, 1].tolist() == [-1, -1]
    # With a diagonal of zeros nothing is converted: the chords are there from the start.
    np.fill_diagonal(a, 1.0)
    assert len(ruscio2025.persistence(torch.from_numpy(a))[()][1]) == len(notebook_bars(a)[1]) == 0


@pytest.mark.parametrize("n", [2, 7, 30, 48])
def test_a_causal_map_shows_its_self_attention_and_nothing_else(n):
    a = torch.from_numpy(attention_map("causal", n)).float()
    assert ruscio2025.betti_numbers(a).tolist() == [min(n, 30), 0]
    places = np.linspace(0, n - 1, 30).astype(int) if n > 30 else np.arange(n)
    births = a.diagonal().double().numpy()[places][1:]
    result = ruscio2025.topology(a)
    assert result.mean_length[0].item() == pytest.approx(births.mean(), abs=1e-7)
    assert result.max_length[0].item() == pytest.approx(births.max(), abs=1e-7)
    assert torch.isnan(result.mean_length[1])


def test_moments_equal_numpy_and_batches_equal_loops():
    maps = torch.from_numpy(np.stack([attention_map(kind, 35) for kind in KINDS])).reshape(2, 3, 35, 35)
    result = ruscio2025.topology(maps)
    bars = ruscio2025.persistence(maps)
    for index in np.ndindex(2, 3):
        a = maps[index].numpy()
        assert result.density[index].tolist() == [(a > 0.2).mean(), (a > 0.4).mean()]
        assert result.mean[index].item() == pytest.approx(a.mean(), rel=1e-12)
        assert result.max[index].item() == a.max()
        assert result.std[index].item() == pytest.approx(a.std(), rel=1e-12)
        assert result.entropy[index].item() == pytest.approx(-(a * np.log2(a + 1e-10)).sum(), rel=1e-12)
        assert result.top_key[index].item() == a.mean(0).argmax()
        assert result.strongest_edge[index].tolist() == list(np.unravel_index(a.argmax(), a.shape))
        single_bars = ruscio2025.persistence(maps[index])
        for bars_of_map, single in zip(bars[index], single_bars[()], strict=True):
            np.testing.assert_array_equal(bars_of_map, single)
        finite = [part[np.isfinite(part[:, 1])] for part in bars[index]]
        for dimension, part in enumerate(finite):
            if len(part):
                assert result.mean_length[index][dimension].item() == pytest.approx(
                    (part[:, 1] - part[:, 0]).mean()
                )
            else:
                assert torch.isnan(result.mean_length[index][dimension])


def test_density_is_compared_in_float32():
    uniform = np.tril(np.ones((5, 5), dtype=np.float32))
    uniform /= uniform.sum(-1, keepdims=True)
    assert ruscio2025.topology(torch.from_numpy(uniform)).density[0].item() == 0.4 == (uniform > 0.2).mean()
    # whatever the type, the notebook first makes float32 of it
    assert ruscio2025.topology(torch.from_numpy(uniform).double()).density[0].item() == 0.4
    half = torch.full((4, 4), 0.4, dtype=torch.bfloat16)
    assert ruscio2025.topology(half).density.tolist() == [1, 1]


def test_edges_name_original_tokens():
    a = torch.from_numpy(attention_map("softmax", 45)).float()
    bars = ruscio2025.persistence(a)
    for (birth, death), (opens, closes) in zip(bars[()][1], bars.edges(())[1], strict=True):
        distance = np.float32(1.0) - a.numpy()
        assert distance[min(opens), max(opens)] == birth
        assert distance[min(closes), max(closes)] == death


def test_a_non_finite_map_is_marked_and_leaves_its_neighbours_alone():
    maps = torch.from_numpy(np.stack([attention_map("softmax", 12, seed) for seed in range(3)]))
    clean = ruscio2025.topology(maps)
    maps[1, 2, 3] = torch.nan
    with pytest.warns(RuntimeWarning, match="1 of 3"):
        result = ruscio2025.topology(maps)
    with pytest.warns(RuntimeWarning, match="1 of 3"):
        assert ruscio2025.betti_numbers(maps)[1].tolist() == [-1, -1]
    assert torch.isnan(result.mean_length[1]).all()
    assert torch.isnan(result.entropy[1])
    assert result.top_key[1] == -1
    torch.testing.assert_close(
        result.mean_length[::2], clean.mean_length[::2], rtol=0, atol=0, equal_nan=True
    )
    assert torch.equal(result.density[::2], clean.density[::2])


@pytest.mark.parametrize("function", ["betti_numbers", "topology", "persistence"])
def test_every_function_speaks_of_itself(function):
    with pytest.raises(ValueError, match=rf"^ruscio2025\.{function}: attention must be square"):
        getattr(ruscio2025, function)(torch.ones(3, 4))
    with pytest.warns(RuntimeWarning, match=rf"^ruscio2025\.{function}: 1 of 1 matrices"):
        getattr(ruscio2025, function)(torch.full((3, 3), torch.nan))
