# SPDX-License-Identifier: MIT
"""Measures against the code that they come from, on the same maps, states and weights: extra `peers`.

The source file that computes a measure is loaded alone, without the imports of its package.
"""

import importlib
import importlib.metadata
import importlib.util
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

import attnscope as asc


def source(package, name, *folders):
    """A module of an installed package, whose __init__ files are not run."""
    distribution = package.replace("_", "-")
    try:
        folder = importlib.metadata.distribution(distribution).locate_file(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed: pip install 'attnscope[peers]'")
    *parents, _ = f"{package}.{name}".split(".")
    outer = [parents[:end] for end in range(1, len(parents) + 1)]
    for parts in (*outer, *([package, inner] for inner in folders)):
        parent = ".".join(parts)
        if parent not in sys.modules:
            sys.modules[parent] = ModuleType(parent)
            sys.modules[parent].__path__ = [str(folder.joinpath(*parts[1:]))]
    return importlib.import_module(f"{package}.{name}")


def maps(*shape, seed=0):
    logits = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return logits.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -torch.inf).softmax(-1)


def drawn(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_weightwatcher_finds_the_same_tail():
    """Its power law of 20 values and more, which looks at the lower side of each step alone."""
    pytest.importorskip("powerlaw", reason="powerlaw is not installed: pip install 'attnscope[peers]'")
    fit = source("weightwatcher", "WW_powerlaw").WWFit
    for seed in range(4):
        matrix = drawn(60, 40, seed=seed) * torch.linspace(0.1, 3, 40)
        theirs = fit(np.linalg.svd(matrix.numpy(), compute_uv=False) ** 2)
        ours = asc.weight_spectrum(matrix, cdf="lower")
        assert ours.alpha.item() == pytest.approx(theirs.alpha, rel=1e-9)
        assert ours.xmin.item() == pytest.approx(theirs.xmin, rel=1e-9)
        assert ours.ks.item() == pytest.approx(theirs.D, rel=1e-9)
        assert ours.alpha_error.item() == pytest.approx(theirs.sigma, rel=1e-9)


def test_powerlaw_finds_the_same_tail():
    powerlaw = pytest.importorskip("powerlaw", reason="pip install 'attnscope[peers]'")
    matrix = drawn(50, 50) @ drawn(50, 50, seed=2)
    values = np.linalg.svd(matrix.numpy(), compute_uv=False) ** 2
    theirs = powerlaw.Fit(values, verbose=False)
    ours = asc.weight_spectrum(matrix, cdf="lower")
    assert ours.xmin.item() == pytest.approx(theirs.xmin, rel=1e-9)
    assert ours.alpha.item() == pytest.approx(theirs.alpha, rel=1e-6)


@pytest.mark.parametrize(("normalized", "theirs"), [(True, "sym"), (False, "none")])
def test_spectral_trust_has_the_same_energies(normalized, theirs):
    """Without self-loops and with connected graphs, where its quirks change nothing; in float32."""
    config = source("spectral_trust", "config").GSPConfig
    settings = config(normalization=theirs, save_plots=False, verbose=False)
    settings.remove_self_loops = True
    graph, spectral = (source("spectral_trust", name) for name in ("graph", "spectral"))
    builder = next(value for value in vars(graph).values() if hasattr(value, "construct_laplacian"))(settings)
    analyzer = next(value for value in vars(spectral).values() if hasattr(value, "compute_hfer"))(settings)
    attention, states = maps(16, 16), drawn(16, 5)
    laplacian = builder.construct_laplacian(builder.symmetrize_attention(attention)[None])[0].numpy()
    vectors = np.linalg.eigh(laplacian)
    ours = asc.graph_signal(attention, states, normalized=normalized, cut=0.25)
    signals = states.numpy()
    assert ours.energy.item() == pytest.approx(
        analyzer.compute_dirichlet_energy(signals, laplacian), rel=1e-5
    )
    assert ours.smoothness.item() == pytest.approx(
        analyzer.compute_smoothness_index(signals, laplacian), rel=1e-5
    )
    assert ours.entropy.item() == pytest.approx(
        analyzer.compute_spectral_entropy(signals, vectors[1]), rel=1e-4
    )
    assert ours.high_share.item() == pytest.approx(
        analyzer.compute_hfer(signals, vectors[1], vectors[0], 0.25), rel=1e-4
    )


def test_lm_polygraph_has_the_same_eigenscore():
    estimator = source("lm_polygraph", "estimators.eigenscore", "utils").EigenScore
    theirs = estimator.__call__
    score = estimator.__new__(estimator)
    score.alpha, score.J_d = 1e-3, None
    answers = drawn(3, 6, 20)
    values = theirs(score, {"sample_embeddings": list(answers.numpy())})
    np.testing.assert_allclose(asc.log_volume(answers), values, rtol=1e-9)


def test_lm_polygraph_has_the_same_rauq_plus_one():
    estimator = source("lm_polygraph", "estimators.rauq", "utils").RAUQ
    score = estimator.__new__(estimator)
    score.use_entropy, score.alpha, score.n_layers, score.n_heads, score.layers = False, 0.2, 3, 4, [0, 1, 2]
    attention, log_p = maps(3, 4, 8, 8), -drawn(8).abs()
    statistics = {
        "attention_all": [attention.reshape(12, 8, 8).numpy()],
        "greedy_log_likelihoods": [log_p.numpy()],
    }
    theirs = estimator.__call__(score, statistics)[0]
    previous = torch.nn.functional.pad(attention.diagonal(offset=-1, dim1=-2, dim2=-1), (1, 0))
    assert asc.recurrent_uncertainty(previous, log_p).value.item() + 1 == pytest.approx(theirs, rel=1e-12)


def test_ckatorch_has_the_same_similarity():
    core = source("ckatorch", "core")
    x, y = drawn(30, 6), drawn(30, 9, seed=2)
    for debiased in (False, True):
        theirs = core.cka_base(x, y, unbiased=debiased).item()
        assert asc.cka(x, y, debiased=debiased).item() == pytest.approx(theirs, rel=1e-9)


def test_lm_polygraph_has_the_same_attention_score():
    """Its sum over tokens of ln(A_ii + 1e-12), the mean over heads of one layer, with the sign turned."""
    estimator = source("lm_polygraph", "estimators.attention_score", "utils").AttentionScore
    attention = maps(3, 4, 9, 9)
    statistics = {"forwardpass_attention_weights": [attention.numpy()], "greedy_tokens": [[1, 2, 3, 4]]}
    theirs = estimator(layer=1)(statistics)[0]
    ours = asc.causal_spectrum(attention[1]).log_determinant
    assert -9 * ours.mean().item() == pytest.approx(theirs, rel=1e-9)
    theirs = estimator(layer=2, gen_only=True)(statistics)[0]
    # the answer's block as it is, its last token left out
    ours = asc.causal_spectrum(attention[2, :, 5:8, 5:8]).log_determinant
    assert -3 * ours.mean().item() == pytest.approx(theirs, rel=1e-9)


def test_spectral_trust_has_the_same_shape_of_each_head():
    """Without self-loops; its numbers are float32."""
    config = source("spectral_trust", "config").GSPConfig
    per_head = source("spectral_trust", "per_head").per_head_metrics
    attention = maps(4, 15, 15)
    for normalized, theirs in ((True, "sym"), (False, "none")):
        settings = config(normalization=theirs, save_plots=False, verbose=False)
        settings.remove_self_loops = True
        values = per_head(attention, settings).values
        shape = asc.laplacian_shape(attention, normalized=normalized)
        fields = (shape.ratio, shape.entropy, shape.upper_share, shape.largest)
        for column, field in enumerate(fields, 1):
            np.testing.assert_allclose(field, values[:, column], rtol=2e-4, err_msg=f"{theirs}, {column}")


@pytest.mark.parametrize("pattern", ["previous", "duplicate", "induction"])
def test_transformer_lens_finds_the_same_heads(pattern):
    """Its score "mul": the part of all attention, of tokens that do not follow themselves."""
    detector = source("transformer_lens", "head_detector")
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 5, 3, 5, 9, 3]])
    words = {"previous": "previous_token", "duplicate": "duplicate_token"}.get(pattern, pattern)
    make = getattr(detector, f"get_{words}_head_detection_pattern")
    for attention in maps(5, 12, 12):
        theirs = detector.compute_head_attention_similarity_score(
            attention,
            make(tokens),
            exclude_bos=False,
            exclude_current_token=False,
            error_measure="mul",
        )
        ours = asc.pattern_share(attention, pattern, tokens=tokens[0], over="all")
        assert ours.share.item() == pytest.approx(theirs, rel=1e-9)


