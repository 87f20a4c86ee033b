# SPDX-License-Identifier: MIT
"""Replacements of each word and their likelihood, made once and measured by every model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attnscope import WordLikelihood, replacements, token_likelihood
from attnscope.capture.likelihood.arguments import context_argument
from attnscope.capture.likelihood.chain import scored
from attnscope.errors import ConfigError
from attnscope.models import LoadedModel, LoadError, find_checkpoints, load_tokenizer
from attnscope.studies.attention_likelihood.options import REAL, SWAP
from attnscope.study_api.forward import Batch, padded

if TYPE_CHECKING:
    from attnscope.capture.likelihood.replacements import Replacements
    from attnscope.studies.attention_likelihood.options import LikelihoodOptions
    from attnscope.study_api.stage_run import StageRun

#: What a batch holds of each text.
_AXES = ("samples", "lengths", "token_ids", "tokens", "groups")


def source(run: StageRun, options: LikelihoodOptions) -> LoadedModel:
    """Return the model that gives likelihoods."""
    if not options.likelihood_from:
        return run.model()
    try:
        checkpoint = find_checkpoints(options.likelihood_from)[-1]
        other = load_tokenizer(checkpoint).get_vocab()
    except (FileNotFoundError, LoadError, ConfigError) as error:
        raise ConfigError(f"options.likelihood_from: {error}") from None
    vocabulary = run.encoder.tokenizer.get_vocab()
    if other != vocabulary:
        raise ConfigError(
            f"options.likelihood_from: {options.likelihood_from} has another vocabulary: "
            f"{_first_difference(vocabulary, other)}"
        )
    return run.model(checkpoint)


def _first_difference(vocabulary: dict[str, int], other: dict[str, int]) -> str:
    """Return the lowest id that two vocabularies do not share, in words."""
    names = [{place: name for name, place in entries.items()} for entries in (vocabulary, other)]
    for place in range(max(len(names[0]), len(names[1]), *map(max, names)) + 1):
        token, other_token = (by_id.get(place) for by_id in names)
        if token != other_token:
            return f"id {place} is {token!r} here and {other_token!r} there"
    return "two entries share an id"


def kind_of(loaded: LoadedModel, tokenizer: Any, options: LikelihoodOptions) -> tuple[str, int]:
    """Return the condition of the likelihood, and the id of the mask."""
    try:
        return context_argument("attention_likelihood", options.context, loaded.model, tokenizer)
    except NotImplementedError as error:
        # a model of the run is left out; one that the options name is a fault of theirs
        kind = ConfigError if options.likelihood_from else LoadError
        raise kind(
            f"{loaded.checkpoint.title}: {error}; options.likelihood_from names such a model"
            if "likelihood_from" not in str(error)
            else f"{loaded.checkpoint.title}: {error}"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{loaded.checkpoint.title}: {error}") from None


def with_words(run: StageRun, targets: pd.DataFrame) -> Iterator[tuple[Batch, Tensor, pd.DataFrame]]:
    """Yield batches of the unit's texts that have a word, with the spans [B, 2] and rows of `targets`."""
    for batch in run.batches():
        rows = [at for at, sample in enumerate(batch.samples) if sample in targets.index]
        if rows:
            chosen = chosen_rows(batch, rows)
            rows_of_targets = targets.loc[list(chosen.samples)]
            yield (
                chosen,
                torch.tensor(rows_of_targets[["start", "stop"]].to_numpy(dtype=np.int64), device="cpu"),
                rows_of_targets,
            )


def chosen_rows(batch: Batch, rows: Sequence[int]) -> Batch:
    """Return some of the texts of a batch."""
    fields: dict[str, Any] = {name: [getattr(batch, name)[at] for at in rows] for name in _AXES}
    return replace(batch, **fields)


def joined(batches: Sequence[Batch]) -> Batch:
    """Return the texts of several batches, one after another."""
    fields: dict[str, Any] = {
        name: [value for batch in batches for value in getattr(batch, name)] for name in _AXES
    }
    return replace(batches[0], **fields)


def replaced(batch: Batch, spans: Tensor, pieces: Sequence[Sequence[int]]) -> Batch:
    """Return the batch with other pieces in the place of each text's word."""
    ids = [list(row) for row in batch.token_ids]
    for row, (start, stop), replacement in zip(ids, spans.tolist(), pieces, strict=True):
        if len(replacement) != stop - start:
            raise ValueError(f"replaced: a word of {stop - start} pieces, got {len(replacement)}")
        row[start:stop] = [int(piece) for piece in replacement]
    return replace(batch, token_ids=ids)


