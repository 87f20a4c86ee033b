# SPDX-License-Identifier: MIT
"""The protocol `ruscio2023`: the authors' words, replacements and correlation, for masked-language models.

`attnscope.protocols.ruscio2023` documents each step and how it differs from the exact protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attnscope.errors import ConfigError
from attnscope.protocols import ruscio2023
from attnscope.studies.attention_likelihood.associations import Row, partial_slope
from attnscope.studies.attention_likelihood.options import REAL
from attnscope.studies.attention_likelihood.replacements import chosen_rows, replaced, source, store
from attnscope.studies.attention_likelihood.targets import requested_words
from attnscope.study_api.forward import Batch, head_mean, padded
from attnscope.study_api.selection import where

if TYPE_CHECKING:
    from attnscope.studies.attention_likelihood.options import LikelihoodOptions
    from attnscope.study_api.stage_run import StageRun
    from attnscope.study_api.units import Unit

PROTOCOL = "ruscio2023"
MODES = (REAL, *ruscio2023.MODES)


def make(unit: Unit, run: StageRun, targets: pd.DataFrame, options: LikelihoodOptions) -> None:
    """Write the rows of `versions` under the protocol."""
    loaded, tokenizer = source(run, options), run.encoder.tokenizer
    words = requested_words(unit.inputs, options.word)
    if isinstance(words, str):
        words = [targets["word"].get(text.sentence.sample) for text in unit.inputs]
    lemmas = {text.sentence.sample: word for text, word in zip(unit.inputs, words, strict=True)}
    for batch in run.batches():
        spans = [
            ruscio2023.find_span(tokenizer, ids, word) if (word := lemmas[sample]) else (-1, -1)
            for sample, ids in zip(batch.samples, batch.token_ids, strict=True)
        ]
        with_word = [at for at, (start, _) in enumerate(spans) if start >= 0]
        if not with_word:
            continue
        part, span = (
            chosen_rows(batch, with_word),
            torch.tensor([spans[at] for at in with_word], device="cpu"),
        )
        inputs = padded(part, run.encoder.pad_id, loaded.device)
        try:
            logits = ruscio2023.unmasked_logits(loaded.model, inputs)
        except NotImplementedError as error:
            raise ConfigError(f"protocols: ruscio2023 is of masked-language models: {error}") from None
        ids = ruscio2023.replacements(logits, inputs, span)
        rows_of_words = pd.DataFrame({"word": [lemmas[sample] for sample in part.samples]})
        rows_of_words["start"], rows_of_words["stop"] = span.T.tolist()
        for at, mode in enumerate(MODES):
            rows = ids[:, at - 1].tolist() if at else [list(ids) for ids in part.token_ids]
            pieces = [row[start:stop] for row, (start, stop) in zip(rows, span.tolist(), strict=True)]
            if at:
                inputs = padded(replaced(part, span, pieces), run.encoder.pad_id, loaded.device)
                logits = ruscio2023.unmasked_logits(loaded.model, inputs)
            probability = ruscio2023.token_probability(logits, inputs, span)
            undefined = np.full(len(pieces), np.nan)
            store(
                run,
                part,
                rows_of_words,
                mode,
                pieces,
                protocol=PROTOCOL,
                log_likelihood=undefined,
                own_probability=probability.inner_mean,
                own_std=probability.inner_std,
                own_joint=probability.inner_product,
            )


def measure(run: StageRun, versions: pd.DataFrame) -> None:
    """Write the rows of `words` and `head_mean_spans` under the protocol for one block of texts."""
    versions = where(versions, protocol=PROTOCOL)
    by_mode = {mode: rows.set_index("sample") for mode, rows in versions.groupby("mode", sort=False)}
    for batch in run.batches() if by_mode else ():
        real = by_mode[REAL]
        with_word = [at for at, sample in enumerate(batch.samples) if sample in real.index]
        if not with_word:
            continue
        part = chosen_rows(batch, with_word)
        rows_of_real = real.loc[list(part.samples)]
        spans = torch.tensor(rows_of_real[["start", "stop"]].to_numpy(dtype=np.int64), device="cpu")
        first: dict[int, Tensor] = {}
        for mode in MODES:
            rows = by_mode[mode].loc[list(part.samples)]
            version = replaced(part, spans, list(rows["replacement_ids"]))
            for number, layer in run.layers(version):
                maps = head_mean(layer.matrices())[:, 0].cpu()
                _write(run, version, spans, number, maps, first.setdefault(number, maps), mode)
            lists = {"replacement_ids": [[int(piece) for piece in ids] for ids in rows["replacement_ids"]]}
            real_ids = [list(ids) for ids in rows_of_real["replacement_ids"]]
            columns = ("word", "replacement", "start", "stop", "pieces", "n_tokens", *OWN_PROBABILITIES)
            run.write(
                "words",
                sample=list(part.samples),
                mode=mode,
                protocol=PROTOCOL,
                same=np.array(
                    [
                        version_ids == text_ids
                        for version_ids, text_ids in zip(lists["replacement_ids"], real_ids, strict=True)
                    ]
                ),
                **{name: rows[name] for name in columns},
                **lists,
            )


OWN_PROBABILITIES = ("own_probability", "own_std", "own_joint")


def _write(
    run: StageRun, batch: Batch, spans: Tensor, number: int, maps: Tensor, real: Tensor, mode: str
) -> None:
    attention = ruscio2023.span_attention(maps, spans, lengths=torch.tensor(batch.lengths, device="cpu"))
    columns: dict[str, Any] = {"map_mean": attention.mean, "inner": attention.inner, "outer": attention.outer}
    if mode != REAL:
        tests = [
            ruscio2023.mann_whitney(real[at, :n, :n], maps[at, :n, :n], tuple(span))
            for at, (n, span) in enumerate(zip(batch.lengths, spans.tolist(), strict=True))
        ]
        columns |= {
            "mann_whitney_u": np.array([test.u_real for test in tests]),
            "mann_whitney_u_replaced": np.array([test.u_replaced for test in tests]),
            "mann_whitney_p": np.array([test.p_value for test in tests]),
            "row_difference_std": np.array([test.difference_std for test in tests]),
        }
    keys = {"mode": mode, "layer": number, "protocol": PROTOCOL}
    run.write("head_mean_spans", sample=list(batch.samples), **keys, **columns)


def estimate(words: pd.DataFrame, spans: pd.DataFrame) -> tuple[list[Row], Row | None]:
    """Return the rows of `head_mean_associations` and of `best_layers` under the protocol."""
    if words.empty or spans.empty:
        return [], None
    p = words.pivot_table(index="sample", columns="mode", values="own_probability", dropna=False)
    grids = {
        name: spans.pivot_table(index="sample", columns=["layer", "mode"], values=name, dropna=False)
        for name in ("inner", "outer", "map_mean", *_TESTS)
    }
    layers = sorted({int(layer) for layer in spans["layer"]})
    rows = []
    for layer in layers:
        for mode in MODES:
            x, y = p[mode].to_numpy(), grids["inner"][layer, mode].to_numpy()
            rows.append(
                {
                    "layer": layer,
                    "design": "between",
                    "mode": mode,
                    "predictor": "own_probability",
                    "measure": "inner",
                    "estimate": ruscio2023.correlation(x, y),
                    "slope": partial_slope(x, y, np.empty((len(x), 0))),
                    "n": len(x),
                }
            )
    best = chosen(p, grids["inner"], layers)
    row: Row = {"n": len(p), "mode": best.mode, "rho": best.rho}
    if best.layer < 0:
        return rows, row
    place = layers[best.layer]
    row["layer"] = place
    even, odd = (p.index % 2 == rest for rest in (0, 1))
    if even.sum() > 2 and odd.sum() > 2:
        held = chosen(p[even], grids["inner"][even], layers)
        if held.layer >= 0:
            at = layers[held.layer]
            rho = ruscio2023.correlation(p[odd][held.mode], grids["inner"][odd][at, held.mode])
            row |= {"held_out_layer": at, "held_out_mode": held.mode, "held_out_rho": rho}
    for which, mode in (("real", REAL), ("perturbed", best.mode)):
        for name, values in (
            ("likelihood", p[mode]),
            ("inner", grids["inner"][place, mode]),
            ("outer", grids["outer"][place, mode]),
        ):
            row |= {f"{name}_{which}": values.mean(), f"{name}_{which}_std": values.std()}
    row["map_mean"] = grids["map_mean"][place, REAL].mean()
    row |= {name: grids[column][place, best.mode].mean() for column, name in _TESTS.items()}
    return rows, row


#: Columns of `best_layers` by those of `head_mean_spans` that they are means of.
_TESTS = {
    "mann_whitney_u": "u_real",
    "mann_whitney_u_replaced": "u_perturbed",
    "mann_whitney_p": "mann_whitney_p",
    "row_difference_std": "difference_std",
}


def chosen(p: pd.DataFrame, inner: pd.DataFrame, layers: list[int]) -> ruscio2023.BestLayer:
    """Return the layer and the mode, less probable than the real words, of the largest correlation."""
    modes = [mode for mode in MODES if mode != REAL]
    values = [
        [ruscio2023.correlation(p[mode].to_numpy(), inner[layer, mode].to_numpy()) for mode in modes]
        for layer in layers
    ]
    return ruscio2023.best_layers(values, [p[mode].mean() for mode in modes], float(p[REAL].mean()), modes)
