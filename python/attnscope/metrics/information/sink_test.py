# SPDX-License-Identifier: MIT
"""A test for attention sinks: a key that receives more than chance gives the largest of many keys.

The largest entry of anything is large. Uniform attention has an argmax, a local head favours the key that
fewest of its neighbours compete with, and a sharp head puts all of a row on some key. A sink is a key that
queries attend to from afar and whoever they are. So the test reads far keys only, and the null hypothesis is
that the far entries of each row are exchangeable and rows are independent: then the mass of a key has a known
mean and a bounded variance, and Bernstein's inequality bounds its tail.

A single short text has little power, so `sink_sums` and `pooled_sinks` add the same sums over texts, for keys
that have the same place or the same token.

    >>> import torch, attnscope as asc
    >>> uniform = torch.ones(64, 64).tril() / torch.arange(1, 65)[:, None]
    >>> asc.incoming_attention(uniform).argmax().item(), asc.sink_test(uniform).position.item()
    (0, -1)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.closed_forms import first_key_map
from attnscope.metrics.quantity import ClosedForm, Quantity

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray[Any, np.dtype[Any]]

ALPHA = 0.01
#: A sink receives more than so many times what uniform attention would give it.
TIMES_UNIFORM = 2.0
#: A key is tested with so many far queries, and with this share of the most that any key has.
FEWEST_QUERIES, SHARE_OF_QUERIES = 3, 0.4
#: A label is tested where it has a tested key in so many texts (or in all), and in half of them.
FEWEST_TEXTS = 3
#: What keys of several texts may have in common: their place from the start or from the end, or their token.
LABELS = ("start", "end", "token")


@shown_by_shape
class SinkTest(NamedTuple):
    """The sinks of maps and the sums that they rest on; per key [..., n], `position` and `untested` [...].

    sinks: bool. position: int64, the sink of largest mean far attention, −1 without one. untested: bool, no
    key is eligible. excess: (mass − expected)/queries. eligible: bool. mean: mass/queries, NaN without far
    queries. threshold: what mass − expected must reach, NaN where not eligible. mass, expected, variance,
    largest, uniform: sums over the far queries that see the key. queries: int64, their number.
    """

    sinks: torch.Tensor
    position: torch.Tensor
    untested: torch.Tensor
    excess: torch.Tensor
    eligible: torch.Tensor
    mean: torch.Tensor
    threshold: torch.Tensor
    mass: torch.Tensor
    expected: torch.Tensor
    variance: torch.Tensor
    largest: torch.Tensor
    uniform: torch.Tensor
    queries: torch.Tensor


@memory_errors("sink_test")
@without_derivative("it compares with a bound of a test")
def sink_test(
    attention: torch.Tensor,
    *,
    alpha: float = ALPHA,
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> SinkTest:
    """Return the keys that receive more from afar than exchangeable attention would give any key.

    A query's far keys are the visible ones at a distance of d or more from its own, d = max(⌈k/10⌉,
    min(4, ⌊k/4⌋), 1) of k keys; in cross attention all are far. Key j's far
    mass is S_j = Σ_i A_ij over the queries far from j. Where the far entries of a row are exchangeable and
    rows are independent its mean is E_j = Σ_i mean_i, its variance at most V_j = Σ_i var_i and its terms at
    most b_j, the largest far entry of those rows. Key j is a sink when S_j − E_j >= L·b_j/3 +
    √((L·b_j/3)² + 2·V_j·L), L = ln(eligible keys/alpha), and its mean far attention S_j/queries exceeds twice
    that of uniform attention over the same queries. It is eligible with at least 3 far queries and 0.4 of the
    most that any key has, because the last keys of a causal map and the ends of a window have few.

    Args:
        attention: attention maps [..., q, k], any strides, CPU or CUDA; rows are queries. With a learned sink
            they are the real keys' part of each row.
        alpha: what the chance of any sink in a map without one stays below, in (0, 1).
        support: which keys a query sees, as in `incoming_attention`.
        precision: "fast" gives the exact value: the test is decided by sums in float64, and
            reading the map is what it costs.
        lengths: tokens per map, broadcast against the leading axes; each map is cut to its leading block.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of leaving that map untested.

    Returns:
        SinkTest. A head whose logits depend on the key alone has sinks; one that attends to itself, to
        neighbours or by distance has none. A map with a NaN or infinite entry is untested, and its neighbours
        are not touched. The bound is far on the safe side: of 5,400 causal maps whose logits are noise (32 to
        256 tokens, deviations of 0.5 to 4) none has a sink at alpha 0.05, and fewer than one in a hundred at
        alpha 0.5. Power grows with n and falls with the sharpness of the other attention: a first key of mass
        0.3 among logits N(0, 1) is found in every map of 33 tokens, one of 0.1 in every map of 64.

    Raises:
        ValueError: alpha outside (0, 1), and as `incoming_attention`.

    Example:
        Every query on the first key; those nearer than seven tokens are left out.

        >>> import torch, attnscope as asc
        >>> star = torch.zeros(64, 64); star[:, 0] = 1
        >>> result = asc.sink_test(star)
        >>> result.position.item(), result.queries[0].item(), result.mean[0].item()
        (0, 57, 1.0)
        >>> bool(asc.sink_test(torch.eye(64), support="causal").sinks.any())
        False

    References:
        Bernstein, Sur une modification de l'inégalité de Tchebichef, 1924; Boucheron, Lugosi and Massart,
        Concentration inequalities, 2013, corollary 2.11.
    """
    _checks.precision_argument("sink_test", precision, attention)
    places = _checks.places_argument("sink_test", query_positions, query_lengths, cross)
    return tested_sinks("sink_test", attention, alpha, support, lengths, validate, places)


def tested_sinks(
    function: str,
    attention: torch.Tensor,
    alpha: float,
    support: Any,
    lengths: _checks.Lengths,
    validate: bool,
    places: _checks.Places,
) -> SinkTest:
    """Return what `sink_test` gives, with errors and warnings of the function that was called."""
    checked = _checks.attention_argument(function, attention, lengths, validate=validate, places=places)
    alpha = scalars.fraction_argument(function, "alpha", alpha)
    seen = _checks.support_argument(function, support, checked)
    sums = _calls.call_and_warn(_core.far_attention, function, checked, seen)
    # In NumPy, as torch's own loops wait for ever in a child of fork() whose parent used several threads.
    mass, expected, variance, largest, uniform, queries = (values.cpu().numpy() for values in sums)
    needed = np.maximum(SHARE_OF_QUERIES * queries.max(-1, keepdims=True), FEWEST_QUERIES)
    # The product's own rounding must not lift it over a whole number.
    eligible = queries >= needed - 1e-9
    bound = bernstein(variance, largest, eligible.sum(-1, keepdims=True), alpha)
    threshold = np.where(eligible, bound, math.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean, excess = mass / queries, (mass - expected) / queries
        sinks = eligible & (mass - expected >= threshold) & (mass > TIMES_UNIFORM * uniform)
    strongest = np.where(sinks, mean, -math.inf).argmax(-1)
    position = np.where(sinks.any(-1), strongest, -1)
    judged = (sinks, position, ~eligible.any(-1), excess, eligible, mean, threshold)
    return SinkTest(*(torch.from_numpy(np.asarray(values)) for values in judged), *sums)


def bernstein(variance: Array, largest: Array, tested: Any, alpha: float) -> Array:
    """Return a bound: the chance that any of `tested` centred sums exceeds it is alpha at most."""
    level = np.log(np.maximum(tested, 1) / alpha)
    linear = level * largest / 3
    return np.asarray(linear + (linear**2 + 2 * variance * level) ** 0.5)


def sink_sums(
    result: SinkTest,
    *,
    label: Literal["start", "end", "token"] = "start",
    lengths: _checks.Lengths = None,
    tokens: Sequence[Sequence[Any]] | None = None,
) -> pd.DataFrame:
    """Return the sums of a test, by a label that keys of different texts share: a row per map and label.

    Tables of several batches are put below each other, and `pooled_sinks` judges them together.

    Args:
        result: of `sink_test`, of maps [texts, ..., n, n].
        label: "start", the key's position; "end", its position less the number of tokens (−1 is the last);
            "token", the token at the key, its occurrences in one text added up.
        lengths: tokens of each text, as given to `sink_test`.
        tokens: of each text, for label "token".

    Returns:
        A DataFrame with map (which of the text's maps, counted over the axes between text and key), label,
        texts (that have the label as an eligible key), above (those in which it receives more than twice
        uniform attention), mass, expected, variance, largest, uniform and queries.

    Raises:
        ValueError: an unknown label, maps without an axis of texts, another number of lengths or tokens.

    Example:
        >>> import torch, attnscope as asc
        >>> star = torch.zeros(4, 6, 6); star[..., 0] = 1
        >>> asc.sink_sums(asc.sink_test(star))["texts"].tolist()
        [4, 4, 4]
    """
    import pandas as pd

    name = "sink_sums"
    if not isinstance(result, SinkTest):
        raise TypeError(f"{name}: result must be a SinkTest, got {type(result).__name__}")
    scalars.choice_argument(name, "label", label, LABELS)
    if result.queries.ndim < 2:
        raise ValueError(
            f"{name}: maps must have an axis of texts, got sums of shape {tuple(result.queries.shape)}"
        )
    texts, n = len(result.queries), result.queries.shape[-1]
    sizes = np.full(texts, n)
    if lengths is not None:
        # one length for all maps of a text
        length_values = _checks.as_tensor(name, "lengths", lengths).reshape(-1)
        if length_values.numel() not in (1, texts):
            raise ValueError(
                f"{name}: lengths must hold one number a text ({texts}), got {length_values.numel()}"
            )
        sizes = np.broadcast_to(length_values.numpy(), texts)
    text, key_map, key = (part.numpy() for part in result.eligible.reshape(texts, -1, n).nonzero().unbind(-1))
    labels: Any = key if label == "start" else key - sizes[text]
    if label == "token":
        if tokens is None or len(tokens) != texts:
            raise ValueError(f"{name}: tokens must hold {texts} texts, got {len(tokens or ())}")
        labels = [tokens[row][place] for row, place in zip(text, key, strict=True)]
    columns = {
        field: getattr(result, field).detach().reshape(texts, -1, n).numpy()[text, key_map, key]
        for field in ("mass", "expected", "variance", "largest", "uniform", "queries")
    }
    sums = {name: "max" if name == "largest" else "sum" for name in columns}
    table = pd.DataFrame({"text": text, "map": key_map, "label": labels, **columns})
    table = table.groupby(["text", "map", "label"], as_index=False).agg(sums)
    table["texts"] = 1
    table["above"] = (table["mass"] > TIMES_UNIFORM * table["uniform"]).astype(np.int64)
    table = table.groupby(["map", "label"], as_index=False).agg({"texts": "sum", "above": "sum", **sums})
    return table


def pooled_sinks(
    sums: pd.DataFrame, *, texts: int, by: Sequence[str] = ("map",), alpha: float = ALPHA
) -> pd.DataFrame:
    """Apply the test of `sink_test` to sums over texts: find labels at which heads have a sink in text after
    text.

    The sums of keys that are eligible in their own text are added, `largest` as the maximum. A label is
    eligible with such a key in at least half of the texts and in at least min(3, texts). It is a sink when
    the test holds on the sums, with ln(eligible labels/alpha), when its mean far attention exceeds twice
    that of uniform attention on the sums, and in more than half of the texts that have it.

    Args:
        sums: what `sink_sums` gives for one kind of label, of one batch or of several below each other.
        texts: how many texts were tested.
        by: columns that keep maps apart, for example ["layer", "map"].
        alpha: what the chance of any sink in a head without one stays below, in (0, 1).

    Returns:
        A DataFrame with the columns of `by`, label, texts, eligible, sink (both bool), mean, uniform (means
        over the queries), excess and threshold (NaN where not eligible).

    Raises:
        ValueError: alpha outside (0, 1), fewer than one text, a missing column.

    Example:
        Six tokens are too few for a test of one text; four texts together show the first key.

        >>> import torch, attnscope as asc
        >>> star = torch.zeros(4, 6, 6); star[..., 0] = 1
        >>> result = asc.sink_test(star)
        >>> pooled = asc.pooled_sinks(asc.sink_sums(result), texts=4)
        >>> result.position.tolist(), pooled["label"][pooled["sink"]].tolist()
        ([-1, -1, -1, -1], [0])
    """
    name = "pooled_sinks"
    alpha = scalars.fraction_argument(name, "alpha", alpha)
    if not hasattr(sums, "groupby"):
        raise TypeError(f"{name}: sums must be a pandas DataFrame, got {type(sums).__name__}")
    texts = scalars.at_least(name, "texts", texts, 1)
    if isinstance(by, str) or not (
        isinstance(by, Sequence) and all(isinstance(column, str) for column in by)
    ):
        raise TypeError(f"{name}: by must be a list of columns, got {by!r}")
    added = ("texts", "above", "mass", "expected", "variance", "uniform", "queries")
    if missing := [column for column in (*by, "label", "largest", *added) if column not in sums.columns]:
        raise ValueError(f"{name}: sums has no column {missing[0]!r}, only {', '.join(sums.columns)}")
    aggregation = dict.fromkeys(added, "sum") | {"largest": "max"}
    table = sums.groupby([*by, "label"], as_index=False).agg(aggregation)
    table["eligible"] = (2 * table["texts"] >= texts) & (table["texts"] >= min(FEWEST_TEXTS, texts))
    tested = table.groupby(list(by))["eligible"].transform("sum") if by else table["eligible"].sum()
    excess = table["mass"] - table["expected"]
    threshold = bernstein(table["variance"].to_numpy(), table["largest"].to_numpy(), tested, alpha)
    table["threshold"] = np.where(table["eligible"], threshold, math.nan) / table["queries"]
    table["excess"] = excess / table["queries"]
    table["sink"] = (
        table["eligible"]
        & (excess >= threshold)
        & (table["mass"] > TIMES_UNIFORM * table["uniform"])
        & (2 * table["above"] > table["texts"])
    )
    table["mean"] = table["mass"] / table["queries"]
    table["uniform"] = table["uniform"] / table["queries"]
    columns = ["label", "texts", "eligible", "sink", "mean", "uniform", "excess", "threshold"]
    return table[[*by, *columns]]


def _count(result: SinkTest) -> torch.Tensor:
    """Return the number of sinks, negative where no key was tested."""
    return torch.where(result.untested, -1, result.sinks.sum(-1))


def _excess(result: SinkTest) -> torch.Tensor:
    """Return the excess of the strongest sink, NaN without one."""
    strongest = result.excess.gather(-1, result.position.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return torch.where(result.position >= 0, strongest, math.nan)


# Far from key 0 of the star are the queries 4 to 31, each with i − 3 far keys, one of which holds everything.
_STAR_EXCESS = 1 - sum(1 / count for count in range(1, 29)) / 28

QUANTITIES = (
    Quantity(
        "sink_count",
        "sink_test",
        "sinks per map",
        "Keys that receive more from afar than exchangeable attention gives any; null where none is tested.",
        ClosedForm(1, first_key_map(32)),
        kind="count",
        low=0,
        high=float,
        read=_count,
        also=("sink_tokens",),
    ),
    Quantity(
        "sink_excess",
        "sink_test",
        "excess of the sink",
        "Mean attention from afar of the strongest sink less what exchangeable attention gives it.",
        ClosedForm(_STAR_EXCESS, first_key_map(32)),
        low=0,
        high=1,
        read=_excess,
        also=("sink_excess",),
    ),
)