def make(run: StageRun, targets: pd.DataFrame, options: LikelihoodOptions) -> None:
    """Write the table `versions` of the exact protocol for one block of texts."""
    loaded, tokenizer = source(run, options), run.encoder.tokenizer
    kind, mask_id = kind_of(loaded, tokenizer, options)
    few = 0
    for batch, spans, rows in with_words(run, targets):
        inputs = padded(batch, run.encoder.pad_id, "cpu")
        candidates = replacements(
            loaded.model,
            inputs,
            spans,
            options.modes,
            tokenizer=tokenizer,
            candidates=options.candidates,
            context=kind,
            seed=run.settings.seed,
            samples=batch.samples,
        )
        usable = [at for at, reason in enumerate(candidates.reasons) if not reason]
        few += len(candidates.reasons) - len(usable)
        if not usable:
            continue
        batch, spans, rows = chosen_rows(batch, usable), spans[usable], rows.iloc[usable]
        away = rows["partner"].notna().to_numpy().nonzero()[0].tolist()
        exchanged = [list(ids) for ids in rows["swap_ids"].iloc[away]]
        texts_and_swaps = joined([batch, replaced(chosen_rows(batch, away), spans[away], exchanged)])
        likelihoods, uncertain = likelihood(
            run, loaded, texts_and_swaps, torch.cat([spans, spans[away]]), kind, mask_id
        )
        columns: dict[str, Any] = {"prediction_entropy": uncertain[: len(rows)]}
        if options.survey and kind == "left":
            tokens = token_likelihood(loaded.model, padded(batch, run.encoder.pad_id, "cpu")).log_likelihood
            columns["token_log_likelihood"] = [
                row[:length].tolist() for row, length in zip(tokens, batch.lengths, strict=True)
            ]
        pieces = [ids[start:stop] for ids, (start, stop) in zip(batch.token_ids, spans.tolist(), strict=True)]
        store(
            run,
            batch,
            rows,
            REAL,
            pieces,
            log_likelihood=likelihoods.log_likelihood[: len(rows)],
            two_sided=likelihoods.two_sided[: len(rows)],
            **columns,
        )
        _store_modes(run, loaded, candidates, usable, (batch, spans, rows), options, kind, mask_id)
        if away:
            store(
                run,
                chosen_rows(batch, away),
                rows.iloc[away],
                SWAP,
                exchanged,
                log_likelihood=likelihoods.log_likelihood[len(rows) :],
                two_sided=likelihoods.two_sided[len(rows) :],
            )
    if few:
        run.note(f"attention_likelihood: texts are left out (few candidates {few})")


def _store_modes(
    run: StageRun,
    loaded: LoadedModel,
    candidates: Replacements,
    usable: list[int],
    words: tuple[Batch, Tensor, pd.DataFrame],
    options: LikelihoodOptions,
    kind: str,
    mask_id: int,
) -> None:
    """Write the rows of each mode's replacements of the `usable` texts.

    Args:
        words: the batch of these texts, the pieces of their words, and their rows of targets.
    """
    batch, spans, rows = words
    for at, mode in enumerate(candidates.modes):
        ids = candidates.input_ids[usable, at].tolist()
        replacement = [row[start:stop] for row, (start, stop) in zip(ids, spans.tolist(), strict=True)]
        sides = {}
        if options.two_sided:
            other = replaced(batch, spans, replacement)
            sides["two_sided"] = likelihood(run, loaded, other, spans, kind, mask_id)[0].two_sided
        store(
            run,
            batch,
            rows,
            mode,
            replacement,
            log_likelihood=candidates.log_likelihood[usable, at],
            place=candidates.place[usable, at],
            **sides,
        )


def likelihood(
    run: StageRun, loaded: LoadedModel, batch: Batch, spans: Tensor, kind: str, mask_id: int
) -> tuple[WordLikelihood, Tensor]:
    """Return the likelihood of the words in the texts, and the entropy of q_0 in nats [B]."""
    inputs = padded(batch, run.encoder.pad_id, "cpu")
    real = inputs["attention_mask"].bool()
    return scored(loaded.model, inputs["input_ids"], real, spans, kind, mask_id, "word_likelihood")


def store(
    run: StageRun,
    batch: Batch,
    rows: pd.DataFrame,
    mode: str,
    replacement: Sequence[Sequence[int]],
    **columns: Any,
) -> None:
    """Write the rows of `versions` of one mode."""
    pieces = np.array([len(ids) for ids in replacement])
    log_likelihood = np.asarray(columns["log_likelihood"], dtype=float)
    tokenizer = run.encoder.tokenizer
    run.write(
        "versions",
        sample=list(batch.samples),
        mode=mode,
        word=rows["word"],
        replacement=[tokenizer.decode([int(piece) for piece in ids]).strip() for ids in replacement],
        replacement_ids=[[int(piece) for piece in ids] for ids in replacement],
        start=rows["start"],
        stop=rows["stop"],
        pieces=pieces,
        n_tokens=list(batch.lengths),
        per_piece=log_likelihood / pieces,
        **{"protocol": "exact", **columns},
    )
