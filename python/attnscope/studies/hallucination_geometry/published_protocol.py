# SPDX-License-Identifier: MIT
"""The model along the boundary as the paper's notebooks measure it: their batches, padding, steps and dtype.

Rows of `contrasts` under the protocol `ruscio2026`: each number of the other bucket's prompts, and under
`…_reference` of the reference's prompts on the same boundary.
"""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attnscope.capture.preflight import structure_of
from attnscope.studies.hallucination_geometry.contrasts import Contrast, chosen_prompts
from attnscope.studies.hallucination_geometry.states import Stored
from attnscope.study_api.selection import where

if TYPE_CHECKING:
    from attnscope.studies.hallucination_geometry.options import HallucinationOptions
    from attnscope.study_api.stage_run import StageRun

BATCH = 4


def measure(
    run: StageRun,
    table: pd.DataFrame,
    all_contrasts: list[Contrast],
    layers: list[int],
    options: HallucinationOptions,
) -> None:
    """Write the rows of `contrasts` of the published protocol."""
    assert options.sensitivity is not False
    ruscio2026 = importlib.import_module("attnscope.protocols.ruscio2026")
    model, stored = run.model().model, Stored(run)
    head = model.get_output_embeddings().weight
    tokens = ruscio2026.uncertain_tokens(run.encoder.tokenizer)
    structure = structure_of(model, padded(run, list(table["sample"][:1])))
    for contrast in all_contrasts:
        chosen = chosen_prompts(contrast, options.sensitivity.prompts, run.rng("sensitivity"))
        inputs = {
            suffix: padded(run, where(chosen, other=other)["sample"].tolist())
            for other, suffix in ((1, ""), (0, "_reference"))
        }
        for layer in layers:
            states = stored.layer(layer, contrast.table["sample"])
            parts = {"": states[contrast.labels == 1], "_reference": states[contrast.labels == 0]}
            b = ruscio2026.boundary(parts["_reference"], parts[""])
            name, enters, _ = structure.place("ruscio2026", layer, "block_output")
            read = ruscio2026.boundary_readout(head.detach(), b)
            numbers_by_name: dict[tuple[str, int], float] = {
                ("boundary_entropy", 0): read.entropy,
                ("boundary_max_prob", 0): read.max_prob,
            }
            for k in (size for size in (100, 200) if size <= min(head.shape)):
                numbers_by_name["vocab_alignment", k] = ruscio2026.vocab_alignment(head.detach(), b, k=k)
            for suffix, points in parts.items():
                draw = np.random.RandomState(run.settings.seed)
                numbers_by_name["beta0" + suffix, 0], numbers_by_name["beta1" + suffix, 0] = _betti(
                    ruscio2026, points, b, draw
                )
                if not enters:
                    numbers = along(model, structure.modules[name], inputs[suffix], b, tokens)
                    numbers_by_name |= {(key + suffix, 0): value for key, value in numbers.items()}
            run.write(
                "contrasts",
                layer=layer,
                contrast=contrast.name,
                quantity=[key[0] for key in numbers_by_name],
                k=[key[1] for key in numbers_by_name],
                protocol="ruscio2026",
                value=list(numbers_by_name.values()),
                n_pairs=contrast.n,
                correction="",
            )


def padded(run: StageRun, samples: list[int]) -> dict[str, Tensor]:
    """Return prompts padded on the side that their tokenizer pads on."""
    ids = {text.sentence.sample: text.encoded.ids.tolist() for text in run.unit.inputs}
    rows = [ids[int(sample)] for sample in samples]
    width = max(map(len, rows))
    left = getattr(run.encoder.tokenizer, "padding_side", "right") == "left"
    ids_padded = torch.full((len(rows), width), run.encoder.pad_id, device="cpu")
    mask = torch.zeros_like(ids_padded)
    for at, row in enumerate(rows):
        place = slice(width - len(row), None) if left else slice(0, len(row))
        ids_padded[at, place], mask[at, place] = torch.tensor(row, device="cpu"), 1
    device = run.model().device
    return {"input_ids": ids_padded.to(device), "attention_mask": mask.to(device)}


def along(
    model: Any, block: torch.nn.Module, inputs: dict[str, Tensor], b: Tensor, tokens: list[int]
) -> dict[str, float]:
    """Return the notebooks' numbers of one block and one kind of prompts."""
    ruscio2026 = importlib.import_module("attnscope.protocols.ruscio2026")
    b = b.to(inputs["input_ids"].device)
    return {
        "fisher": ruscio2026.fisher(model, inputs, block, b, batch=BATCH),
        "fisher_one_sided": ruscio2026.fisher(model, inputs, block, b, batch=BATCH, one_sided=True),
        "hessian": ruscio2026.hessian(model, inputs, block, b, batch=BATCH),
        "jacobian": ruscio2026.jacobian(model, inputs, block, b, batch=BATCH),
        "grad_blockage": ruscio2026.grad_blockage(model, inputs, block, b, tokens, batch=BATCH),
        "grad_alignment": ruscio2026.grad_alignment(model, inputs, block, b, batch=BATCH),
    }


def _betti(ruscio2026: Any, points: Tensor, b: Tensor, draw: Any) -> tuple[float, float]:
    """Return bars at .15 near the boundary; NaN where a state is a zero vector."""
    try:
        betti = ruscio2026.topology(points, b, draw=draw)
    except ValueError:
        return math.nan, math.nan
    return float(betti.beta0), float(betti.beta1)
