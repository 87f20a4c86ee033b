# SPDX-License-Identifier: MIT
"""Identities that hold for any model, tried on the first batch of a run before anything is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor

from attnscope.capture.likelihood.chain import masked_from
from attnscope.capture.likelihood.tokens import log_likelihood
from attnscope.models import LoadError
from attnscope.models.head_rows import LastStates
from attnscope.studies.attention_likelihood.measure import of_span, special_keys
from attnscope.studies.attention_likelihood.options import REAL
from attnscope.studies.attention_likelihood.replacements import (
    chosen_rows,
    kind_of,
    replaced,
    source,
    with_words,
)
from attnscope.studies.checks import Check, write_checks
from attnscope.study_api.forward import Batch, head_mean, padded
from attnscope.study_api.selection import where

if TYPE_CHECKING:
    from attnscope.studies.attention_likelihood.options import LikelihoodOptions
    from attnscope.study_api.stage_run import StageRun

#: Largest departure of a row's sum from 1, by the precision of the maps.
ROW_SUMS = {"float64": 1e-4, "float32": 1e-4, "bfloat16": 4e-3, "float16": 4e-3}
TEXTS = 8


@dataclass(frozen=True)
class Version:
    """The texts of the first batch with one kind of replacement."""

    mode: str
    batch: Batch
    log_likelihood: Tensor


def require_maps(run: StageRun) -> None:
    """Raise LoadError where the model gives no attention maps of a text of tokens."""
    batch = next(iter(run.batches()))
    for _ in run.layers(chosen_rows(batch, [0])):
        return


def check(run: StageRun, targets: pd.DataFrame, options: LikelihoodOptions) -> None:
    """Check every identity on a few texts and store the outcomes."""
    versions = run.read("versions")
    versions = where(versions, protocol="exact")
    real = where(versions, mode=REAL).set_index("sample")
    batch, spans, _ = next(with_words(run, targets[targets.index.isin(real.index)]))
    batch, spans = chosen_rows(batch, range(min(TEXTS, len(batch.samples)))), spans[:TEXTS]
    checked = []
    for mode in [REAL, *options.modes]:
        rows_of_mode = where(versions, mode=mode).set_index("sample").loc[list(batch.samples)]
        log_likelihood = torch.tensor(rows_of_mode["log_likelihood"].to_numpy(dtype=float), device="cpu")
        checked.append(
            Version(mode, replaced(batch, spans, list(rows_of_mode["replacement_ids"])), log_likelihood)
        )
    loaded = source(run, options)
    kind, mask_id = kind_of(loaded, run.encoder.tokenizer, options)
    checks = _attention(run, checked, spans)
    if kind == "left":
        checks.append(_chain(run, loaded, checked, spans))
    else:
        checks.append(_first_piece(run, loaded, checked, spans, mask_id))
    write_checks(run, checks)
    for check in checks:
        if not check.holds:
            raise LoadError(
                f"the check {check.name} does not hold: {check.value:.3g}, where at most "
                f"{check.tolerance:.3g} is rounding"
            )


def _chain(run: StageRun, loaded: Any, versions: list[Version], spans: Tensor) -> Check:
    """Check that the likelihood of a word is the sum of the whole pass's next-token terms."""
    worst = 0.0
    for version in versions:
        inputs = padded(version.batch, run.encoder.pad_id, "cpu")
        ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
        states = LastStates(loaded.model, ids, mask)
        total = torch.zeros(len(ids), dtype=torch.float64, device="cpu")
        for k in range(int((spans[:, 1] - spans[:, 0]).max())):
            place = torch.minimum(spans[:, 0] + k, spans[:, 1] - 1)[:, None]
            terms = log_likelihood(states.logits(place - 1), ids.gather(1, place))[:, 0]
            total += torch.where(spans[:, 0] + k < spans[:, 1], terms, 0.0)
        gap = (total - version.log_likelihood).abs() / version.log_likelihood.abs().clamp_min(1.0)
        worst = max(worst, float(gap.max()))
    tolerance = 1e-4 if loaded.dtype in ("float32", "float64") else 2e-2
    return Check("chain_of_likelihoods", worst, tolerance)


