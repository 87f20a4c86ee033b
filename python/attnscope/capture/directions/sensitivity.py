# SPDX-License-Identifier: MIT
"""The change of the next token's distribution when the last token's state moves along directions.

Derivatives are forward-mode: exact, one pass for all directions, no step to choose. Only the second
derivative takes a step, between two exact first ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from attnscope._checks import as_tensor
from attnscope.arguments.modules import module_argument
from attnscope.capture import module_tracing
from attnscope.capture.directions.steps import PromptSteps, prompts_of
from attnscope.capture.edits.edit import Applied
from attnscope.capture.edits.states import TANGENT, AddDirection
from attnscope.capture.gradient import FORWARD, Gradient
from attnscope.capture.preflight import structure_of
from attnscope.metrics._named import shown_by_shape
from attnscope.models.architecture import name_pattern, text_config


@shown_by_shape
class Sensitivity(NamedTuple):
    """The sensitivities of each prompt to each direction u, [B, m] float64.

    Attributes:
        directional_fisher: uᵀFu = Var_p(Ju), the curvature of the KL divergence along u: half the symmetric
            KL between h and h + εu is ½ε²uᵀFu.
        curvature: d²/dε² of −log p_y, y the likeliest token at ε = 0.
        entropy_slope: d/dε of the entropy of the next token, nats.
        refusal_slope: d/dε of the logit of the probability of the refusal tokens; NaN without such.
        amplification: ‖J_{l+1} u‖/‖u‖, what block l + 1 makes of the direction; 1 is the identity path
            alone. NaN at the last block.
    """

    directional_fisher: Tensor
    curvature: Tensor
    entropy_slope: Tensor
    refusal_slope: Tensor
    amplification: Tensor


class _Moved(AddDirection):
    """States that are moved, with the errors of `sensitivity`."""

    @property
    def name(self) -> str:
        """As errors call it."""
        return "sensitivity"

    def fitted(self, states: Tensor) -> Tensor:
        """See `AddDirection`."""
        if states.shape[-1] != self.value.shape[-1]:
            raise NotImplementedError(
                f"{self.name}: behind layer {self.layer} each token has {states.shape[-1]} numbers, several "
                f"streams of states of {self.value.shape[-1]}, which are not measured"
            )
        return super().fitted(states)

    def changed(self, states: Tensor, applied: Applied) -> Tensor:
        """See `AddDirection`."""
        moved = super().changed(states, applied)
        if applied.count > 1:
            raise NotImplementedError(
                f"{self.name}: a pass of {type(applied.model).__name__} runs layer {self.layer} several "
                "times, so no single state stands behind it, which is not measured"
            )
        return moved


@dataclass(frozen=True, eq=False)
class _Along(_Moved):
    """A tangent along the value, at states that are moved by a shift first."""

    shift: Tensor | None = None

    def new(self, states: Tensor, value: Tensor) -> Tensor:
        """See `AddDirection`."""
        moved = states if self.shift is None else states + self.shift.to(states)[:, None]
        if not TANGENT.get():
            return moved
        make: Any = forward_ad.make_dual
        return make(moved, value.expand_as(moved).clone())


def sensitivity(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    layer: int,
    directions: Tensor,
    *,
    refusal: Sequence[int] | None = None,
    method: Literal["jvp", "difference"] = "jvp",
    relative_step: float = 1e-2,
) -> Sensitivity:
    """Compute how the next token's distribution p answers when the last token's state h moves along
    directions.

    Var_p(Ju) with J the Jacobian of the logits in the output of block `layer` is the Fisher information of
    the next token along u: ½[KL(p‖q) + KL(q‖p)] → ½ε²·uᵀFu as q belongs to h + εu. Directions are the batch
    of one single-token step on the prompt's cache.

    Args:
        model: a decoder of transformers in evaluation mode, float32 or float64.
        inputs: `input_ids` [B, n] and `attention_mask`, padding on either side.
        layer: number of the block after which h stands; negative ones count from the end.
        directions: [m, D], or [B, m, D] for directions of each prompt's own; taken at the length they have.
        refusal: ids of tokens whose total probability is followed.
        method: "jvp" differentiates; "difference" takes a central difference of logits with the relative
            step, for models that forward-mode derivatives do not pass.
        relative_step: of second derivatives and of "difference", as a share of ‖h‖.

    Returns:
        `Sensitivity`. uᵀFu >= 0 in nats; it grows with ‖u‖², slopes with ‖u‖. A prompt whose state is not
        finite gets NaN.

    Raises:
        ValueError: a model in half precision, directions of another width, of norm 0 or not finite, a layer
            or a token that the model does not have, a step outside (0, 1).
        NotImplementedError: an encoder, whose last token is not what its output depends on; with "jvp", a
            model with an operation that has no forward-mode derivative, such as grouped experts.

    Example:
        With one block, an unembedding of one row (10, 0) and a norm that leaves the plane alone, moving
        along the second axis moves no logit.

        >>> import torch, attnscope as asc
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=3, hidden_size=4, intermediate_size=4, num_hidden_layers=1,
        ...                      num_attention_heads=1)
        >>> model = LlamaForCausalLM(config).eval()
        >>> _ = model.lm_head.weight.data.zero_()
        >>> asc.sensitivity(model, {"input_ids": torch.tensor([[0, 1]])}, 0,
        ...                 torch.eye(4)[:2]).directional_fisher.tolist()
        [[0.0, 0.0]]

    References:
        Amari, Information geometry and its applications, 2016, for the Fisher metric of a softmax; Ruscio and
        Thompson, arXiv 2603.13911, 2026, for its use along a boundary.
    """
    name = "sensitivity"
    check_model(name, model)
    if method not in ("jvp", "difference"):
        raise ValueError(f"{name}: method must be 'jvp' or 'difference', got {method!r}")
    if not 0 < relative_step < 1:
        raise ValueError(f"{name}: relative_step must lie in (0, 1), got {relative_step}")
    prompts = prompts_of(name, inputs)
    along = _directions(name, directions, len(prompts), int(text_config(model.config).hidden_size))
    depth = _depth(name, model, inputs)
    if not -depth <= layer < depth:
        raise ValueError(f"{name}: layer {layer} of {type(model).__name__}, which has {depth} layers")
    answers = [
        sensitivity_of(
            PromptSteps(model, ids),
            layer % depth,
            vectors,
            depth=depth,
            refusal=refusal,
            method=method,
            relative_step=relative_step,
        )
        for ids, vectors in zip(prompts, along, strict=True)
    ]
    return Sensitivity(*(torch.stack(parts) for parts in zip(*answers, strict=True)))


def sensitivity_of(
    steps: PromptSteps,
    layer: int,
    directions: Tensor,
    *,
    depth: int,
    refusal: Sequence[int] | None = None,
    method: str = "jvp",
    relative_step: float = 1e-2,
    curved: bool = True,
) -> Sensitivity:
    """Compute the `sensitivity` of one prompt, fields [m]; the prompt's cache serves all layers.

    Args:
        directions: [m, D].
        curved: take the second derivative too, which is two thirds of the work; NaN without.
    """
    m = len(directions)
    device = steps.ids.device
    directions = directions.to(device)
    lengths = directions.double().norm(dim=-1)
    shift = directions.double()
    if curved or method != "jvp":
        layers, _ = steps.step(1, sites=("block_output", "logits"), layers=[layer])
        size = layers[0].block_output[0, -1].double().norm()
        shift = (relative_step * size / lengths)[:, None] * shift
    slopes = _exact if method == "jvp" else _difference
    try:
        z, dz, amplification = slopes(steps, layer, directions, None, depth, shift)
    except NotImplementedError as error:
        if method != "jvp" or str(error).startswith("sensitivity: "):
            raise
        raise NotImplementedError(
            f"sensitivity: {type(steps.model).__name__} has an operation without forward-mode derivatives "
            f"({str(error).partition('.')[0]}); method='difference' needs none"
        ) from error
    tokens = _refusal(refusal, z.shape[-1])
    p = z.softmax(-1)
    mean = (p * dz).sum(-1, keepdim=True)
    fisher = (p * (dz - mean).square()).sum(-1)
    entropy = -(p * (dz - mean) * z.log_softmax(-1)).sum(-1)
    curvature = torch.full((m,), math.nan, dtype=torch.float64, device=device)
    if curved:
        sides = []
        for sign in (1.0, -1.0):
            moved, moves, _ = slopes(steps, layer, directions, sign * shift, depth, shift)
            sides.append((moved.softmax(-1) * moves).sum(-1) - moves[:, z[0].argmax()])
        curvature = (sides[0] - sides[1]) / (2 * shift.norm(dim=-1) / lengths)
    refused = torch.full((m,), math.nan, dtype=torch.float64, device=device)
    if tokens is not None:
        inside = torch.zeros(z.shape[-1], dtype=torch.bool, device=device)
        inside[tokens.to(device)] = True
        refused = (z[:, inside].softmax(-1) * dz[:, inside]).sum(-1)
        refused = refused - (z[:, ~inside].softmax(-1) * dz[:, ~inside]).sum(-1)
    values = (fisher, curvature, entropy, refused, amplification / lengths)
    return Sensitivity(*(value.cpu() for value in values))


def _exact(
    steps: PromptSteps, layer: int, directions: Tensor, at: Tensor | None, depth: int, shift: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits, their derivatives, and the length that the next block gives the direction."""
    edit = _Along(layer, directions[:, None], "last", steps="all", shift=at)
    following = [layer + 1] if layer + 1 < depth else []
    layers, outputs = steps.step(
        len(directions),
        (edit,),
        sites=("block_output", "logits") if following else ("logits",),
        layers=following or None,
        gradient=Gradient(
            lambda out: out.logits[:, -1], ("block_output",) if following else (), mode=FORWARD
        ),
    )
    assert outputs.value is not None
    assert outputs.derivative is not None
    grown = torch.full((len(directions),), math.nan, dtype=torch.float64, device=directions.device)
    if following:
        grown = layers[0].gradients["block_output"][:, -1].double().norm(dim=-1)
    return outputs.value.double(), outputs.derivative.double(), grown


