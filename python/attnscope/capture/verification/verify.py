# SPDX-License-Identifier: MIT
"""``verify(model)``: a capture of a user's own model against its eager attention, in a second or two.

The maps, the output, the rows' sums and the visible keys are checked on seeded tokens in three paddings or on
the user's own inputs. A model that fails is refused by `capture` from then on: numbers that are wrong without
a word are the one outcome that must not exist.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnscope._evaluation import evaluating
from attnscope.capture import module_tracing, preflight
from attnscope.capture.implementation import float_masks, implementation
from attnscope.capture.layer import Layer
from attnscope.capture.preservation import preserved_run
from attnscope.capture.recording import capture
from attnscope.capture.verification.generation import (
    STEPS,
    generation_difference,
    own_difference,
    writes_behind_its_prompt,
)
from attnscope.capture.verification.model_inputs import model_inputs
from attnscope.capture.verification.rounding import ROUNDINGS, nudged
from attnscope.capture.visibility import contradiction

_TIERS = {
    1: "own attention function",
    2: "hooks on eager attention",
    3: "output_attentions=True, all layers at once",
}
_REFUSED = "capture refuses this model now; report it with this table"


@dataclass(frozen=True)
class ModelCheck:
    """A check of a model.

    Attributes:
        name: of what is checked.
        ok: False for a fault.
        result: the number or the words that came out.
        remedy: what to do about it; empty where nothing is to do.
    """

    name: str
    ok: bool
    result: str
    remedy: str = ""


@dataclass(frozen=True)
class Verification:
    """The checks of one model.

    Attributes:
        model: name of its class.
        checks: in the order in which they were made.
    """

    model: str
    checks: Sequence[ModelCheck]

    @property
    def ok(self) -> bool:
        """True if no check found a fault."""
        return all(check.ok for check in self.checks)

    def __repr__(self) -> str:
        """Return the checks as a table, and what to do."""
        width = max(len(check.name) for check in self.checks)
        lines = [
            f"{'ok  ' if check.ok else 'BAD '}  {check.name:<{width}}  {check.result}"
            for check in self.checks
        ]
        remedies = dict.fromkeys(check.remedy for check in self.checks if check.remedy)
        faults = sum(not check.ok for check in self.checks)
        verdict = f"{faults} fault{'' if faults == 1 else 's'}" if faults else "captured as it computes"
        return "\n".join([f"{self.model}: {verdict}", *lines, *remedies])


def verify(model: nn.Module, inputs: Mapping[str, Any] | None = None) -> Verification:
    """Check what `capture` gives of a model against its own eager attention, and its output.

    A check that finds a difference makes `capture` refuse the model until its weights or modules change. A
    model that generates writes three tokens, and the rows of all steps are compared with one forward pass.
    A model in training mode is evaluated for the time of the checks, as `capture` does.

    Args:
        model: of transformers.
        inputs: of its forward pass, as a tokenizer or a processor gives them; None takes seeded tokens in
            three paddings, or noise for a picture or a sound.

    Returns:
        Verification: `.checks`, `.ok`, and a table as its repr.

    Raises:
        ValueError: the configuration does not say what a forward pass takes; then inputs are needed.
        TypeError: an object that is no model.

    Example:
        >>> import attnscope as asc
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
        ...                      num_attention_heads=4, num_key_value_heads=2)
        >>> print(asc.verify(LlamaForCausalLM(config).eval()))
        LlamaForCausalLM: captured as it computes
        ok    way         tier 1: own attention function
        ok    layers      2 of 2 layers: causal 2
        ok    maps        ... from eager attention at most, 2 of 2 layers compared
        ok    output      ... from the model's own
        ok    row sums    ... from 1 at most
        ok    visible     no mass outside of what queries see
        ok    generation  ... from one forward pass at most, 3 tokens written
    """
    tried = model_inputs(model) if inputs is None and isinstance(model, nn.Module) else inputs
    if isinstance(model, nn.Module) and tried is None:
        main = getattr(model, "main_input_name", "its inputs")
        raise ValueError(
            f"verify: the configuration of {type(model).__name__} does not say how large its {main} are: "
            "verify(model, inputs), as its processor gives them"
        )
    # what is no model is named by its capture
    with evaluating(model) if isinstance(model, nn.Module) else nullcontext():
        return _verification(model, dict(tried or {}), of_user=inputs is not None)


def _verification(model: nn.Module, inputs: dict[str, Any], *, of_user: bool) -> Verification:
    """Return the checks of a model in evaluation mode on inputs of the user, or made from its settings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the checks say what they are about
            with capture(model) as recording:
                layers = [_on_cpu(layer) for layer in recording.run(**inputs)]
                output, plan = recording.output, recording._plan
    except (RuntimeError, ValueError) as error:
        remedy = "see the reason; nothing is measured wrongly"
        if not of_user:
            remedy += f"; tried were {' and '.join(inputs)} alone: where it takes more, verify(model, inputs)"
        refused = ModelCheck("way", False, f"refused: {error}", remedy)
        return Verification(type(model).__name__, [refused])
    assert plan is not None
    checks = [
        ModelCheck("way", True, f"tier {plan.tier}: {_TIERS[plan.tier]}", plan.caution),
        _check_layers(layers, plan.missing),
        _check_maps(model, layers, inputs),
        _check_output(model, output, inputs),
        _check_row_sums(layers),
        _check_visibility(layers),
    ]
    wrong = [check for check in checks if not check.ok]
    if not wrong and writes_behind_its_prompt(model):
        checks.append(_check_generation(model))
    verification = Verification(type(model).__name__, checks)
    if wrong:
        faults = "; ".join(f"{check.name}: {check.result}" for check in wrong)
        preflight.refuse(model, f"verify found its maps to differ from what the model computes: {faults}")
    return verification