def _first_piece(run: StageRun, loaded: Any, versions: list[Version], spans: Tensor, mask_id: int) -> Check:
    """Check that under the mask of the whole word the first piece's logits are the same for every version."""
    logits = []
    for version in versions:
        inputs = padded(version.batch, run.encoder.pad_id, "cpu")
        ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
        ids = masked_from(ids, spans[:, :1], spans[:, 1:], torch.arange(ids.shape[1], device="cpu"), mask_id)
        logits.append(LastStates(loaded.model, ids, mask).logits(spans[:, :1]).double())
    return Check("masked_first_piece", max(float((masked - logits[0]).abs().max()) for masked in logits), 0.0)


def _attention(run: StageRun, versions: list[Version], spans: Tensor) -> list[Check]:
    """Check that only the word's embeddings change, that earlier rows stay, and that rows add up to 1."""
    dtype = str(run.model().dtype)
    rows, embedded, sums, sinks = [], [], 0.0, False
    for version in versions:
        maps = []
        for number, layer in run.layers(version.batch, extra=("hidden",)):
            if number == 0 and "hidden" in layer.tensors:
                embedded.append(layer.hidden.cpu().clone())
            maps_of_heads = layer.matrices()
            mean = head_mean(maps_of_heads)
            maps.append(mean[:, 0].cpu())
            sinks |= layer.has_sink
            attention = of_span(
                mean,
                spans,
                special_keys(run, version.batch, maps_of_heads.shape[-1]),
                layer.visibility.support,
                torch.tensor(version.batch.lengths, device="cpu"),
            )
            gap = (attention.share + attention.special + attention.context - 1).abs()
            sums = max(sums, float(gap.nan_to_num(0.0).max()))
        rows.append(torch.stack(maps))
    checks = [_placed(embedded, versions, spans)]
    causal = not any(bool((map_of_rows.triu(1) != 0).any()) for map_of_rows in rows)
    if causal:
        before = torch.arange(rows[0].shape[-1], device="cpu") < spans[:, :1]
        moved = max(float(((map_of_rows - rows[0]).abs().amax(-1) * before).max()) for map_of_rows in rows)
        checks.append(Check("rows_before_the_word", moved, 0.0 if not _experts(run) else 1e-5))
    else:
        checks.append(Check("rows_before_the_word", None, 0.0, "the model attends to later tokens"))
    tolerance = ROW_SUMS.get(dtype.removeprefix("torch."), 1e-4)
    if sinks:
        checks.append(Check("row_sums", None, tolerance, "the model has learned sinks"))
    else:
        checks.append(Check("row_sums", sums, tolerance))
    return checks


def _placed(embedded: list[Tensor], versions: list[Version], spans: Tensor) -> Check:
    """Count the positions where the input [B, n, D] of the first layer is not that of the version's token."""
    if len(embedded) < len(versions):
        return Check("replaced_tokens", None, 0.0, "what enters the first layer cannot be captured")
    if embedded[0].ndim != 3:
        return Check("replaced_tokens", None, 0.0, "a token enters the first layer as several states")
    wrong = max(_misplaced(embedded, versions, at, spans) for at in range(len(versions)))
    return Check("replaced_tokens", float(wrong), 0.0)


def _misplaced(embedded: list[Tensor], versions: list[Version], at: int, spans: Tensor) -> int:
    """Count the positions whose embedding changed although their token did not, or the reverse."""
    changed = (embedded[at] != embedded[0]).any(-1)
    token_changed = torch.zeros_like(changed)
    for row, (token_ids, real) in enumerate(
        zip(versions[at].batch.token_ids, versions[0].batch.token_ids, strict=True)
    ):
        for place in range(*spans[row].tolist()):
            token_changed[row, place] = token_ids[place] != real[place]
    real_tokens = (
        torch.arange(changed.shape[1], device="cpu")
        < torch.tensor(versions[0].batch.lengths, device="cpu")[:, None]
    )
    return int(((changed != token_changed) & real_tokens).sum())


def _experts(run: StageRun) -> bool:
    """Return True if tokens are sent to experts in groups, whose sizes change the last bits."""
    config = run.model().model.config
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return any(getattr(config, name, None) for name in names)
