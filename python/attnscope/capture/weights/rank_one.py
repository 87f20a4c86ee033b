# SPDX-License-Identifier: MIT
"""The effect of a rank-one change of one matrix on a model's predictions, measured and predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnscope._evaluation import evaluating
from attnscope.arguments.modules import module_argument
from attnscope.capture.editing import edit
from attnscope.capture.edits.weights import ReplaceWeight, writable
from attnscope.capture.weights.second_moments import Tracer
from attnscope.metrics._named import shown_by_shape
from attnscope.models.architecture import weight_map
from attnscope.models.head import readout
from attnscope.models.unembedding import before_unembedding


@shown_by_shape
class RankOneEffect(NamedTuple):
    """Means over the tokens of a text, [directions, B] float64.

    Attributes:
        kl: KL(P‖P′) of the model's predictions before and after, in nats.
        predicted_kl: ½c²·mean of (v·x)²·uᵀFu, second order in the change; NaN unless the matrix is the last
            block's `down`, whose output reaches the final norm unchanged.
        target_shift: change of the log-probability of the next token.
        loss_change: minus that.
    """

    kl: Tensor
    predicted_kl: Tensor
    target_shift: Tensor
    loss_change: Tensor


def rank_one_effect(
    model: nn.Module,
    inputs: Mapping[str, Tensor] | Tensor,
    layer: int,
    role: str,
    directions: Tensor,
    v: Tensor,
    *,
    size: float = 0.05,
) -> RankOneEffect:
    """Add size·‖W‖_F·u vᵀ to one matrix, for each direction u in turn, and measure the effect.

    F = JᵀW_Uᵀ(diag p − ppᵀ)W_U J is the Fisher information of the predictions in the last residual state, J
    the derivative of the final norm.

    Args:
        model: a causal language model in evaluation mode.
        inputs: its batch by name, or token ids [B, n]; masked positions are left out.
        layer: of the matrix; negative ones count from the end.
        role: of the matrix, as "down".
        directions: u, [directions, out]; lengths do not matter.
        v: [in], or one for each direction [directions, in]; likewise.
        size: of the change, relative to the matrix.

    Returns:
        `RankOneEffect`. Weights are restored to the bit.

    Raises:
        ValueError: no such matrix, directions of another width, a size that is not finite.

    Example:
        A change of size 0 has no effect.

        >>> import torch, attnscope as asc
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=8, num_hidden_layers=1,
        ...                      num_attention_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> ids = torch.tensor([[1, 2, 3]])
        >>> found = asc.rank_one_effect(model, ids, -1, "down", torch.eye(16)[:2], torch.ones(8), size=0.0)
        >>> found.kl.tolist(), found.predicted_kl.tolist()
        ([[0.0], [0.0]], [[0.0], [0.0]])

    References:
        Amari, Information geometry and its applications, 2016, for KL ≈ ½ δᵀF δ.
    """
    name = "rank_one_effect"
    model = module_argument(name, model)
    batch = {"input_ids": inputs} if isinstance(inputs, Tensor) else dict(inputs)
    ids = batch["input_ids"]
    mask = batch.get("attention_mask", torch.ones_like(ids)).bool()
    batch.setdefault("attention_mask", mask.long())
    entries = weight_map(model)
    number = layer % entries.layers if -entries.layers <= layer < entries.layers else layer
    us, vs = _paired(name, directions, v)
    with torch.no_grad(), recorded_blocks(model, number):
        base = model(**batch).logits.double().log_softmax(-1)
        rows = [
            _effect(base, changed, ids, mask)
            for changed in under_changes(
                model,
                [ReplaceWeight(layer, role, u, direction, size) for u, direction in zip(us, vs, strict=True)],
                lambda: model(**batch).logits.double().log_softmax(-1),
            )
        ]
    kl, shift = (torch.stack(values) for values in zip(*rows, strict=True))
    try:
        entry = entries[number, role]
    except KeyError as missing:
        raise ValueError(f"{name}: no such matrix, {missing.args[0]}") from None
    predicted = torch.full_like(kl, torch.nan)
    if role == "down" and number == entries.layers - 1 and entry.out_gain is None:
        length = size * float(entry.of(model.get_parameter(entry.tensor).detach()).double().norm())
        predicted = _predicted(model, batch, number, us, vs, length, mask)
    return RankOneEffect(kl, predicted, shift, -shift)


#: Inputs whose passes are kept: the text's, and those of trials.
MOST_PASSES = 4


@contextmanager
def recorded_blocks(model: nn.Module, layer: int) -> Iterator[None]:
    """Run the blocks before a layer once for every input; later passes get what they wrote then.

    A change in a matrix of the layer changes nothing before it. A pass is known by the states that enter a
    block, so that trial passes of an edit, on tokens of their own, are kept apart.
    """
    stack = weight_map(model).blocks
    # a layer that the model lacks is refused by the edit
    blocks = list(model.get_submodule(stack).children())[: max(layer, 0)]
    before = [vars(block).get("forward") for block in blocks]

    def record(run: Callable[..., Any]) -> Callable[..., Any]:
        passes: list[tuple[Tensor, Any]] = []

        def forward(*arguments: Any, **keywords: Any) -> Any:
            states = next(value for value in (*arguments, *keywords.values()) if isinstance(value, Tensor))
            for seen, output in passes:
                if seen is states or (seen.shape == states.shape and torch.equal(seen, states)):
                    return output
            output = run(*arguments, **keywords)
            del passes[MOST_PASSES - 1 :]
            passes.insert(0, (states, output))
            return output

        return forward

    try:
        for block in blocks:
            block.forward = record(block.forward)
        yield
    finally:
        for block, before_block in zip(blocks, before, strict=True):
            if before_block is None:
                vars(block).pop("forward", None)
            else:
                block.forward = before_block


def attention_change(
    model: nn.Module, ids: Tensor, layer: int, role: str, directions: Tensor, v: Tensor, *, size: float = 0.05
) -> Tensor:
    """Compute the total variation ½Σ|A − A′| of the rows of a layer's attention, mean over queries and heads.

    Args:
        ids: of one text, [n].

    Returns:
        [directions] float64, in [0, 1].
    """
    from attnscope.capture.recording import capture

    def maps() -> Tensor:
        with capture(model, layers=[layer]) as recording:
            (attention,) = (
                layer.attention[0].double().clone() for layer in recording.run(input_ids=ids[None])
            )
        return attention

    us, vs = _paired("attention_change", directions, v)
    depth = weight_map(model).layers
    with torch.no_grad(), recorded_blocks(model, layer % depth if -depth <= layer < depth else layer):
        base = maps()
        edits = [ReplaceWeight(layer, role, u, direction, size) for u, direction in zip(us, vs, strict=True)]
        variations = [(after - base).abs().sum(-1).mean() / 2 for after in under_changes(model, edits, maps)]
    return torch.stack(variations)


def under_changes(
    model: nn.Module, edits: Sequence[ReplaceWeight], measure: Callable[[], Tensor]
) -> Iterator[Tensor]:
    """Yield a measurement of the model under each of several changes of one and the same matrix.

    The first is made by `edit`, with all its checks; the others are written into the matrix alone, because
    an edit looks through all modules of a model.
    """
    first, *others = edits
    with edit(model, first):
        measured = measure()
    yield measured
    entry = first.entry(model)
    matrix = entry.of(model.get_parameter(entry.tensor)).clone()
    with writable(model, entry) as add:
        for other in others:
            add(other.change(entry, matrix))
            yield measure()


def _paired(function: str, directions: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return both vectors of every change, [directions, ·]."""
    us = directions.double().reshape(-1, directions.shape[-1])
    vs = v.double().expand(len(us), -1) if v.ndim == 1 else v.double()
    if len(vs) != len(us):
        raise ValueError(f"{function}: {len(us)} directions need one v or as many, got {len(vs)}")
    return us, vs


