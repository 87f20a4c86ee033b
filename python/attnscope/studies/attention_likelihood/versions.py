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

from attnscope import replacements, token_likelihood, word_likelihood
from attnscope.capture.likelihood.arguments import context_argument
from attnscope.capture.likelihood.chain import masked_from
from attnscope.capture.likelihood.tokens import entropy
from attnscope.engine.config import ConfigError
from attnscope.engine.forward import Batch, padded
from attnscope.models import LoadedModel, LoadError, find_checkpoints, load_tokenizer
from attnscope.models.head_rows import LastStates
from attnscope.studies.attention_likelihood.options import REAL, SWAP

if TYPE_CHECKING:
    from attnscope.engine.stage_run import StageRun
    from attnscope.studies.attention_likelihood.options import LikelihoodOptions


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
            yield chosen, torch.tensor(own[["start", "stop"]].to_numpy(dtype=np.int64)), own


def chosen_rows(batch: Batch, rows: Sequence[int]) -> Batch:
    """Some of the texts of a batch."""
    names = ("samples", "lengths", "token_ids", "tokens", "groups")
    return replace(batch, **{name: [getattr(batch, name)[at] for at in rows] for name in names})


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
        inputs = padded(batch, run.encoder.pad_id, "cpu")
        real = likelihood(loaded, inputs, spans, tokenizer, kind)
        about: dict[str, Any] = {"entropy": uncertainty(loaded, inputs, spans, kind, mask_id)}
        about["two_sided"] = real.two_sided
        if options.survey and kind == "left":
            tokens = token_likelihood(loaded.model, inputs).log_likelihood
            about["token_log_likelihood"] = [
                row[:length].tolist() for row, length in zip(tokens, batch.lengths, strict=True)
            ]
        pieces = [ids[start:stop] for ids, (start, stop) in zip(batch.token_ids, spans.tolist(), strict=True)]
        store(run, batch, own, REAL, pieces, log_likelihood=real.log_likelihood, **about)
        for at, mode in enumerate(made.modes):
            ids = made.input_ids[there, at].tolist()
            put = [row[start:stop] for row, (start, stop) in zip(ids, spans.tolist(), strict=True)]
            sides = {}
            if options.two_sided:
                other = padded(replaced(batch, spans, put), run.encoder.pad_id, "cpu")
                sides["two_sided"] = likelihood(loaded, other, spans, tokenizer, kind).two_sided
            store(
                run, batch, own, mode, put, log_likelihood=made.log_likelihood[there, at],
                place=made.place[there, at], **sides,
            )  # fmt: skip
        _exchange(run, batch, spans, own, loaded, kind)
    if few:
        run.note(f"attention_likelihood: texts are left out (few candidates {few})")


def _exchange(
    run: StageRun, batch: Batch, spans: Tensor, own: pd.DataFrame, loaded: LoadedModel, kind: str
) -> None:
    """The word of another text in the place of the text's own."""
    rows = [at for at, partner in enumerate(own["partner"]) if partner >= 0]
    if not rows:
        return
    batch, spans, own = chosen_rows(batch, rows), spans[rows], own.iloc[rows]
    put = [list(one) for one in own["swap_ids"]]
    inputs = padded(replaced(batch, spans, put), run.encoder.pad_id, "cpu")
    found = likelihood(loaded, inputs, spans, run.encoder.tokenizer, kind)
    store(
        run, batch, own, SWAP, put, log_likelihood=found.log_likelihood, two_sided=found.two_sided
    )  # fmt: skip


def likelihood(loaded: LoadedModel, inputs: Any, spans: Tensor, tokenizer: Any, kind: str) -> Any:
    """L of the words that stand in the texts."""
    return word_likelihood(loaded.model, inputs, spans, tokenizer=tokenizer, context=kind)


def uncertainty(loaded: LoadedModel, inputs: Any, spans: Tensor, kind: str, mask_id: int) -> Tensor:
    """Entropy of q_0 in nats [B]: of the first piece behind the left side, or under the word's mask."""
    ids, real = inputs["input_ids"], inputs["attention_mask"].bool()
    place = spans[:, :1]
    if kind == "masked":
        ids = masked_from(ids, place, spans[:, 1:], torch.arange(ids.shape[1]), mask_id)
    rows = place - 1 if kind == "left" else place
    return entropy(LastStates(loaded.model, ids, real).logits(rows))[:, 0]


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
