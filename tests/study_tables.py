# SPDX-License-Identifier: MIT
"""A run in memory with every table of the sink study in both protocols, its numbers given by formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from attnscope.results.results import Results

SAMPLES, LAYERS, HEADS, N = 6, 5, 3, 40
MEANS = ("head_means", "head_mean_graphs")
STEPS = (0, 8, 512)
BASELINES = {
    "sink_share": 0.107,
    "fiedler_value": 0.5,
    "participation_ratio": 2.0,
    "entropy_normalized": 1.0,
    "mp_ks": 0.05,
    "alignment_hidden": 0.01,
}
DRIFT = {"uniform_causal": 1.0, "uniform_full": 0.9, "random_weights": 1.1, "row_permutation": 1.2}
KINDS = ("uniform_causal", "uniform_full", "random_weights", "row_permutation")


def level(model: int, step: int, sample: int, layer: int, head: int = 0) -> float:
    """A number in (0, 1) that differs in every cell and grows with the step."""
    grown = np.log1p(max(step, 0)) / 20
    return 0.1 + 0.02 * model + grown + 0.003 * sample + 0.05 * layer + 0.04 * max(head, 0)


#: Tables on their way: rows of each, as columns.
Rows = dict[str, list[dict[str, Any]]]
PROTOCOLS = ("exact", "ruscio2025")


def make_study(
    models: tuple[str, ...] = ("tiny",),
    steps: tuple[int, ...] = (-1,),
    *,
    causal: bool = True,
    token: str = "<s>",
) -> Results:
    """The run: `models` by `steps`, six sentences of 40 tokens, five layers of three heads."""
    rows: Rows = {}
    for number, model in enumerate(models):
        for step in steps:
            checkpoint = {"model": model, "revision": f"step{step}" if step >= 0 else "", "step": step}
            for sample in range(SAMPLES):
                _add_sample(rows, checkpoint, sample, causal, token)
                for layer in range(LAYERS):
                    for protocol in PROTOCOLS:
                        keys = {**checkpoint, "sample": sample, "layer": layer, "protocol": protocol}
                        places = (number, step, sample, layer)
                        add(rows, "layers", **keys, **_layer(level(*places), protocol))
                        _add_heads(rows, keys, places, causal, token)
                _add_fisher(rows, {**checkpoint, "sample": sample}, sample)
                _add_ablation(rows, {**checkpoint, "sample": sample}, sample)
            for protocol, frame in zip(PROTOCOLS, ("centralized", "distributed"), strict=True):
                _add_frames(rows, {**checkpoint, "protocol": protocol}, frame, causal, token)
                _add_specialization(rows, {**checkpoint, "protocol": protocol}, token)
                _add_layer_tests(rows, {**checkpoint, "protocol": protocol})
    _add_baselines(rows, models, steps, causal)
    return Results(
        {name: pd.DataFrame(table) for name, table in rows.items()},
        study={"study": "attention_sinks", "models": [{"path": model, "label": model} for model in models]},
        provenance={"attnscope": "0.1.0", "skipped": []},
    )


def add(rows: Rows, table: str, **columns: Any) -> None:
    """Add a row to a table."""
    rows.setdefault(table, []).append(columns)


def _add_sample(rows: Rows, checkpoint: dict[str, Any], sample: int, causal: bool, token: str) -> None:
    columns = {"tokens": [token, "a"], "token_ids": [1, 2], "n_tokens": N, "truncated": False}
    text = {"group": "text", "text": f"{token} sentence {sample}"}
    add(rows, "samples", **checkpoint, sample=sample, **text, **columns, causal=causal)


def _add_heads(rows: Rows, keys: dict[str, Any], places: tuple[int, ...], causal: bool, token: str) -> None:
    """Add the rows of every head of a layer and of the layer's mean, with their graphs."""
    protocol = keys["protocol"]
    for head in range(-1, HEADS):
        x = level(*places, head)
        row_keys = keys | ({"head": head} if head >= 0 else {})
        heads, graphs = ("heads", "graphs") if head >= 0 else MEANS
        add(rows, heads, **row_keys, **_head(x, protocol, head, keys["layer"], causal, token))
        for threshold in (0.001, 0.02, 0.1):
            add(rows, graphs, **row_keys, threshold=threshold, **_graph(x, threshold, protocol))