def _effect(base: Tensor, changed: Tensor, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean KL and the mean change of the next token's log-probability, [B] each."""
    divergence = (base.exp() * (base - changed)).sum(-1)
    targets = ids[:, 1:, None]
    shift = (changed - base)[:, :-1].gather(-1, targets)[..., 0]
    following = mask[:, 1:]
    return _mean(divergence, mask), _mean(shift, following)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, 0).sum(-1) / mask.sum(-1)


def _predicted(
    model: nn.Module,
    batch: Mapping[str, Any],
    layer: int,
    us: Tensor,
    vs: Tensor,
    length: float,
    mask: Tensor,
) -> Tensor:
    """Return ½c²·mean of (v·x)²·uᵀFu from captured x and h."""
    tracer = Tracer(model, layers=[layer])
    logits_of = readout(model)
    unit_vs = vs / vs.norm(dim=1, keepdim=True)
    sizes = []
    for row, ids in enumerate(batch["input_ids"]):
        real = mask[row]
        trace = next(matrix for matrix in tracer.run(ids[real]) if matrix.role == "down")
        hidden = final_state(model, tracer, ids[real])
        strengths = (trace.x.double() @ unit_vs.mT).square().mT
        values = []
        for u, strength in zip(us, strengths, strict=True):
            direction = (u / u.norm()).to(hidden).expand_as(hidden)
            logits, moved = torch.func.jvp(logits_of, (hidden,), (direction,))[:2]
            p, moved = logits.detach().double().softmax(-1), moved.detach().double()
            variance = (p * moved.square()).sum(-1) - (p * moved).sum(-1).square()
            values.append(0.5 * length**2 * (strength * variance).mean())
        sizes.append(torch.stack(values))
    return torch.stack(sizes, dim=1)


def final_state(model: nn.Module, tracer: Tracer, ids: Tensor) -> Tensor:
    """Return the states that enter the final norm, or the unembedding of a model without one, [n, d]."""
    seen: list[Tensor] = []
    first = [*before_unembedding(model, tracer.map)][:1]
    head = model.get_output_embeddings()  # type: ignore[operator]
    module = model.get_submodule(first[0]) if first else head
    keeping = module.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    with keeping, torch.no_grad(), evaluating(model):
        model(input_ids=ids[None], attention_mask=torch.ones_like(ids[None]))
    return seen[0].reshape(-1, seen[0].shape[-1])