def test_transformer_lens_counts_the_token_itself_behind_its_copy():
    detector = source("transformer_lens", "head_detector")
    tokens = torch.tensor([[7, 7]])
    assert detector.get_induction_head_detection_pattern(tokens)[1, 1] == 1
    assert asc.pattern_share(maps(2, 2), "induction", tokens=tokens[0]).queries == 0


def test_transformer_lens_has_the_same_circuits():
    transformers = pytest.importorskip("transformers")
    factored = source("transformer_lens", "FactoredMatrix").FactoredMatrix
    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=24, intermediate_size=8, num_hidden_layers=1, num_attention_heads=4
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).double()
    ours = asc.head_circuits(model, 0)
    layer = model.model.layers[0].self_attn
    query, key, value = (getattr(layer, f"{name}_proj").weight.detach() for name in "qkv")
    by_head = [matrix.reshape(4, 6, 24).mT for matrix in (query, key, value)]
    output = layer.o_proj.weight.detach().T.reshape(4, 6, 24)
    qk = factored(by_head[0], by_head[1].mT)
    ov = factored(by_head[2], output)
    np.testing.assert_allclose(ours.qk, qk.S, rtol=1e-9)
    np.testing.assert_allclose(ours.ov, ov.S, rtol=1e-9)
    eigenvalues = ov.eigenvalues
    copying = eigenvalues.sum(-1).real / eigenvalues.abs().sum(-1)
    np.testing.assert_allclose(ours.copying, copying, rtol=1e-6)


