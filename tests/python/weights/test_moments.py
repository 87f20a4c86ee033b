# SPDX-License-Identifier: MIT
"""Streaming second moments: whole batches, any order, sketches, intervals, files, bad input."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import attnscope as asc
from attnscope.errors import ResultsError
from attnscope.metrics.weights.moments import participation, sketch_rank


def texts(count=24, d=12, seed=0, dtype=torch.float64, share=0.5):
    """Tokens of texts with a mean of their own, energies spread over directions."""
    draw = torch.Generator().manual_seed(seed)
    scale = torch.linspace(2.0, 0.2, d, dtype=torch.float64)
    for number in range(count):
        offset = share * torch.randn(d, generator=draw, dtype=torch.float64)
        yield (scale * (torch.randn(5 + number % 4, d, generator=draw, dtype=torch.float64) + offset)).to(
            dtype
        )


def filled(rank=None, groups=8, **options):
    moments = asc.Moments(rank)
    for number, x in enumerate(texts(**options)):
        moments.add(x, layer=0, role="q", group=number % groups)
    return moments


def test_streams_to_the_whole_batch():
    moments = filled()
    all_rows = torch.cat(list(texts())).numpy()
    centred = np.concatenate([x.numpy() - x.numpy().mean(0) for x in texts()])
    np.testing.assert_allclose(moments.second(0, "k"), all_rows.T @ all_rows / len(all_rows), rtol=1e-12)
    np.testing.assert_allclose(
        moments.second(0, "v", centered=True), centred.T @ centred / len(all_rows), rtol=1e-11, atol=1e-13
    )
    np.testing.assert_allclose(moments.mean(0, "q"), all_rows.mean(0), rtol=1e-12)
    assert moments.tokens(0, "q") == len(all_rows)
    assert moments.trace(0, "q") == pytest.approx((all_rows**2).sum() / len(all_rows), rel=1e-12)
    assert moments.trace(0, "q", centered=True) == pytest.approx(
        (centred**2).sum() / len(all_rows), rel=1e-12
    )
    squares = (all_rows**2).sum(1)
    assert moments.largest_share(0, "q") == pytest.approx(squares.max() / squares.sum(), rel=1e-12)
    values, vectors = np.linalg.eigh(all_rows.T @ all_rows / len(all_rows))
    np.testing.assert_allclose(moments.energies(0, "q"), values[::-1], rtol=1e-10)
    overlap = moments.basis(0, "q", k=3).numpy().T @ vectors[:, ::-1][:, :3]
    np.testing.assert_allclose(np.abs(np.linalg.svd(overlap)[1]), 1, rtol=1e-9)


def test_merged_in_any_order():
    parts = []
    for first in range(4):
        part = asc.Moments()
        for number, x in enumerate(texts()):
            if number % 4 == first:
                part.add(x, layer=0, role="q", group=number % 8)
        parts.append(part)
    moments = filled()
    for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
        merged = asc.Moments()
        for place in order:
            merged.merge(parts[place])
        np.testing.assert_allclose(merged.second(0, "q"), moments.second(0, "q"), rtol=1e-12)
        assert merged.groups == moments.groups
        assert merged.largest_share(0, "q") == pytest.approx(moments.largest_share(0, "q"), rel=1e-12)


def test_a_sketch_of_all_columns_is_the_whole_and_a_small_one_finds_the_main_directions():
    moments, full = filled(), filled(rank=12)
    np.testing.assert_allclose(full.second(0, "q"), moments.second(0, "q"), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(full.energies(0, "q"), moments.energies(0, "q"), rtol=1e-8)
    sizes = {"d": 96, "count": 60}
    steep, sketched = filled(**sizes), filled(rank=sketch_rank(8), **sizes)
    matrix = torch.randn(20, 96, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    matrix = matrix @ steep.second(0, "q")
    first, other = (asc.subspace_fraction(matrix, m.basis(0, "q", k=8)).fraction for m in (steep, sketched))
    assert float(other) == pytest.approx(float(first), rel=0.05)
    assert sketched.trace(0, "q") == steep.trace(0, "q")


def test_float32_products_are_summed_in_float64():
    half = filled(dtype=torch.float32)
    assert half.second(0, "q").dtype == torch.float64
    np.testing.assert_allclose(half.second(0, "q"), filled().second(0, "q"), rtol=1e-4, atol=1e-5)


def test_the_state_and_the_file_hold_everything(tmp_path):
    moments = filled()
    moments.add(torch.ones(3, 5), layer=1, role="o", side="out", group=2)
    again = asc.Moments.from_state(moments.state())
    moments.save(tmp_path / "moments.safetensors")
    loaded = asc.Moments.load(tmp_path / "moments.safetensors")
    for other in (again, loaded):
        assert list(other.state()) == list(moments.state())
        for name, packed in other.state().items():
            assert torch.equal(packed, moments.state()[name])
    assert loaded.has(1, "o", "out")
    assert not loaded.has(1, "o")
    assert list(moments.only(1).state()) == ["1/o/out/2/5"]


def test_a_file_that_is_damaged_or_holds_something_else_is_no_moments(tmp_path):
    file = tmp_path / "moments.safetensors"
    filled().save(file)
    content, state = file.read_bytes(), filled().state()
    for damaged in (b"", b"junk" * 9, content[: len(content) // 2]):
        file.write_bytes(damaged)
        with pytest.raises(ResultsError, match=r"moments\.safetensors holds no moments that can be read"):
            asc.Moments.load(file)
    name, packed = next(iter(state.items()))
    settings = {"moments": '{"rank": null, "seed": 0}'}
    for tensors, metadata in (
        (state, None),
        (state, {"moments": "[]"}),
        (state, {"moments": '{"rank": 2, "seed": 0}'}),
        ({name: packed[:-1].clone()}, settings),
        ({name: packed.half()}, settings),
        ({"weight": packed}, settings),
    ):
        save_file(tensors, file, metadata)
        with pytest.raises(ResultsError, match=r"moments\.safetensors holds no moments that can be read"):
            asc.Moments.load(file)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        asc.Moments.load(tmp_path / "none")


def test_moments_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "moments.safetensors"
    filled().save(file)
    before = file.read_bytes()

    def interrupted(tensors, place, metadata):
        Path(place).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("safetensors.torch.save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        filled().save(file)
    assert [path.name for path in tmp_path.iterdir()] == ["moments.safetensors"]
    assert file.read_bytes() == before
    monkeypatch.undo()
    with pytest.raises(OSError, match="cannot be written"):
        filled().save(tmp_path / "no" / "file")


def test_jackknife_intervals_cover_the_truth():
    truth = 8 * 9 / (8 * 9 + 24)
    covered = 0
    for seed in range(40):
        draw = torch.Generator().manual_seed(seed)
        moments = asc.Moments()
        scale = torch.cat([torch.full((8,), 3.0), torch.ones(24)]).double()
        for number in range(32):
            x = scale * torch.randn(20, 32, generator=draw, dtype=torch.float64)
            moments.add(x, layer=0, role="q", group=number % 8)
        result = moments.jackknife(
            lambda m: m.second(0, "q").diagonal()[:8].sum() / m.second(0, "q").diagonal().sum()
        )
        assert result.low < result.estimate < result.high
        covered += bool(result.low <= truth <= result.high)
    assert covered >= 34  # 38 expected at 95 %
    single_result = asc.Moments()
    single_result.add(torch.ones(3, 4), layer=0, role="q")
    assert torch.isnan(single_result.jackknife(lambda m: m.trace(0, "q")).low)


def test_spiked_inputs_give_the_fraction_of_their_spectrum():
    d, k, tokens = 32, 4, 40_000
    draw = torch.Generator().manual_seed(0)
    scale = torch.cat([torch.full((k,), 3.0), torch.ones(d - k)]).double()
    x = scale * torch.randn(tokens, d, generator=draw, dtype=torch.float64)
    delta = torch.randn(tokens, 16, generator=draw, dtype=torch.float64)
    moments = asc.Moments()
    moments.add(x, layer=0, role="q")
    fractions = []
    for start in range(0, tokens, 400):  # one gradient of 400 tokens each, for the mean over them
        gradient = delta[start : start + 400].mT @ x[start : start + 400]
        fractions.append(asc.subspace_fraction(gradient, moments.basis(0, "q", k=k)).fraction)
    assert float(torch.stack(fractions).mean()) == pytest.approx(9 * k / (9 * k + d - k), rel=0.03)


def test_participation():
    assert participation(torch.ones(4)) == 4
    assert participation(torch.tensor([1.0, 0, 0])) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: filled().basis(0, "q", k=13), "12 directions, got k = 13"),
        (lambda: filled(count=1).basis(0, "q", k=6), "5 tokens, too few for k = 6"),
        (lambda: filled().basis(0, "q", k=0), "got k = 0"),
        (lambda: filled().basis(3, "q"), "layer 3 q in"),
        (lambda: filled().basis(0, "down"), "layer 0 down in"),
        (lambda: asc.Moments(0), "rank must be at least 1, got 0"),
        (lambda: filled().merge(filled(rank=3)), "sketches differ"),
        (lambda: filled().add(torch.ones(2, 5), layer=0, role="q"), "12 inputs, got 5"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_directions_of_little_energy_are_those_of_the_inputs():
    """Down to 1e-10 of the largest energy, in inputs of float32 that are added in parts."""
    draw, d = torch.Generator().manual_seed(0), 64
    axes = torch.linalg.qr(torch.randn(d, d, generator=draw, dtype=torch.float64)).Q
    scale = 10.0 ** torch.linspace(0, -5, d, dtype=torch.float64)
    x = ((torch.randn(600, d, generator=draw, dtype=torch.float64) * scale) @ axes.T).float()
    moments = asc.Moments()
    for part in x.split(100):
        moments.add(part, layer=0, role="q")
    values, vectors = np.linalg.eigh(x.double().numpy().T @ x.double().numpy() / len(x))
    np.testing.assert_allclose(moments.energies(0, "q"), values[::-1], rtol=1e-5)
    assert moments.basis(0, "q", k=d).shape == (d, d)
    matrix = torch.randn(32, d, generator=draw, dtype=torch.float64) @ (axes * scale**0.3) @ axes.T
    exact = asc.concentration(matrix, torch.from_numpy(vectors[:, ::-1].copy()))
    assert float(asc.concentration(matrix, moments.basis(0, "q"))) == pytest.approx(float(exact), abs=1e-9)
