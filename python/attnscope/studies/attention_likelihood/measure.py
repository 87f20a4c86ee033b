# SPDX-License-Identifier: MIT
"""Attention of the words of each version of the texts, in one pass, and an encoder's own probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnscope import SpanAttention, row_logits, span_attention
from attnscope._precision import Precision
from attnscope.capture.likelihood.tokens import log_likelihood
from attnscope.capture.likelihood.vocabulary import special_ids
from attnscope.studies.attention_likelihood.options import REAL, SWAP
from attnscope.studies.attention_likelihood.replacements import chosen_rows, joined, replaced, with_words
from attnscope.studies.attention_likelihood.tables import WORDS
from attnscope.studies.supports import LayerVisibility
from attnscope.study_api.forward import Batch, head_mean
from attnscope.study_api.selection import where

if TYPE_CHECKING:
    from attnscope.capture import Layer
    from attnscope.studies.attention_likelihood.options import LikelihoodOptions
    from attnscope.study_api.stage_run import StageRun
    from attnscope.study_api.units import Unit

#: Columns of `words` besides its keys.
COLUMNS = frozenset(column.name for column in WORDS)
#: Entries of one head's maps in a pass that takes several versions; a text counts as at least so many tokens.
_ENTRIES, _TOKENS = 2**20, 256


def measure(unit: Unit, run: StageRun, targets: pd.DataFrame, options: LikelihoodOptions) -> None:
    """Write `spans`, `head_mean_spans` and, of the model itself, `words` of one block of texts."""
    if "versions" not in run.stored.tables():
        _calibrate(run, targets, options)
        return
    versions = run.read("versions")
    versions = where(versions, protocol="exact", sample=targets.index)
    names = [REAL, *(mode for mode in dict.fromkeys(versions["mode"]) if mode != REAL)]
    by_mode = {mode: where(versions, mode=mode).set_index("sample") for mode in names}
    keeps = not unit.variant and keeps_own(run)
    surveys = options.survey and not unit.variant
    real = by_mode[REAL]
    for texts, spans, _ in with_words(run, targets[targets.index.isin(real.index)]):
        for modes in _passes(texts, list(by_mode)):
            batch, span, rows_of_versions = _versions(texts, spans, {mode: by_mode[mode] for mode in modes})
            outputs: list[Any] = []
            for number, layer in run.layers(batch, outputs=outputs):
                _write(run, batch, span, number, layer, rows_of_versions["mode"].to_numpy())
                if surveys and modes[0] == REAL:
                    _survey(run, texts, rows_of_versions, number, layer)
            if not unit.variant:
                probability = own_probability(run, outputs, batch, span) if keeps else None
                _words(run, rows_of_versions, targets, probability, real)


def _passes(batch: Batch, modes: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield versions that one forward pass takes together: several of few small texts, one of many or long
    ones.
    """
    n = max(batch.lengths)
    size = max(1, _ENTRIES // (n * max(n, _TOKENS) * len(batch.samples)))
    for start in range(0, len(modes), size):
        yield modes[start : start + size]


def _versions(
    texts: Batch, spans: Tensor, by_mode: dict[str, pd.DataFrame]
) -> tuple[Batch, Tensor, pd.DataFrame]:
    """Return the texts with the words of each mode in turn, the words' spans, and the rows of `versions`."""
    batches, places, rows = [], [], []
    for rows_of_mode in by_mode.values():
        with_version = [at for at, sample in enumerate(texts.samples) if sample in rows_of_mode.index]
        if with_version:
            rows.append(rows_of_mode.loc[[texts.samples[at] for at in with_version]])
            places.append(spans[with_version])
            pieces = list(rows[-1]["replacement_ids"])
            batches.append(replaced(chosen_rows(texts, with_version), places[-1], pieces))
    return joined(batches), torch.cat(places), pd.concat(rows)


def _calibrate(run: StageRun, targets: pd.DataFrame, options: LikelihoodOptions) -> None:
    """Measure the texts of a dry run as they are, as often as they have versions."""
    for batch, spans, _ in with_words(run, targets):
        for _mode in (REAL, *options.modes, *([SWAP] if options.swap else [])):
            for number, layer in run.layers(batch):
                _write(run, batch, spans, number, layer, np.full(len(batch.samples), REAL))


def _write(
    run: StageRun, batch: Batch, spans: Tensor, number: int, layer: Layer, modes: NDArray[Any]
) -> None:
    maps = layer.matrices()
    special = special_keys(run, batch, maps.shape[-1])
    support, lengths = layer.visibility.support, torch.tensor(batch.lengths, device="cpu")
    precision = run.settings.precision
    mean = of_span(head_mean(maps), spans, special, support, lengths, precision)
    keys = {"layer": number, "protocol": "exact"}
    samples = np.asarray(batch.samples)
    learned = learned_share(layer, spans)
    learned_columns = {} if learned is None else {"learned_sink_mass": learned.mean(1)}
    run.write("head_mean_spans", sample=samples, mode=modes, **keys, **_columns(mean, 0), **learned_columns)
    if run.unit.variant:
        return
    attention = of_span(maps, spans, special, support, lengths, precision)
    heads = maps.shape[1]
    learned_columns = {} if learned is None else {"learned_sink_mass": learned.flatten()}
    run.write(
        "spans",
        sample=np.repeat(samples, heads),
        mode=np.repeat(modes, heads),
        head=np.tile(np.asarray(layer.heads), len(samples)),
        **keys,
        **_columns(attention, slice(None)),
        **learned_columns,
    )


def of_span(
    maps: Tensor,
    spans: Tensor,
    special: Tensor,
    support: Any,
    lengths: Tensor,
    precision: Precision = "exact",
) -> SpanAttention:
    """Return attention of each text's word [B, h] in maps [B, h, n, n]."""
    return span_attention(
        maps,
        spans[:, None],
        special=special[:, None],
        support=support,
        precision=precision,
        lengths=lengths[:, None],
    )


def learned_share(layer: Layer, spans: Tensor) -> Tensor | None:
    """Return the share that a learned sink takes of the rows of each text's word [B, h]; None without one."""
    if not layer.has_sink:
        return None
    mass = layer.states("sink_mass").double()
    place = torch.arange(mass.shape[-1], device="cpu")
    word = (place >= spans[:, :1]) & (place < spans[:, 1:])
    return torch.stack(
        [mass_of_text[:, rows].mean(-1) for mass_of_text, rows in zip(mass.cpu(), word, strict=True)]
    )


def _columns(attention: SpanAttention, heads: Any) -> dict[str, Any]:
    return {f"span_{name}": value[:, heads].reshape(-1) for name, value in attention._asdict().items()}


def special_keys(run: StageRun, batch: Batch, n: int) -> Tensor:
    """Return True for keys that are special tokens [B, n]."""
    special = special_ids(run.encoder.tokenizer)
    is_special = torch.zeros(len(batch.samples), n, dtype=torch.bool, device="cpu")
    for row, ids in enumerate(batch.token_ids):
        is_special[row, : len(ids)] = torch.tensor([int(token) in special for token in ids], device="cpu")
    return is_special


def keeps_own(run: StageRun) -> bool:
    """Return True if the model is an encoder whose vocabulary head predicts the token at its own position."""
    from attnscope.models.head_rows import head_plan

    model = run.model().model
    try:
        plan = head_plan(model)
    except NotImplementedError:
        return False
    is_base_model = plan.body is not None and model.get_submodule(plan.body) is model.base_model
    return is_base_model and not plan.causal


def own_probability(run: StageRun, outputs: Sequence[Any], batch: Batch, spans: Tensor) -> Tensor:
    """Return log-probabilities of the word's pieces at their positions [B, most pieces], NaN behind the
    last.
    """
    hidden = outputs[0][0] if isinstance(outputs[0], tuple) else outputs[0].last_hidden_state
    pieces = spans[:, 1] - spans[:, 0]
    steps = torch.arange(int(pieces.max()), device="cpu")
    has_piece = steps < pieces[:, None]
    rows = torch.where(has_piece, spans[:, :1] + steps, spans[:, :1])
    longest = max(batch.lengths)
    ids = torch.tensor(
        [[*token_ids, *[0] * (longest - len(token_ids))] for token_ids in batch.token_ids], device="cpu"
    )
    with torch.no_grad():
        logits = row_logits(run.model().model, hidden, rows)
    log_probability = log_likelihood(logits, ids.gather(1, rows))
    return torch.where(has_piece, log_probability, torch.nan)


def _words(
    run: StageRun,
    rows_of_versions: pd.DataFrame,
    targets: pd.DataFrame,
    probability: Tensor | None,
    real: pd.DataFrame,
) -> None:
    """Write the rows of `words`: those of `versions`, the probability at the own position, equality with
    the word.
    """
    is_word = [
        list(ids) == list(its)
        for ids, its in zip(
            rows_of_versions["replacement_ids"],
            real.loc[rows_of_versions.index, "replacement_ids"],
            strict=True,
        )
    ]
    columns = [name for name in rows_of_versions.columns if name in COLUMNS and not name.startswith("own_")]
    probability_columns = {} if probability is None else {"own_probability": probability.nanmean(1).exp()}
    lists = {
        "replacement_ids": [[int(piece) for piece in ids] for ids in rows_of_versions["replacement_ids"]]
    }
    run.write(
        "words",
        sample=rows_of_versions.index.to_numpy(),
        mode=rows_of_versions["mode"],
        protocol="exact",
        same=np.array(is_word),
        partner=targets.loc[rows_of_versions.index, "partner"],
        **{name: rows_of_versions[name] for name in columns if name not in lists},
        **lists,
        **probability_columns,
    )


def _survey(run: StageRun, batch: Batch, rows_of_texts: pd.DataFrame, number: int, layer: Layer) -> None:
    """Write the association of tokens' attention to themselves and their likelihood, for each text."""
    from attnscope.statistics import partial_correlation

    if rows_of_texts["token_log_likelihood"].isna().all():
        return
    maps = layer.matrices()
    seen = LayerVisibility.by(layer, maps)
    diagonal = head_mean(maps)[:, 0].diagonal(dim1=-2, dim2=-1).cpu().numpy()
    for at, (sample, n) in enumerate(zip(batch.samples, batch.lengths, strict=True)):
        tokens = np.array(rows_of_texts["token_log_likelihood"].iloc[at], dtype=float)
        place = np.arange(n, dtype=float)
        boost = diagonal[at, :n] * seen.of_text(at, n).sum(-1).numpy()
        is_finite = np.isfinite(tokens)
        places = place[is_finite][:, None]
        plain, partial = (
            partial_correlation(tokens[is_finite], boost[is_finite], covariates).r
            for covariates in (places[:, :0], places)
        )
        run.write("surveys", sample=sample, layer=number, correlation=plain, partial=partial)