def _on_cpu(layer: Layer) -> Layer:
    """Return a layer that outlives its pass, with its support found while the masks are there."""
    _ = layer.visibility
    layer.tensors = {site: tensor.cpu() for site, tensor in layer.tensors.items()}
    layer.valid = layer.valid.cpu()
    return layer


def _tolerance(model: nn.Module) -> float:
    """Return the gap between maps that rounding explains."""
    dtype = next((weights.dtype for weights in model.parameters() if weights.is_floating_point()), None)
    return 0.05 if dtype is not None and dtype.itemsize < 4 else 1e-4


def _check_layers(layers: Sequence[Layer], missing: Sequence[str]) -> ModelCheck:
    """Count the layers by what their queries see, and name those without a map."""
    kinds = Counter("cross" if layer.cross else layer.visibility.name for layer in layers)
    words = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
    total = len(layers) + len(missing)
    remedy = f"no map of {', '.join(missing)}; the others are right" if missing else ""
    return ModelCheck("layers", True, f"{len(layers)} of {total} layers: {words}", remedy)


def _check_maps(model: nn.Module, layers: Sequence[Layer], inputs: dict[str, Any]) -> ModelCheck:
    """Compare maps with those that eager attention returns."""
    try:
        eager = list(_eager_maps(model, inputs))
    except Exception as error:  # noqa: BLE001  (a model's own code; the reason is shown)
        return ModelCheck("maps", True, f"not compared: eager attention fails with {type(error).__name__}")
    gaps = list(_gaps(layers, eager))
    largest, compared = max(gaps, default=0.0), len(gaps)
    if not compared:
        return ModelCheck("maps", True, "not compared: eager attention returns no maps of these shapes")
    words = f"{largest:.2g} from eager attention at most, {compared} of {len(layers)} layers compared"
    ok = largest <= _tolerance(model)
    if not ok:
        with nudged(model, inputs) as moved_inputs:
            pairs = zip(eager, _eager_maps(model, moved_inputs), strict=True)
            rounding = max(float((maps - moved).abs().nan_to_num().max()) for maps, moved in pairs)
        ok = largest <= ROUNDINGS * rounding
        words += f", where rounding moves eager attention by {rounding:.2g}"
    return ModelCheck("maps", ok, words, "" if ok else _REFUSED)


def _gaps(layers: Sequence[Layer], eager: Sequence[Tensor]) -> Iterator[float]:
    """Yield the gaps between maps and the nearest eager ones of their shape, each used once.

    Some models return the maps of each stage's last block alone: then every one of these has its layer.
    """
    for shape in dict.fromkeys(tuple(layer.tensors["attention"].shape) for layer in layers):
        captured = [layer for layer in layers if layer.tensors["attention"].shape == shape]
        candidates = [tensor for tensor in eager if tensor.shape == shape]
        while captured and candidates:
            if len(candidates) >= len(captured):
                layer = captured.pop(0)
                gaps = [_gap(layer, candidate) for candidate in candidates]
                del candidates[gaps.index(min(gaps))]
            else:
                candidate = candidates.pop(0)
                gaps = [_gap(layer, candidate) for layer in captured]
                del captured[gaps.index(min(gaps))]
            yield min(gaps)


def _eager_maps(model: nn.Module, inputs: dict[str, Any]) -> Iterator[Tensor]:
    """Yield the maps that the model returns under eager attention."""
    if module_tracing.takes(model, "use_cache"):
        inputs = {"use_cache": False, **inputs}
    with preserved_run(model), implementation(model, "eager"), torch.no_grad():
        output = model(**float_masks(inputs, model), output_attentions=True)
    yield from _maps_in(output)


def _maps_in(output: Any) -> Iterator[Tensor]:
    """Yield the maps in an output, and in the outputs of parts of the model inside it."""
    for name, value in output.items() if hasattr(output, "items") else ():
        if name.endswith("attentions"):
            for tensor in value if isinstance(value, (tuple, list)) else ():
                if torch.is_tensor(tensor) and tensor.ndim == 4:
                    yield tensor.detach().cpu()
        else:
            yield from _maps_in(value)


