# SPDX-License-Identifier: MIT
"""Attention sinks: the keys on which a head rests, and the share of its mass that they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.information._learned_sink import learned_share, top_mass_with
from attnscope.metrics.information.sink_test import ALPHA, tested_sinks


@shown_by_shape
class SinkShare(NamedTuple):
    """Mass on the first keys, what uniform attention puts there, their ratio, a learned sink's mass."""

    share: torch.Tensor
    uniform: torch.Tensor
    boost: torch.Tensor
    learned: torch.Tensor


#: More queries than a map has.
_EVERY_QUERY = 2**62


def incoming_attention(
    attention: torch.Tensor,
    *,
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> torch.Tensor:
    """Return the mean attention each key receives from the queries that can see it.

    α_j = (1/N_j) Σ_{i sees j} A_ij, where N_j queries can see key j.

    Maps need not be square: a decoding step has one query and all keys before it, cross attention the keys of
    another sequence.

    Args:
        attention: attention maps [..., q, k], any strides, CPU or CUDA; rows are queries.
        support: which keys a query sees: "auto" judges each map by itself (causal where everything behind
            each query's own key is exactly 0), "causal", "full", or a boolean tensor [q, k] or [..., q, k].
        precision: "fast" adds entries of float32 and half maps in float32, sixteen rows at a time, with a
            relative error below 1e-6; float64 maps and those with a negative entry are exact.
        lengths: keys per map, broadcast against the leading axes; each map is cut to its leading block.
        query_positions: the key at which each query stands, int64 [q] or [..., q]. None: the last q keys of
            each map, as with a cache; the queries of a square map are its keys.
        query_lengths: queries per map, broadcast likewise, from 0; None: those that stand at a real key.
        cross: the keys belong to another sequence; queries stand at no key, and nothing is causal.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning NaN for that map.

    Returns:
        [..., k] float64, in [0, 1], relative error below q·2⁻⁵²; NaN past a map's length and for keys that
        no query sees. The last keys of a causal map are seen by few queries, so their values are noisy.

    Raises:
        ValueError: empty, wrong dtype, an unknown support, lengths outside 1..k, positions outside the keys,
            more queries than keys without `cross` or positions, "causal" with `cross`.

    Example:
        Uniform causal attention gives key 0 the mean of 1, 1/2, …, 1/n, the harmonic number over n.

        >>> import torch, attnscope as asc
        >>> uniform = torch.ones(4, 4, dtype=torch.float64).tril()
        >>> uniform /= uniform.sum(-1, keepdim=True)
        >>> asc.incoming_attention(uniform)
        tensor([0.5208, 0.3611, 0.2917, 0.2500], dtype=torch.float64)

        Its last two queries alone, a rectangle: key 0 receives (1/3 + 1/4)/2, key 3 the 1/4 of one query.

        >>> asc.incoming_attention(uniform[2:])
        tensor([0.2917, 0.2917, 0.2917, 0.2500], dtype=torch.float64)

    References:
        Gu et al., When attention sink emerges in language models, arXiv 2410.10781, 2024, section 3.
    """
    name = "incoming_attention"
    options = (True, False, None, None, 0, None)
    if _checks.is_bare(support, precision, lengths, query_positions, query_lengths, cross, validate):
        call = (_core.sink_statistics, name, attention, support, *options)
        results = _calls.called_at_once(*call, precision=precision)
        if results is not None:
            return results[0]
    _checks.precision_argument(name, precision, attention)
    places = _checks.places_argument(name, query_positions, query_lengths, cross)
    checked = _checks.attention_argument(name, attention, lengths, validate=validate, places=places)
    seen = _checks.support_argument(name, support, checked)
    incoming, *_, non_finite = _calls.call_kernel(
        _core.sink_statistics, checked, seen, *options, function=name, precision=precision
    )
    return _calls.warn_non_finite(name, checked, incoming, non_finite)


def sink_rate(
    attention: torch.Tensor,
    *,
    epsilon: float = 0.3,
    position: int = 0,
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> torch.Tensor:
    """Return 1 for heads with a sink at one position: 1[α_position > epsilon].

    The mean over heads is the sink rate of a model. Short inputs make it look large: report
    `incoming_attention` of uniform attention of the same n (H_n/n at position 0).

    Args:
        attention: maps [..., q, k]; support, lengths and validate are as in `incoming_attention`.
        epsilon: the mean incoming attention that a sink must exceed, in (0, 1).
        position: the key, counted from 0; one that a map does not have is no sink.
        precision: "fast" adds in float32, as in `incoming_attention`; maps that this leaves undecided are
            measured exactly, so that rates are always the exact ones.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.

    Returns:
        [...] bool; False for a map with NaN or infinite entries.

    Raises:
        ValueError: epsilon outside (0, 1), a negative position, and as `incoming_attention`.

    Example:
        >>> import torch, attnscope as asc
        >>> star = torch.zeros(5, 5); star[:, 0] = 1
        >>> asc.sink_rate(torch.stack([star, torch.eye(5)])).double().mean().item()
        0.5

    References:
        Gu et al., When attention sink emerges in language models, arXiv 2410.10781, 2024, section 3.
    """
    name = "sink_rate"
    options = ReadOptions.of(name, {name: {"epsilon": epsilon, "position": position}})
    places = _checks.places_argument(name, query_positions, query_lengths, cross)
    _, results = from_one_read(name, attention, options, support, lengths, validate, places, precision)
    rates: torch.Tensor = results[name]
    return rates


@memory_errors("sink_tokens")
@without_derivative("it is a decision")
def sink_tokens(
    attention: torch.Tensor,
    *,
    rule: Literal["test", "frequency"] = "test",
    alpha: float = ALPHA,
    tau: float | None = None,
    gamma: float = 0.4,
    min_visibility: float = 0.3,
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> torch.Tensor:
    """Return the keys that are sinks, by a test or by the paper's rule.

    By "test" a sink receives more from afar than exchangeable attention gives any key, and more than twice
    what uniform attention gives it: `sink_test`. By "frequency", the paper's words, key j is a sink when at
    least the share `gamma` of the queries that see it give it `tau` or more, and at least ⌈min_visibility·q⌉
    queries see it. The percentile of a sharp map is near 0, so that local heads have many such keys, and an
    untrained model too.

    Args:
        attention: maps [..., q, k]; support, lengths and validate are as in `incoming_attention`.
        rule: "test", with alpha, or "frequency", with tau, gamma and min_visibility.
        alpha: what the chance of any sink in a map without one stays below, in (0, 1).
        tau: in (0, 1); None takes the 90th percentile of each map's visible entries, by linear interpolation.
        gamma: the share of queries, in (0, 1].
        min_visibility: in [0, 1]; leaves out the last keys of causal maps, which few queries see.
        precision: "fast" gives the exact value: flags are those of exact entries, and reading them
            is what it costs.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.

    Returns:
        [..., n] bool; False past a map's own length and for a map with NaN or infinite entries.

    Raises:
        ValueError: an unknown rule, a share outside its bounds, tau, gamma or min_visibility together with
            the test, alpha with the frequency, and as `incoming_attention`.

    Example:
        Every query attends to the first key; uniform attention has no sink.

        >>> import torch, attnscope as asc
        >>> star = torch.zeros(32, 32); star[:, 0] = 1
        >>> asc.sink_tokens(star).nonzero().flatten().tolist()
        [0]
        >>> asc.sink_tokens(torch.full((32, 32), 1 / 32)).any().item()
        False

    References:
        Ruscio et al., What are you sinking? A geometric approach on attention sink, 2025, section 3.
    """
    name = "sink_tokens"
    _checks.precision_argument(name, precision, attention)
    scalars.choice_argument(name, "rule", rule, ("test", "frequency"))
    tau = None if tau is None else scalars.fraction_argument(name, "tau", tau)
    gamma = scalars.real(name, "gamma", gamma)
    if not 0.0 < gamma <= 1.0:
        raise ValueError(f"{name}: gamma must lie in (0, 1], got {gamma!r}")
    visibility = scalars.between(name, "min_visibility", min_visibility, 0, 1)
    places = _checks.places_argument(name, query_positions, query_lengths, cross)
    if rule == "test":
        if tau is not None or (gamma, visibility) != (0.4, 0.3):
            raise ValueError(
                f"{name}: tau, gamma and min_visibility belong to rule='frequency', got tau={tau!r}, "
                f"gamma={gamma!r}, min_visibility={visibility!r} with rule='test'"
            )
        return tested_sinks(name, attention, alpha, support, lengths, validate, places).sinks
    _refuse_alpha(name, alpha, rule)
    checked = _checks.attention_argument(name, attention, lengths, validate=validate, places=places)
    seen = _checks.support_argument(name, support, checked)
    return _calls.call_and_warn(_core.sink_tokens, name, checked, seen, tau, gamma, visibility)


@memory_errors("sink_position")
@without_derivative("it is a decision")
def sink_position(
    attention: torch.Tensor,
    *,
    rule: Literal["test", "largest"] = "test",
    alpha: float = ALPHA,
    min_visibility: float = 0.3,
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> torch.Tensor:
    """Return the strongest sink of a map, −1 without one.

    By "test" it is the sink of `sink_test` with the largest mean attention from afar. By "largest" it is the
    key of largest incoming attention, the argmax of α_j over keys that enough queries see: every map has one,
    an untrained model's too.

    Args:
        attention: maps [..., q, k]; support, lengths and validate are as in `incoming_attention`.
        rule: "test", with alpha, or "largest", with min_visibility.
        alpha: what the chance of any sink in a map without one stays below, in (0, 1).
        min_visibility: only keys that at least ⌈min_visibility·n⌉ queries see compete, in [0, 1].
        precision: "fast" adds in float32, as in `incoming_attention`, where the rule is "largest"; keys that
            this does not tell apart are measured exactly, so that the position is always the exact one.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.

    Returns:
        [...] int64; −1 without a sink, or where no key competes, and where the map is not finite. By
        "largest" the first such key on ties.

    Raises:
        ValueError: an unknown rule, alpha or min_visibility outside their bounds, min_visibility together
            with the test, alpha with the largest, and as `incoming_attention`.

    Example:
        Uniform attention has a largest key and no sink.

        >>> import torch, attnscope as asc
        >>> uniform = torch.ones(64, 64).tril() / torch.arange(1, 65)[:, None]
        >>> asc.sink_position(uniform).item(), asc.sink_position(uniform, rule="largest").item()
        (-1, 0)
        >>> star = torch.zeros(64, 64); star[:, 0] = 1
        >>> asc.sink_position(star).item()
        0

    References:
        Ruscio et al., What are you sinking? A geometric approach on attention sink, 2025.
    """
    name = "sink_position"
    _checks.precision_argument(name, precision, attention)
    scalars.choice_argument(name, "rule", rule, ("test", "largest"))
    visibility = scalars.between(name, "min_visibility", min_visibility, 0, 1)
    places = _checks.places_argument(name, query_positions, query_lengths, cross)
    if rule == "test":
        if visibility != 0.3:
            raise ValueError(
                f"{name}: min_visibility belongs to rule='largest', got {visibility!r} with rule='test'"
            )
        return tested_sinks(name, attention, alpha, support, lengths, validate, places).position
    _refuse_alpha(name, alpha, rule)
    options = ReadOptions.of(name, {name: {"min_visibility": visibility}})
    _, results = from_one_read(name, attention, options, support, lengths, validate, places, precision)
    positions: torch.Tensor = results[name]
    return positions


def _refuse_alpha(function: str, alpha: float, rule: str) -> None:
    """Raise ValueError for a level of the test where another rule decides, which would not read it."""
    if scalars.fraction_argument(function, "alpha", alpha) != ALPHA:
        raise ValueError(f"{function}: alpha belongs to rule='test', got {alpha!r} with rule={rule!r}")


@memory_errors("sink_excess")
@without_derivative("it compares with a bound of a test")
def sink_excess(
    attention: torch.Tensor,
    *,
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> torch.Tensor:
    """Return how much more attention from afar each key receives than exchangeable attention gives it.

    (S_j − E_j)/far queries of `sink_test`: the mean over the queries that see key j from afar of what they
    give it, less the mean of their far entries.

    Args:
        attention: maps [..., q, k]; support, lengths and validate are as in `incoming_attention`.
        precision: "fast" gives the exact value: an excess is a difference that needs float64.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.

    Returns:
        [..., n] float64 in [−1, 1]; NaN for keys that no query sees from afar, past a map's own length, and
        for a map with NaN or infinite entries.

    Raises:
        ValueError: as `incoming_attention`.

    Example:
        Half of the attention on the first key, the other half uniform over all keys.

        >>> import torch, attnscope as asc
        >>> maps = torch.full((40, 40), 0.5 / 40, dtype=torch.float64); maps[:, 0] += 0.5
        >>> excess = asc.sink_excess(maps)
        >>> int(excess.argmax()), bool((excess[1:] < 0).all())
        (0, True)

    References:
        Gu et al., When attention sink emerges in language models, arXiv 2410.10781, 2024, for the question.
    """
    _checks.precision_argument("sink_excess", precision, attention)
    places = _checks.places_argument("sink_excess", query_positions, query_lengths, cross)
    return tested_sinks("sink_excess", attention, ALPHA, support, lengths, validate, places).excess


@memory_errors("sink_share")
def sink_share(
    attention: torch.Tensor,
    *,
    first: int = 1,
    queries: int | None = None,
    sink_mass: torch.Tensor | None = None,
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> SinkShare:
    """Return the mass that queries put on the first keys, with the mass that uniform attention puts there.

    share = mean over queries of Σ_{j<first} A_ij; uniform = mean over the same queries of (visible keys <
    first)/(visible keys), for a causal map min(first, i+1)/(i+1); boost = share/uniform.

    Args:
        attention: maps [..., q, k]; support, lengths and validate are as in `incoming_attention`.
        first: how many leading keys count as the sink; a map that has fewer is taken whole.
        queries: so many last queries of each map, less those that see no key; None: all.
        sink_mass: what a learned sink takes of each row, [..., q]; share and uniform stay those of real keys.
        precision: "fast" adds what the first key receives from all queries in float32, as in
            `incoming_attention`; shares of more keys or of some queries are exact.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.

    Returns:
        SinkShare, each [...] float64; share and learned in [0, 1], boost 1 for uniform attention.

    Raises:
        ValueError: first or queries below 1, and as `incoming_attention`.

    Example:
        >>> import torch, attnscope as asc
        >>> star = torch.zeros(4, 4, dtype=torch.float64); star[:, 0] = 1
        >>> asc.sink_share(star)
        SinkShare(share=1, uniform=0.5208, boost=1.92, learned=0)
        >>> (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4
        0.5208333333333333

    References:
        Xiao et al., Efficient streaming language models with attention sinks, arXiv 2309.17453, 2023.
    """
    name = "sink_share"
    is_default = type(first) is int and first == 1 and queries is None and sink_mass is None
    bare = (support, precision, lengths, query_positions, query_lengths, cross, validate)
    if is_default and _checks.is_bare(*bare):
        arguments = (False, False, None, (first, _EVERY_QUERY), 0, None)
        call = (_core.sink_statistics, name, attention, support, *arguments)
        values = _calls.called_at_once(*call, precision=precision)
        if values is not None:
            share, uniform = values[3:5]
            return SinkShare(share, uniform, share / uniform, share - share)
    options = ReadOptions.of(name, {name: {"first": first, "queries": queries}})
    places = _checks.places_argument(name, query_positions, query_lengths, cross)
    checked, results = from_one_read(name, attention, options, support, lengths, validate, places, precision)
    result: SinkShare = results[name]
    if sink_mass is None:
        return result
    seen = _checks.support_argument(name, support, checked)
    learned = learned_share(name, checked, seen, sink_mass, queries)
    return result._replace(learned=torch.where(result.share.isnan(), torch.nan, learned))


def top_mass(
    attention: torch.Tensor,
    k: int = 1,
    *,
    sink_mass: torch.Tensor | None = None,
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> torch.Tensor:
    """Share of a head's total mass held by the k keys that receive most of it.

    Args:
        attention: maps [..., q, k]; support, lengths and validate are as in `incoming_attention`.
        k: how many keys; all of them in a map that has no more.
        sink_mass: what a learned sink takes of each row, [..., q]: one more key.
        precision: "fast" adds in float32, as in `incoming_attention`, with a relative error below 2e-6.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.

    Returns:
        [...] float64, in [min(k/n, 1), 1] for rows that sum to 1, error below n·2⁻⁵¹; NaN without mass.

    Raises:
        ValueError: k below 1, and as `incoming_attention`.

    Example:
        >>> import torch, attnscope as asc
        >>> asc.top_mass(torch.full((5, 5), 0.2, dtype=torch.float64), 2).item()
        0.4

    References:
        Ruscio et al., What are you sinking? A geometric approach on attention sink, 2025.
    """
    name = "top_mass"
    options = ReadOptions.of(name, {name: {"k": k}})
    places = _checks.places_argument(name, query_positions, query_lengths, cross)
    checked, results = from_one_read(name, attention, options, support, lengths, validate, places, precision)
    mass: torch.Tensor = results[name]
    if sink_mass is None:
        return mass
    seen = _checks.support_argument(name, support, checked)
    return top_mass_with(name, checked, seen, sink_mass, int(k))


# What one read of the maps answers together, where support and lengths are the same.
FROM_ONE_READ = frozenset(
    {"incoming_attention", "sink_rate", "sink_position", "sink_share", "top_mass", "attention_entropy"}
)


class ReadOptions(NamedTuple):
    """The checked options of functions that one read of maps answers, as the core takes them.

    Attributes:
        wants_incoming, wants_entropy: whether these are asked for.
        visibility: of `sink_position`, None where it is not asked for.
        first_and_queries: of `sink_share`, likewise.
        k: of `top_mass`, 0 where it is not asked for.
        rate: epsilon and position of `sink_rate`, None where it is not asked for.
    """

    wants_incoming: bool
    wants_entropy: bool
    visibility: float | None
    first_and_queries: tuple[int, int] | None
    k: int
    rate: tuple[float, int] | None

    @classmethod
    def of(cls, function: str, options_by_function: Mapping[str, Mapping[str, Any]]) -> ReadOptions:
        """Return the checked options; errors begin with the function's name."""
        visibility = first_and_queries = rate = None
        if (options := options_by_function.get("sink_rate")) is not None:
            epsilon = scalars.fraction_argument(function, "epsilon", options["epsilon"])
            rate = (epsilon, scalars.at_least(function, "position", options["position"], 0))
        if (options := options_by_function.get("sink_share")) is not None:
            first = scalars.at_least(function, "first", options["first"], 1)
            last = _EVERY_QUERY if options["queries"] is None else options["queries"]
            last = scalars.at_least(function, "queries", last, 1, "None or at least")
            first_and_queries = (first, last)
        k = 0
        if (options := options_by_function.get("top_mass")) is not None:
            k = scalars.at_least(function, "k", options["k"], 1)
        if (options := options_by_function.get("sink_position")) is not None:
            visibility = scalars.between(function, "min_visibility", options["min_visibility"], 0, 1)
        return cls(
            "incoming_attention" in options_by_function,
            "attention_entropy" in options_by_function,
            visibility,
            first_and_queries,
            k,
            rate,
        )

    def results(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return the result of every function from what the core gives, None for what is not asked for."""
        incoming, entropy, positions, share, uniform, top, rates, *_ = values
        is_asked = self.first_and_queries is not None
        return {
            "incoming_attention": incoming,
            "attention_entropy": entropy,
            "sink_position": positions,
            "sink_share": SinkShare(share, uniform, share / uniform, share - share) if is_asked else None,
            "top_mass": top,
            "sink_rate": rates,
        }


def from_usual_maps(
    function: str, attention: Any, options: ReadOptions, precision: _checks.Precision
) -> dict[str, Any] | None:
    """Return what one read of maps gives as most calls hand them over, None for all others."""
    kernel = _core.sink_statistics
    values = _calls.called_at_once(kernel, function, attention, "auto", *options, precision=precision)
    return None if values is None else options.results(values)


def from_one_read(
    function: str,
    attention: torch.Tensor,
    options: ReadOptions,
    support: Any,
    lengths: _checks.Lengths,
    validate: bool,
    places: _checks.Places = _checks.DEFAULT_PLACES,
    precision: _checks.Precision = "exact",
) -> tuple[_checks.Attention, dict[str, Any]]:
    """Evaluate several functions named in FROM_ONE_READ, each with all its options, in one read of the
    maps.
    """
    if _checks.is_bare(support, precision, lengths, *places, validate):
        results = from_usual_maps(function, attention, options, precision)
        if results is not None:
            return _checks.Attention(attention, None, None, True), results
    _checks.precision_argument(function, precision, attention)
    checked = _checks.attention_argument(function, attention, lengths, validate=validate, places=places)
    seen = _checks.support_argument(function, support, checked)
    values = _calls.call_kernel(
        _core.sink_statistics, checked, seen, *options, function=function, precision=precision
    )
    _calls.warn_non_finite(function, checked, None, values[-1])
    return checked, options.results(values)