def _add_fisher(rows: Rows, keys: dict[str, Any], sample: int) -> None:
    traces = {"attention": 2.0, "mlp": 3.0, "norm": 0.5, "embedding": 4.0}
    for layer in range(-1, LAYERS):
        for group in ("embedding",) if layer < 0 else ("attention", "mlp", "norm"):
            for protocol in PROTOCOLS:
                trace = traces[group] * (1 + 0.1 * layer + 0.01 * sample)
                sampled = trace / 2 if protocol == "exact" else np.nan
                numbers = {"trace": trace, "trace_per_parameter": trace / 100, "trace_sampled": sampled}
                place = {"layer": layer, "group": group, "protocol": protocol}
                add(rows, "fisher", **keys, **place, parameters=100, **numbers)


def _add_ablation(rows: Rows, keys: dict[str, Any], sample: int) -> None:
    divergences = {"sinks": 0.4, "first": 0.3, "control_sinks": 0.05, "control_first": 0.04}
    for kind, kl in divergences.items():
        losses = {"loss_before": 3.0, "loss_after": 3.0 + kl, "loss_change": kl + 0.02 * sample}
        counts = {"n_tokens": N, "key_count": 1}
        add(rows, "ablation", **keys, keys=kind, **counts, output_kl=kl + 0.01 * sample, **losses)


def _add_frames(rows: Rows, keys: dict[str, Any], frame: str, causal: bool, token: str) -> None:
    """Add the frame of a group of texts, and its evidence by thirds of the layers."""
    frames = {"frame": frame, "token_frame": "distributed", "margin": 0.1, "probability": 0.9}
    frames |= {"chance": 0.001}
    modes = {"modal_position": 0, "modal_token": token, "modal_position_share": 0.9}
    counts = {"samples": SAMPLES, "causal": causal, "modal_token_share": 0.4}
    add(rows, "frames", **keys, group="all", **frames, **counts, **modes)
    for kind in ("position", "token"):
        for third, top in (("early", 0.9), ("middle", 0.8), ("late", 0.7), ("all", 0.8)):
            place = {"group": "all", "kind": kind, "third": third, "sinks": 90}
            tops = {"top_1": top, "top_2": top + 0.05, "top_3": top + 0.08, "entropy": 1 - top}
            names = {"top": "0" if kind == "position" else token, "first_anchor": top, "last_anchor": 0.05}
            add(rows, "frame_evidence", **keys, **place, **tops, **names)


def _add_specialization(rows: Rows, keys: dict[str, Any], token: str) -> None:
    modal = "0" if keys["protocol"] == "exact" else token
    for layer in range(LAYERS):
        for head in range(HEADS):
            consistency = 0.2 + 0.2 * head
            flags = {"specialised": consistency >= 0.3, "specialised_half": consistency >= 0.5}
            columns = {"consistency": consistency, "modal": modal, "samples": SAMPLES, **flags}
            add(rows, "specialization", **keys, layer=layer, head=head, **columns)


def _add_layer_tests(rows: Rows, keys: dict[str, Any]) -> None:
    is_exact = keys["protocol"] == "exact"
    for layer in range(LAYERS):
        for other in range(layer + 1, LAYERS):
            adjusted = {"p_holm": 0.02 * other, "p_bh": 0.015 * other}
            p_values = adjusted if is_exact else dict.fromkeys(adjusted, np.nan)
            numbers = {"difference": 0.05 * (other - layer), "p_value": 0.01 * other, **p_values}
            place = {"metric": "mean_persistence_0", "layer": layer, "other_layer": other}
            add(rows, "layer_tests", **keys, **place, **numbers, samples=SAMPLES)


