# SPDX-License-Identifier: MIT
"""Finds out how a model's attention can be captured: by trying it, never by the model's name.

Sixteen tokens in three paddings (none, left, right) go through eager attention with hooks and through our own
attention function. Where maps, number of maps and output agree, our function is used; else the hooks, where
they agree with what ``output_attentions=True`` returns; else that; else an error with the reasons.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnscope._warn import warn
from attnscope.arguments.modules import model_hint
from attnscope.capture import module_tracing
from attnscope.capture.capture_plan import CapturePlan
from attnscope.capture.edits.edit import ACTIVE
from attnscope.capture.implementation import (
    attention_outputs,
    capture_eager_weights,
    configs,
    implementation,
    original_implementations,
)
from attnscope.capture.interface import NAME, register
from attnscope.capture.layer import Layer
from attnscope.capture.module_tracing import CACHE
from attnscope.capture.preservation import Effects, preserved, remember
from attnscope.capture.recorder import LIVE, Recorder
from attnscope.capture.sites import HOOKS, HOOKS_ONLY, INTERFACE, OUTPUTS
from attnscope.capture.softmax_watch import SoftmaxWatch
from attnscope.capture.stream import autocast_dtypes
from attnscope.models.architecture import (
    Parts,
    Structure,
    block_of,
    feed_forward,
    input_device,
    name_pattern,
    text_config,
)

TOKENS = 16
# Ends of the names of inputs that are tokens or stand for them.
_TOKENS = ("input_ids", "inputs_embeds")


@dataclass(eq=False)
class _Fingerprint:
    """A map, small enough to keep: its rows times four fixed vectors, the first of ones."""

    layer: int
    rows: Tensor
    keep: Tensor
    shape: tuple[int, ...]


@dataclass(eq=False)
class _Pass:
    """The result of a trial pass: how the model is captured that way, its maps and its output."""

    plan: CapturePlan
    dtype: torch.dtype
    prints: list[_Fingerprint]
    output: Tensor | None


class _Trials:
    """The plans of one model, by the inputs that they were tried on.

    Attributes:
        signature: of the model when it was tried.
        plans: by the names of the images, sounds and the like among the inputs, none for tokens, and by what
            autocast casts to, under which the model computes otherwise.
        on_tokens: False for a model that trial tokens say nothing about.
        refusal: why the model is not captured any more; empty while it is.
    """

    def __init__(self, signature: tuple[Any, ...]) -> None:
        self.signature = signature
        self.plans: dict[frozenset[str], CapturePlan] = {}
        self.on_tokens = True
        self.refusal = ""


_trials: weakref.WeakKeyDictionary[nn.Module, _Trials] = weakref.WeakKeyDictionary()


def plan_for(model: nn.Module, batch: Mapping[str, Any] | None = None) -> CapturePlan | None:
    """Return how to capture the model, remembered until that changes; None where nothing can be tried yet.

    Trial tokens are tried first. The real inputs are tried where the model does not run on tokens alone,
    where the trial would change how it computes, and where inputs of another kind run other parts of it.

    Args:
        batch: the real inputs, where there are some.
    """
    check_not_refused(model)
    trials = _trials_of(model)
    modalities = frozenset(filter(None, (_modality(name, value) for name, value in (batch or {}).items())))
    casts = frozenset(f"{kind} as {dtype}" for kind, dtype in autocast_dtypes().items())
    if (plan := trials.plans.get(modalities | casts)) is not None:
        return plan
    token = ACTIVE.set(())  # edits further up are no part of the model
    try:
        plan = None
        tokens = trial_inputs(model) if trials.on_tokens and not modalities else None
        with original_implementations(model):
            if tokens is not None:
                plan = _make(model, tokens, real=False)
                trials.on_tokens = plan is not None
            if plan is None and batch is not None:
                plan = _make(model, batch, real=True)
    except RuntimeError:
        if batch is None or not modalities or (plan := trials.plans.get(casts)) is None:
            raise
    finally:
        ACTIVE.reset(token)
    if plan is not None:
        trials.plans[modalities | casts] = plan
    return plan


def _trials_of(model: nn.Module) -> _Trials:
    """Return the remembered plans of a model as it is now, of the same modules."""
    kind = next(((parameter.dtype, parameter.device) for parameter in model.parameters()), ())
    # references compare by the module that they name, and let go of one that was replaced
    signature = (*kind, *map(weakref.ref, model.modules()))
    trials = _trials.get(model)
    if trials is None or trials.signature != signature:
        trials = _trials[model] = _Trials(signature)
    return trials


def check_not_refused(model: nn.Module) -> None:
    """Raise if captures of the model are refused."""
    if refusal := _trials_of(model).refusal:
        raise RuntimeError(f"capture: {type(model).__name__}: {refusal}")


def refuse(model: nn.Module, reason: str) -> None:
    """Make every later capture of the model, or of a model inside it, raise while their modules stay."""
    from transformers import PreTrainedModel

    model = getattr(model, "_orig_mod", model)
    for module in model.modules():
        if module is model or isinstance(module, PreTrainedModel):
            _trials_of(module).refusal = reason


def _modality(name: str, value: Any) -> str:
    """Return the name of an input that is an image, a sound or the like; empty for tokens."""
    of_tokens = "mask" in name or name.endswith("embeds") or not torch.is_tensor(value)
    return "" if of_tokens or not value.is_floating_point() or value.ndim < 2 else name


def trial_inputs(model: nn.Module, tokens: int = TOKENS) -> dict[str, Tensor] | None:
    """Return seeded tokens in three paddings (none, left, right); None for models of other inputs."""
    text = text_config(getattr(model, "config", None))
    vocabulary = getattr(text, "vocab_size", None)
    if getattr(model, "main_input_name", None) != "input_ids" or not isinstance(vocabulary, int):
        return None
    longest = getattr(text, "max_position_embeddings", None)
    n = min(tokens, longest // 2) if isinstance(longest, int) and longest > 1 else tokens
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(min(5, vocabulary - 1), vocabulary, (3, n), generator=generator, device="cpu").to(
        input_device(model)
    )
    mask = torch.ones_like(ids)
    mask[1, : n // 4] = 0
    mask[2, n - n // 4 :] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if module_tracing.takes(model, "decoder_input_ids"):
        inputs["decoder_input_ids"] = ids.flip(1)
    return inputs


def check_model(model: nn.Module) -> None:
    """Raise for what holds no model of transformers, or one without weights."""
    from transformers import PreTrainedModel

    name = type(model).__name__
    if not any(isinstance(module, PreTrainedModel) for module in model.modules()):
        raise TypeError(
            f"capture: {name} holds no transformers model{model_hint(model)}; pass attention tensors of "
            "other frameworks to measure(...) directly"
        )
    if lacks_weights(model):
        raise RuntimeError(
            f"capture: {name} has parameters on the meta device, which hold no weights; load them first"
        )
    if not configs(model):
        raise RuntimeError(f"capture: {name} has no configuration that names its attention")


def run_inputs(model: nn.Module, unnamed: Sequence[Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a captured run by name, without a cache unless one is given or asked for.

    Raises:
        TypeError: as `check_inputs`.
        ValueError: likewise.
    """
    check_inputs("run", unnamed, inputs)
    return without_cache("run", model, inputs)