def _difference(
    steps: PromptSteps, layer: int, directions: Tensor, at: Tensor | None, depth: int, shift: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `_exact` returns, by a central difference."""
    m = len(directions)
    centre = torch.zeros_like(shift) if at is None else at
    size = shift.norm(dim=-1) / directions.double().norm(dim=-1)
    following = [layer + 1] if layer + 1 < depth else []
    logits, states = [], []
    for move in (centre, centre + shift, centre - shift):
        edit = _Moved(layer, move[:, None], "last", steps="all")
        layers, outputs = steps.step(
            m,
            (edit,),
            sites=("block_output", "logits") if following else ("logits",),
            layers=following or None,
        )
        logits.append(outputs.logits[:, -1].double())
        states.append(layers[0].block_output[:, -1].double() if following else logits[-1][:, :1])
    grown = (states[1] - states[2]).norm(dim=-1) / (2 * size)
    grown = grown if following else torch.full_like(grown, math.nan)
    return logits[0], (logits[1] - logits[2]) / (2 * size[:, None]), grown


def check_model(function: str, model: nn.Module) -> None:
    """Raise for a model without exact derivatives or without a next token."""
    module_argument(function, model)
    half = sorted(
        {str(p.dtype) for p in model.parameters() if p.is_floating_point() and p.dtype.itemsize < 4}
    )
    if half:
        raise ValueError(
            f"{function}: {type(model).__name__} is in {', '.join(half)}, where small steps are lost; "
            "load it in float32"
        )
    config: Any = getattr(model, "config", None)
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if (
        head is None
        or not any(module_tracing.takes(model, name) for name in ("use_cache", *module_tracing.CACHE))
        or getattr(config, "is_encoder_decoder", False)
    ):
        raise NotImplementedError(
            f"{function}: {type(model).__name__} has no next token; take a decoder with its vocabulary head"
        )


def _depth(function: str, model: nn.Module, inputs: Mapping[str, Tensor]) -> int:
    """Return the number of layers of a model whose layers are one stack.

    Raises:
        NotImplementedError: the layers are several stacks, which a capture numbers apart.
    """
    layers = structure_of(model, dict(inputs)).of_text().layers
    stacks = list(dict.fromkeys(name_pattern(str(parts.block)) for parts, _, _ in layers))
    if len(stacks) > 1:
        raise NotImplementedError(
            f"{function}: the layers of {type(model).__name__} are {len(stacks)} stacks "
            f"({', '.join(stacks)}), so no layer stands behind another, which is not measured"
        )
    return len(layers)


def _directions(function: str, directions: Any, prompts: int, width: int) -> Tensor:
    """Return the directions as [B, m, D]."""
    tensor = as_tensor(function, "directions", directions)
    along = tensor.expand(prompts, *tensor.shape) if tensor.ndim == 2 else tensor
    if along.ndim != 3 or len(along) != prompts or along.shape[-1] != width or not along.shape[1]:
        raise ValueError(
            f"{function}: directions must be [m, {width}] or [{prompts}, m, {width}], got shape "
            f"{tuple(tensor.shape)}"
        )
    lengths = along.double().norm(dim=-1)
    if not bool(lengths.isfinite().all()) or bool((lengths == 0).any()):
        bad = lengths[(lengths == 0) | ~lengths.isfinite()]
        raise ValueError(f"{function}: directions must be finite and not 0, got one of norm {float(bad[0])}")
    return along


def _refusal(tokens: Sequence[int] | None, vocabulary: int) -> Tensor | None:
    """Return the ids of the refusal tokens."""
    if tokens is None:
        return None
    ids = torch.tensor(list(tokens), dtype=torch.long, device="cpu")
    outside = ids[(ids < 0) | (ids >= vocabulary)]
    if not len(ids) or len(outside) or len(set(ids.tolist())) >= vocabulary:
        raise ValueError(
            f"sensitivity: refusal must name some, not all, of {vocabulary} tokens, got {ids.tolist()}"
        )
    return ids