def _add_baselines(rows: Rows, models: tuple[str, ...], steps: tuple[int, ...], causal: bool) -> None:
    for kind in KINDS:
        if kind == ("uniform_full" if causal else "uniform_causal"):
            continue
        name, _, support = kind.partition("_") if kind.startswith("uniform") else (kind, "", "")
        checkpoints = [("", -1)]
        if not kind.startswith("uniform"):
            # the random-weight control belongs to a whole series, shuffled rows to their own checkpoint
            row_steps = steps if kind == "row_permutation" else (-1,)
            checkpoints = [(model, step) for model in models for step in row_steps]
        for metric, value in BASELINES.items():
            for model, step in checkpoints:
                revision = f"step{step}" if model and step >= 0 else ""
                place = {"model": model, "revision": revision, "step": step if model else -1}
                spread = {"std": 0.01 if model else 0.0, "count": SAMPLES if model else 0}
                null = {"kind": name, "support": support, "threshold": np.nan, "protocol": "exact"}
                add(
                    rows,
                    "baselines",
                    n_tokens=N,
                    metric=metric,
                    value=value * DRIFT[kind],
                    scope="heads" if model else "any",
                    **null,
                    **place,
                    **spread,
                )


def _head(x: float, protocol: str, head: int, layer: int, causal: bool, token: str) -> dict[str, Any]:
    exact, nan = protocol == "exact", np.nan
    return {
        "n_tokens": N,
        "sink_share": x if exact else nan,
        "sink_share_uniform": 0.107 if exact else nan,
        "sink_position": 0,
        "sink_token": token,
        "entropy": 3 - x if exact else 2.5 - x,
        "entropy_normalized": 1 - x if exact else nan,
        "fiedler_value": x / 2 if exact else nan,
        "fiedler_value_normalized": x if exact else nan,
        "participation_ratio": 1 + x if exact else 8 + x,
        "spectral_ratio": 2 + x if exact else 1.5 + x,
        "sink_concentration": nan if exact else 0.35,
        "mp_ks": x / 3 if exact else nan,
        "marchenko_pastur_deviation": nan if exact else 4 + x,
        "bar_count_0": N if exact else (30 if causal else 12),
        "bar_count_1": 5 + layer if exact else (0 if causal else 3),
        "mean_persistence_0": x if exact else x / 4,
        "mean_persistence_1": x / 5 if exact else (nan if causal else x / 9),
        "attention_max": nan if exact else 1.0,
        "attention_std": nan if exact else 0.12,
        "attention_mean": nan if exact else 1 / N,
        "head_divergence": nan if head < 0 else x,
        "alignment_value": nan if head < 0 or not exact else x - 0.5,
        "alignment_hidden": x - 0.3 if exact else -x,
        "alignment_value_without_sinks": x - 0.45 if exact and head >= 0 else nan,
        "alignment_hidden_without_sinks": x - 0.25 if exact else nan,
        "entropy_magnitude_correlation": 0.2 if exact else 0.1,
        "reference_magnitude": 0.6 + x / 10 if exact else 0.7,
        "reference_directional": 0.5 + x / 10 if exact else 0.75,
        "reference_information": 0.3 + x / 10 if exact else 12.0,
        "pca_correlation": nan if exact else 0.05,
    }


def _layer(x: float, protocol: str) -> dict[str, Any]:
    exact = protocol == "exact"
    columns: dict[str, Any] = {"n_tokens": N, "head_divergence": x}
    for at in (80, 90, 95):
        columns[f"kl_reduction_{at}"] = x * (1 - at / 100) * (1 if exact else 2)
        columns[f"sink_concentration_{at}"] = 0.9 - at / 200
        columns[f"sink_count_{at}"] = (100 - at) // 5
        columns[f"p_value_{at}"] = np.nan if exact else 0.04
        columns[f"kl_reduction_speed_{at}"] = np.nan if exact else x * (1 - at / 100)
        columns[f"kl_share_{at}"] = x / 5 * (1 - at / 100) if exact else np.nan
        columns[f"kl_share_shuffled_{at}"] = 0.01 if exact else np.nan
    columns["transformation_magnitude"] = 5 + 10 * x
    columns["transformation_magnitude_attention"] = 2 + x if exact else np.nan
    columns["transformation_magnitude_mlp"] = 3 + x if exact else np.nan
    return columns


def _graph(x: float, threshold: float, protocol: str) -> dict[str, Any]:
    exact = protocol == "exact"
    return {
        "graph_fiedler_value": x,
        "density": 1 - threshold - x / 10,
        "hub_share": 0.9 - threshold,
        "gini": 0.4 + x / 10,
        "centralization": 0.5,
        "star_likeness": 0.6 + x / 10,
        "betti_0": 3 if exact else np.nan,
        "betti_1": 2 if exact else np.nan,
        "effective": True,
    }
