# SPDX-License-Identifier: MIT
"""States as a signal on the graph of attention: whether tokens that attend to each other are alike."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope import _calls, _checks
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.arguments.host_copies import row_major
from attnscope.gradients.refusal import refuse_backward
from attnscope.metrics import _powers
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.closed_forms import uniform_map
from attnscope.metrics.quantity import ClosedForm, Quantity, Site, attribute_reader

#: Eigenvalues closer than this, next to the largest and to 1, count as equal.
EQUAL = 1e-9


@shown_by_shape
class GraphSignal(NamedTuple):
    """States on the graph of each map, [...] float64.

    Attributes:
        energy: tr XᵀLX.
        smoothness: energy/‖X‖², in [0, 2] of the normalised Laplacian; NaN where X = 0.
        entropy: −Σ p ln p of the shares p of ‖X‖² by eigenvector, in [0, ln n]; NaN where X = 0.
        high_share: Σ p of the ⌈cut·n⌉ largest eigenvalues, in [0, 1]; likewise.
    """

    energy: Tensor
    smoothness: Tensor
    entropy: Tensor
    high_share: Tensor


@memory_errors("graph_signal")
def graph_signal(
    attention: Tensor,
    states: Tensor,
    *,
    normalized: bool = True,
    cut: float = 0.1,
    center: bool = False,
    spectrum: bool = True,
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    validate: bool = False,
) -> GraphSignal:
    """Return how states vary along attention.

    With W = (A + Aᵀ)/2 without its diagonal and the Laplacian L as in `fiedler_value`, energy = tr XᵀLX, and
    p_k = ‖u_kᵀX‖²/‖X‖² is the share of eigenvector u_k of L. Equal eigenvalues share theirs evenly, because p
    otherwise depends on the basis that the solver chose.

    Args:
        attention: maps [..., n, n], any strides; rows are queries.
        states: X [..., n, d], leading axes broadcast against those of attention; `block_output` of a layer.
        normalized: take I − D^{-1/2} W D^{-1/2}, where an isolated node's row is 0; else D − W.
        cut: share of the eigenvalues that count as high, in (0, 1].
        center: subtract the mean of the states first.
        spectrum: False leaves out entropy and high_share (NaN), and with them the solver.
        support: which keys a query sees; entries of others count as 0. "auto" takes all as they are.
        precision: "fast" gives the exact value: it has no faster way.
        lengths: tokens per map, broadcast against the leading axes.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning NaN for that map.

    Returns:
        GraphSignal; NaN where a map or its states are not finite.

    Raises:
        ValueError: states of another number of tokens, a cut outside (0, 1], and as `incoming_attention`.

    Example:
        Uniform attention among four tokens, one of which has a state.

        >>> import torch, attnscope as asc
        >>> state = torch.eye(4, 1, dtype=torch.float64)
        >>> found = asc.graph_signal(torch.full((4, 4), 0.25), state, normalized=False, cut=0.25)
        >>> [round(value.item(), 6) for value in found]  # 3/4, 3/4, ln 4, 1/4
        [0.75, 0.75, 1.386294, 0.25]

    References:
        Noël, A graph signal processing framework for hallucination detection, 2025.
    """
    name = "graph_signal"
    _checks.precision_argument(name, precision, attention)
    flags = {"normalized": normalized, "center": center, "spectrum": spectrum}
    flags = {option: scalars.flag(name, option, value) for option, value in flags.items()}
    high = scalars.real(name, "cut", cut)
    if not 0 < high <= 1:
        raise ValueError(f"{name}: cut must lie in (0, 1], got {cut!r}")
    checked = _checks.attention_argument(name, attention, lengths, validate=validate)
    seen = _checks.support_argument(name, support, checked)
    result = _calls.undefined_results(name, (4, math.prod(checked.leading)))
    maps = _checks.entries_argument(name, checked, detach=False).reshape(-1, checked.n, checked.n)
    signals = _signals_argument(name, states, checked)
    visible = seen.expand(checked.tensor.shape).reshape(maps.shape) if isinstance(seen, Tensor) else None
    ends = torch.full((len(maps),), checked.n, device="cpu")
    if checked.lengths is not None:
        ends = checked.lengths.flatten()
    bad = 0
    for end in sorted(set(ends.tolist())):
        places = (ends == end).nonzero().flatten()
        graphs = row_major(maps[places, :end, :end].double())
        if visible is not None:
            graphs = torch.where(visible[places, :end, :end], graphs, 0.0)
        elif seen == "causal":
            graphs = graphs.tril()
        parts = row_major(signals[places, :end].double())
        finite = graphs.isfinite().all((-2, -1)) & parts.isfinite().all((-2, -1))
        bad += int((~finite).sum())
        values = _values(graphs[finite], parts[finite], high, **flags)
        result[:, places[finite]] = values
    shaped = GraphSignal(*(values.reshape(checked.leading) for values in result))
    if result.requires_grad:
        reason = f"{name} has no derivative of {{}}: equal eigenvalues have no eigenvectors of their own"
        shaped = shaped._replace(
            entropy=refuse_backward(shaped.entropy, result, reason.format("entropy")),
            high_share=refuse_backward(shaped.high_share, result, reason.format("high_share")),
        )
    return _calls.warn_non_finite(name, checked, shaped, bad, "matrices or their states")


def _signals_argument(function: str, states: Any, checked: _checks.Attention) -> Tensor:
    """Return the states of each map, [count, n, d]."""
    tensor = _checks.to_host(_checks.float_tensor(function, "states", states))
    if tensor.ndim < 2 or tensor.shape[-2] != checked.n:
        raise ValueError(
            f"{function}: states must be [..., {checked.n}, d], one row for each token, got shape "
            f"{tuple(tensor.shape)}"
        )
    shape = (*checked.leading, *tensor.shape[-2:])
    return _checks.expanded(f"{function}: states", tensor, shape).reshape(-1, *tensor.shape[-2:])


def _laplacian(graphs: Tensor, *, normalized: bool) -> Tensor:
    """Return the Laplacians of the graphs of maps [m, n, n], after the means with their transposes."""
    weights = (graphs + graphs.mT) / 2
    weights.diagonal(dim1=-2, dim2=-1).zero_()
    degrees = weights.sum(-1)
    if not normalized:
        return torch.diag_embed(degrees) - weights
    roots = torch.where(degrees > 0, torch.where(degrees > 0, degrees, 1.0).rsqrt(), 0.0)
    return torch.diag_embed((degrees > 0).double()) - roots[..., :, None] * weights * roots[..., None, :]


def _values(
    graphs: Tensor, signals: Tensor, cut: float, *, normalized: bool, center: bool, spectrum: bool
) -> Tensor:
    """Return energy, smoothness, entropy and high_share [4, m] of finite maps and states of one length."""
    laplacian = _laplacian(graphs, normalized=normalized)
    if center:
        # From the first token on, so that equal states are at exactly 0 whatever their mean rounds to.
        signals = signals - signals[:, :1]
        signals = signals - signals.mean(-2, keepdim=True)
    signals, scales = _powers.in_range(signals)
    total = signals.square().sum((-2, -1))
    energy_in_range = (signals * (laplacian @ signals)).sum((-2, -1)).clamp_min(0.0)
    undefined = torch.full_like(total, torch.nan)
    smoothness = torch.where(total > 0, energy_in_range / torch.where(total > 0, total, 1.0), undefined)
    energy = _powers.unscaled(energy_in_range, scales, power=2)
    if not spectrum:
        return torch.stack([energy, smoothness, undefined, undefined])
    eigenvalues, vectors = torch.linalg.eigh(laplacian.detach())
    total = torch.where(total > 0, total, torch.nan).detach()
    shares = (vectors.mT @ signals.detach()).square().sum(-1) / total[:, None]
    shares = _share_evenly(eigenvalues, shares)
    high = math.ceil(cut * shares.shape[-1] - EQUAL)
    entropy = torch.special.entr(shares).sum(-1)
    return torch.stack([energy, smoothness, entropy, shares[..., shares.shape[-1] - high :].sum(-1)])


def _share_evenly(eigenvalues: Tensor, shares: Tensor) -> Tensor:
    """Return shares [m, n], the mean over each run of equal eigenvalues, which ascend."""
    if not eigenvalues.numel():
        return shares
    tolerance = EQUAL * eigenvalues[:, -1:].clamp_min(1.0)
    begins = torch.nn.functional.pad(eigenvalues.diff() > tolerance, (1, 0), value=False)
    run = begins.long().cumsum(-1)
    zeros = torch.zeros_like(shares)
    sums, sizes = zeros.scatter_add(-1, run, shares), zeros.scatter_add(-1, run, torch.ones_like(shares))
    return sums.gather(-1, run) / sizes.gather(-1, run)


#: Under uniform attention with a state at one token: combinatorial L = I − 1/4, eigenvalues 0, 1, 1, 1.
_STATE = {"block_output": torch.eye(4, 1, dtype=torch.float64, device="cpu")}


def _field(name: str, label: str, meaning: str, expected: float, **bounds: Any) -> Quantity:
    return Quantity(
        f"signal_{name}",
        "graph_signal",
        label,
        meaning,
        ClosedForm(expected, uniform_map(4), _STATE),
        options={"states": Site("block_output")},
        read=attribute_reader(name),
        needs=("attention", "block_output"),
        low=0,
        **bounds,
    )


QUANTITIES = (
    _field(
        "smoothness",
        "variation of states along attention",
        "Energy of the states behind the layer on the normalised Laplacian of attention, over their norm.",
        1.0,
        high=2,
    ),
    _field(
        "entropy",
        "entropy of the states' graph spectrum",
        "Entropy of the states' shares by eigenvector of the normalised Laplacian.",
        math.log(4),
        high=lambda n: math.log(n) if n > 1 else 1.0,
    ),
    _field(
        "high_share",
        "share of high graph frequencies",
        "Share of the states on the tenth of the eigenvectors with the largest eigenvalues.",
        0.25,
        high=1,
    ),
)
