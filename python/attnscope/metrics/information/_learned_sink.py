# SPDX-License-Identifier: MIT
"""The mass that a learned sink takes of each row, as one more key next to the real keys.

Some models (gpt-oss) add a logit without a key to every softmax, so that the rows of their maps sum to less
than one. The missing mass belongs to the learned sink: a row is a distribution over the visible keys and it.
"""

from __future__ import annotations

from typing import Any

import torch

from attnscope import _calls, _checks, _core
from attnscope.arguments.unmaterialized import Unmaterialized


def sink_mass_argument(function: str, sink_mass: Any, attention: _checks.Attention) -> torch.Tensor:
    """`sink_mass` as float64 [..., q], one number a row, 0 behind the lengths."""
    masses = _checks.to_host(_checks.float_tensor(function, "sink_mass", sink_mass)).double()
    shape = (*attention.leading, attention.query_count)
    try:
        masses = masses.expand(shape)
    except RuntimeError:
        raise ValueError(
            f"{function}: sink_mass of shape {tuple(masses.shape)} does not broadcast to {shape}, one number "
            "for each query"
        ) from None
    return torch.where(attention.queries_inside(), masses, 0.0)


def visible_pairs(attention: _checks.Attention, support: Any) -> torch.Tensor:
    """Return which keys each query sees, bool, broadcast to [..., q, k]; "auto" judges each map by itself."""
    n = attention.n
    lower = torch.arange(n, device="cpu") <= attention.places()[..., None]
    if isinstance(support, torch.Tensor):
        seen = support.expand(attention.tensor.shape)
    elif support == "causal":
        seen = lower
    elif support == "full" or n < 2:
        seen = torch.ones(attention.query_count, n, dtype=torch.bool, device="cpu")
    else:
        real = attention.queries_inside()[..., None] & attention.inside()[..., None, :]
        above = (_checks.to_host(attention.tensor) != 0) & ~lower & real
        causal = ~above.any(-1).any(-1)[..., None, None]
        if attention.lengths is not None:
            causal &= (attention.lengths.reshape(attention.leading) > 1)[..., None, None]
        seen = lower | ~causal
    return seen & attention.queries_inside()[..., None] & attention.inside()[..., None, :]


def visible_key_counts(attention: _checks.Attention, support: Any) -> torch.Tensor:
    """Return how many keys each query sees, int64 [..., q]."""
    maps: Any = attention.tensor
    if isinstance(maps, Unmaterialized):
        # the lengths of a call come on top of those of lazy attention
        of_call = maps if attention.lengths is None else maps.with_lengths(attention.lengths)
        counts: torch.Tensor = of_call.visibility.key_counts()
        return counts
    return visible_pairs(attention, support).sum(-1)


def divergence_of_mass(mass: torch.Tensor) -> torch.Tensor:
    """Return the term that the learned sink adds to each head's divergence from the mean of its layer,
    [..., h, q], nats.
    """
    return times_log(mass, mass) - times_log(mass, mass.mean(-2, keepdim=True))


def times_log(mass: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return mass·log other, which is 0 and has the derivative 0 where the mass is 0."""
    return torch.xlogy(mass, torch.where(mass == 0, 1.0, other))


def learned_share(
    function: str, attention: _checks.Attention, support: Any, sink_mass: Any, queries: int | None
) -> torch.Tensor:
    """Mean of the learned sink's mass over the last queries that see a key, [...]."""
    mass = sink_mass_argument(function, sink_mass, attention)
    counted = (visible_key_counts(attention, support) > 0).expand(mass.shape)
    if queries is not None:
        # 1 for the last real query: those of lazy attention may stand anywhere
        order = attention.queries_inside().flip(-1).cumsum(-1).flip(-1)
        counted = counted & (order <= queries)
    return torch.where(counted, mass, 0.0).sum(-1) / counted.sum(-1)


def top_mass_with(
    function: str, attention: _checks.Attention, support: Any, sink_mass: Any, k: int
) -> torch.Tensor:
    """Return the share of all mass, the learned sink's included, that the k strongest of n + 1 keys hold,
    [...].
    """
    mass = sink_mass_argument(function, sink_mass, attention)
    maps: Any = attention.tensor
    # a decision, which has no derivative
    decided = attention if isinstance(maps, Unmaterialized) else attention._replace(tensor=maps.detach())
    finite = _calls.call_kernel(_core.finite_matrices, decided)
    keys = torch.where(finite[..., None], _received(attention, support), 0.0)
    mass_by_key = torch.cat([keys, mass.sum(-1, keepdim=True)], -1)
    total = mass_by_key.sum(-1)
    defined = finite & (total != 0)
    top = mass_by_key.topk(min(k, mass_by_key.shape[-1])).values.sum(-1)
    return torch.where(defined, top / torch.where(defined, total, 1.0), torch.nan)


def _received(attention: _checks.Attention, support: Any) -> torch.Tensor:
    """Return the sum of what each key receives, float64 [..., k]."""
    maps: Any = attention.tensor
    if isinstance(maps, Unmaterialized):
        sums: torch.Tensor = maps.measure("column_sums")(maps, attention.lengths)  # type: ignore[misc]
        return sums
    return torch.where(visible_pairs(attention, support), _checks.to_host(maps).double(), 0.0).sum(-2)
