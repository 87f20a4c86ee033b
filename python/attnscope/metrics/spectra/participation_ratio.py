# SPDX-License-Identifier: MIT
"""The number of directions that share a head's energy."""

from __future__ import annotations

from typing import Literal

import torch

from attnscope import _calls, _checks, _core
from attnscope.arguments import scalars
from attnscope.arguments.unmaterialized import Unmaterialized
from attnscope.metrics.closed_forms import first_key_map, identity
from attnscope.metrics.quantity import ClosedForm, Quantity

Spectrum = Literal["singular", "eigen", "laplacian"]


def participation_ratio(
    attention: torch.Tensor,
    *,
    spectrum: Spectrum = "singular",
    seed: int = 0,
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    query_positions: _checks.Positions = None,
    query_lengths: _checks.Lengths = None,
    cross: bool = False,
    validate: bool = False,
) -> torch.Tensor:
    """Return the participation ratio (Σe)²/Σe² of each head's spectrum.

    "singular": e = σ², as ‖A‖_F⁴/‖AᵀA‖_F². "eigen": e = |λ(A)|; of a causal map these are its diagonal.
    "laplacian": the eigenvalues of the Laplacian of (A + Aᵀ)/2 without its diagonal, as tr(L)²/‖L‖_F².

    Args:
        attention: attention maps [..., q, k], any strides, CPU or CUDA; rows are queries.
        spectrum: whose energies. Only "singular" is of maps that are not square; neither it nor
            "laplacian" needs a decomposition of square ones.
        seed: of the random probes, for `LazyAttention` alone.
        precision: "exact", or "fast" for "singular" in float32 with sums of 64 terms added up in float64:
            a relative error below 1e-5. Maps with a negative entry, of which float32 does not hold that, and
            maps that are not square are measured exactly, and so are the other spectra; of so few tokens that
            it takes no longer (95, causal 191) every map is.
        lengths: tokens per map, broadcast against the leading axes; each map is cut to its leading block.
        query_positions, query_lengths, cross: of maps [..., q, k], as in `incoming_attention`.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning NaN for that map.

    Returns:
        [...] float64, in [1, min(q, k)] ("laplacian": [1, n − 1]); NaN where every energy is 0. "singular"
        and "laplacian" have a relative error below 1e-11 in "exact". "eigen" has no such bound where a map
        is neither causal nor nearly normal: the eigenvalues of a sharp head that attends to the next token
        move by far more than the rounding of its entries. Of `LazyAttention` "singular" is an
        `IntervalEstimate` of 95 %.

    Raises:
        ValueError: not square unless "singular", unknown spectrum, and as `singular_values`.

    Example:
        The identity has n equal singular values; uniform causal attention has the eigenvalues 1/i.

        >>> import torch, attnscope as asc
        >>> asc.participation_ratio(torch.eye(6)).item()
        6.0
        >>> uniform = torch.tril(torch.ones(10, 10, dtype=torch.float64)) / torch.arange(1, 11)[:, None]
        >>> round(asc.participation_ratio(uniform, spectrum="eigen").item(), 3)
        5.536

    References:
        Bell and Dean, Atomic vibrations in vitreous silica, 1970. Ruscio et al., What are you sinking?, 2025.
    """
    name = "participation_ratio"
    _checks.precision_argument(name, precision, attention)
    scalars.choice_argument(name, "spectrum", spectrum, ("singular", "eigen", "laplacian"))
    places = _checks.places_argument(name, query_positions, query_lengths, cross)
    if spectrum != "singular":
        _checks.refuse_places(f"{name} of the spectrum {spectrum!r}", places)
    checked = _checks.attention_argument(
        name, attention, lengths, validate=validate, places=places if spectrum == "singular" else None
    )
    seed = scalars.at_least(name, "seed", seed, 0)
    if isinstance(checked.tensor, Unmaterialized):
        return _calls.call_and_warn(_core.participation_ratio, name, checked, spectrum, seed)
    return _calls.call_and_warn(_core.participation_ratio, name, checked, spectrum, precision=precision)


QUANTITIES = (
    Quantity.of(
        "participation_ratio",
        "participation ratio",
        "(Σe)²/Σe² over the squared singular values e of A: how many directions carry the map.",
        ClosedForm(4.0, identity(4)),
        symbol="PR",
        low=1,
        high=float,
    ),
    Quantity(
        "participation_ratio_eigen",
        "participation_ratio",
        "participation ratio (eigenvalues)",
        "The participation ratio of |eigenvalues of A|.",
        ClosedForm(4.0, identity(4)),
        low=1,
        high=float,
        options={"spectrum": "eigen"},
    ),
    # the star's Laplacian has 1/2 four times and 3 once: 5²/10
    Quantity(
        "participation_ratio_laplacian",
        "participation_ratio",
        "participation ratio (Laplacian)",
        "The participation ratio of the Laplacian's eigenvalues.",
        ClosedForm(2.5, first_key_map(6)),
        low=1,
        high=lambda n: n - 1,
        options={"spectrum": "laplacian"},
    ),
)
