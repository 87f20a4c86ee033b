# SPDX-License-Identifier: MIT
"""One pass of each version of the texts: the attention of their words, and what an encoder keeps of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnscope import SpanAttention, row_logits, span_attention
from attnscope.capture.likelihood.tokens import log_likelihood
from attnscope.capture.likelihood.vocabulary import special_ids
from attnscope.studies.attention_likelihood.options import REAL, SWAP
from attnscope.studies.attention_likelihood.tables import WORDS
from attnscope.studies.attention_likelihood.versions import chosen_rows, joined, replaced, with_words
from attnscope.studies.supports import LayerVisibility
from attnscope.study_api.forward import Batch, head_mean

if TYPE_CHECKING:
    from attnscope.capture import Layer
    from attnscope.studies.attention_likelihood.options import LikelihoodOptions
    from attnscope.study_api.stage_run import StageRun
    from attnscope.study_api.units import Unit

#: What `words` holds besides its keys.
COLUMNS = frozenset(one.name for one in WORDS)
#: Entries of one head's maps in a pass that takes several versions; a text counts as at least so many tokens.
_ENTRIES, _TOKENS = 2**20, 256


def measure(unit: Unit, run: StageRun, targets: pd.DataFrame, options: LikelihoodOptions) -> None:
    """Tables `spans`, `head_mean_spans` and, of the model itself, `words` of one block of texts."""
    if "versions" not in run.stored.tables():
        _try(run, targets, options)
        return
    versions = run.read("versions")
    versions = versions[(versions["protocol"] == "exact") & versions["sample"].isin(targets.index)]
    names = [REAL, *(one for one in dict.fromkeys(versions["mode"]) if one != REAL)]
    by_mode = {mode: versions[versions["mode"] == mode].set_index("sample") for mode in names}
    keeps = not unit.variant and keeps_own(run)
    surveys = options.survey and not unit.variant
    real = by_mode[REAL]
    for texts, spans, _ in with_words(run, targets[targets.index.isin(real.index)]):
        for modes in _passes(texts, list(by_mode)):
            batch, span, own = _versions(texts, spans, {mode: by_mode[mode] for mode in modes})
            outputs: list[Any] = []
            for number, layer in run.layers(batch, outputs=outputs):
                _write(run, batch, span, number, layer, own["mode"].to_numpy())
                if surveys and modes[0] == REAL:
                    _survey(run, texts, own, number, layer)
            if not unit.variant:
                probability = own_probability(run, outputs, batch, span) if keeps else None
                _words(run, own, targets, probability, real)


def _passes(batch: Batch, modes: Sequence[str]) -> Iterator[Sequence[str]]:
    """Versions that one forward pass takes together: several of few small texts, one of many or long ones."""
    n = max(batch.lengths)
    size = max(1, _ENTRIES // (n * max(n, _TOKENS) * len(batch.samples)))
    for start in range(0, len(modes), size):
        yield modes[start : start + size]


def _versions(
    texts: Batch, spans: Tensor, by_mode: dict[str, pd.DataFrame]
) -> tuple[Batch, Tensor, pd.DataFrame]:
    """The texts with the words of each mode in turn, the words' spans, and the rows of `versions`."""
    batches, places, rows = [], [], []
    for own in by_mode.values():
        there = [at for at, sample in enumerate(texts.samples) if sample in own.index]
        if there:
            rows.append(own.loc[[texts.samples[at] for at in there]])
            places.append(spans[there])
            pieces = list(rows[-1]["replacement_ids"])
            batches.append(replaced(chosen_rows(texts, there), places[-1], pieces))
    return joined(batches), torch.cat(places), pd.concat(rows)


def _try(run: StageRun, targets: pd.DataFrame, options: LikelihoodOptions) -> None:
    """What a dry run can measure: the texts as they stand, as often as they have versions."""
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
    mean = of_span(head_mean(maps), spans, special, support, lengths)
    keys = {"layer": number, "protocol": "exact"}
    samples = np.asarray(batch.samples)
    learned = learned_share(layer, spans)
    more = {} if learned is None else {"learned_sink_mass": learned.mean(1)}
    run.write("head_mean_spans", sample=samples, mode=modes, **keys, **_columns(mean, 0), **more)
    if run.unit.variant:
        return
    found = of_span(maps, spans, special, support, lengths)
    heads = maps.shape[1]
    more = {} if learned is None else {"learned_sink_mass": learned.flatten()}
    run.write(
        "spans",
        sample=np.repeat(samples, heads),
        mode=np.repeat(modes, heads),
        head=np.tile(np.asarray(layer.heads), len(samples)),
        **keys,
        **_columns(found, slice(None)),
        **more,
    )


