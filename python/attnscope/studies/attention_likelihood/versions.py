# SPDX-License-Identifier: MIT
"""What stands in each word's place, and how likely the model finds it: made once, measured by every model."""

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
    from attnscope.studies.attention_likelihood.options import LikelihoodOptions
    from attnscope.study_api.stage_run import StageRun

#: What a batch holds of each text.
_AXES = ("samples", "lengths", "token_ids", "tokens", "groups")


def source(run: StageRun, options: LikelihoodOptions) -> LoadedModel:
    """The model that gives likelihoods."""
    if not options.likelihood_from:
        return run.model()
    try:
        checkpoint = find_checkpoints(options.likelihood_from)[-1]
        other = load_tokenizer(checkpoint).get_vocab()
    except (FileNotFoundError, LoadError) as error:
        raise ConfigError(f"options.likelihood_from: {error}") from None
    own = run.encoder.tokenizer.get_vocab()
    if other != own:
        raise ConfigError(
            f"options.likelihood_from: {options.likelihood_from} has another vocabulary: "
            f"{_first_difference(own, other)}"
        )
    return run.model(checkpoint)


def _first_difference(own: dict[str, int], other: dict[str, int]) -> str:
    """The lowest id that two vocabularies do not share, in words."""
    names = [{place: name for name, place in one.items()} for one in (own, other)]
    for place in range(max(len(names[0]), len(names[1]), *map(max, names)) + 1):
        one, two = (names_.get(place) for names_ in names)
        if one != two:
            return f"id {place} is {one!r} here and {two!r} there"
    return "two entries share an id"


