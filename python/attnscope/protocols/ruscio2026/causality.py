# SPDX-License-Identifier: MIT
r"""The interventions of the notebook `causality`, and its judgement of answers.

In the notebook: layer 16, prompts "Q: …\nA:", temperature .1, 40 tokens. Steering goes to factual prompts
alone, bypass and compression to uncertain ones alone, so that no false refusal can be counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from attnscope.protocols.ruscio2026._batches import direction_argument, hooked, moved

LAYER, PROMPT, TEMPERATURE, TOKENS = 16, "Q: {question}\nA:", 0.1, 40
ALPHA, GAMMA, LAMBDA = 2.0, 20.0, 0.2


@contextmanager
def steering(block: nn.Module, direction: Tensor, *, alpha: float = ALPHA) -> Iterator[None]:
    """While it is open, α times the direction is added behind a block, to the last column of every step.

    Differs from the study's steering: every generated token is moved too, and a padding token where the
    batch pads on the right.

    Args:
        block: a module of the model.
        direction: [D].
        alpha: how much of it.

    Raises:
        ValueError: a direction of another shape or not finite.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2026
        >>> block = torch.nn.Identity()
        >>> with ruscio2026.steering(block, torch.tensor([1.0, 0.0])):
        ...     block(torch.zeros(1, 2, 2)).tolist()
        [[[0.0, 0.0], [2.0, 0.0]]]

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `causality`.
    """
    along = direction_argument("steering", direction)
    with hooked(block, moved(alpha * along)):
        yield


@contextmanager
def compression(block: nn.Module, centre: Tensor, basis: Tensor, *, share: float = LAMBDA) -> Iterator[None]:
    """Replace the states of **all** positions by (1 − λ)h + λ(μ + VVᵀ(h − μ)) while the context is open.

    Differs from the study's compression, which changes only the prompt's last token.

    Args:
        block: a module of the model.
        centre: μ [D].
        basis: V [D, k], orthonormal columns.
        share: λ in [0, 1].

    Raises:
        ValueError: a centre that is not finite, a basis of another width, a share outside [0, 1].

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2026
        >>> block, axis = torch.nn.Identity(), torch.tensor([[1.0], [0.0]])
        >>> with ruscio2026.compression(block, torch.zeros(2), axis, share=0.5):
        ...     block(torch.ones(1, 2, 2)).tolist()
        [[[1.0, 0.5], [1.0, 0.5]]]

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `causality`.
    """
    name = "compression"
    mean = direction_argument(name, centre)
    if basis.ndim != 2 or len(basis) != len(mean):
        raise ValueError(f"{name}: basis must be [{len(mean)}, k], got shape {tuple(basis.shape)}")
    if not 0 <= share <= 1:
        raise ValueError(f"{name}: share must be in [0, 1], got {share}")

    def change(states: Tensor) -> Tensor:
        centre_of_states, directions = mean.to(states), basis.to(states)
        compressed = centre_of_states + (states - centre_of_states) @ directions @ directions.T
        return (1 - share) * states + share * compressed

    with hooked(block, change):
        yield


def bypass(logits: Tensor, chances: Tensor, target: int, *, gamma: float = GAMMA) -> Tensor:
    """Logits [B, V] of the first step with γ·p̂ added to one token's, [B] chances.

    The token is the last piece of " Unsure", and an answer that begins with it counts as a refusal: a gain
    that is large enough makes any detector refuse, a constant one too.

    Args:
        logits: [B, V].
        chances: p̂ [B].
        target: id of the token.
        gamma: the gain.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2026
        >>> ruscio2026.bypass(torch.zeros(1, 3), torch.tensor([0.5]), 2).tolist()
        [[0.0, 0.0, 10.0]]

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `causality`.
    """
    if chances.shape != logits.shape[:1]:
        raise ValueError(f"bypass: chances must be [{len(logits)}], got shape {tuple(chances.shape)}")
    raised = logits.clone()
    raised[:, target] += gamma * chances.to(raised)
    return raised


def answer_of(text: str, prompt: str) -> str:
    r"""Return the generated text with the prompt replaced by nothing, wherever it occurs.

    A model that repeats the prompt loses the repetition too, and a prompt that decodes otherwise than it
    was written stays.

    Example:
        >>> from attnscope.protocols import ruscio2026
        >>> ruscio2026.answer_of("Q: a\nA: b. Q: a\nA: c", "Q: a\nA:")
        'b.  c'

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `causality`.
    """
    return text.replace(prompt, "").strip()


def refused(text: str, substrings: Sequence[str]) -> bool:
    """Return True if any of some substrings occurs in the text, in any case.

    There are six in the notebook; a caller names them. Differs from the study's refusals, which are looked
    for in the first sentence as whole words.

    Example:
        >>> from attnscope.protocols import ruscio2026
        >>> ruscio2026.refused("It is Paris. No one is unsure of it.", ["unsure"])
        True

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `causality`.
    """
    lower = text.lower()
    return any(substring.lower() in lower for substring in substrings)


def loops(text: str) -> bool:
    """Return True if the last five words of more than ten occurred before.

    Example:
        >>> from attnscope.protocols import ruscio2026
        >>> ruscio2026.loops("a b c d e f a b c d e"), ruscio2026.loops("a b c d e a b c d e")
        (True, False)

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `causality`.
    """
    words = text.split()
    if len(words) <= 10:
        return False
    last = words[-5:]
    return any(words[at : at + 5] == last for at in range(len(words) - 5))


def first_rows(items: int, seed: int, count: int = 200) -> Tensor:
    """Return the shuffled rows that the notebook fits its probe and boundary on, and scores it on again.

    Example:
        >>> from attnscope.protocols import ruscio2026
        >>> len(ruscio2026.first_rows(1000, 0)), len(ruscio2026.first_rows(20, 0))
        (200, 20)

    References:
        Ruscio and Thompson, The phenomenology of hallucinations, 2026: `causality`.
    """
    return torch.randperm(items, generator=torch.Generator().manual_seed(seed), device="cpu")[:count]
