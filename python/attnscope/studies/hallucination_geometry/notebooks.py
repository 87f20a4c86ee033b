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

if TYPE_CHECKING:
    from attnscope.studies.hallucination_geometry.options import HallucinationOptions
    from attnscope.study_api.stage_run import StageRun

BATCH = 4


def measure(
    run: StageRun,
    table: pd.DataFrame,
    every: list[Contrast],
    layers: list[int],
    options: HallucinationOptions,
) -> None:
    """Rows of `contrasts` of the published protocol."""
    assert options.sensitivity is not False
    ruscio2026 = importlib.import_module("attnscope.protocols.ruscio2026")
    model, stored = run.model().model, Stored(run)
    head = model.get_output_embeddings().weight
    tokens = ruscio2026.uncertain_tokens(run.encoder.tokenizer)
    structure = structure_of(model, padded(run, list(table["sample"][:1])))
    for contrast in every:
        chosen = chosen_prompts(contrast, options.sensitivity.prompts, run.rng("sensitivity"))
        inputs = {
            suffix: padded(run, chosen.loc[chosen["other"] == other, "sample"].tolist())
            for other, suffix in ((1, ""), (0, "_reference"))
        }
        for layer in layers:
            states = stored.layer(layer, contrast.table["sample"])
            parts = {"": states[contrast.labels == 1], "_reference": states[contrast.labels == 0]}
            b = ruscio2026.boundary(parts["_reference"], parts[""])
            name, enters, _ = structure.place("ruscio2026", layer, "block_output")
            read = ruscio2026.boundary_readout(head.detach(), b)
            found: dict[tuple[str, int], float] = {
                ("boundary_entropy", 0): read.entropy, ("boundary_max_prob", 0): read.max_prob,
            }  # fmt: skip
            for k in (one for one in (100, 200) if one <= min(head.shape)):
                found["vocab_alignment", k] = ruscio2026.vocab_alignment(head.detach(), b, k=k)
            for suffix, points in parts.items():
                draw = np.random.RandomState(run.settings.seed)
                found["beta0" + suffix, 0], found["beta1" + suffix, 0] = _betti(ruscio2026, points, b, draw)
                if not enters:
                    numbers = along(model, structure.modules[name], inputs[suffix], b, tokens)
                    found |= {(key + suffix, 0): value for key, value in numbers.items()}
            run.write(
                "contrasts", layer=layer, contrast=contrast.name, quantity=[key[0] for key in found],
                k=[key[1] for key in found], protocol="ruscio2026", value=list(found.values()),
                n_pairs=contrast.n, correction="",
            )  # fmt: skip


def padded(run: StageRun, samples: list[int]) -> dict[str, Tensor]:
    """Prompts padded on the side that their tokenizer pads on."""
    ids = {one.sentence.sample: one.encoded.ids.tolist() for one in run.unit.inputs}
    rows = [ids[int(sample)] for sample in samples]
    width = max(map(len, rows))
    left = getattr(run.encoder.tokenizer, "padding_side", "right") == "left"
    found = torch.full((len(rows), width), run.encoder.pad_id, device="cpu")
    mask = torch.zeros_like(found)
    for at, row in enumerate(rows):
        place = slice(width - len(row), None) if left else slice(0, len(row))
        found[at, place], mask[at, place] = torch.tensor(row, device="cpu"), 1
    device = run.model().device
    return {"input_ids": found.to(device), "attention_mask": mask.to(device)}


def along(
    model: Any, block: torch.nn.Module, inputs: dict[str, Tensor], b: Tensor, tokens: list[int]
) -> dict[str, float]:
    """The notebooks' numbers of one block and one kind of prompts."""
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
    """Bars at .15 near the boundary; NaN where a state is a zero vector."""
    try:
        found = ruscio2026.topology(points, b, draw=draw)
    except ValueError:
        return math.nan, math.nan
    return float(found.beta0), float(found.beta1)
