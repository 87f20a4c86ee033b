# SPDX-License-Identifier: MIT
"""Further runs of the model: without its sinks, and backwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnscope.capture.edits.ablation import output_kl_of_sets
from attnscope.metrics.information.fisher import fisher_trace
from attnscope.metrics.information.sinks import sink_tokens
from attnscope.models.architecture import text_config
from attnscope.protocols import ruscio2025
from attnscope.studies.attention_sinks.matched_keys import matched_keys
from attnscope.study_api.forward import Batch
from attnscope.study_api.stage_run import StageRun

if TYPE_CHECKING:
    from attnscope.models import LoadedModel

#: Columns of `ablation` -> the fields of `OutputKl` that they hold.
MEASURED = {"output_kl": "kl", **{field: field for field in ("loss_before", "loss_after", "loss_change")}}
#: Bytes that the logits of one ablated run may take, in float64.
LOGITS_BYTES = 256 * 1024**2


def ablation(loaded: LoadedModel, mean: Tensor, batch: Batch, run: StageRun) -> str:
    """Run the model without its sinks and without its first key, and write the result to `ablation`.

    Keys are hidden before the softmax in every layer and head. A control `control_NAME` has exactly the size
    of its set in each text and is the mean over its draws; it is null where the set is empty. Returned is why
    nothing was written, "" otherwise.

    Args:
        mean: of the maps over layers and heads [b, n, n], whose sinks they are.
    """
    title = loaded.checkpoint.title
    if without := _without_loss(loaded):
        return f"ablation: {title}: {without}, so there is no output to compare"
    lengths = torch.tensor(batch.lengths, device="cpu")
    sinks = sink_tokens(mean.cpu(), rule="test", precision=run.settings.precision, lengths=lengths)
    first = torch.zeros_like(sinks)
    first[:, 0] = True
    sets, inputs = {"sinks": sinks, "first": first}, run.inputs(batch)
    controls, has_control = {}, {}
    for at, (name, keys) in enumerate(sets.items()):
        seeds = [[run.settings.seed, sample, 0xAB1A, at] for sample in batch.samples]
        controls[name], has_control[name] = matched_keys(keys, batch.lengths, seeds)
    text = text_config(loaded.model.config)
    texts_at_once = max(1, LOGITS_BYTES // (8 * max(batch.lengths) * int(text.vocab_size)))
    for begin in range(0, len(batch.samples), texts_at_once):
        part = slice(begin, begin + texts_at_once)
        inputs_of_part = {name: values[part] for name, values in inputs.items()}
        masked = {name: keys[part] for name, keys in sets.items()}
        for name, drawn in controls.items():
            masked |= {f"{name} {draw}": keys[part] for draw, keys in enumerate(drawn)}
        try:
            output_kl = output_kl_of_sets(loaded.model, inputs_of_part, masked)
        except NotImplementedError as error:
            return f"ablation: {title}: {str(error).removeprefix('output_kl: ')}"
        for name, keys in sets.items():
            runs = [output_kl[f"{name} {draw}"] for draw in range(len(controls[name]))]
            measured, control = {}, {}
            for column, field in MEASURED.items():
                measured[column] = getattr(output_kl[name], field)
                of_draws = torch.stack([getattr(run_kl, field) for run_kl in runs]).mean(0)
                control[column] = torch.where(has_control[name][part], of_draws, torch.nan)
            keys_of_texts: dict[str, Any] = {"sample": list(batch.samples[part])}
            keys_of_texts |= {"n_tokens": list(batch.lengths[part]), "key_count": keys[part].sum(-1)}
            run.write("ablation", keys=name, **keys_of_texts, **measured)
            run.write("ablation", keys=f"control_{name}", **keys_of_texts, **control)
    return ""


def fisher_rows(loaded: LoadedModel, batch: Batch, run: StageRun) -> str:
    """Write the Fisher information of every sentence to `fisher`; return the reason if it cannot, ""
    otherwise.
    """
    model, title, encoder = loaded.model, loaded.checkpoint.title, run.encoder
    if without := _without_loss(loaded):
        return f"fisher: {title}: {without}, so there is no loss"
    if model.dtype not in (torch.float32, torch.float64):
        return f"fisher: {title}: gradients of {loaded.dtype} under- and overflow; load it with dtype float32"
    masked = "MaskedLM" in type(model).__name__
    if masked and getattr(encoder.tokenizer, "mask_token_id", None) is None:
        return f"fisher: {title}: a masked-language model needs a tokenizer with a mask token"
    for sample, n, ids in zip(batch.samples, batch.lengths, batch.token_ids, strict=True):
        text = [{"input_ids": torch.as_tensor(np.asarray(ids), dtype=torch.long, device="cpu")[None]}]
        seed = int(np.random.SeedSequence([run.settings.seed, sample]).generate_state(1)[0])
        options: dict[str, Any] = {"tokenizer": encoder.tokenizer, "per_sentence": True, "seed": seed}
        if "exact" in run.settings.protocols and (n >= 2 or masked):
            table = fisher_trace(model, text, **options)
            drawn = fisher_trace(model, text, labels="sampled", **options)
            _write(run, "exact", sample, table, trace_sampled=drawn["trace"])
        if "ruscio2025" in run.settings.protocols and (encoder.longest >= 2 or masked):
            table = ruscio2025.fisher_trace(model, text, padded_to=encoder.longest, **options)
            _write(run, "ruscio2025", sample, table)
    return ""


def _write(run: StageRun, protocol: str, sample: int, table: Any, **traces: Any) -> None:
    stored = table[["layer", "group", "parameters", "trace", "trace_per_parameter"]].to_dict("list")
    run.write("fisher", sample=sample, protocol=protocol, **stored, **traces)


def _without_loss(loaded: LoadedModel) -> str:
    """Return why a model has no head that predicts tokens, "" where it has one."""
    if any(mark in type(loaded.model).__name__ for mark in ("CausalLM", "LMHead", "MaskedLM")):
        return ""
    if getattr(loaded.model.config, "is_encoder_decoder", False):
        return f"{loaded.architecture} predicts with a decoder, which is not studied"
    return f"{loaded.architecture} has no language-model head"
