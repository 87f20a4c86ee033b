# SPDX-License-Identifier: MIT
"""Identities that every causal model keeps, tried before anything is measured.

Checks are tried on tokens of the model's own vocabulary: a model that fails one is left with the name of the
check, and the others go on. A check that does not apply to a model gives the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attnscope.capture import Forward, forward
from attnscope.capture.edits import LimitWindow, SetEmbedding, SetPositionIds, SetRotary, SubtractRead
from attnscope.capture.positions import first_token_trajectory, output_projection, require_causal
from attnscope.errors import WeightMapError
from attnscope.models import LoadError
from attnscope.statistics import holm
from attnscope.studies.absolute_position.first_position import TOLERANCES
from attnscope.studies.checks import Check, failed_checks, write_checks

if TYPE_CHECKING:
    from attnscope.study_api.stage_run import StageRun

SHIFT, TEXTS, TOKENS = 17, 4, 16
SHUFFLED, LEAST_P = "layer_0_shuffled", 0.001


def check_model(run: StageRun) -> None:
    """Check every identity and store the outcomes; `require_checks` stops a checkpoint that fails one."""
    loaded = run.model()
    model = loaded.model
    eps = torch.finfo(torch.float32).eps
    tolerance = TOLERANCES.get(str(loaded.dtype).removeprefix("torch."), 1e-5)
    ids = _causal_tokens(model, run)
    try:
        scores, lse, attention = _maps(model, ids)
    except RuntimeError as error:
        path = first_token_trajectory(model, {"input_ids": ids})
        outcomes = [
            Check("scores", None, 0.0, str(error)),
            Check("first_token", float(path.gap.max()), tolerance),
        ]
        write_checks(run, outcomes)
        return
    largest = max(1.0, float(scores[scores > -torch.inf].abs().max()))
    gap = ((scores - lse[..., None]).exp() - attention).abs().max()
    path = first_token_trajectory(model, {"input_ids": ids})
    outcomes = [
        Check("scores", float(gap), 2 * eps * largest),
        Check("first_token", float(path.gap.max()), tolerance),
        Check("first_token_across_texts", float(path.across.max()), 0.0),
        _shifted(model, ids, scores, eps * (ids.shape[1] + SHIFT) * largest),
        *_unchanged(model, ids, scores),
        *_replaced(model, ids),
        _silent(model, ids),
        _repeated(model, ids),
        _written(model, ids),
    ]
    write_checks(run, outcomes)


def require_checks(run: StageRun) -> None:
    """Raise LoadError if an identity does not hold."""
    if "checks" not in run.stored.tables():
        _causal_tokens(run.model().model, run)  # a trial of one unit, for a plan
        return
    for check in failed_checks(run.read("checks")):
        why = f"{check.value:.3g}, where at most {check.tolerance:.3g} is rounding"
        if check.check == SHUFFLED:
            why = f"p {check.value:.2g} of a residual in layer 0, where no position can have entered"
        raise LoadError(f"the check {check.check} does not hold: {why}")


def _causal_tokens(model: Any, run: StageRun) -> Tensor:
    """Return texts of ordinary tokens behind one first token, of which a causal model sees that one alone."""
    special = set(run.encoder.tokenizer.all_special_ids) if run.encoder.tokenizer is not None else set()
    size = model.get_input_embeddings().weight.shape[0]
    ordinary = [token for token in range(size) if token not in special]
    drawn = run.rng("checks").choice(ordinary, (TEXTS, TOKENS))
    drawn[:, 0] = run.encoder.bos_id if run.encoder.bos_id is not None else drawn[0, 0]
    ids = torch.tensor(drawn, dtype=torch.long, device=next(model.parameters()).device)
    try:
        require_causal("absolute_position", model, ids)
    except NotImplementedError as error:
        raise LoadError(str(error)) from None
    return ids


def _inputs(ids: Tensor) -> dict[str, Tensor]:
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _maps(
    model: Any, ids: Tensor, edits: tuple[Any, ...] = (), layers: tuple[int, ...] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores, log-sums and attention of all layers, one after the other along the heads, in
    float64.
    """
    parts: list[list[Tensor]] = [[], [], []]
    spec = Forward(("scores", "lse", "attention"), layers=layers, edits=edits)
    with forward(model, _inputs(ids), spec) as captured:
        for layer in captured:
            for part, site in zip(parts, ("scores", "lse", "attention"), strict=True):
                part.append(layer.tensors[site].double().cpu())
    scores, lse, attention = (torch.cat(part, 1) for part in parts)
    return scores, lse, attention


