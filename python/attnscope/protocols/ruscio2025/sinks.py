# SPDX-License-Identifier: MIT
"""The four rules by which the notebooks call a key a sink."""

from __future__ import annotations

from typing import Literal

import torch

from attnscope import _checks
from attnscope.metrics._closed_forms import star
from attnscope.metrics.quantity import Known, how_many
from attnscope.protocols.ruscio2025._maps import declared, head_mean, non_finite, percentile_of

Rule = Literal["kl", "rmt", "reference", "topology"]


def sink_tokens(attention: torch.Tensor, *, rule: Rule = "kl", percentile: float = 90) -> torch.Tensor:
    """Which keys are sinks, by the rule of one notebook.

    kl: total incoming mass over heads and queries at or above its `percentile` over keys (the same keys on
    the head mean). rmt: the same on one map, always at 90. reference: mean incoming attention over all n
    rows above 0.1; if none, the top max(1, ⌊0.1n⌋); never more than the top max(1, ⌊0.3n⌋). topology: the
    one key of largest column mean (of one head).

    Quirks: kl, rmt and reference always find sinks, in uniform attention too; sums over all rows favour the
    first keys of causal maps, which more queries see; topology is recorded by the notebook as a token
    string, so that one string at many positions counts as one sink.

    Args:
        attention: head mean [..., n, n]; for topology the heads' own maps.
        rule: the notebook.
        percentile: of the kl rule, 80, 90 or 95 in the paper; linear interpolation.

    Returns:
        [..., n] bool; ties at the limit of the reference rule go to the first keys. False for a map with a
        NaN or infinite entry.

    Raises:
        ValueError: an unknown rule, a percentile outside 0..100, and as the exact `sink_tokens`.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> uniform = torch.ones(10, 10).tril()
        >>> uniform /= uniform.sum(-1, keepdim=True)
        >>> ruscio2025.sink_tokens(uniform, rule="rmt").nonzero().flatten()
        tensor([0])
        >>> ruscio2025.sink_tokens(uniform, rule="reference").nonzero().flatten()
        tensor([0, 1, 2])

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, notebooks.
    """
    name = "ruscio2025.sink_tokens"
    _checks.choice_argument(name, "rule", rule, ("kl", "rmt", "reference", "topology"))
    percentile = _checks.real(name, "percentile", percentile)
    if not 0 <= percentile <= 100:
        raise ValueError(f"{name}: percentile must lie between 0 and 100, got {percentile!r}")
    maps, checked = head_mean("sink_tokens", attention)
    bad = non_finite(maps)
    incoming = torch.where(bad.unsqueeze(-1), 0.0, maps.sum(-2))
    n = checked.n
    if rule in ("kl", "rmt"):
        found = incoming >= percentile_of(incoming, percentile if rule == "kl" else 90)
    elif rule == "topology":
        found = torch.zeros_like(incoming, dtype=torch.bool)
        found.scatter_(-1, incoming.argmax(-1, keepdim=True), True)
    else:
        mean = incoming / n
        strong = mean > 0.1
        wanted = torch.where(strong.any(-1), strong.sum(-1), max(1, int(0.1 * n)))
        wanted = wanted.clamp(max=max(1, int(0.3 * n)))
        order = mean.argsort(dim=-1, descending=True, stable=True)
        rank = torch.empty_like(order).scatter_(-1, order, torch.arange(n).expand(order.shape))
        found = rank < wanted.unsqueeze(-1)
    found = found & ~bad.unsqueeze(-1)
    return _checks.finished(name, checked, found, int(bad.sum()))


QUANTITIES = (
    declared(
        "sink_count",
        "sink_tokens",
        "sink tokens per map",
        "Keys whose column sum reaches the 90th percentile of column sums.",
        Known(1, star(6)),
        kind="count",
        low=0,
        high=float,
        options={"rule": "rmt"},
        read=how_many,
    ),
)