def kind_of(loaded: LoadedModel, tokenizer: Any, options: LikelihoodOptions) -> tuple[str, int]:
    """What the likelihood is conditioned on, and the id of the mask."""
    try:
        return context_argument("attention_likelihood", options.context, loaded.model, tokenizer)
    except NotImplementedError as error:
        raise ConfigError(
            f"{loaded.checkpoint.title}: {error}; options.likelihood_from names such a model"
            if "likelihood_from" not in str(error)
            else f"{loaded.checkpoint.title}: {error}"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{loaded.checkpoint.title}: {error}") from None


def with_words(run: StageRun, targets: pd.DataFrame) -> Iterator[tuple[Batch, Tensor, pd.DataFrame]]:
    """Batches of the unit's texts that have a word, with the spans [B, 2] and rows of `targets`."""
    for batch in run.batches():
        rows = [at for at, sample in enumerate(batch.samples) if sample in targets.index]
        if rows:
            chosen = chosen_rows(batch, rows)
            own = targets.loc[list(chosen.samples)]
            yield chosen, torch.tensor(own[["start", "stop"]].to_numpy(dtype=np.int64), device="cpu"), own


def chosen_rows(batch: Batch, rows: Sequence[int]) -> Batch:
    """Some of the texts of a batch."""
    return replace(batch, **{name: [getattr(batch, name)[at] for at in rows] for name in _AXES})


def joined(batches: Sequence[Batch]) -> Batch:
    """The texts of several batches, one after another."""
    whole = {name: [own for one in batches for own in getattr(one, name)] for name in _AXES}
    return replace(batches[0], **whole)


def replaced(batch: Batch, spans: Tensor, pieces: Sequence[Sequence[int]]) -> Batch:
    """The batch with other pieces in the place of each text's word."""
    ids = [list(one) for one in batch.token_ids]
    for own, (start, stop), put in zip(ids, spans.tolist(), pieces, strict=True):
        if len(put) != stop - start:
            raise ValueError(f"replaced: a word of {stop - start} pieces, got {len(put)}")
        own[start:stop] = [int(one) for one in put]
    return replace(batch, token_ids=ids)


def make(run: StageRun, targets: pd.DataFrame, options: LikelihoodOptions) -> None:
    """The table `versions` of the exact protocol for one block of texts."""
    loaded, tokenizer = source(run, options), run.encoder.tokenizer
    kind, mask_id = kind_of(loaded, tokenizer, options)
    few = 0
    for batch, spans, own in with_words(run, targets):
        inputs = padded(batch, run.encoder.pad_id, "cpu")
        made = replacements(
            loaded.model, inputs, spans, options.modes, tokenizer=tokenizer, candidates=options.candidates,
            context=kind, seed=run.settings.seed, samples=batch.samples,
        )  # fmt: skip
        there = [at for at, reason in enumerate(made.reasons) if not reason]
        few += len(made.reasons) - len(there)
        if not there:
            continue
        batch, spans, own = chosen_rows(batch, there), spans[there], own.iloc[there]
        away = own["partner"].notna().to_numpy().nonzero()[0].tolist()
        exchanged = [list(one) for one in own["swap_ids"].iloc[away]]
        both = joined([batch, replaced(chosen_rows(batch, away), spans[away], exchanged)])
        found, uncertain = likelihood(run, loaded, both, torch.cat([spans, spans[away]]), kind, mask_id)
        about: dict[str, Any] = {"prediction_entropy": uncertain[: len(own)]}
        if options.survey and kind == "left":
            tokens = token_likelihood(loaded.model, padded(batch, run.encoder.pad_id, "cpu")).log_likelihood
            about["token_log_likelihood"] = [
                row[:length].tolist() for row, length in zip(tokens, batch.lengths, strict=True)
            ]
        pieces = [ids[start:stop] for ids, (start, stop) in zip(batch.token_ids, spans.tolist(), strict=True)]
        store(
            run, batch, own, REAL, pieces, log_likelihood=found.log_likelihood[: len(own)],
            two_sided=found.two_sided[: len(own)], **about,
        )  # fmt: skip
        for at, mode in enumerate(made.modes):
            ids = made.input_ids[there, at].tolist()
            put = [row[start:stop] for row, (start, stop) in zip(ids, spans.tolist(), strict=True)]
            sides = {}
            if options.two_sided:
                other = replaced(batch, spans, put)
                sides["two_sided"] = likelihood(run, loaded, other, spans, kind, mask_id)[0].two_sided
            store(
                run, batch, own, mode, put, log_likelihood=made.log_likelihood[there, at],
                place=made.place[there, at], **sides,
            )  # fmt: skip
        if away:
            store(
                run, chosen_rows(batch, away), own.iloc[away], SWAP, exchanged,
                log_likelihood=found.log_likelihood[len(own) :], two_sided=found.two_sided[len(own) :],
            )  # fmt: skip
    if few:
        run.note(f"attention_likelihood: texts are left out (few candidates {few})")


def likelihood(
    run: StageRun, loaded: LoadedModel, batch: Batch, spans: Tensor, kind: str, mask_id: int
) -> tuple[WordLikelihood, Tensor]:
    """L of the words that stand in the texts, and the entropy of q_0 in nats [B]."""
    inputs = padded(batch, run.encoder.pad_id, "cpu")
    real = inputs["attention_mask"].bool()
    return scored(loaded.model, inputs["input_ids"], real, spans, kind, mask_id, "word_likelihood")


def store(
    run: StageRun, batch: Batch, own: pd.DataFrame, mode: str, put: Sequence[Sequence[int]], **columns: Any
) -> None:
    """Rows of `versions` of one mode."""
    pieces = np.array([len(one) for one in put])
    log_likelihood = np.asarray(columns["log_likelihood"], dtype=float)
    tokenizer = run.encoder.tokenizer
    run.write(
        "versions",
        sample=list(batch.samples),
        mode=mode,
        word=own["word"],
        replacement=[tokenizer.decode([int(piece) for piece in one]).strip() for one in put],
        replacement_ids=[[int(piece) for piece in one] for one in put],
        start=own["start"],
        stop=own["stop"],
        pieces=pieces,
        n_tokens=list(batch.lengths),
        per_piece=log_likelihood / pieces,
        **{"protocol": "exact", **columns},
    )
