# SPDX-License-Identifier: MIT
"""The distance of a head's spectrum from that of random rows."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch

from attnscope import _calls, _checks, _core
from attnscope._warn import warn
from attnscope.arguments import scalars
from attnscope.errors import UndefinedWarning
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.closed_forms import hadamard
from attnscope.metrics.quantity import ClosedForm, Quantity, attribute_reader

Null = Literal["auto", "full", "causal", "permutation"]
Support = Literal["auto", "causal", "full"] | torch.Tensor


@shown_by_shape
class MarchenkoPastur(NamedTuple):
    """Distance of each head's spectrum from its null, every field [...].

    ks: sup |F_emp − F|, in [0, 1]. wasserstein: ∫ |F_emp − F| dx. outliers: eigenvalues above
    edge·(1 + m^{-2/3}), m = min(q, k), int64. outlier_energy: their share of the sum. largest: the largest
    eigenvalue. edge: the null's upper edge. p_value: of `ks`, NaN unless the null is a permutation.
    """

    ks: torch.Tensor
    wasserstein: torch.Tensor
    outliers: torch.Tensor
    outlier_energy: torch.Tensor
    largest: torch.Tensor
    edge: torch.Tensor
    p_value: torch.Tensor


def marchenko_pastur(
    attention: torch.Tensor,
    *,
    null: Null = "auto",
    support: Support = "auto",
    draws: int = 20,
    seed: int = 0,
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> MarchenkoPastur:
    """Compare the spectrum of each head's standardised rows with that of random rows on the same support.

    X_ij = (A_ij − m_i)/s_i over the keys that query i sees and 0 elsewhere; rows whose visible entries are
    all equal are dropped. The eigenvalues are σ(X)²/n with n the keys, one for each of the m rows kept, from
    an SVD of X. Full support: the Marchenko–Pastur law of aspect m/n; where more rows are kept than there are
    keys, of n/m, over m. Causal support: the triangular law of Dykema and Haagerup on [0, e]; a square
    Marchenko–Pastur law is wrong there. The law of q causal queries at the last of n keys is that of their
    trapezoid, which is that triangle where q = n. Any other support: the pooled
    spectra of `draws` copies of X whose rows are shuffled within their visible keys.

    On the laws themselves some map has an outlier in about 4, 10 and 14 % of cases at n = 64, 128, 256
    under a causal mask, and 3 % without: calibrate counts by `null="permutation"`. p-values that are
    corrected for multiplicity need draws >= 999.

    Args:
        attention: attention maps [..., q, k], any strides, CPU or CUDA; rows are queries.
        null: what to compare with; "auto" chooses by the support, as above.
        support: which keys a query sees, as in `incoming_attention`.
        draws: shuffled copies, for a permutation null.
        seed: of the shuffles. They depend on the seed and on the map's own entries, never on its place in
            the batch or on threads.
        precision: "fast" has an error of ks below 1e-4 and of the other numbers below 1e-5, relative, and
            the exact outliers: of square maps of 257 to 1,024 tokens against the law of their support the
            singular values come from float32, and ks of shorter causal ones is read off the eigenvalues that
            the other fields take. A map of which those leave more open is measured exactly. Any other map has
            its exact value.
        lengths: tokens per map, broadcast against the leading axes; each map is cut to its leading block.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning NaN for that map.

    Returns:
        MarchenkoPastur, each field [...]; NaN, outliers −1, for fewer than eight queries or keys and for
        maps in which no row varies. Error of ks below 1e-10 where no eigenvalue lies within rounding of the
        1e-12·edge cut. `wasserstein` of square maps and a law hands the gradient on.

    Raises:
        ValueError: an unknown null, the causal one for cross attention, draws < 1, and as
            `incoming_attention`.

    Example:
        A permutation matrix: each row is one entry sqrt(n − 1) among −1/sqrt(n − 1), so X is orthogonal up
        to its mean, with n − 1 eigenvalues n/(n − 1).

        >>> import torch, attnscope as asc
        >>> result = asc.marchenko_pastur(torch.eye(16, dtype=torch.float64).roll(1, 0))
        >>> round(result.largest.item(), 12), result.edge.item(), result.outliers.item()
        (1.066666666667, 4.0, 0)

    References:
        Marčenko and Pastur, Distribution of eigenvalues for some sets of random matrices, 1967. Dykema and
        Haagerup, DT-operators and decomposability of Voiculescu's circular operator, 2004.
    """
    name = "marchenko_pastur"
    precision = _checks.precision_argument(name, precision, attention)
    places = _checks.places_argument(name, query_positions, query_lengths, cross)
    checked = _checks.attention_argument(name, attention, lengths, validate=validate, places=places)
    return MarchenkoPastur(*_compare(name, checked, null, support, draws, seed, precision, all_fields=True))


@without_derivative("it is the supremum of a step function")
def marchenko_pastur_deviation(
    attention: torch.Tensor,
    *,
    null: Null = "auto",
    support: Support = "auto",
    draws: int = 20,
    seed: int = 0,
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> torch.Tensor:
    """Return the Kolmogorov–Smirnov distance of each head's spectrum from its null: `ks` of
    `marchenko_pastur`.

    Args:
        attention: maps [..., q, k]; arguments and errors are those of `marchenko_pastur`.
        precision: "fast" has an error below 1e-4.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.

    Returns:
        [...] float64, in [0, 1]; NaN as there; of `LazyAttention` an `IntervalEstimate`, of 95 % over
        the random vectors that `seed` gives, and certain about what the steps from them leave open. Its
        queries see all keys or those up to their own; its rows count as equal where (s/m)² <= 1e-11.

    Example:
        The n − 1 equal eigenvalues of a permutation matrix are far from any law.

        >>> import torch, attnscope as asc
        >>> bool(asc.marchenko_pastur_deviation(torch.eye(16).roll(1, 0)) > 0.3)
        True

    References:
        Ubaru, Chen and Saad, Fast estimation of tr(f(A)) via stochastic Lanczos quadrature, 2017.
    """
    name = "marchenko_pastur_deviation"
    precision = _checks.precision_argument(name, precision, attention)
    places = _checks.places_argument(name, query_positions, query_lengths, cross)
    checked = _checks.attention_argument(name, attention, lengths, validate=validate, places=places)
    ks: torch.Tensor = _compare(name, checked, null, support, draws, seed, precision, all_fields=False)[0]
    return ks


def _compare(
    name: str,
    checked: _checks.Attention,
    null: str,
    support: Support,
    draws: int,
    seed: int,
    precision: _checks.Precision,
    *,
    all_fields: bool,
) -> list[Any]:
    """Return the fields of `MarchenkoPastur`; of lazy attention ks alone, with its interval."""
    null = scalars.choice_argument(name, "null", null, ("auto", "full", "causal", "permutation"))
    if null == "causal" and checked.cross:
        raise ValueError(f"{name}: in cross attention nothing is causal, got null='causal'")
    visible = _checks.support_argument(name, support, checked)
    draws = scalars.at_least(name, "draws", draws, 1)
    seed = scalars.at_least(name, "seed", seed, 0)
    kernel_arguments = (visible, null, draws, seed, all_fields)
    *fields, undefined = _calls.call_and_warn(
        _core.marchenko_pastur, name, checked, *kernel_arguments, precision=precision
    )
    if undefined:
        undefined = int(undefined)
        message = (
            f"{name}: {undefined} of {math.prod(checked.leading)} matrices have fewer than 8 tokens or no "
            "row that varies; their results are NaN (outliers -1)"
        )
        warn(UndefinedWarning(message, name, undefined))
    return fields


SOURCES = (marchenko_pastur_deviation,)  # called where there is no map to derive it from
DERIVED = {"marchenko_pastur_deviation": ("marchenko_pastur", lambda result: result.ks)}

# All seven eigenvalues of the Hadamard map are 1. The distances are those of 1 from the law of aspect 7/8:
# the larger of F(1) and 1 − F(1), and the integral of |x − 1| over the law.
_KS, _WASSERSTEIN, _EDGE = 0.6015919507048966, 0.7762012825143158, (1 + math.sqrt(7 / 8)) ** 2


def _of_spectrum(field: str, label: str, meaning: str, expected: float, **fields: Any) -> Quantity:
    fields |= {"low": 0, "read": attribute_reader(field)}
    return Quantity(
        f"mp_{field}", "marchenko_pastur", label, meaning, ClosedForm(expected, hadamard()), **fields
    )


QUANTITIES = (
    _of_spectrum(
        "ks",
        "KS from random law",
        "Kolmogorov-Smirnov distance between the spectrum of the row-standardised map and the law of random "
        "entries on the same support.",
        _KS,
        high=1,
        also=("marchenko_pastur_deviation",),
    ),
    _of_spectrum(
        "wasserstein",
        "distance from random law",
        "Wasserstein distance from the law of random entries.",
        _WASSERSTEIN,
        symbol=r"$W_1$",
    ),
    _of_spectrum(
        "outliers", "outliers", "Eigenvalues above the edge of the random law.", 0, kind="count", high=float
    ),
    _of_spectrum(
        "outlier_energy", "energy of outliers", "Share of the spectrum's sum held by outliers.", 0.0, high=1
    ),
    _of_spectrum(
        "largest",
        "largest eigenvalue",
        "Largest eigenvalue of the row-standardised map's Gram matrix over n.",
        1.0,
    ),
    _of_spectrum("edge", "edge of the law", "Upper edge of the random law.", _EDGE, kind="constant"),
)