def of_span(maps: Tensor, spans: Tensor, special: Tensor, support: Any, lengths: Tensor) -> SpanAttention:
    """Attention of each text's word [B, h] in maps [B, h, n, n]."""
    return span_attention(
        maps, spans[:, None], special=special[:, None], support=support, lengths=lengths[:, None]
    )


def learned_share(layer: Layer, spans: Tensor) -> Tensor | None:
    """What a learned sink takes of the rows of each text's word [B, h]; None without one."""
    if layer.sink_logits is None:
        return None
    mass = layer.states("sink_mass").double()
    place = torch.arange(mass.shape[-1], device="cpu")
    word = (place >= spans[:, :1]) & (place < spans[:, 1:])
    return torch.stack([own[:, rows].mean(-1) for own, rows in zip(mass.cpu(), word, strict=True)])


def _columns(found: SpanAttention, heads: Any) -> dict[str, Any]:
    return {f"span_{name}": value[:, heads].reshape(-1) for name, value in found._asdict().items()}


def special_keys(run: StageRun, batch: Batch, n: int) -> Tensor:
    """Which keys are special tokens [B, n]."""
    special = special_ids(run.encoder.tokenizer)
    found = torch.zeros(len(batch.samples), n, dtype=torch.bool, device="cpu")
    for row, ids in enumerate(batch.token_ids):
        found[row, : len(ids)] = torch.tensor([int(one) in special for one in ids], device="cpu")
    return found


def keeps_own(run: StageRun) -> bool:
    """Whether the model is an encoder whose vocabulary head says at a position what stands there."""
    from attnscope.models.head_rows import head_plan

    model = run.model().model
    try:
        plan = head_plan(model)
    except NotImplementedError:
        return False
    own = plan.body is not None and model.get_submodule(plan.body) is model.base_model
    return own and not plan.causal


def own_probability(run: StageRun, outputs: Sequence[Any], batch: Batch, spans: Tensor) -> Tensor:
    """Log-probabilities of the word's pieces at their own positions [B, most pieces], NaN behind the last."""
    hidden = outputs[0][0] if isinstance(outputs[0], tuple) else outputs[0].last_hidden_state
    pieces = spans[:, 1] - spans[:, 0]
    steps = torch.arange(int(pieces.max()), device="cpu")
    there = steps < pieces[:, None]
    rows = torch.where(there, spans[:, :1] + steps, spans[:, :1])
    longest = max(batch.lengths)
    ids = torch.tensor([[*own, *[0] * (longest - len(own))] for own in batch.token_ids], device="cpu")
    with torch.no_grad():
        logits = row_logits(run.model().model, hidden, rows)
    found = log_likelihood(logits, ids.gather(1, rows))
    return torch.where(there, found, torch.nan)


def _words(
    run: StageRun, own: pd.DataFrame, targets: pd.DataFrame, probability: Tensor | None, real: pd.DataFrame
) -> None:
    """Rows of `words`: what `versions` holds, the probability at the own position, whether it is the word."""
    same = [
        list(ids) == list(its)
        for ids, its in zip(own["replacement_ids"], real.loc[own.index, "replacement_ids"], strict=True)
    ]
    columns = [name for name in own.columns if name in COLUMNS and not name.startswith("own_")]
    more = {} if probability is None else {"own_probability": probability.nanmean(1).exp()}
    lists = {"replacement_ids": [[int(piece) for piece in ids] for ids in own["replacement_ids"]]}
    run.write(
        "words",
        sample=own.index.to_numpy(),
        mode=own["mode"],
        protocol="exact",
        same=np.array(same),
        partner=targets.loc[own.index, "partner"],
        **{name: own[name] for name in columns if name not in lists},
        **lists,
        **more,
    )


def _survey(run: StageRun, batch: Batch, own: pd.DataFrame, number: int, layer: Layer) -> None:
    """Of each text, whether attention of tokens to themselves follows their likelihood."""
    from attnscope.inference import partial_correlation

    if own["token_log_likelihood"].isna().all():
        return
    maps = layer.matrices()
    seen = LayerVisibility.by(layer, maps)
    diagonal = head_mean(maps)[:, 0].diagonal(dim1=-2, dim2=-1).cpu().numpy()
    for at, (sample, n) in enumerate(zip(batch.samples, batch.lengths, strict=True)):
        tokens = np.array(own["token_log_likelihood"].iloc[at], dtype=float)
        place = np.arange(n, dtype=float)
        boost = diagonal[at, :n] * seen.of_text(at, n).sum(-1).numpy()
        known = np.isfinite(tokens)
        given = place[known][:, None]
        plain, partial = (
            partial_correlation(tokens[known], boost[known], more).r for more in (given[:, :0], given)
        )
        run.write("surveys", sample=sample, layer=number, correlation=plain, partial=partial)
