# SPDX-License-Identifier: MIT
"""Sinks in numbers: the columns that `sinks` gives, and the sets of keys that are taken out of a layer.

A set of keys is a flag for each key of every map; when it is taken out, rows are scaled to 1. Keys
that few queries see are in no set, because their frequency means little.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from attnscope import _checks
from attnscope.metrics.closed_forms import first_key_map, uniform_causal_map
from attnscope.metrics.information import sinks
from attnscope.metrics.information._learned_sink import visible_pairs
from attnscope.metrics.quantity import ClosedForm, Quantity, attribute_reader, count_true

#: Percentiles of incoming attention from which on a key counts as a sink to be removed.
PERCENTILES = (80, 90, 95)


def _keys_by_percentile(
    attention: torch.Tensor,
    *,
    support: Any = "auto",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
) -> dict[int, torch.Tensor]:
    """Flag keys [..., k] whose incoming attention reaches a percentile over the keys that 3 in 10 queries
    see.
    """
    name = "incoming_attention"
    places = _checks.places_argument(name, query_positions, query_lengths, cross)
    options = sinks.ReadOptions.of(name, {name: {}})
    checked, results = sinks.from_one_read(name, attention, options, support, lengths, False, places)
    incoming, n = results[name], checked.n
    seen = visible_pairs(checked, _checks.support_argument(name, support, checked))
    views = seen.sum(-2).expand(incoming.shape).reshape(-1, n).numpy()
    sizes = checked.inside().sum(-1).flatten().tolist()
    queries = checked.queries_inside().sum(-1).flatten().tolist()
    flags = {percentile: np.zeros((len(sizes), n), dtype=bool) for percentile in PERCENTILES}
    for at, (row, size) in enumerate(zip(incoming.reshape(-1, n).numpy(), sizes, strict=True)):
        eligible = views[at, :size] >= math.ceil(0.3 * queries[at])
        # where a window is short no key is seen by so many
        if eligible.any() and np.isfinite(row[:size]).all():
            for percentile, flagged in flags.items():
                least = np.percentile(row[:size][eligible], percentile)
                flagged[at, :size] = eligible & (row[:size] >= least)
    return {
        percentile: torch.from_numpy(flagged).reshape(incoming.shape) for percentile, flagged in flags.items()
    }


def _incoming_mass(
    attention: torch.Tensor,
    *,
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
) -> torch.Tensor:
    """Return the mass that all queries inside the lengths give each key, [..., k]."""
    places = _checks.places_argument("_incoming_mass", query_positions, query_lengths, cross)
    checked = _checks.attention_argument("_incoming_mass", attention, lengths, rows=False, places=places)
    inside = checked.queries_inside()[..., None] & checked.inside()[..., None, :]
    return torch.where(inside, attention, 0.0).sum(-2)


SOURCES = (
    *(sinks.incoming_attention, sinks.sink_excess, sinks.sink_position, sinks.sink_rate, sinks.sink_share),
    sinks.sink_tokens,
    *(sinks.top_mass, _keys_by_percentile, _incoming_mass),
)
DERIVED = {
    "_keys_above": ("_keys_by_percentile", lambda keys, percentile: keys[percentile]),
    "_mass_on": ("_incoming_mass", lambda mass, keys: torch.where(keys, mass, 0.0).sum(-1) / mass.sum(-1)),
}


def _of_star(metric: str, label: str, meaning: str, expected: float = 1, **fields: Any) -> Quantity:
    """Declare a number with its value where every query attends to key 0; a share unless `fields` says
    otherwise.
    """
    fields = {
        "name": metric,
        "low": 0,
        "high": 1,
        "closed_form": ClosedForm(expected, first_key_map(6)),
        **fields,
    }
    return Quantity(metric=metric, label=label, meaning=meaning, **fields)


def _count(name: str, label: str, meaning: str, **fields: Any) -> Quantity:
    fields = {
        "kind": "count",
        "high": float,
        "read": count_true,
        "closed_form": ClosedForm(1, first_key_map(32)),
        **fields,
    }
    return _of_star("sink_tokens", label, meaning, name=name, **fields)


QUANTITIES = (
    _of_star(
        "sink_share",
        "attention to first key",
        "Mean over queries of the attention given to the first key.",
        read=attribute_reader("share"),
    ),
    _of_star(
        "sink_share",
        "uniform attention to first key",
        "What uniform attention among the visible keys gives the first key.",
        name="sink_share_uniform",
        closed_form=ClosedForm(25 / 48, uniform_causal_map(4)),
        kind="constant",
        read=attribute_reader("uniform"),
    ),
    _of_star(
        "sink_share",
        "sink share / uniform",
        "Attention to the first key over what uniform attention gives it.",
        name="sink_boost",
        closed_form=ClosedForm(1.0, uniform_causal_map(4)),
        kind="ratio",
        high=None,
        read=attribute_reader("boost"),
    ),
    _of_star(
        "sink_share",
        "attention to learned sink",
        "Mean over queries of what a learned sink takes.",
        0.0,
        name="learned_sink_mass",
        read=attribute_reader("learned"),
    ),
    _of_star(
        "sink_rate",
        "first key gets > 0.3 (share)",
        "1 where the queries that see the first key give it more than 0.3 on average, which uniform "
        "attention in a short window does too; its mean is the share of heads.",
        kind="flag",
        read=torch.Tensor.double,  # a share of heads is the mean of 0 and 1
    ),
    _of_star(
        "sink_position",
        "strongest sink",
        "The sink of the test with the largest mean attention from afar; null without one.",
        0,
        kind="position",
        high=lambda n: n - 1,
        closed_form=ClosedForm(0, first_key_map(32)),
    ),
    _count(
        "sink_count_frequency",
        "sink tokens by frequency",
        "Keys that at least 40 % of the queries which see them attend to strongly.",
        closed_form=ClosedForm(1, first_key_map(6)),
        options={"rule": "frequency"},
    ),
    _count(
        "reference_count",
        "reference tokens per map",
        "Number of the head's sink tokens, which are its reference.",
    ),
    _of_star(
        "sink_tokens",
        "is a sink",
        "Whether a key is a sink of the head, by the test.",
        closed_form=ClosedForm(1, first_key_map(32), entry=(0,)),
        kind="flag",
        axes=("key",),
    ),
    _of_star(
        "top_mass",
        "mass of the top key",
        "Share of all attention held by the strongest key.",
        options={"k": 1},
    ),
    _of_star(
        "incoming_attention",
        "incoming attention",
        "Mean attention that a key receives from the queries that see it.",
        closed_form=ClosedForm(25 / 48, uniform_causal_map(4), entry=(0,)),
        axes=("key",),
    ),
)
