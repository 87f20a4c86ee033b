# SPDX-License-Identifier: MIT
"""A small run in memory whose every number is known: two input sets, three checkpoints, four heads."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from attnscope.results.results import Results

STEPS, SAMPLES, LAYERS, HEADS, N = (0, 2, 64), 12, 2, 2, 12
THRESHOLDS = (0.01, 0.02, 0.1)
UNIFORM = float(np.mean(1 / np.arange(1, N + 1)))


def value(step: int, sample: int, layer: int, head: int) -> float:
    """A number that differs in every cell."""
    return 0.1 + 0.001 * step + 0.01 * sample + 0.1 * layer + 0.2 * head


def attention(sharpness: float = 1.0) -> np.ndarray:
    """A causal map of `N` tokens."""
    logits = np.where(np.tri(N) > 0, np.random.default_rng(0).normal(size=(N, N)) * sharpness, -np.inf)
    weights = np.exp(logits)
    return weights / weights.sum(1, keepdims=True)


def _sample_row(checkpoint: dict[str, Any], sample: int, token: str, group: str) -> dict[str, Any]:
    """Return the row of a text."""
    return {
        **checkpoint,
        "sample": sample,
        "group": "text" if sample < SAMPLES // 2 else group,
        "text": f"{token} and more",
        "tokens": [token] * N,
        "token_ids": list(range(N)),
        "n_tokens": N,
        "truncated": False,
    }


def _head_row(keys: dict[str, Any], x: float) -> dict[str, Any]:
    """Return the row of a head whose numbers follow from its sink share."""
    return {
        **keys,
        "n_tokens": N,
        "sink_share": x,
        "sink_share_uniform": UNIFORM,
        "entropy_normalized": 1 - x,
        "fiedler_value": x / 2,
        "fiedler_value_normalized": x,
        "participation_ratio": 1 + x,
        "mp_ks": x / 3,
        "alignment_value": x - 0.5,
    }


def _graph_rows(keys: dict[str, Any], x: float) -> list[dict[str, Any]]:
    """Return the rows of a head's thresholded graphs."""
    numbers = {"fiedler_value": x, "betti_0": 3, "betti_1": 1}
    return [{**keys, "threshold": t, "density": 1 - t - x / 10, **numbers} for t in THRESHOLDS]


def _baseline_rows() -> list[dict[str, Any]]:
    """Return what uniform attention gives."""
    null = {"n_tokens": N, "kind": "uniform", "support": "causal"}
    numbers = [("fiedler_value", 0.5, np.nan), ("participation_ratio", 2.5, np.nan), ("betti_0", 7.0, 0.02)]
    numbers += [("density", 1.0 - t, t) for t in THRESHOLDS]
    return [
        {**null, "metric": metric, "value": number, "threshold": threshold}
        for metric, number, threshold in numbers
    ]


def make_results(token: str = "a", group: str = "copying", steps: tuple[int, ...] = STEPS) -> Results:
    """The run; `token` stands in every text, `group` names the second input set."""
    heads, graphs, samples = [], [], []
    for step, sample in product(steps, range(SAMPLES)):
        checkpoint = {"model": "tiny", "revision": f"step{step}" if step >= 0 else "", "step": step}
        samples.append(_sample_row(checkpoint, sample, token, group))
        for layer, head in product(range(LAYERS), range(HEADS)):
            keys = {**checkpoint, "sample": sample, "layer": layer, "head": head, "protocol": "exact"}
            x = value(step, sample, layer, head)
            heads.append(_head_row(keys, x))
            graphs += _graph_rows(keys, x)
    keys = {"model": "tiny", "revision": samples[-1]["revision"], "step": steps[-1], "sample": SAMPLES - 1}
    where = {**keys, "layer": 1, "head": 0, "protocol": "exact"}
    examples = [{**where, "n_tokens": N, "attention": attention().ravel().tolist()}]
    bars = [
        {**where, "head": head, "dimension": dimension, "birth": birth, "death": death}
        for head in range(HEADS)
        for dimension, birth, death in [(0, 0.0, np.inf), (0, 0.0, 0.4), (0, 0.0, 0.7), (1, 0.5, 0.8)]
    ]
    tables = {
        "samples": samples,
        "heads": heads,
        "graphs": graphs,
        "baselines": _baseline_rows(),
        "examples": examples,
        "bars": bars,
    }
    return Results(
        {name: pd.DataFrame(rows) for name, rows in tables.items()},
        study={"study": "attention_sinks", "models": [{"path": "tiny"}]},
        provenance={"attnscope": "0.1.0", "torch": {"version": "2"}, "skipped": []},
    )