def without_cache(function: str, model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a pass without a cache, unless one is given or asked for.

    Warns of position ids that a pass reads otherwise where it keeps no cache.
    """
    if any(name in inputs for name in (*CACHE, "use_cache")) or not module_tracing.takes(model, "use_cache"):
        return dict(inputs)
    positions = inputs.get("position_ids")
    has_steps = torch.is_tensor(positions) and bool((positions.diff(dim=-1) != 1).any())
    if has_steps and inputs.get("attention_mask") is None:
        warn(
            f"{function}: without attention_mask and without a cache, transformers takes steps other than 1 "
            "between position_ids for borders of texts that do not see each other; give attention_mask where "
            "the tokens are one text, or use_cache=False where they are several",
            UserWarning,
        )
    return {"use_cache": False, **inputs}


def check_inputs(
    function: str, unnamed: Sequence[Any], inputs: Mapping[str, Any], *, has_options: bool = False
) -> None:
    """Raise for inputs that no model takes.

    Args:
        function: that runs the model.
        unnamed: inputs without a name.
        inputs: those with one.
        has_options: options are among them, which may be words.

    Raises:
        TypeError: for an input without a name, and for a text.
        ValueError: for inputs without a token, and for `output_attentions`.
    """
    if unnamed:
        raise TypeError(
            f"{function}: give the model's inputs by name, as {function}(input_ids=...) or "
            f"{function}(**tokenizer(...)), got {', '.join(type(value).__name__ for value in unnamed)}"
        )
    tokens = {name: value for name, value in inputs.items() if name == "inputs" or name.endswith(_TOKENS)}
    named = tokens if has_options else inputs
    if text := next((name for name, value in named.items() if isinstance(value, str)), ""):
        raise TypeError(
            f"{function}: {text} is a text; a tokenizer makes inputs of it: "
            f'{function}(**tokenizer(text, return_tensors="pt"))'
        )
    for name, value in tokens.items():
        if 0 in getattr(value, "shape", ()):
            raise ValueError(f"{function}: {name} holds no token, got shape {tuple(value.shape)}")
    if "output_attentions" in inputs:
        raise ValueError(f"{function}: output_attentions is what the recording is for, leave it out")


def lacks_weights(model: nn.Module) -> bool:
    """Return True if parameters are on the meta device and no hook of accelerate brings their data."""
    offloaded = {
        id(parameter)
        for module in model.modules()
        if hasattr(module, "_hf_hook")
        for parameter in module.parameters()
    }
    return any(parameter.is_meta and id(parameter) not in offloaded for parameter in model.parameters())


def structure_of(model: nn.Module, batch: Mapping[str, Any] | None = None) -> Structure:
    """Return the structure of a model: from the preflight where its attention can be captured, else of its
    lists.
    """
    plan = None
    with suppress(RuntimeError):  # a model whose attention cannot be captured still has its blocks
        plan = plan_for(model, batch)
    return Structure(model, plan.parts, plan.heads, plan.tokens_first) if plan else Structure(model, {})


def _dtype_of_products(model: nn.Module) -> torch.dtype:
    """Return the dtype in which a model multiplies here: of autocast where that is coarser than its own."""
    first = next(iter(model.parameters()), torch.empty(0, device="cpu"))
    cast = autocast_dtypes().get(first.device.type, first.dtype)
    return min(first.dtype, cast, key=lambda dtype: dtype.itemsize)


def _make(model: nn.Module, inputs: Mapping[str, Any], *, real: bool) -> CapturePlan | None:
    """Return the plan that trial passes show; None where trial tokens (not `real`) show none.

    Raises:
        RuntimeError: when the model runs and its attention cannot be captured.
    """
    register()
    reasons: list[str] = []
    effects = Effects()
    name = type(model).__name__

    def attempt(label: str, **options: Any) -> _Pass | None:
        effect = Effects()
        try:
            with preserved(model) as effect:
                return _run(model, inputs, **options)
        except Exception as error:  # noqa: BLE001  (the reason is kept, and named when no tier is left)
            reasons.append(f"{label}: {type(error).__name__}: {error}")
            return None
        finally:
            remember(model, effect)
            effects.settings += effect.settings

    usual = attempt("usual forward pass", tier=HOOKS_ONLY)
    if not real and (usual is None or effects.settings):
        return None
    failure = "" if usual else reasons[0].partition(": ")[2]
    reasons.clear()
    passes = _attempt_all(model, attempt, reasons)
    if not real and effects.settings:
        return None
    if not passes and failure:
        raise RuntimeError(
            f"capture: {name} does not run on {' and '.join(inputs)} alone ({failure}); give all inputs that "
            "its forward pass takes, as its processor makes them, or one of its parts, such as its text model"
        )
    if not passes:
        reasons.append("output_attentions=True: no attention map came back")
        raise RuntimeError(
            f"capture: the attention of {name} cannot be captured. " + "; ".join([*reasons, *_remedy(model)])
        )
    best = min(passes, key=lambda attempt: (len(attempt.plan.missing), attempt.plan.tier))
    best.plan.reasons = tuple(reasons)
    if usual and (gap := _output_gap(best, usual)):
        best.plan.caution = (
            f"{name} under its own attention implementation: {gap}; the maps are those of eager attention"
        )
    return best.plan


def _remedy(model: nn.Module) -> list[str]:
    """Return what to do about modules that were chosen when the model was built, as old models do."""
    built = {type(module).__name__ for module in model.modules()}
    fixed = sorted(name for name in built if "Sdpa" in name or "Flash" in name)
    words = f"it was built with {', '.join(fixed)}: load it with attn_implementation='eager'"
    return [words] if fixed else []


def _attempt_all(model: nn.Module, attempt: Callable[..., _Pass | None], reasons: list[str]) -> list[_Pass]:
    """Return the passes whose maps are right, those of one tier alone if it misses none."""
    right: list[_Pass] = []
    direct = attempt("own attention function", tier=INTERFACE)
    hooked = attempt("hooks on eager attention", tier=HOOKS)
    if direct and not direct.prints:
        reasons.append("own attention function: never called")
        direct = None
    if hooked and direct and _agrees_with_hooks(direct, hooked, reasons):
        right.append(direct)
        if not direct.plan.missing:
            return right
    hooked = _complete_hooks(model, attempt, hooked)
    reference = attempt("output_attentions=True", tier=OUTPUTS)
    if reference and not reference.prints:
        reference = None
    if direct and not right and reference and not _difference(direct, reference, ordered=False):
        right.append(direct)
    if hooked and hooked.prints:
        difference = _difference(hooked, reference, ordered=False, extra_maps=True) if reference else ""
        if difference:
            reasons.append(f"hooks on eager attention: {difference}")
        else:
            right.append(hooked)
    if reference:
        right.append(reference)
    return right


def _agrees_with_hooks(direct: _Pass, hooked: _Pass, reasons: list[str]) -> bool:
    """Return True if the maps of the own attention function are those of hooks; else add the difference."""
    # Some modules keep their weights to themselves; others compute one map in two calls.
    extra_maps = len(direct.prints) > len(hooked.prints) and bool(hooked.plan.missing)
    difference = _difference(direct, hooked, ordered=not extra_maps, extra_maps=extra_maps)
    if difference:
        cure = "; load the model in float32" if direct.dtype.itemsize < 4 else ""
        reasons.append(
            f"own attention function: recomputed attention is not the model's, {difference}, so that the "
            f"tensors behind it are not trusted{cure}"
        )
    return not difference


def _complete_hooks(
    model: nn.Module, attempt: Callable[..., _Pass | None], hooked: _Pass | None
) -> _Pass | None:
    """Return the pass of hooks that misses the fewest maps; modules are asked for maps that are missing."""
    if not (hooked and hooked.prints and not hooked.plan.missing):
        asking = attempt("hooks on eager attention, output_attentions=True", tier=HOOKS, ask=True)
        if asking and (not hooked or len(asking.prints) > len(hooked.prints)):
            hooked = asking
    if hooked and hooked.prints and (names := _can_be_asked(model, hooked.plan)):
        label = "hooks on eager attention, asked module by module"
        complete = attempt(label, tier=HOOKS, ask=hooked.plan.ask, forced=names)
        if complete and len(complete.plan.missing) < len(hooked.plan.missing):
            return complete
    return hooked


def _can_be_asked(model: nn.Module, plan: CapturePlan) -> frozenset[str]:
    """Return the modules without a map that would return one under ``output_attentions=True``."""
    modules = dict(model.named_modules())
    return frozenset(
        name for name in plan.missing if module_tracing.takes(modules[name], "output_attentions")
    )


def _parts(recorder: Recorder, trace: module_tracing.Trace) -> dict[str, Parts]:
    """Return the places of the sites in the block of each attention module."""
    cores = [core for core in recorder.modules if core and name_pattern(core) in recorder.stacks]
    parts = dict.fromkeys(cores, Parts())
    for core in cores:
        if block := block_of(core, recorder.modules):
            projection = trace.output_projection(core, block)
            last = feed_forward(block, core, recorder.modules, trace.mixing)
            parts[core] = Parts(block, projection, last)
    for block in {part.block for part in parts.values() if part.block}:
        of_block = {core: part for core, part in parts.items() if part.block == block}
        first = trace.first_matrix(block, {*of_block, *(part.projection for part in of_block.values())})
        parts.update({core: part._replace(first=first) for core, part in of_block.items()})
    return parts


def _run(
    model: nn.Module,
    inputs: Mapping[str, Any],
    *,
    tier: int,
    ask: bool = False,
    forced: frozenset[str] = frozenset(),
) -> _Pass:
    prints: list[_Fingerprint] = []
    silent: set[str] = set()
    plan = CapturePlan(tier, ask=ask, forced=forced)

    def collect(layer: Layer) -> None:
        heads = layer.attention.shape[1]
        plan.heads[layer.stack] = min(plan.heads.get(layer.stack, heads), heads)
        prints.append(_print(layer))

    recorder = Recorder(model, collect)
    if tier != HOOKS_ONLY:
        recorder.watch = SoftmaxWatch(recorder.names, visible=tier != INTERFACE, keep_all=tier == OUTPUTS)
    tokens = [value for name, value in inputs.items() if name.endswith(_TOKENS) and torch.is_tensor(value)]
    sizes = {(len(ids), ids.shape[1]) for ids in tokens if ids.ndim > 1 and len(ids) != ids.shape[1]}
    trace = recorder.trace = module_tracing.Trace(recorder.modules, sizes)
    arguments = dict(inputs)
    for cache in CACHE:  # a pass adds to the cache that it is given
        if cache in arguments:
            arguments[cache] = copy.deepcopy(arguments[cache])
    if ask or tier == OUTPUTS:
        arguments.setdefault("output_attentions", True)
    if module_tracing.takes(model, "use_cache"):
        arguments.setdefault("use_cache", False)
    name = {HOOKS_ONLY: "", INTERFACE: NAME}.get(tier, "eager")
    token = LIVE.set(recorder)
    try:
        with torch.no_grad(), implementation(model, name), recorder.listening(), ExitStack() as stack:
            stack.enter_context(trace.watching())
            if tier == HOOKS:
                options: dict[str, Any] = {"discover": True, "forced": forced, "silent": silent}
                stack.enter_context(capture_eager_weights(recorder, plan.weights, **options))
                stack.enter_context(module_tracing.SoftmaxWatch(trace))
            output = model(**arguments)
    finally:
        LIVE.reset(token)
    for layer in attention_outputs(output, inputs, recorder) if tier == OUTPUTS else ():
        recorder.indices.setdefault(layer.stack, set()).add(layer.index)
        recorder.stacks[layer.stack] = recorder.stacks.get(layer.stack, 0) + 1
        collect(layer)
    plan.stacks, plan.indices, plan.unmasked = recorder.stacks, recorder.indices, recorder.unmasked
    plan.parts = _parts(recorder, trace)
    plan.tokens_first = frozenset(trace.tokens_first)
    if recorder.watch is not None:
        missing = recorder.watch.missing(recorder.captured)[recorder.unplaced :]
        plan.missing = (*missing, *(name for name in silent if name not in missing))
    return _Pass(plan, _dtype_of_products(model), prints, _output_tensor(output, inputs))


def _print(layer: Layer) -> _Fingerprint:
    attention = layer.attention
    keys = attention.shape[-1]
    vectors = torch.rand(
        keys, 4, generator=torch.Generator().manual_seed(keys), dtype=torch.float64, device="cpu"
    )
    vectors[:, 0] = 1.0
    rows = attention.double() @ vectors.to(attention.device)
    square = attention.shape[-2] == keys and not layer.cross
    keep = (
        layer.valid
        if square
        else torch.ones(attention.shape[0], attention.shape[-2], dtype=torch.bool, device="cpu")
    )
    return _Fingerprint(layer.index, rows.cpu(), keep.cpu(), tuple(attention.shape))


def _output_tensor(output: Any, inputs: Mapping[str, Any]) -> Tensor | None:
    if not torch.is_tensor(output):
        values = output.values() if hasattr(output, "values") else output
        output = next(filter(torch.is_tensor, values), None)
    if output is None or not output.is_floating_point():
        return None
    has_decoder = any(name.startswith("decoder_") for name in inputs)
    mask = inputs.get("decoder_attention_mask" if has_decoder else "attention_mask")
    if torch.is_tensor(mask) and output.shape[:2] == mask.shape:
        output = output[mask.to(output.device, torch.bool)]
    states: Tensor = output.double().cpu()
    return states


def _difference(first: _Pass, second: _Pass, *, ordered: bool = True, extra_maps: bool = False) -> str:
    """Return what tells two passes apart beyond rounding; empty when nothing does.

    Args:
        ordered: compare maps in the order in which they came.
        extra_maps: let the first pass have maps that the second one lacks.
    """
    extra_maps = extra_maps and len(first.prints) > len(second.prints)
    if extra_maps:
        first, second = second, first
    elif len(first.prints) != len(second.prints):
        return f"{len(first.prints)} maps against {len(second.prints)}"
    allowed = _tolerance(first)
    others = list(second.prints)
    for fingerprint in first.prints:
        pairs = others[:1] if ordered else [p for p in others if p.shape == fingerprint.shape]
        if not pairs:
            return (
                f"the map of layer {fingerprint.layer} of shape {list(fingerprint.shape)} has no counterpart"
            )
        gap, best = min((_distance(fingerprint, p), place) for place, p in enumerate(pairs))
        if not (gap[0] <= allowed.largest and gap[1] <= allowed.mean):
            return (
                f"the map of layer {fingerprint.layer} differs by {gap[0]:.2g} at most and {gap[1]:.2g} in "
                f"the mean (tolerance of {allowed.dtype}: {allowed.largest:g} and {allowed.mean:g})"
            )
        others.remove(pairs[best])
    return _output_gap(first, second)


def _output_gap(first: _Pass, second: _Pass) -> str:
    if first.output is None or second.output is None:
        return ""
    if first.output.shape != second.output.shape:
        return f"output of shape {list(first.output.shape)} against {list(second.output.shape)}"
    defined = ~second.output.isnan()
    if not bool(defined.any()):
        # A model with NaN weights: nothing it says can differ, and its maps were compared as far as they go.
        return "" if bool(first.output.isnan().all()) else "output is a number against NaN"
    gap = float((first.output - second.output)[defined].abs().max())
    scale = max(1.0, float(second.output[defined].abs().max()))
    return "" if gap <= _tolerance(first).output * scale else f"output differs by {gap:.2g}"


class _Tolerance(NamedTuple):
    """The gaps that rounding explains: the largest and the mean of maps, and relative ones of outputs."""

    dtype: str
    largest: float
    mean: float
    output: float


def _tolerance(trial: _Pass) -> _Tolerance:
    """Return what rounding explains in a model's type.

    Scores in the hundreds are rounded to whole numbers in bfloat16: single entries of sharp attention move
    by up to 0.46 in a trained model (0.03 in float16), and all of them together by .004 in the mean.
    """
    name = str(trial.dtype).removeprefix("torch.")
    if trial.dtype == torch.bfloat16:
        return _Tolerance(name, 0.5, 1e-2, 0.2)
    return (
        _Tolerance(name, 0.15, 1e-2, 0.1) if trial.dtype.itemsize < 4 else _Tolerance(name, 1e-3, 1e-4, 1e-3)
    )


def _distance(first: _Fingerprint, other: _Fingerprint) -> tuple[float, float]:
    if first.shape != other.shape:
        return float("inf"), float("inf")
    a, b = (fingerprint.rows.transpose(1, 2)[first.keep & other.keep] for fingerprint in (first, other))
    defined = ~b.isnan().any(-1)  # eager attention in float64 makes NaN of left padding
    if not bool(defined.any()):
        unlike = 0.0 if bool(a.isnan().any(-1).all()) else float("inf")
        return unlike, unlike
    a, b = a[defined], b[defined]
    # A learned sink takes part of each row; some models leave it out of the weights that they return.
    gaps = (a - b).abs(), (a / a[..., :1].clamp_min(1e-30) - b).abs()
    return min((float(gap.max()), float(gap.mean())) for gap in gaps)
