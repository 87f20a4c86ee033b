# SPDX-License-Identifier: MIT
"""RoPE's rotations through a model: the frequencies that its activation and its softmax add.

A model that reads one token again and again has the same hidden state at every position of every layer,
because a weighted mean of equal values is that value. Its queries and keys are then pure rotations,
e(p) = e cos θ_k p + e_⊥ sin θ_k p, by the model's own RoPE, and every other frequency behind a nonlinearity
is that nonlinearity's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from attnscope.metrics.signals.power_spectrum import harmonic_distortion
from attnscope.study_api.forward import self_attention

POSITIONS = 256
ORDERS = 5
#: Cycles that a frequency must make within the positions.
CYCLES = 4
#: Largest part of a query's norm that may be left without its rotation.
RESIDUAL = 1e-3
_ACTIVATIONS = ("act_fn", "act", "activation_fn", "intermediate_act_fn", "activation")


def rotary_frequencies(model: Any) -> dict[str, Tensor]:
    """Return θ_k of the model's RoPE in radians per position by the kind of layer, such as
    "sliding_attention"; "" where all layers share them. Empty without RoPE.
    """
    frequencies: dict[str, Tensor] = {}
    for name, buffer in model.named_buffers():
        kind, separator, _ = name.rpartition(".")[2].rpartition("inv_freq")
        if separator and buffer.ndim == 1 and len(buffer) and not kind.endswith("original_"):
            frequencies.setdefault(kind.removesuffix("_"), buffer.detach().double().cpu())
    return frequencies


def frequencies_of_layer(model: Any, frequencies: Mapping[str, Tensor], number: int) -> Tensor | None:
    """Return θ_k of a layer, None where the model does not say of which kind it is."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    kind = kinds[number] if number < len(kinds) else ""
    return frequencies.get(kind, frequencies.get(""))


def model_activation(model: Any) -> tuple[str, Callable[[Tensor], Tensor]] | None:
    """Return the name and function of the activation in the model's feed-forward layers, None without one."""
    candidates = (getattr(module, name, None) for module in model.modules() for name in _ACTIVATIONS)
    functions = (
        candidate
        for candidate in candidates
        if callable(candidate) and not isinstance(candidate, torch.nn.ModuleList)
    )
    return next(
        ((str(getattr(function, "__name__", type(function).__name__)), function) for function in functions),
        None,
    )


def inputs_of(model: Any) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield the inputs: the mean embedding at every position, and one token repeated."""
    weights = model.get_input_embeddings().weight
    n = min(POSITIONS, int(getattr(model.config.get_text_config(), "max_position_embeddings", POSITIONS)))
    yield "constant", {"inputs_embeds": weights.detach().mean(0).expand(1, n, -1)}
    token = weights.shape[0] // 2
    yield "token", {"input_ids": torch.full((1, n), token, dtype=torch.long, device=weights.device)}


def interference(
    first: Tensor, second: Tensor, theta: Tensor, activation: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """Return two rotations of one frequency with amplitudes [...], added in phase and half a turn apart.

    `norm_aligned` and `norm_shifted` are root mean squares over positions behind the activation,
    `entropy_aligned` and `entropy_shifted` of attention over positions whose logits are the sum, in nats.

    >>> one = torch.ones(())
    >>> found = interference(one, one, torch.tensor(0.5), torch.relu)
    >>> round(found["norm_aligned"].item(), 1), found["norm_shifted"].item() < 1e-7
    (1.0, True)
    >>> round(found["entropy_shifted"].item() - math.log(POSITIONS), 6)
    0.0
    """
    angle = theta[..., None] * torch.arange(POSITIONS, dtype=torch.float64, device="cpu")
    result = {}
    for name, sign in (("aligned", 1.0), ("shifted", -1.0)):
        total = (first.double() + sign * second.double())[..., None] * angle.cos()
        result[f"norm_{name}"] = activation(total).square().mean(-1).sqrt()
        result[f"entropy_{name}"] = torch.special.entr(total.softmax(-1)).sum(-1)
    return result


def harmonics(model: Any) -> dict[str, Any]:
    """Return columns of the table `harmonics`: one row per input, layer and resolved frequency, means over
    heads.

    Empty for a model without RoPE or without an activation, or whose queries do not rotate or are out of
    reach.
    """
    frequencies, activation = rotary_frequencies(model), model_activation(model)
    if not frequencies or activation is None:
        return {}
    name, function = activation
    rows: list[dict[str, Any]] = []
    for label, inputs in inputs_of(model):
        n = next(iter(inputs.values())).shape[1]
        for number, layer in self_attention(model, inputs, extra=("query", "key")):
            theta = frequencies_of_layer(model, frequencies, number)
            if theta is None or not {"query", "key"} <= set(layer.tensors):
                continue
            resolved = torch.nonzero(theta * n >= 2 * math.pi * CYCLES).flatten()
            query, key = (layer.tensors[site][0].detach().double().cpu() for site in ("query", "key"))
            keys = {"layer": number, "input": label, "protocol": "exact", "activation": name}
            rows += [{**keys, **row} for row in _layer_rows(query, key, theta, resolved, function)]
    return {column: [row[column] for row in rows] for column in rows[0]} if rows else {}


def _layer_rows(
    query: Tensor, key: Tensor, theta: Tensor, resolved: Tensor, function: Callable[[Tensor], Tensor]
) -> list[dict[str, Any]]:
    """Return rows of one layer, for the halves of each rotated pair together; queries and keys are [heads,
    n, d].
    """
    half = len(theta)
    position = torch.arange(query.shape[-2], dtype=torch.float64, device="cpu")
    rows = []
    for k in resolved.tolist():
        angle = theta[k] * position
        x, y = query[..., k], query[..., k + half]
        # turned back by the angle the pair is constant
        cosine, sine = angle.cos(), angle.sin()
        still = torch.stack([x * cosine + y * sine, y * cosine - x * sine], -1)
        center = still.mean(-2, keepdim=True)
        size = center.square().sum(-1).sqrt()
        if float((still - center).abs().max()) > RESIDUAL * float(size.max()):
            return []
        halves = torch.stack([x, y])
        before = harmonic_distortion(halves, theta[k], ORDERS)
        after = harmonic_distortion(function(halves.float()).double(), theta[k], ORDERS)
        of_query = size.flatten()
        of_key = key[..., [k, k + half]].square().sum(-1).sqrt().mean(-1).mean()
        waves = interference(of_query, of_key.expand_as(of_query), theta[k].expand_as(of_query), function)
        rows.append(
            {
                "pair": k,
                "theta": float(theta[k]),
                "amplitude": float(of_query.mean()),
                "distortion_before": float(before.nansum(-1).mean()),
                **{
                    f"distortion_{order}": float(after[..., order - 2].nanmean())
                    for order in range(2, ORDERS + 1)
                },
                **{column: float(values.mean()) for column, values in waves.items()},
            }
        )
    return rows
