# SPDX-License-Identifier: MIT
"""The notebooks' four rules for a sink, and the consistency of a head's sink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch

from attnscope import _calls
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.metrics.closed_forms import first_key_map
from attnscope.metrics.information import sink_sets as exact
from attnscope.metrics.quantity import ClosedForm
from attnscope.protocols.ruscio2025._maps import as_exact, head_mean, percentile_of

Rule = Literal["kl", "rmt", "reference", "topology"]


@memory_errors("sink_tokens")
def sink_tokens(attention: torch.Tensor, *, rule: Rule = "kl", percentile: float = 90) -> torch.Tensor:
    """Return the keys that are sinks, by the rule of one notebook.

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
        ValueError: an unknown rule, a percentile outside 0..100.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> uniform = torch.ones(10, 10).tril() / torch.arange(1, 11)[:, None]
        >>> ruscio2025.sink_tokens(uniform, rule="rmt").nonzero().flatten()
        tensor([0])
        >>> ruscio2025.sink_tokens(uniform, rule="reference").nonzero().flatten()
        tensor([0, 1, 2])

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, notebooks.
    """
    name = "ruscio2025.sink_tokens"
    scalars.choice_argument(name, "rule", rule, ("kl", "rmt", "reference", "topology"))
    percentile = scalars.between(name, "percentile", percentile, 0, 100)
    maps, bad, checked = head_mean(name, attention)
    incoming = maps.sum(-2)
    n = checked.n
    if rule in ("kl", "rmt"):
        is_sink = incoming >= percentile_of(incoming, percentile if rule == "kl" else 90)
    elif rule == "topology":
        is_sink = torch.nn.functional.one_hot(incoming.argmax(-1), n).bool()
    else:
        mean = incoming / n
        strong = mean > 0.1
        sink_number = torch.where(strong.any(-1), strong.sum(-1), max(1, int(0.1 * n)))
        sink_number = sink_number.clamp(max=max(1, int(0.3 * n)))
        rank = mean.argsort(dim=-1, descending=True, stable=True).argsort(-1)
        is_sink = rank < sink_number.unsqueeze(-1)
    is_sink = is_sink & ~bad.unsqueeze(-1)
    return _calls.warn_non_finite(name, checked, is_sink, int(bad.sum()))


class Specialization(NamedTuple):
    """The modal token, the share of samples that have it, and the two verdicts."""

    modal: Any
    consistency: float
    samples: int
    specialised: bool
    specialised_half: bool


def head_specialization(tokens: Sequence[Any]) -> Specialization:
    """Return the share of samples in which a head's sink is its most frequent token.

    A head counts as specialised from a share of 0.3 over at least 5 samples; 0.5 is counted as well.

    Quirk: the topology notebook takes token strings, so that a head which always attends to position 0 counts
    as unspecialised where sentences begin with different words. Positions tell that apart.

    Args:
        tokens: the sink of one head in every sample, as a token string (or a position).

    Returns:
        Specialization; the first of several equally frequent tokens is the modal one.

    Raises:
        ValueError: no sample.

    Example:
        >>> from attnscope.protocols import ruscio2025
        >>> ruscio2025.head_specialization(["<s>", "<s>", "the", "<s>", ","])
        Specialization(modal='<s>', consistency=0.6, samples=5, specialised=True, specialised_half=True)

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, topology notebook.
    """
    if len(tokens) == 0:
        raise ValueError("ruscio2025.head_specialization: tokens must hold at least one sample, got none")
    modal, count = Counter(tokens).most_common(1)[0]
    share, enough = count / len(tokens), len(tokens) >= 5
    return Specialization(modal, share, len(tokens), enough and share >= 0.3, enough and share >= 0.5)


QUANTITIES = (
    replace(
        as_exact(exact, "sink_count_frequency"),
        name="sink_count",
        label="sink tokens per map",
        closed_form=ClosedForm(1, first_key_map(6)),
        meaning="Keys whose column sum reaches the 90th percentile of column sums.",
        options={"rule": "rmt"},
    ),
)