def clouds(*shapes):
    """Points of the same rows, each in its own number of dimensions."""
    return [drawn(*shape, seed=seed) for seed, shape in enumerate(shapes, 3)]


def test_dadapy_finds_the_same_dimensions():
    """It drops ratios far above the 95 % quantile; these points have none."""
    estimation = source("dadapy", "id_estimation", "_utils", "_cython").IdEstimation
    (points,) = clouds((150, 4))
    data = estimation(coordinates=points.numpy(), n_jobs=1)
    theirs, _, _ = data.return_id_scaling_gride(range_max=64)
    for scale, rank in enumerate((1, 2, 4, 8)):
        assert asc.gride(points, rank).item() == pytest.approx(theirs[scale], rel=1e-6), rank
    two_nn, _, _ = data.compute_id_2NN(algorithm="ml", mu_fraction=1.0)
    assert asc.two_nn(points).item() == pytest.approx(two_nn, rel=1e-9)


def test_dadapy_finds_the_same_overlap(monkeypatch):
    """By its loop in NumPy: the compiled one is not needed, and is built for NumPy 1."""
    monkeypatch.setitem(sys.modules, "dadapy._cython.cython_overlap", ModuleType("cython_overlap"))
    comparisons = source("dadapy", "metric_comparisons", "_utils", "_cython").MetricComparisons
    first, second = clouds((60, 5), (60, 9))
    data = comparisons(coordinates=first.numpy(), n_jobs=1)
    for k in (1, 5, 20):
        theirs = data.return_data_overlap(second.numpy(), k=k, use_cython=False)
        assert asc.neighbourhood_overlap(first, second, k).item() == pytest.approx(theirs, rel=1e-12)
