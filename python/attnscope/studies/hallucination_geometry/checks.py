# SPDX-License-Identifier: MIT
"""Identities of edits that any decoder keeps, tried on the first prompts before anything is measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnscope.capture import Forward, forward, module_tracing
from attnscope.capture.directions.steps import PromptSteps
from attnscope.capture.edits import AddDirection, SetState
from attnscope.models import LoadError
from attnscope.models.head import readout
from attnscope.studies.checks import Check, write_checks
from attnscope.studies.hallucination_geometry.direction_sensitivity import prompt_text, refusal_ids

if TYPE_CHECKING:
    from attnscope.studies.hallucination_geometry.options import HallucinationOptions
    from attnscope.study_api.stage_run import StageRun
    from attnscope.study_api.units import Unit

#: Largest relative difference that is rounding, by dtype; the other identities are exact.
TOLERANCES = {"float64": 1e-4, "float32": 1e-3, "bfloat16": 0.1, "float16": 2e-2}


def check_model(unit: Unit, run: StageRun, options: HallucinationOptions) -> None:
    """Check every identity and store the outcomes, with the reason where refusals have no token."""
    loaded = run.model()
    model = loaded.model
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is None or not module_tracing.takes(model, "use_cache"):
        raise LoadError(
            f"hallucination_geometry: {type(model).__name__} has no next token; take a decoder with its "
            "vocabulary head"
        )
    prompts = [torch.tensor(text.encoded.ids.tolist(), device=loaded.device) for text in unit.inputs[:2]]
    tolerance = TOLERANCES.get(str(loaded.dtype).removeprefix("torch."), 1e-3)
    try:
        outcomes = [*identities(model, prompts, tolerance, run.encoder.pad_id)]
    except (RuntimeError, ValueError) as error:
        raise LoadError(f"hallucination_geometry: {error}") from None
    write_checks(run, [*outcomes, refusal_check(run, options)])
    if failed := [check for check in outcomes if not check.holds]:
        shown = ", ".join(
            f"{check.name} {check.value:.3g} (at most {check.tolerance:.3g})" for check in failed
        )
        raise LoadError(f"hallucination_geometry: identities of edits do not hold: {shown}")


def refusal_check(run: StageRun, options: HallucinationOptions) -> Check:
    """Return why the words of a refusal cannot be followed, as a check that does not apply."""
    if options.sensitivity is False:
        return Check("refusal_token", None, 0.0, "options.sensitivity is off")
    try:
        refusal_ids(run.encoder.tokenizer, prompt_text(run), options.sensitivity.refusal)
    except ValueError as error:
        return Check("refusal_token", None, 0.0, str(error))
    return Check("refusal_token", 0.0, 0.0)


def passed(model: Any, ids: Tensor, *edits: Any, mask: Tensor | None = None) -> tuple[list[Tensor], Tensor]:
    """Return states of every block and logits of one prompt [1, n]."""
    mask = torch.ones_like(ids) if mask is None else mask
    inputs = {"input_ids": ids, "attention_mask": mask}
    if module_tracing.takes(model, "position_ids"):
        inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp_min(0)
    with forward(model, inputs, Forward(("block_output", "logits"), edits=edits)) as run:
        states = [layer.block_output for layer in run]
        return states, run.outputs.logits


def identities(model: Any, prompts: Sequence[Tensor], tolerance: float, pad: int) -> Iterator[Check]:
    """Yield the eight checks of identities, on the first two prompts."""
    ids, other = prompts[0][None], prompts[-1][None]
    states, base = passed(model, ids)
    depth, width = len(states), states[0].shape[-1]
    middle = depth // 2
    move = torch.randn(
        width, generator=torch.Generator().manual_seed(0), dtype=torch.float32, device="cpu"
    ).to(states[0])
    move = move * states[middle][0, -1].norm() / move.norm() / 10
    _, unmoved = passed(model, ids, AddDirection(middle, torch.zeros_like(move)))
    yield Check("nothing_added", 0.0 if torch.equal(unmoved, base) else _gap(unmoved, base) or 1.0, 0.0)
    moved, _ = passed(model, ids, AddDirection(middle, move))
    yield Check("state_moved", _gap(moved[middle][0, -1], states[middle][0, -1] + move), tolerance)
    earlier = (
        max(float((a[:, :-1] - b[:, :-1]).abs().max()) for a, b in zip(moved, states, strict=True))
        if ids.shape[1] > 1
        else 0.0
    )
    yield Check("earlier_states", earlier, 0.0)
    last = states[-1][:, -1]
    try:
        read = readout(model)
        with torch.no_grad():
            yield Check("readout", _gap(read(last), base[:, -1]), tolerance)
            expected = read(last + move)
        yield Check(
            "readout_moved", _gap(passed(model, ids, AddDirection(-1, move))[1][:, -1], expected), tolerance
        )
    except NotImplementedError as error:
        yield Check("readout", None, tolerance, str(error))
    theirs, logits = passed(model, other)
    imposed = passed(model, ids, SetState(-1, theirs[-1][:, -1]))[1]
    yield Check("other_state", _gap(imposed[:, -1], logits[:, -1]), tolerance)
    steps = PromptSteps(model, ids[0])
    _, outputs = steps.step(1, (AddDirection(middle, move, steps="all"),))
    uncached = passed(model, ids, AddDirection(middle, move))[1]
    gap = _gap(outputs.logits[:, -1], uncached[:, -1]) if not steps.uncached_reason else None
    yield Check("cached_step", gap, tolerance, steps.uncached_reason)
    yield _padding_check(model, ids, states[-1], pad, tolerance)
    yield from _final_state_checks(model, ids, states, tolerance)


def _padding_check(model: Any, ids: Tensor, last_states: Tensor, pad: int, tolerance: float) -> Check:
    """Return the check that padding on either side does not change the last token's state."""
    worst = 0.0
    padding, seen = torch.full((1, 3), pad, device=ids.device), torch.ones_like(ids)
    zeros = torch.zeros_like(padding)
    for left in (True, False):
        parts = ((padding, ids), (zeros, seen)) if left else ((ids, padding), (seen, zeros))
        padded, _ = passed(model, torch.cat(parts[0], 1), mask=torch.cat(parts[1], 1))
        at = -1 if left else ids.shape[1] - 1
        gap = _gap(padded[-1][0, at], last_states[0, -1])
        worst = gap if np.isnan(gap) else max(worst, gap)
    if np.isnan(worst):
        return Check(
            "padding", None, tolerance, "padding on the left gives NaN in this dtype; studies pad right"
        )
    return Check("padding", worst, tolerance)


def _final_state_checks(
    model: Any, ids: Tensor, states: Sequence[Tensor], tolerance: float
) -> Iterator[Check]:
    """Yield the checks that captured states are those of transformers, whose last one is the final norm."""
    with torch.no_grad():
        hidden = model(input_ids=ids, output_hidden_states=True).hidden_states
    gap = max((_gap(a, b) for a, b in zip(states[:-1], hidden[1:-1], strict=False)), default=0.0)
    yield Check("hidden_states", gap, tolerance)
    mask = torch.ones_like(ids)
    with forward(model, {"input_ids": ids, "attention_mask": mask}, Forward(("final_norm",))) as run:
        list(run)
        normed = getattr(run.outputs, "final_norm", None)
    if normed is None:
        yield Check("last_hidden_state", None, tolerance, "no final norm was found")
    else:
        # behind the last norm, so that the last of transformers' states is no state of the residual stream
        yield Check("last_hidden_state", _gap(hidden[-1], normed), tolerance)


def _gap(first: Tensor, second: Tensor) -> float:
    """Return the largest difference, relative to the largest entry."""
    difference = (first.double() - second.double()).abs().max()
    return float(difference / second.double().abs().max().clamp_min(1e-12))
