# SPDX-License-Identifier: MIT
"""The protocol `ruscio2023`: the authors' words, replacements and correlation, for masked-language models.

What each step computes and how it differs stands in `attnscope.protocols.ruscio2023`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attnscope.errors import ConfigError
from attnscope.protocols import ruscio2023
from attnscope.studies.attention_likelihood.associations import Row, straight
from attnscope.studies.attention_likelihood.options import REAL
from attnscope.studies.attention_likelihood.targets import wanted
from attnscope.studies.attention_likelihood.versions import chosen_rows, replaced, source, store
from attnscope.study_api.forward import Batch, head_mean, padded

if TYPE_CHECKING:
    from attnscope.studies.attention_likelihood.options import LikelihoodOptions
    from attnscope.study_api.stage_run import StageRun
    from attnscope.study_api.units import Unit

PROTOCOL = "ruscio2023"
MODES = (REAL, *ruscio2023.MODES)


def make(unit: Unit, run: StageRun, targets: pd.DataFrame, options: LikelihoodOptions) -> None:
    """Rows of `versions` under the protocol."""
    loaded, tokenizer = source(run, options), run.encoder.tokenizer
    words = wanted(unit.inputs, options.word)
    if isinstance(words, str):
        words = [targets["word"].get(one.sentence.sample) for one in unit.inputs]
    lemmas = {one.sentence.sample: word for one, word in zip(unit.inputs, words, strict=True)}
    for batch in run.batches():
        spans = [
            ruscio2023.find_span(tokenizer, ids, word) if (word := lemmas[sample]) else (-1, -1)
            for sample, ids in zip(batch.samples, batch.token_ids, strict=True)
        ]
        there = [at for at, (start, _) in enumerate(spans) if start >= 0]
        if not there:
            continue
        part, span = chosen_rows(batch, there), torch.tensor([spans[at] for at in there], device="cpu")
        inputs = padded(part, run.encoder.pad_id, loaded.device)
        try:
            logits = ruscio2023.unmasked_logits(loaded.model, inputs)
        except NotImplementedError as error:
            raise ConfigError(f"protocols: ruscio2023 is of masked-language models: {error}") from None
        ids = ruscio2023.replacements(logits, inputs, span)
        own = pd.DataFrame({"word": [lemmas[sample] for sample in part.samples]})
        own["start"], own["stop"] = span.T.tolist()
        for at, mode in enumerate(MODES):
            rows = ids[:, at - 1].tolist() if at else [list(one) for one in part.token_ids]
            put = [row[start:stop] for row, (start, stop) in zip(rows, span.tolist(), strict=True)]
            if at:
                inputs = padded(replaced(part, span, put), run.encoder.pad_id, loaded.device)
                logits = ruscio2023.unmasked_logits(loaded.model, inputs)
            found = ruscio2023.token_probability(logits, inputs, span)
            nothing = np.full(len(put), np.nan)
            store(
                run, part, own, mode, put, protocol=PROTOCOL, log_likelihood=nothing,
                own_probability=found.inner_mean, own_std=found.inner_std, own_joint=found.inner_product,
            )  # fmt: skip


def measure(run: StageRun, versions: pd.DataFrame) -> None:
    """Rows of `words` and `head_mean_spans` under the protocol for one block of texts."""
    versions = versions[versions["protocol"] == PROTOCOL]
    by_mode = {mode: own.set_index("sample") for mode, own in versions.groupby("mode", sort=False)}
    for batch in run.batches() if by_mode else ():
        real = by_mode[REAL]
        there = [at for at, sample in enumerate(batch.samples) if sample in real.index]
        if not there:
            continue
        part = chosen_rows(batch, there)
        own = real.loc[list(part.samples)]
        spans = torch.tensor(own[["start", "stop"]].to_numpy(dtype=np.int64), device="cpu")
        first: dict[int, Tensor] = {}
        for mode in MODES:
            rows = by_mode[mode].loc[list(part.samples)]
            put = replaced(part, spans, list(rows["replacement_ids"]))
            for number, layer in run.layers(put):
                maps = head_mean(layer.matrices())[:, 0].cpu()
                _write(run, put, spans, number, maps, first.setdefault(number, maps), mode)
            lists = {"replacement_ids": [[int(one) for one in ids] for ids in rows["replacement_ids"]]}
            real_ids = [list(ids) for ids in own["replacement_ids"]]
            columns = ("word", "replacement", "start", "stop", "pieces", "n_tokens", *OWN)
            run.write(
                "words",
                sample=list(part.samples),
                mode=mode,
                protocol=PROTOCOL,
                same=np.array(
                    [one == two for one, two in zip(lists["replacement_ids"], real_ids, strict=True)]
                ),
                **{name: rows[name] for name in columns},
                **lists,
            )


OWN = ("own_probability", "own_std", "own_joint")


def _write(
    run: StageRun, batch: Batch, spans: Tensor, number: int, maps: Tensor, real: Tensor, mode: str
) -> None:
    found = ruscio2023.span_attention(maps, spans, lengths=torch.tensor(batch.lengths, device="cpu"))
    columns: dict[str, Any] = {"map_mean": found.mean, "inner": found.inner, "outer": found.outer}
    if mode != REAL:
        tests = [
            ruscio2023.mann_whitney(real[at, :n, :n], maps[at, :n, :n], tuple(span))
            for at, (n, span) in enumerate(zip(batch.lengths, spans.tolist(), strict=True))
        ]
        columns |= {
            "mann_whitney_u": np.array([one.u_real for one in tests]),
            "mann_whitney_u_replaced": np.array([one.u_replaced for one in tests]),
            "mann_whitney_p": np.array([one.p_value for one in tests]),
            "row_difference_std": np.array([one.difference_std for one in tests]),
        }
    keys = {"mode": mode, "layer": number, "protocol": PROTOCOL}
    run.write("head_mean_spans", sample=list(batch.samples), **keys, **columns)


def estimate(words: pd.DataFrame, spans: pd.DataFrame) -> tuple[list[Row], Row | None]:
    """Rows of `head_mean_associations` and of `best_layers` under the protocol."""
    if words.empty or spans.empty:
        return [], None
    p = words.pivot_table(index="sample", columns="mode", values="own_probability", dropna=False)
    grids = {
        name: spans.pivot_table(index="sample", columns=["layer", "mode"], values=name, dropna=False)
        for name in ("inner", "outer", "map_mean", *_TESTS)
    }
    layers = sorted({int(one) for one in spans["layer"]})
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
                    "slope": straight(x, y, np.empty((len(x), 0))),
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
    """The layer and the mode, less probable than the real words, of the largest correlation."""
    modes = [mode for mode in MODES if mode != REAL]
    values = [
        [ruscio2023.correlation(p[mode].to_numpy(), inner[layer, mode].to_numpy()) for mode in modes]
        for layer in layers
    ]
    return ruscio2023.best_layers(values, [p[mode].mean() for mode in modes], float(p[REAL].mean()), modes)
