# SPDX-License-Identifier: MIT
"""Finds out how a model's attention can be captured: by trying it, never by the model's name.

Sixteen tokens in three paddings (none, left, right) go through eager attention with hooks and through our own
attention function. Where maps, number of maps and output agree, our function is used; else the hooks, where
they agree with what ``output_attentions=True`` returns; else that; else an error with the reasons.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.capture import anatomy
from attnscope.capture.eager import attention_outputs, taking
from attnscope.capture.edits.edit import ACTIVE
from attnscope.capture.implementation import implementation
from attnscope.capture.interface import NAME, register
from attnscope.capture.layer import Layer
from attnscope.capture.recorder import LIVE, Recorder
from attnscope.capture.sites import ALONE, HOOKS, INTERFACE, OUTPUTS
from attnscope.capture.stream import uncompiled
from attnscope.models.architecture import Parts, Structure, block_of, feed_forward, starred

PLAIN = ALONE
TOKENS = 16


@dataclass
class Plan:
    """How to capture one model.

    Attributes:
        tier: 1 own attention function, 2 hooks on eager attention, 3 ``output_attentions=True``.
        stacks: number of layers of each stack of attention modules.
        indices: which of them have attention (a hybrid model has other layers between).
        heads: number of heads of each stack (the smallest over its layers).
        parts: where the block of each attention module keeps what, by name of that module.
        weights: second tier: position of the weights in the output of each attention module, by name.
        ask: pass ``output_attentions=True``, without which some old models return no weights.
        unmasked: causal stacks that run without a mask even in eager attention.
        reasons: why a lower tier was not taken.
        caution: what sets the captured forward pass apart from the usual one; empty when nothing does.
    """

    tier: int
    stacks: dict[str, int] = field(default_factory=dict)
    indices: dict[str, set[int]] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)
    parts: dict[str, Parts] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    ask: bool = False
    unmasked: frozenset[str] = frozenset()
    reasons: tuple[str, ...] = ()
    caution: str = ""


@dataclass(eq=False)
class _Print:
    """A map, small enough to keep: its rows times four fixed vectors, the first of ones."""

    rows: Tensor
    keep: Tensor
    shape: tuple[int, ...]


@dataclass(eq=False)
class _Pass:
    prints: list[_Print]
    output: Tensor | None
    recorder: Recorder
    weights: dict[str, int]
    heads: dict[str, int]


_plans: weakref.WeakKeyDictionary[nn.Module, tuple[tuple[Any, ...], Plan]] = weakref.WeakKeyDictionary()


def known_plan(model: nn.Module) -> Plan | None:
    """The plan made earlier for this model, unless it was changed since."""
    entry = _plans.get(model)
    return entry[1] if entry is not None and entry[0] == _signature(model) else None


def plan_for(model: nn.Module, inputs: Mapping[str, Any]) -> Plan:
    """Tries the tiers on ``inputs`` and remembers the outcome for this model object."""
    found = known_plan(model)
    if found is None:
        token = ACTIVE.set(())  # edits further up are no part of the model
        try:
            found = _make(model, inputs)
        finally:
            ACTIVE.reset(token)
        _plans[model] = (_signature(model), found)
    return found


def trial_inputs(model: nn.Module) -> dict[str, Tensor] | None:
    """Sixteen seeded tokens: no padding, left padding, right padding. None for models of other inputs."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    vocabulary = getattr(text, "vocab_size", None)
    if getattr(model, "main_input_name", None) != "input_ids" or not isinstance(vocabulary, int):
        return None
    longest = getattr(text, "max_position_embeddings", None)
    n = min(TOKENS, longest // 2) if isinstance(longest, int) and longest > 1 else TOKENS
    generator = torch.Generator().manual_seed(0)
    device = next(model.parameters()).device
    low = min(5, vocabulary - 1)
    ids = torch.randint(low, vocabulary, (3, n), generator=generator).to(device)
    mask = torch.ones_like(ids)
    mask[1, : n // 4] = 0
    mask[2, n - n // 4 :] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if anatomy.takes(model, "decoder_input_ids"):
        inputs["decoder_input_ids"] = ids.flip(1)
    return inputs


def structure_of(model: nn.Module, batch: Mapping[str, Any] | None = None) -> Structure:
    """The structure of a model: from the preflight where its attention can be captured, else of its lists."""
    inputs = trial_inputs(model) or batch
    plan = Plan(PLAIN)
    if inputs is not None:
        # a model whose attention cannot be captured still has its blocks
        with suppress(RuntimeError):
            plan = plan_for(model, inputs)
    return Structure(model, plan.parts, plan.heads)


def _signature(model: nn.Module) -> tuple[Any, ...]:
    parameter = next(model.parameters(), None)
    kind = (parameter.dtype, parameter.device) if parameter is not None else ()
    return (*kind, sum(1 for _ in model.modules()))


def _make(model: nn.Module, inputs: Mapping[str, Any]) -> Plan:
    register()
    reasons: list[str] = []
    name = type(model).__name__

    def attempt(label: str, **options: Any) -> _Pass | None:
        try:
            return _run(model, inputs, **options)
        except Exception as error:  # noqa: BLE001  (the reason is kept, and named when no tier is left)
            reasons.append(f"{label}: {type(error).__name__}: {error}")
            return None

    def done(tier: int, found: _Pass, *, ask: bool = False) -> Plan:
        plan = _plan(tier, found, reasons, ask=ask)
        usual = attempt("usual forward pass", tier=PLAIN)
        if usual and (gap := _output_gap(found, usual)):
            plan.caution = (
                f"{name} under its own attention implementation: {gap}; the maps are those of eager attention"
            )
        return plan

    own = attempt("own attention function", tier=INTERFACE)
    hooked = attempt("hooks on eager attention", tier=HOOKS)
    if own and not own.prints:
        reasons.append("own attention function: never called")
    if hooked and own and own.prints:
        difference = _difference(own, hooked)
        if not difference:
            return done(INTERFACE, own)
        reasons.append(f"own attention function: {difference}")
    ask = False
    if not (hooked and hooked.prints):
        again = attempt("hooks on eager attention, output_attentions=True", tier=HOOKS, ask=True)
        if again and again.prints:
            hooked, ask = again, True
    reference = attempt("output_attentions=True", tier=OUTPUTS)
    maps = reference.prints if reference else []
    if own and own.prints and reference and maps and not _difference(own, reference, ordered=False):
        return done(INTERFACE, own)
    if hooked and hooked.prints:
        difference = _difference(hooked, reference, ordered=False) if reference and maps else ""
        if not difference:
            return done(HOOKS, hooked, ask=ask)
        reasons.append(f"hooks on eager attention: {difference}")
    if reference and maps:
        return done(OUTPUTS, reference)
    reasons.append("output_attentions=True: no attention map came back")
    raise RuntimeError(f"capture: the attention of {name} cannot be captured. " + "; ".join(reasons))


def _plan(tier: int, found: _Pass, reasons: list[str], *, ask: bool = False) -> Plan:
    recorder = found.recorder
    parts: dict[str, Parts] = {}
    trace = recorder.trace
    assert trace is not None
    stacks = recorder.stacks
    for core in recorder.modules:
        if starred(core) not in stacks or not core:
            continue
        block = block_of(core, recorder.modules)
        if block is None:
            parts[core] = Parts()
            continue
        parts[core] = Parts(
            block,
            anatomy.output_projection(core, block, recorder.modules, trace),
            feed_forward(block, core, recorder.modules, trace.mixing),
        )
    for block in {one.block for one in parts.values() if one.block}:
        own = {core: one for core, one in parts.items() if one.block == block}
        first = anatomy.first_matrix(
            block, own, [one.projection for one in own.values()], recorder.modules, trace
        )
        parts.update({core: one._replace(first=first) for core, one in own.items()})
    return Plan(
        tier,
        stacks=dict(stacks),
        indices=dict(recorder.indices),
        heads=found.heads,
        parts=parts,
        weights=found.weights,
        ask=ask,
        unmasked=frozenset(recorder.unmasked),
        reasons=tuple(reasons),
    )


def _run(model: nn.Module, inputs: Mapping[str, Any], *, tier: int, ask: bool = False) -> _Pass:
    prints: list[_Print] = []
    heads: dict[str, int] = {}

    def collect(layer: Layer) -> None:
        heads[layer.stack] = min(heads.get(layer.stack, 1 << 30), layer.attention.shape[1])
        prints.append(_print(layer.attention, layer.valid, cross=layer.cross))

    recorder = Recorder(model, collect)
    recorder.trace = anatomy.Trace()
    weights: dict[str, int] = {}
    arguments = dict(inputs)
    if (ask or tier == OUTPUTS) and "output_attentions" not in arguments:
        arguments["output_attentions"] = True
    if anatomy.takes(model, "use_cache"):
        arguments.setdefault("use_cache", False)
    token = LIVE.set(recorder)
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(uncompiled(model))
            if tier != PLAIN:
                stack.enter_context(implementation(model, NAME if tier == INTERFACE else "eager"))
            stack.enter_context(recorder.listening())
            stack.enter_context(recorder.trace.watching(recorder.modules))
            if tier == HOOKS:
                stack.enter_context(taking(recorder, weights, discover=True))
                stack.enter_context(recorder.trace.softmaxes())
            output = model(**arguments)
    finally:
        LIVE.reset(token)
    if tier == OUTPUTS:
        mask = inputs.get("attention_mask")
        for stack_name, index, tensor in attention_outputs(output):
            recorder.indices.setdefault(stack_name, set()).add(index)
            valid = torch.ones(tensor.shape[0], tensor.shape[-1], dtype=torch.bool, device=tensor.device)
            if torch.is_tensor(mask) and mask.shape == valid.shape and not stack_name.startswith("decoder"):
                valid = mask.to(torch.bool)
            heads[stack_name] = min(heads.get(stack_name, 1 << 30), tensor.shape[1])
            prints.append(_print(tensor, valid, cross=stack_name == "cross_attentions"))
            recorder.stacks[stack_name] = recorder.stacks.get(stack_name, 0) + 1
    return _Pass(prints, _output_tensor(output, inputs), recorder, weights, heads)


def _print(attention: Tensor, valid: Tensor, *, cross: bool) -> _Print:
    keys = attention.shape[-1]
    vectors = torch.rand(keys, 4, generator=torch.Generator().manual_seed(keys), dtype=torch.float64)
    vectors[:, 0] = 1.0
    rows = attention.double() @ vectors.to(attention.device)
    square = attention.shape[-2] == keys and not cross
    keep = valid if square else torch.ones(attention.shape[0], attention.shape[-2], dtype=torch.bool)
    return _Print(rows.cpu(), keep.cpu(), tuple(attention.shape))


def _output_tensor(output: Any, inputs: Mapping[str, Any]) -> Tensor | None:
    found = (
        output if torch.is_tensor(output) else next((v for v in _values(output) if torch.is_tensor(v)), None)
    )
    if found is None or not found.is_floating_point():
        return None
    mask = inputs.get("attention_mask")
    if torch.is_tensor(mask) and found.shape[:2] == mask.shape and "decoder_input_ids" not in inputs:
        found = found[mask.to(found.device, torch.bool)]
    return found.double().cpu()


def _values(output: Any) -> Any:
    return output.values() if hasattr(output, "values") else output


def _difference(one: _Pass, two: _Pass, *, ordered: bool = True) -> str:
    """What tells two passes apart beyond rounding; empty when nothing does."""
    if len(one.prints) != len(two.prints):
        return f"{len(one.prints)} maps against {len(two.prints)}"
    largest, mean, _ = _tolerance(one)
    others = list(two.prints)
    for nth, mine in enumerate(one.prints):
        pairs = others[:1] if ordered else [p for p in others if p.shape == mine.shape]
        distances = [_distance(mine, p) for p in pairs]
        if not distances:
            return f"map {nth} of shape {list(mine.shape)} has no counterpart"
        best = min(range(len(distances)), key=lambda i: distances[i])
        if not (distances[best][0] <= largest and distances[best][1] <= mean):
            return f"map {nth} differs by {distances[best][0]:.2g}"
        others.remove(pairs[best])
    return _output_gap(one, two)


def _output_gap(one: _Pass, two: _Pass) -> str:
    if one.output is None or two.output is None:
        return ""
    if one.output.shape != two.output.shape:
        return f"output of shape {list(one.output.shape)} against {list(two.output.shape)}"
    known = ~two.output.isnan()
    if not bool(known.any()):
        # A model with NaN weights: nothing it says can differ, and its maps were compared as far as they go.
        return "" if bool(one.output.isnan().all()) else "output is a number against NaN"
    gap = float((one.output - two.output)[known].abs().max())
    scale = max(1.0, float(two.output[known].abs().max()))
    return "" if gap <= _tolerance(one)[2] * scale else f"output differs by {gap:.2g}"


def _tolerance(found: _Pass) -> tuple[float, float, float]:
    """Largest and mean gap between maps, and relative gap between outputs, that rounding explains."""
    half = next((p.dtype for p in found.recorder.root.parameters()), torch.float32).itemsize < 4
    return (0.15, 1e-2, 0.1) if half else (1e-3, 1e-4, 1e-3)


def _distance(mine: _Print, other: _Print) -> tuple[float, float]:
    if mine.shape != other.shape:
        return float("inf"), float("inf")
    keep = mine.keep & other.keep
    a, b = mine.rows.transpose(1, 2)[keep], other.rows.transpose(1, 2)[keep]
    if a.numel() == 0:
        return 0.0, 0.0
    known = ~b.isnan().any(-1)  # eager attention in float64 makes NaN of left padding
    a, b = a[known], b[known]
    if a.numel() == 0:
        unlike = 0.0 if bool(mine.rows.transpose(1, 2)[keep].isnan().any(-1).all()) else float("inf")
        return unlike, unlike
    gaps = [(a - b).abs()]
    # A learned sink takes part of each row; some models leave it out of the weights that they return.
    gaps.append((a / a[..., :1].clamp_min(1e-30) - b).abs())
    return min((float(g.max()), float(g.mean())) for g in gaps)
