# SPDX-License-Identifier: MIT
"""The notebooks' way to compute every analysis of a map: loops over NumPy, SciPy, NetworkX and ripser."""

from __future__ import annotations

from typing import Any

import numpy as np

THRESHOLDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


def topology_notebook(mean: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Bars of at most 30 tokens by ripser, and the moments of the map."""
    from ripser import ripser
    from scipy.sparse import csr_matrix

    n = len(mean)
    kept_tokens = np.linspace(0, n - 1, 30).astype(int) if n > 30 else np.arange(n)
    distance = (1 - mean[np.ix_(kept_tokens, kept_tokens)]).astype(np.float32)
    # the wrapper makes a matrix with a diagonal sparse; so entries of exactly 0 are dropped
    bars = ripser(csr_matrix(distance), distance_matrix=True, maxdim=1)["dgms"]
    result: dict[str, Any] = {}
    for dimension, dgm in enumerate(bars):
        finite = dgm[np.isfinite(dgm[:, 1])]
        length = finite[:, 1] - finite[:, 0]
        result[f"betti_{dimension}"] = len(dgm)
        result[f"mean_{dimension}"] = length.mean() if len(length) else np.nan
        result[f"max_{dimension}"] = length.max() if len(length) else np.nan
    result["density"] = [(mean > level).sum() / mean.size for level in (0.2, 0.4)]
    result["moments"] = mean.mean(), mean.max(), mean.std()
    result["entropy"] = -(mean * np.log2(mean + 1e-10)).sum()
    return result


def graph_notebook(mean: np.ndarray[Any, Any], *, paths: bool) -> list[dict[str, float]]:
    """One of the two notebooks on graphs: each threshold's Laplacian, degrees, and paths of small graphs."""
    import networkx as nx

    n, result = len(mean), []
    for threshold in THRESHOLDS:
        edges = (mean > threshold).astype(float)
        weights = (edges + edges.T) / 2
        values = np.linalg.eigvalsh(np.diag(weights.sum(1)) - weights)
        degrees = edges.sum(0)
        ranked = np.sort(degrees)
        total = max(degrees.sum(), 1)
        row = {
            "fiedler": values[1],
            "gap": values[2] - values[1],
            "star": degrees.max() / (n - 1),
            "gini": 2 * sum((k + 1) * d for k, d in enumerate(ranked)) / (n * total) - (n + 1) / n,
            "centralization": sum(degrees.max() - d for d in degrees) / (n - 1) ** 2,
            "variance": degrees.var(),
            "density": edges.sum() / n**2,
        }
        if paths and n <= 30:
            graph = nx.from_numpy_array(weights)
            if graph.number_of_edges():
                largest = graph.subgraph(max(nx.connected_components(graph), key=len))
                row["path"] = nx.average_shortest_path_length(largest)
                row["clustering"] = nx.average_clustering(graph)
        result.append(row)
    return result


def random_matrix_notebook(mean: np.ndarray[Any, Any]) -> dict[str, float]:
    """Eigenvalues of the general matrix, singular values, bulk, entropy, concentration, histogram."""
    sizes = np.sort(np.abs(np.linalg.eigvals(mean)))[::-1]
    sigma = np.linalg.svd(mean, compute_uv=False)
    gaps = sizes[:-1] - sizes[1:]
    at = gaps.argmax()
    edge = (sizes[at] + sizes[at + 1]) / 2
    columns = mean.sum(0)
    top = sizes[:10] / sizes[:10].mean()
    counts, borders = np.histogram(top, bins=20)
    centres = (borders[:-1] + borders[1:]) / 2
    gamma = 0.99
    low, high = (1 - gamma**0.5) ** 2, (1 + gamma**0.5) ** 2
    with np.errstate(all="ignore"):
        density = np.sqrt((high - centres) * (centres - low)) / (2 * np.pi * gamma * centres)
        law = np.where(np.isfinite(density), density, 0)
        p, q = counts / counts.sum(), law / law.sum()
        deviation = np.where(p > 0, p * np.log(p / q), 0).sum()
    return {
        "gap": sizes[0] / sizes[1],
        "participation": sizes.sum() ** 2 / (sizes**2).sum(),
        "stable_rank": (sigma**2).sum() / sigma[0] ** 2,
        "norm": sigma[0],
        "edge": edge,
        "bulk_mean": sizes[sizes < edge].mean(),
        "bulk_std": sizes[sizes < edge].std(),
        "entropy": np.mean([-(row * np.log2(row + 1e-10)).sum() for row in mean]),
        "concentration": columns[columns >= np.percentile(columns, 90)].sum() / columns.sum(),
        "deviation": deviation,
    }


def divergence_notebook(heads: np.ndarray[Any, Any]) -> dict[str, float]:
    """KL of every row of every head from the head mean, before and after sink removal."""
    from scipy import stats

    heads = heads / heads.sum(-1, keepdims=True)

    def divergences(maps: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        mean = maps.mean(0)
        return np.array(
            [
                [stats.entropy(p, q) for p, q in zip(attention_map, mean, strict=True)]
                for attention_map in maps
            ]
        )

    result = {}
    incoming = heads.sum((0, 1))
    for percentile in (80, 90, 95):
        weak_keys = incoming < np.percentile(incoming, percentile)
        before = divergences(heads)
        removed = heads * weak_keys
        mass = removed.sum(-1, keepdims=True)
        removed = np.where(
            mass > 0, removed / np.where(mass > 0, mass, 1), weak_keys / max(weak_keys.sum(), 1)
        )
        result[str(percentile)] = float(np.mean(before.mean(1) - divergences(removed).mean(1)))
    return result


def value_notebook(mean: np.ndarray[Any, Any], hidden: np.ndarray[Any, Any]) -> dict[str, float]:
    """Alignment over all ordered pairs, and three principal components of attention and states."""
    n = len(mean)
    norms = np.linalg.norm(hidden, axis=1)
    attention, similarity = [], []
    for i in range(n):
        for j in range(n):
            if i != j:
                attention.append(mean[i, j])
                similarity.append(hidden[i] @ hidden[j] / (norms[i] * norms[j]))
    scores = []
    for rows in (mean, hidden):
        centred = rows - rows.mean(0)
        u, s, _ = np.linalg.svd(centred, full_matrices=False)
        scores.append(u[:, :3] * s[:3])
    pca = np.mean([np.corrcoef(scores[0][:, k], scores[1][:, k])[0, 1] for k in range(3)])
    return {"alignment": float(np.corrcoef(attention, similarity)[0, 1]), "pca": float(pca)}


def reference_notebook(mean: np.ndarray[Any, Any], hidden: np.ndarray[Any, Any]) -> list[tuple[float, ...]]:
    """What the reference tokens contribute to every query, query by query."""
    n, incoming = len(mean), mean.mean(0)
    order = np.argsort(-incoming, kind="stable")
    count = int((incoming > 0.1).sum()) or max(1, int(0.1 * n))
    reference = order[: min(count, max(1, int(0.3 * n)))]
    rest = np.setdiff1d(np.arange(n), reference)
    result = []
    for i in range(n):
        part = sum(mean[i, j] * hidden[j] for j in reference)
        output = part + sum(mean[i, j] * hidden[j] for j in rest)
        a, b = np.linalg.norm(part), np.linalg.norm(output)
        result.append((a / max(b, 1e-10), (part @ output / max(a * b, 1e-20) + 1) / 2, a))
    return result


def notebooks(heads: np.ndarray[Any, Any], hidden: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Every analysis of a map, as the notebooks go about it."""
    mean = heads.mean(0)
    return {
        **same_part(mean),
        "divergence": divergence_notebook(heads),
        "value": value_notebook(mean, hidden),
        "reference": reference_notebook(mean, hidden),
    }


def same_part(mean: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Topology, spectra and random matrices of one map: four notebooks."""
    return {
        "topology": topology_notebook(mean),
        "laplacian": graph_notebook(mean, paths=True),
        "fiedler": graph_notebook(mean, paths=False),
        "random_matrix": random_matrix_notebook(mean),
    }