def _distance(first: Tensor, second: Tensor) -> float:
    """Return the largest difference of visible scores."""
    seen = (first > -torch.inf) & (second > -torch.inf)
    return float((first - second)[seen].abs().max())


def _shifted(model: Any, ids: Tensor, scores: Tensor, tolerance: float) -> Check:
    """Check that scores stay under a shift of all positions; where learned positions take ids they must
    change.
    """
    try:
        moved = _maps(model, ids, (SetPositionIds(shift=SHIFT),))[0]
    except (NotImplementedError, RuntimeError, ValueError, IndexError) as error:
        return Check("shift", None, tolerance, str(error))
    gap = _distance(scores, moved)
    rotary = any(name.endswith("inv_freq") for name, _ in model.named_buffers())
    if gap > tolerance and not rotary:
        reason = f"positions are learned: all moved by {SHIFT}, scores change by {gap:.3g}"
        return Check("shift", None, tolerance, reason)
    return Check("shift", gap, tolerance)


def _unchanged(model: Any, ids: Tensor, scores: Tensor) -> Iterator[Check]:
    """Check that edits that change nothing change no bit."""
    embeddings = model.get_input_embeddings()
    with torch.no_grad():
        vectors = embeddings(ids[:, :1])[:, 0]
    kinds: dict[str, Callable[[], Any]] = {
        "own_embedding": lambda: SetEmbedding(0, vectors),
        "whole_window": lambda: LimitWindow(ids.shape[1]),
        "unread_by_none": lambda: SubtractRead([0], heads=[], skip_queries=[0]),
        "no_shift": lambda: SetPositionIds(shift=0),
        "rotary_factor_1": lambda: SetRotary(("interpolate", 1.0)),
    }
    for name, make_edit in kinds.items():
        try:
            changed = _maps(model, ids, (make_edit(),))[0]
        except NotImplementedError as error:
            yield Check(name, None, 0.0, str(error))
            continue
        yield Check(name, 0.0 if torch.equal(changed, scores) else _distance(changed, scores) or 1.0, 0.0)


def _replaced(model: Any, ids: Tensor) -> Iterator[Check]:
    """Check that a replaced later embedding is in layer 0 at its place alone, and leaves every state
    before it.
    """
    at = ids.shape[1] // 2
    embeddings = model.get_input_embeddings()
    with torch.no_grad():
        embedded, vector = embeddings(ids), embeddings(ids[:1, 1:2])[0, 0]

    def states(edits: tuple[Any, ...]) -> tuple[Tensor, list[Tensor]]:
        with forward(model, _inputs(ids), Forward(("hidden", "block_output"), edits=edits)) as layers:
            captured = [(layer.hidden, layer.block_output[:, :at]) for layer in layers]
        return captured[0][0], [before for _, before in captured]

    (plain, befores), (changed, afters) = states(()), states((SetEmbedding(at, vector),))
    if torch.equal(plain, embedded):
        expected = plain.clone()
        expected[:, at] = vector
        yield Check("replaced_embedding", float((changed - expected).abs().max()), 0.0)
    else:
        yield Check("replaced_embedding", None, 0.0, "the model changes embeddings before layer 0")
    gap = max(
        float((plain_states - edited_states).abs().max())
        for plain_states, edited_states in zip(befores, afters, strict=True)
    )
    yield Check("earlier_states", gap, 0.0)


