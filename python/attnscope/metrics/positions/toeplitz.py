# SPDX-License-Identifier: MIT
"""Scores split into a profile of the offset and the rest, and the effect of the causal mask by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch

from attnscope import _calls, _checks, _core
from attnscope._warn import warn
from attnscope.arguments import scalars
from attnscope.errors import NonFiniteWarning
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.closed_forms import uniform_causal_map
from attnscope.metrics.quantity import ClosedForm, Quantity, attribute_reader

Estimator = Literal["late", "simple"]


@shown_by_shape
class ToeplitzSplit(NamedTuple):
    """Scores of the first m queries as s_ij = T_{i−j} + R_ij; the body of query i is its keys 1 … i.

    Attributes:
        profile: T_D by offset D.
        residual: R_ij; NaN above the diagonal, where the key is invisible and where T is NaN.
        row: Σ_j w_j R_ij over the body: a constant of the row, which no softmax can see.
        variance: Σ_j w_j (R_ij − row)² over the body, squared nats for scores in nats; NaN for fewer than two
            keys.
        first: R_i0 less the plain mean of R over the body: the preference of key 0 over an ordinary key at
            its offset.
        lse: log Σ_{j<=i} exp s_ij; NaN for a query that sees no key.
    """

    profile: torch.Tensor
    residual: torch.Tensor
    row: torch.Tensor
    variance: torch.Tensor
    first: torch.Tensor
    lse: torch.Tensor


@shown_by_shape
class MaskOnly(NamedTuple):
    """Late queries cut to their nearest i + 1 keys, means over these queries; uncut they see the nearest m.

    Attributes:
        lse: log Σ_{D<=i} exp s_D.
        cut: −log of the share of uncut attention that is left, >= 0; log(m/(i+1)) for equal scores.
        share: total variation between the cut and the uncut attention, in [0, 1].
        attention: of the chosen queries by key, [..., Q, m], 0 behind the query.
    """

    lse: torch.Tensor
    cut: torch.Tensor
    share: torch.Tensor
    attention: torch.Tensor


@shown_by_shape
class OffsetVariance(NamedTuple):
    """Population moments along the diagonals: mean, variance and number of visible entries by offset."""

    mean: torch.Tensor
    variance: torch.Tensor
    count: torch.Tensor  # type: ignore[assignment]


@without_derivative("it is made for reading")
def toeplitz_split(
    scores: torch.Tensor,
    *,
    estimator: Estimator = "late",
    weights: Literal["uniform"] | torch.Tensor = "uniform",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    validate: bool = False,
) -> ToeplitzSplit:
    """Split attention scores into a profile of the offset i − j and a residual.

    "late": the second half of the queries, m … 2m − 1 with m = n // 2, is the reference: T_D is the mean of
    s_{i,i−D} over them, m pairs at every offset and none with key 0, and the first half is described.
    "simple": T_D is the mean over all queries, and all are described; it has few pairs at long offsets and
    holds key 0. A single text's residual measures its content; means over texts have `PositionProfile`.

    Args:
        scores: arguments of the softmax [..., n, n], -inf where a key is invisible; entries above the
            diagonal play no part. Logarithms of attention serve as well: they differ by a row constant.
        estimator: "late" (m = n // 2; an odd last query is not used) or "simple" (m = n).
        weights: of the body keys, "uniform" or a tensor [m, m] or [..., m, m]; those of keys that have a
            residual are divided by their sum.
        precision: "fast" gives the exact value: it has no faster way.
        lengths: tokens per map, broadcast against the leading axes.
        validate: refuse NaN and +inf at j <= i instead of returning NaN for that map.

    Returns:
        ToeplitzSplit, float64: residual [..., m, m], the rest [..., m]; NaN past a map's own m. Scaling the
        scores by a scales `variance` by a²; adding a constant to a row changes only `row` and `lse`.

    Raises:
        ValueError: not square, empty, wrong dtype, an unknown estimator, negative weights or of another
            shape.

    Example:
        Scores 1 where the query attends to itself and 0 elsewhere are a profile and nothing else.

        >>> import torch, attnscope as asc
        >>> split = asc.toeplitz_split(torch.eye(8, dtype=torch.float64))
        >>> split.profile
        tensor([1., 0., 0., 0.], dtype=torch.float64)
        >>> split.variance
        tensor([nan, nan, 0., 0.], dtype=torch.float64)

    References:
        Ruscio, Nanni and Silvestri, arXiv 2606.06160, 2026, whose abstract names the two sources; the late
        reference is attnscope's.
    """
    name = "toeplitz_split"
    _checks.precision_argument(name, precision, scores)
    late = scalars.choice_argument(name, "estimator", estimator, ("late", "simple")) == "late"
    checked = _scores_argument(name, scores, lengths, validate)
    _checks.require_map(name, checked)
    weighing, matrices = None, 0
    if not (isinstance(weights, str) and weights == "uniform"):
        weighing = _weights_argument(name, weights, checked, checked.n // 2 if late else checked.n)
        matrices = math.prod(weighing.shape[:-2])
    results, bad = _core.toeplitz_split(checked.tensor, checked.lengths, late, weighing, matrices)
    return finish_scores(name, checked, ToeplitzSplit(*results), bad)


@without_derivative("it is made for reading")
def mask_only(
    scores: torch.Tensor,
    *,
    queries: Sequence[int] | torch.Tensor | None = None,
    body: bool = False,
    sink_logit: torch.Tensor | float | None = None,
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    validate: bool = False,
) -> MaskOnly:
    """Return the attention of late queries that see only their nearest i + 1 keys: the effect of the causal
    mask.

    Early attention that differs from it has been moved by something other than the mask. The means are over
    the late queries m … 2m − 1, m = n // 2, that see themselves: real rows with their content, because the
    log-sum of mean scores is not the mean of log-sums.

    Args:
        scores: as in `toeplitz_split`.
        queries: ascending, whose attention is wanted, each in 0 … m − 1; None: all.
        body: `attention` of the nearest i keys, on the keys 1 … i, to be compared with A_ij/(1 − A_i0); NaN
            for query 0. The other results are the same.
        sink_logit: of a learned sink, which counts in every log-sum, broadcast against the leading axes:
            [h] for scores [B, h, n, n].
        precision: "fast" gives the exact value: it has no faster way.
        lengths: tokens per map.
        validate: as in `toeplitz_split`.

    Returns:
        MaskOnly, float64: lse, cut, share [..., m], attention [..., Q, m]. `cut` and `share` are 0 at
        i = m − 1 and from i = w − 1 on where only w keys are visible. NaN past a map's own m, and where
        no late query sees itself.

    Raises:
        ValueError: as `toeplitz_split`, queries that do not ascend or are outside, a sink_logit that is
            NaN or +inf or does not broadcast.

    Example:
        Equal scores: of m keys i + 1 are left.

        >>> import torch, attnscope as asc
        >>> result = asc.mask_only(torch.zeros(8, 8), queries=[2])
        >>> result.cut.exp().round(decimals=9)
        tensor([4.0000, 2.0000, 1.3333, 1.0000], dtype=torch.float64)
        >>> result.attention.round(decimals=4)
        tensor([[0.3333, 0.3333, 0.3333, 0.0000]], dtype=torch.float64)

    References:
        Ruscio, Nanni and Silvestri, arXiv 2606.06160, 2026; the cut late rows are attnscope's.
    """
    name = "mask_only"
    _checks.precision_argument(name, precision, scores)
    checked = _scores_argument(name, scores, lengths, validate)
    _checks.require_map(name, checked)
    chosen_queries = _queries_argument(name, queries, checked.n // 2)
    sinks = None
    if sink_logit is not None:
        sinks = _checks.as_tensor(name, "sink_logit", sink_logit, torch.float64).detach().cpu()
        words = "does not broadcast to the leading shape"
        sinks = _checks.expanded(f"{name}: sink_logit", sinks, checked.leading, words).contiguous()
        wrong = ~(sinks < math.inf)
        if bool(wrong.any()):
            raise ValueError(f"{name}: sink_logit must be below +inf, got {float(sinks[wrong][0])}")
    count = 0 if sinks is None else sinks.numel()
    flag = scalars.flag(name, "body", body)
    results, bad = _core.mask_only(checked.tensor, checked.lengths, sinks, count, chosen_queries, flag)
    return finish_scores(name, checked, MaskOnly(*results), bad)


@without_derivative("it is made for reading")
def offset_variance(
    values: torch.Tensor, *, lengths: _checks.Lengths = None, validate: bool = False
) -> OffsetVariance:
    """Mean and population variance along every diagonal i − j = D of the lower triangle.

    Args:
        values: any numbers [..., n, n]: scores, logarithms of attention, one band's scores. -inf is left out;
            entries above the diagonal play no part. Of `LazyAttention` its visible weights.
        lengths: tokens per map, broadcast against the leading axes.
        validate: refuse NaN and +inf at j <= i instead of returning NaN for that map.

    Returns:
        OffsetVariance(mean, variance, count), each [..., n] by offset D = 0 … n − 1, count int64; NaN where
        nothing is visible. NaN and -1 past a map's own length and for a map that is not finite.

    Raises:
        ValueError: not square, empty, wrong dtype, lengths outside 1..n.

    Example:
        >>> import torch, attnscope as asc
        >>> found = asc.offset_variance(torch.tensor([[1.0, 0.0], [5.0, 3.0]]))
        >>> found.mean, found.variance
        (tensor([2., 5.], dtype=torch.float64), tensor([1., 0.], dtype=torch.float64))

    References:
        Welford, Note on a method for calculating corrected sums of squares and products, 1962.
    """
    name = "offset_variance"
    checked = _scores_argument(name, values, lengths, validate, "values")
    results, bad = _calls.call_kernel(_core.offset_variance, checked)
    return finish_scores(name, checked, OffsetVariance(*results), bad)


def _scores_argument(
    function: str, scores: Any, lengths: _checks.Lengths, validate: Any, name: str = "scores"
) -> _checks.Attention:
    """Scores [..., n, n] and their lengths; with `validate`, none of them NaN or +inf at j <= i."""
    checked = _checks.attention_argument(function, scores, lengths, name=name)
    if scalars.flag(function, "validate", validate):
        _checks.require_map(function, checked)
        wrong = (
            ~(checked.tensor < math.inf)
            & torch.ones(checked.n, checked.n, dtype=torch.bool, device="cpu").tril()
        )
        if checked.lengths is not None:
            wrong &= checked.inside()[..., :, None]
        if bool(wrong.any()):
            index = tuple(wrong.nonzero()[0].tolist())
            raise ValueError(
                f"{function}: {name} must be numbers or -inf at j <= i, got {float(checked.tensor[index])} "
                f"at index {index}"
            )
    return checked


def _weights_argument(function: str, weights: Any, scores: _checks.Attention, m: int) -> torch.Tensor:
    """Weights [m, m], or [..., m, m] with one per map."""
    if isinstance(weights, str):
        raise ValueError(f"{function}: weights must be 'uniform' or a tensor, got {weights!r}")
    tensor = _checks.as_tensor(function, "weights", weights, torch.float64).detach().cpu()
    if tuple(tensor.shape) != (m, m):
        shape = (*scores.leading, m, m)
        tensor = _checks.expanded(f"{function}: weights", tensor, shape, "do not broadcast to")
    if not bool((tensor >= 0).all()) or bool(tensor.isinf().any()):
        wrong = tensor[~(tensor >= 0) | tensor.isinf()]
        raise ValueError(f"{function}: weights must be finite and not negative, got {float(wrong[0])}")
    return tensor.contiguous()


def _queries_argument(function: str, queries: Any, m: int) -> list[int]:
    if queries is None:
        return list(range(m))
    if isinstance(queries, list) and all(type(query) is int for query in queries):
        positions: list[int] = queries
    else:
        tensor = _checks.as_tensor(function, "queries", queries)
        if tensor.ndim != 1 or (tensor.is_floating_point() and tensor.numel()) or tensor.dtype == torch.bool:
            raise ValueError(f"{function}: queries must be a list of integers, got {queries!r}")
        positions = [int(query) for query in tensor.tolist()]
    for query in positions:
        if not 0 <= query < m:
            raise ValueError(f"{function}: queries must lie between 0 and m - 1 = {m - 1}, got {query}")
    if sorted(set(positions)) != positions:
        raise ValueError(f"{function}: queries must ascend, got {positions}")
    return positions


def finish_scores(function: str, scores: _checks.Attention, result: Any, bad: int) -> Any:
    """Return `result`, after one warning if some maps were not scores."""
    if bad:
        total = math.prod(scores.leading)
        message = (
            f"{function}: {bad} of {total} matrices hold NaN or +inf at j <= i; their results are NaN "
            "(counts -1)"
        )
        warn(NonFiniteWarning(message, function, bad))
    return result


_NEAR = uniform_causal_map(8).log()
_ODD = torch.zeros(8, 8, dtype=torch.float64, device="cpu")
_ODD[3, 1], _ODD[3, 0] = 3.0, 2.0

QUANTITIES = (
    Quantity(
        "residual",
        "toeplitz_split",
        "residual (nats²)",
        "Variance over a query's keys of what its scores owe to neither the offset nor the row, early half.",
        ClosedForm(2.0, torch.eye(8, device="cpu"), {"scores": _ODD[None]}, entry=(3,)),
        symbol="$c^2$",
        low=0,
        needs=("scores",),
        read=attribute_reader("variance"),
        axes=("query",),
    ),
    Quantity(
        "sink_advantage",
        "toeplitz_split",
        "advantage of key 0 (nats)",
        "How much a query of the early half prefers key 0 to an ordinary key at its offset.",
        ClosedForm(1.0, torch.eye(8, device="cpu"), {"scores": _ODD[None]}, entry=(3,)),
        needs=("scores",),
        read=attribute_reader("first"),
        axes=("query",),
    ),
    Quantity(
        "mask_cut",
        "mask_only",
        "cut by the mask (nats)",
        "−log of the attention that a late query keeps when it sees as few keys as an early one.",
        ClosedForm(math.log(4), torch.eye(8, device="cpu"), {"scores": _NEAR[None]}, entry=(0,)),
        low=0,
        needs=("scores",),
        read=attribute_reader("cut"),
        axes=("query",),
    ),
    Quantity(
        "mask_share",
        "mask_only",
        "share cut by the mask",
        "Total variation between a late query's attention and the same with as few keys as an early one.",
        ClosedForm(0.75, torch.eye(8, device="cpu"), {"scores": _NEAR[None]}, entry=(0,)),
        low=0,
        high=1,
        needs=("scores",),
        read=attribute_reader("share"),
        axes=("query",),
    ),
)

SOURCES = (offset_variance,)
