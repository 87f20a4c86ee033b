# SPDX-License-Identifier: MIT
"""The length of the shortest tree that ties an answer's tokens to the prompt."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope import _checks, _core
from attnscope._memory import memory_errors
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.answers.partial_maps import (
    answers_argument,
    call_partial,
    partial_argument,
    partial_support,
)
from attnscope.metrics.closed_forms import uniform_causal_map
from attnscope.metrics.quantity import ClosedForm, Quantity, Site, attribute_reader


@shown_by_shape
class PromptDivergence(NamedTuple):
    """An answer's distance from its prompt, each [...] float64.

    Attributes:
        per_token: total over the number of answer tokens r, in [0, 1].
        total: the length of the minimum spanning tree over the prompt and the answer's tokens, in [0, r].
        star: the mean distance of an answer token to the prompt, at least per_token.
    """

    per_token: Tensor
    total: Tensor
    star: Tensor


@memory_errors("prompt_divergence")
def prompt_divergence(
    attention: Tensor,
    answer: Any,
    *,
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    validate: bool = False,
) -> PromptDivergence:
    """Return how far an answer is from its prompt: H0 of MTop-Div, the score of TOHA.

    With w_ij = max(A_ij, A_ji) capped at 1 and d = 1 − w, the prompt is one vertex whose distance to answer
    token i is min_{j < start} d_ij. `total` is the length of the minimum spanning tree over the prompt and
    the answer's tokens, which is the sum of the finite H0 bars where d = 0 inside the prompt.

    Read `star` next to it. Both are equal wherever each answer token's largest weight is in the prompt, which
    a first-token sink brings about; the tree is then one minus the largest attention to the prompt.

    Args:
        attention: maps [..., n, n], any strides; or the last q rows of causal maps, [..., q, k].
        answer: first token of the answer and one past its last, int64 [..., 2]; (−1, −1) for none. Tokens
            behind the answer do not count.
        support: "auto" takes all entries as they are; under "causal", or a boolean tensor, an entry that is
            not visible counts as 0.
        precision: "fast" gives the exact value: weights are compared in the map's type anyway.
        lengths: tokens per map, broadcast against the leading axes.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning NaN for that map.

    Returns:
        PromptDivergence; NaN for a map without an answer, without a prompt, or not finite. Ties of weights do
        not change it; weights are compared as they are held, and distances are formed in float64.

    Raises:
        ValueError: an answer that is empty, reversed or outside its map, rows of the answer that are not
            among the last q, and as `incoming_attention`.

    Example:
        Every token attends to the first: no distance. Every token attends to itself: the largest.

        >>> import torch, attnscope as asc
        >>> star = torch.zeros(6, 6); star[:, 0] = 1
        >>> asc.prompt_divergence(star, [2, 6]).total.item()
        0.0
        >>> asc.prompt_divergence(torch.eye(6), [2, 6])
        PromptDivergence(per_token=1, total=4, star=1)

    References:
        Bazarova et al., Hallucination detection in LLMs with topological divergence on attention graphs,
        arXiv 2504.10063, 2025.
    """
    name = "prompt_divergence"
    _checks.precision_argument(name, precision, attention)
    checked = partial_argument(name, attention, lengths, validate=validate)
    seen = partial_support(name, support, checked)
    spans = answers_argument(name, answer, checked)
    return PromptDivergence(*call_partial(_core.prompt_divergence, name, checked, seen, spans.flatten()))


#: Under uniform causal attention token i is 1 − 1/(i + 1) from everything before it.
_ANSWER = {"answer": torch.tensor([[3, 6]], device="cpu")}
_MEAN = (3 / 4 + 4 / 5 + 5 / 6) / 3


def _field(name: str, label: str, meaning: str, expected: float, high: Any) -> Quantity:
    return Quantity(
        f"prompt_divergence_{name}",
        "prompt_divergence",
        label,
        meaning,
        ClosedForm(expected, uniform_causal_map(6), _ANSWER),
        low=0,
        high=high,
        options={"answer": Site("answer")},
        read=attribute_reader(name),
        needs=("attention", "answer"),
    )


QUANTITIES = (
    _field(
        "per_token",
        "answer to prompt, tree per token",
        "Length of the shortest tree over prompt and answer, over the answer's tokens.",
        _MEAN,
        1,
    ),
    _field(
        "total",
        "answer to prompt, tree",
        "Length of the shortest tree over prompt and answer.",
        3 * _MEAN,
        float,
    ),
    _field(
        "star",
        "answer to prompt, star",
        "Mean distance of an answer token to the prompt; equal to the tree where answers do not chain.",
        _MEAN,
        1,
    ),
)