def _silent(model: Any, ids: Tensor) -> Check:
    """Check that, without biases, a zero at position 0 stays zero, and that no score of key 0 has anything
    but its offset's.
    """
    name = "zero_embedding"
    if any(name.endswith("bias") for name, _ in model.named_parameters()):
        return Check(name, None, 0.0, "the model has biases")
    if any(isinstance(module, torch.nn.LayerNorm) for module in model.modules()):
        return Check(name, None, 0.0, "the model's norms take means away")
    zero = torch.zeros(model.get_input_embeddings().weight.shape[1], dtype=torch.float32, device="cpu")
    first = (SetEmbedding(0, zero),)
    with forward(model, _inputs(ids), Forward(("block_output",), edits=first)) as layers:
        worst = max(float(layer.block_output[:, 0].abs().max()) for layer in layers)
    scores = _maps(model, ids, first)[0][..., 0]
    # what an encoding adds to scores: all that is left where every state is zero
    added = _maps(model, ids, tuple(SetEmbedding(at, zero) for at in range(ids.shape[1])))[0][..., 0]
    seen = (scores > -torch.inf) & (added > -torch.inf)
    return Check(name, max(worst, float((scores - added)[seen].abs().max())), 0.0)


def _repeated(model: Any, ids: Tensor) -> Check:
    """Check one token again and again, nothing before it: every score is a function of the offset.

    A learned sink takes more of a short row than of a long one, so that its states change along the text.
    """
    repeated = ids[:, 1:2].expand(-1, ids.shape[1]).contiguous()
    with forward(model, _inputs(repeated[:1]), Forward(("lse",))) as layers:
        sinks = any(layer.sink_logits is not None for layer in layers)
    scores = _maps(model, repeated, layers=(0,) if sinks else None)[0]
    largest = max(1.0, float(scores[scores > -torch.inf].abs().max()))
    worst = 0.0
    for offset in range(ids.shape[1]):
        along = scores.diagonal(-offset, -2, -1)
        along = torch.where(along > -torch.inf, along, torch.nan)
        mean = along.nanmean(-1, keepdim=True)
        worst = max(worst, float((along - mean).abs().nan_to_num(0.0).max()))
    tolerance = 4e-6 * largest * ids.shape[1]
    rotary = any(name.endswith("inv_freq") for name, _ in model.named_buffers())
    if worst > tolerance and not rotary:
        return Check(
            "repeated_token", None, tolerance, f"positions are absolute: scores differ by {worst:.3g}"
        )
    reason = "layer 0 alone: learned sinks tell later layers how many keys a query sees" if sinks else ""
    return Check("repeated_token", worst, tolerance, reason)


def _written(model: Any, ids: Tensor) -> Check:
    """Check that the writes of the heads add up to the attention module's output, but for a constant bias."""
    worst = 0.0
    try:
        with forward(model, _inputs(ids), Forward(("head_output", "attention_output"))) as layers:
            for layer in layers:
                matrix = output_projection(model, layer.index).double().cpu()
                written = torch.einsum("Dhd,bhnd->bnD", matrix, layer.head_output.double().cpu())
                rest = layer.attention_output.double().cpu() - written
                size = layer.attention_output.double().norm()
                worst = max(worst, float((rest - rest[:1, :1]).norm() / size))
    except (WeightMapError, KeyError, RuntimeError, ValueError) as error:
        return Check("head_writes", None, 1e-5, str(error))
    half = next(model.parameters()).dtype in (torch.float16, torch.bfloat16)
    return Check("head_writes", worst, 2e-2 if half else 1e-5)


def check_shuffled(run: StageRun, p_values: np.ndarray[Any, Any]) -> None:
    """Store the check that layer 0 has no residual on shuffled tokens, where no position can have entered."""
    reason = learned_positions(run)
    smallest = float(np.nanmin(holm(p_values))) if np.isfinite(p_values).any() else np.nan
    applies = not reason and np.isfinite(smallest)
    run.write(
        "checks",
        check=SHUFFLED,
        value=smallest,
        tolerance=LEAST_P,
        holds=not applies or smallest > LEAST_P,
        reason=reason or "the smallest p of a head's residual (Holm), which is above the tolerance",
    )


def learned_positions(run: StageRun) -> str:
    """Return why shifts and layer 0 say nothing of the unit's model; "" where they do."""
    return absolute_positions(run.read("checks"))


def absolute_positions(checks: pd.DataFrame) -> str:
    """Return the reason that a model's checks give for positions being absolute; "" where they are not."""
    reasons = checks.set_index("check")["reason"].dropna()
    for name in ("shift", "repeated_token"):
        if reasons.get(name, "").startswith("positions are"):
            return str(reasons[name])
    return ""