def _gap(layer: Layer, eager: Tensor) -> float:
    """Return the largest gap at real queries; some eager maps leave a learned sink out."""
    maps, eager = layer.tensors["attention"].double(), eager.double()
    real = torch.ones_like(maps, dtype=torch.bool)
    if maps.shape[-1] == maps.shape[-2] and not layer.cross:
        real = layer.valid[:, None, :, None].expand_as(maps)
    rescaled = maps / maps.sum(-1, keepdim=True).clamp_min(1e-30)
    compared = real & ~eager.isnan()  # in float64 padding makes NaN of eager attention
    gaps = [(candidate - eager)[compared].abs().nan_to_num(nan=torch.inf) for candidate in (maps, rescaled)]
    return min(float(gap.max()) if gap.numel() else 0.0 for gap in gaps)


def _check_output(model: nn.Module, output: Any, inputs: dict[str, Any]) -> ModelCheck:
    """Compare the output of the captured pass with the model's own."""
    if module_tracing.takes(model, "use_cache"):
        inputs = {"use_cache": False, **inputs}
    with preserved_run(model), torch.no_grad():
        usual = preflight._output_tensor(model(**inputs), inputs)
    captured = preflight._output_tensor(output, inputs)
    if captured is None or usual is None or captured.shape != usual.shape:
        return ModelCheck("output", True, "not compared: no tensor of numbers comes first in it")
    largest = _output_gap(captured, usual)
    words = f"{largest:.2g} from the model's own"
    ok = largest <= 10 * _tolerance(model) * max(1.0, float(usual.abs().nan_to_num().max()))
    if not ok:
        with nudged(model, inputs) as moved_inputs, preserved_run(model), torch.no_grad():
            moved = preflight._output_tensor(model(**moved_inputs), moved_inputs)
        assert moved is not None  # the same pass gave a tensor before
        rounding = _output_gap(moved, usual)
        ok = largest <= ROUNDINGS * rounding < math.inf
        words += f", which rounding moves by {rounding:.2g}"
    return ModelCheck("output", ok, words, "" if ok else _REFUSED)


def _output_gap(output: Tensor, usual: Tensor) -> float:
    """Return the largest gap between two outputs, infinity for none where there is a number."""
    gap = (output - usual)[~usual.isnan()].abs().nan_to_num(nan=torch.inf)
    return float(gap.max()) if gap.numel() else 0.0


def _check_generation(model: nn.Module) -> ModelCheck:
    """Compare the rows of a short generation with one forward pass over the same tokens."""
    gap = generation_difference(model)
    if isinstance(gap, str):
        return ModelCheck("generation", True, f"not compared: {gap}")
    words = f"{gap:.2g} from one forward pass at most, {STEPS} tokens written"
    if gap <= 10 * _tolerance(model):
        return ModelCheck("generation", True, words)
    remedy = "recording.assembled() is not one forward pass here; analyze(model, texts, generate=...) is"
    gap_of_logits = own_difference(model)
    ok = gap_of_logits > _tolerance(model)  # the model itself computes otherwise step by step
    return ModelCheck("generation", ok, f"{words}; its own logits differ by {gap_of_logits:.2g}", remedy)


def _check_row_sums(layers: Sequence[Layer]) -> ModelCheck:
    """Check that rows sum to 1, or to 1 less the mass of a learned sink."""
    worst, sinks = 0.0, 0
    for layer in layers:
        maps = layer.tensors["attention"].double()
        sums = maps.sum(-1)
        if maps.shape[-1] == maps.shape[-2] and not layer.cross:
            sums = sums[layer.valid[:, None].expand_as(sums)]
        else:
            sums = sums[sums != 0]  # of padding (Longformer), which is known of keys alone
        if layer.has_sink:
            sinks += 1
            worst = max(worst, float((sums - 1).clamp_min(0).max()), float((-sums).max()))
        elif sums.numel():
            worst = max(worst, float((sums - 1).abs().nan_to_num().max()))
    low = any(layer.tensors["attention"].dtype.itemsize < 4 for layer in layers)
    ok = worst <= (2e-2 if low else 1e-4)
    words = f"{worst:.1g} from 1 at most" + (f", {sinks} layers with a learned sink" if sinks else "")
    partial = sorted({layer.stack for layer in layers if layer.partial_sums is not None})
    words += (
        f": the model returns a part of what queries attend to in {', '.join(partial)}" if partial else ""
    )
    return ModelCheck("row sums", ok, words, "" if ok else _REFUSED)


def _check_visibility(layers: Sequence[Layer]) -> ModelCheck:
    """Check that no map has mass where its layer's queries see nothing."""
    unknown, problems = 0, []
    for layer in layers:
        if layer.cross or not layer._is_square():
            continue
        support = layer.visibility.support
        if isinstance(support, str) and support == "auto":
            unknown += 1
            continue
        problem = contradiction(support, layer._maps_of_text(), layer.lengths.tolist())
        # entries inside may be too small for their type where scores are large
        if problem.startswith("entries outside"):
            problems.append(f"{layer.stack} {layer.index} ({layer.visibility.name}): {problem}")
    if problems:
        return ModelCheck("visible", False, "; ".join(problems[:3]), _REFUSED)
    words = "no mass outside of what queries see"
    return ModelCheck("visible", True, words + (f", {unknown} layers without a mask" if unknown else ""))
